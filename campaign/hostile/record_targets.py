"""Records and what is in them: whole records, properties, batches, compressed bodies, ids."""

from __future__ import annotations

import struct
from array import array
from functools import partial
from types import ModuleType
from typing import Any

from campaign.hostile.target import Disagreement, Target, by_both, documented
from kernel.record_runs import plain
from tiermq.errors import CorruptRecord, IllegalMessage
from tiermq.kernel.columns import COLUMN_SHAPES, ColumnRequest
from tiermq.message.client_batch import (
    BatchElement,
    decode_client_batch,
    encode_client_batch,
    inner_span,
    unwrap_inner_batch,
)
from tiermq.message.compression import compress, decompress
from tiermq.message.ids import decode_message_id, encode_message_id
from tiermq.message.properties import decode_properties, delete_property, encode_properties, get_property
from tiermq.message.record import decode_records, encode_record
from tiermq.message.record_head import read_head
from tiermq.message.system_flag import CompressionType

TOPIC, HOST = "orders", "10.0.0.7:10911"
PROPERTIES = {"KEYS": "k1 k2", "TAGS": "paid", "UNIQ_KEY": "0A000007", "DELAY": "3", "WAIT": "true"}
DECOMPRESSED_MAX = 1 << 20
KINDS = {0: CompressionType.LZ4, 1: CompressionType.ZSTD, 2: CompressionType.ZLIB}
SYS_FLAGS = {0: 0x1 | 0x1 << 8, 1: 0x1 | 0x2 << 8, 2: 0x1 | 0x3 << 8}
_UNIT = struct.Struct(">qiq")


def _record(offset: int = 0, **fields: Any) -> bytes:
    reported: dict[str, Any] = {
        "topic": TOPIC, "body": b"body of a message", "queue_id": 1, "flag": 0, "queue_offset": 0,
        "physical_offset": offset, "sys_flag": 0, "born_timestamp_ms": 1_700_000_000_000, "born_host": HOST,
        "store_timestamp_ms": 1_700_000_000_001, "store_host": HOST, "reconsume_times": 0,
        "prepared_transaction_offset": 0, "properties": PROPERTIES, **fields,
    }  # fmt: skip
    return encode_record(**reported)


def _records() -> list[bytes]:
    first = _record()
    return [
        first,
        first + _record(len(first), queue_offset=1, properties={}),
        _record(topic="T" * 200, born_host="[2001:db8::1]:6", store_host="[::1]:10911", sys_flag=0x30),
        _record(crc_property=True),
        _record(body=b""),
        _record(body=compress(b"x" * 300, CompressionType.ZLIB), sys_flag=SYS_FLAGS[2]),
    ]


def _try_record(data: bytes) -> str:
    found, said = documented(lambda: list(decode_records(data)), CorruptRecord)
    head = read_head(data) if data else None
    request = ColumnRequest(tuple(COLUMN_SHAPES), TOPIC.encode(), 1)

    def columns(twin: ModuleType) -> Any:
        made = twin.decode_columns(data, array("q", [0]), array("q", [len(data)]), request)
        return made.rows, made.next_index, made.corrupt, plain(made)

    def walk(twin: ModuleType) -> Any:
        tail = twin.WriteCursor(bytearray(data), 0, len(data))
        tail.position = tail.limit = len(data)
        return tuple(map(int, twin.scan(tail, 0, len(data), 1)))

    unit = _UNIT.pack(0, len(data), 0)
    rows = by_both("decode_columns", columns)
    if data:
        by_both("scan", walk)
    by_both("check_records", lambda twin: tuple(map(int, twin.check_records(unit, data, 0, 0, TOPIC.encode(), 1))))
    for message in found or ():
        documented(partial(getattr, message, "properties"), CorruptRecord)
        documented(partial(unwrap_inner_batch, message), CorruptRecord)
        documented(partial(message.decompressed_body, max_bytes=DECOMPRESSED_MAX), CorruptRecord)
    return said or f"{len(found)} records, {head.kind.name if head else 'none'}, corrupt rows {len(rows[2])}"


def _try_properties(data: bytes) -> str:
    found, said = documented(lambda: decode_properties(data), CorruptRecord)
    if found is not None:
        # A value's first meaning is the one that a search for its name finds.
        for name in found:
            if name and get_property(data, name.encode()) is None:
                raise Disagreement(f"{name!r} is among the properties, and a search for it finds nothing")
        again, _ = documented(lambda: decode_properties(encode_properties(found)), IllegalMessage)
        if again is not None and again != found:
            raise Disagreement(f"{found!r} reads back as {again!r}")
    for name in (b"KEYS", b"TAGS", b"\x01", b""):
        get_property(data, name)
        if name and get_property(delete_property(data, name), name) is not None and name == b"KEYS":
            raise Disagreement("a property that was deleted is still found")
    documented(lambda: inner_span(data, 0), CorruptRecord)
    return said or f"{min(3, len(found or ()))} properties"


def _try_batch(data: bytes) -> str:
    found, said = documented(lambda: decode_client_batch(data), CorruptRecord)

    def messages(twin: ModuleType) -> Any:
        envelope = twin.Message(
            TOPIC, data, 1, encoded_properties=b"WAIT\x01true\x02", born_host=b"\x7f\x00\x00\x01" * 2
        )
        made = twin.messages_of_batch(envelope)
        return [(each.body, each.encoded_properties, each.flag) for each in made]

    by_both("messages_of_batch", messages, CorruptRecord, IllegalMessage)
    return said or f"{min(3, len(found or ()))} messages"


def _batches() -> list[bytes]:
    one = BatchElement(7, b"first body", encode_properties(PROPERTIES))
    return [encode_client_batch([one]), encode_client_batch([one, BatchElement(0, b"", b""), one])]


def _try_compressed(data: bytes) -> str:
    """The first byte says which stream the rest claims to be."""
    flag = SYS_FLAGS.get(data[0] % 4, 0x1 | 0x7 << 8) if data else 0
    found, said = documented(lambda: decompress(data[1:], flag, max_bytes=DECOMPRESSED_MAX), CorruptRecord)
    if found is not None and len(found) > DECOMPRESSED_MAX:
        raise Disagreement(f"{len(found)} bytes where at most {DECOMPRESSED_MAX} were allowed")
    return said or f"{len(found or b'').bit_length()} bits of length"


def _compressed() -> list[bytes]:
    bodies = (b"", b"a body, a body", bytes(100_000))
    return [bytes([number]) + compress(body, kind) for number, kind in KINDS.items() for body in bodies]


def _try_ids(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    one, said = documented(lambda: decode_message_id(text), CorruptRecord)
    if one is not None and str(one).upper() != text.upper():
        raise Disagreement(f"{text!r} is the id {one}")
    return said or "an id"


def record_targets() -> list[Target]:
    names = tuple(name.encode() for name in (*PROPERTIES, "INNER_NUM", "INNER_BASE", "__CRC32#"))
    magics = (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab", b"\xcb\xd4\x31\x94")
    lz4, zstd = b"\x04\x22\x4d\x18", b"\x28\xb5\x2f\xfd"
    return [
        Target("record", _records, _try_record, (*magics, *names)),
        Target("properties", lambda: [encode_properties(PROPERTIES), b"a\x01b", b"\x02\x01"], _try_properties, names),
        Target("batch", _batches, _try_batch, names),
        Target("compressed", _compressed, _try_compressed, (lz4, zstd, b"\x78\x9c", b"\x00\x00\x00\x00")),
        Target("ids", lambda: [encode_message_id(HOST, 77).encode(), b"7F0000010007" * 3], _try_ids, (b"7F000001",)),
    ]
