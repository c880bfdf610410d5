"""Runs of records by chance, whole and damaged, and the plain reading of what a kernel makes columns of."""

from __future__ import annotations

import struct
from array import array
from typing import Any

from hypothesis import strategies as st

from compressed_flag import with_compression
from tiermq.kernel import COLUMN_SHAPES, DecodedColumns, Shape
from tiermq.message.compression import compress
from tiermq.message.crc import CRC_PROPERTY_BYTES
from tiermq.message.properties import encode_properties
from tiermq.message.record import encode_record
from tiermq.message.system_flag import CompressionType

LONG_TOPIC = "%RETRY%" + "g" * 200
TOPICS = ["T", "orders-of-the-day", LONG_TOPIC]
LOG_BASE = 1 << 40
ALL_COLUMNS = tuple(COLUMN_SHAPES)

texts = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=12)
names = st.sampled_from(
    [
        "KEYS",
        "TAGS",
        "UNIQ_KEY",
        "DELAY",
        "TIMER_OUT_MS",
        "TIMER_DELIVER_MS",
        "TIMER_DELAY_MS",
        "TIMER_DELAY_SEC",
        "x",
        "TAGSX",
    ]
)
values = st.one_of(texts, st.sampled_from(["a b", " a  b ", "a", "1", "3", "99", "1700000000000", "9" * 15, "9" * 16]))
encoded_properties = st.one_of(
    st.dictionaries(names, values.filter(bool), max_size=5).map(encode_properties),
    st.lists(st.tuples(names, values), max_size=6).map(  # Duplicates, empty values, a missing last separator.
        lambda pairs: "\x02".join(f"{name}\x01{value}" for name, value in pairs).encode()
    ),
    st.binary(max_size=30),
    st.lists(st.sampled_from([b"\x01", b"\x02", b"TAGS", b"KEYS", b"\xff", b"\xe4\xb8", b"a", b" "]), max_size=12).map(
        b"".join
    ),
    st.integers(0, 60).map(lambda count: encode_properties({f"name-{n}": "v" * n for n in range(1, count)})),
)
bodies = st.one_of(st.binary(max_size=70), st.integers(0, 3000).map(lambda length: (bytes(range(256)) * 12)[:length]))
i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.sampled_from([0, 1_700_000_000_000, 9223372036854775, 9223372036854776])
)
hosts = st.sampled_from(
    ["1.2.3.4:5", "255.255.255.255:65535", "[2001:db8::1]:6", "[::ffff:1.2.3.4]:10911", "0.0.0.0:0"]
)
messages = st.fixed_dictionaries(
    {
        "body": bodies,
        "properties": encoded_properties,
        "flag": i32,
        "sys_flag": i32.map(lambda bits: bits & ~1),
        "born_timestamp_ms": i64,
        "store_timestamp_ms": i64,
        "born_host": hosts,
        "store_host": hosts,
        "reconsume_times": i32,
        "prepared_transaction_offset": i64,
        "crc_property": st.booleans(),
        "compression": st.sampled_from([None, None, None, *CompressionType, "damaged"]),
        "gap": st.sampled_from([0, 0, 1, 100]),
    }
)


class Run:
    """Records of one queue in one buffer, with gaps of foreign bytes between them."""

    def __init__(self, topic: str, queue_id: int, batch: list[dict[str, Any]], log_base: int = LOG_BASE) -> None:
        self.topic, self.queue_id, self.log_base = topic, queue_id, log_base
        self.buffer = bytearray()
        self.starts, self.sizes = array("q"), array("q")
        for number, message in enumerate(batch):
            self.add(number, message)

    def add(self, queue_offset: int, message: dict[str, Any]) -> None:
        """Append one message; its body is compressed if it says so."""
        fields = dict(message)
        self.buffer += b"\x5a" * fields.pop("gap", 0)
        kind = fields.pop("compression", None)
        if kind == "damaged":
            fields["sys_flag"] = with_compression(fields["sys_flag"], CompressionType.LZ4)
        elif kind is not None:
            fields["body"] = compress(fields["body"], kind)
            fields["sys_flag"] = with_compression(fields["sys_flag"], kind)
        fields = {"topic": self.topic, "queue_id": self.queue_id, "queue_offset": queue_offset, **fields}
        if len(fields.get("properties", b"")) + CRC_PROPERTY_BYTES > 32767:
            fields["crc_property"] = False
        record = encode_record(physical_offset=self.log_base + len(self.buffer), **fields)
        self.starts.append(len(self.buffer))
        self.sizes.append(len(record))
        self.buffer += record

    def record(self, number: int) -> bytes:
        return bytes(self.buffer[self.starts[number] : self.starts[number] + self.sizes[number]])


runs = st.builds(Run, st.sampled_from(TOPICS), st.sampled_from([0, 3, 2**31 - 1]), st.lists(messages, max_size=10))


def plain(decoded: DecodedColumns) -> dict[str, list[Any]]:
    """Columns as Python values, read from the buffers by their layout alone."""
    return {name: _values(COLUMN_SHAPES[name], decoded.rows, buffers) for name, buffers in decoded.buffers.items()}


def _values(shape: Shape, rows: int, buffers: tuple[Any, ...]) -> list[Any]:
    validity = None if buffers[0] is None else bytes(buffers[0])
    assert validity is None or len(validity) == (rows + 7) // 8
    if shape in (Shape.I64, Shape.I32):
        found: list[Any] = list(struct.unpack(f"<{rows}{'q' if shape is Shape.I64 else 'i'}", bytes(buffers[1])))
    elif shape in (Shape.TEXT, Shape.BYTES):
        found = _strings(rows, buffers[1], buffers[2])
    else:
        offsets = _offsets(rows, buffers[1])
        below = [_strings(offsets[-1], buffers[at], buffers[at + 1]) for at in range(2, len(buffers), 2)]
        items = below[0] if shape is Shape.LIST else list(zip(*below, strict=True))
        found = [items[offsets[row] : offsets[row + 1]] for row in range(rows)]
    return [
        value if validity is None or validity[row >> 3] >> (row & 7) & 1 else None for row, value in enumerate(found)
    ]


def _offsets(rows: int, buffer: Any) -> list[int]:
    offsets = list(struct.unpack(f"<{rows + 1}i", bytes(buffer)))
    assert offsets[0] == 0
    assert offsets == sorted(offsets)
    return offsets


def _strings(rows: int, offset_buffer: Any, data_buffer: Any) -> list[bytes]:
    offsets, data = _offsets(rows, offset_buffer), bytes(data_buffer)
    assert offsets[-1] == len(data)
    return [data[offsets[row] : offsets[row + 1]] for row in range(rows)]
