"""Records of one queue to Arrow columns, in pure Python: see `kernel.column_values` for what goes in and comes out.

A record is looked at in this order, and both twins keep to it: does it lie in the buffer, is it whole and in its place,
is it of this queue (each time: damage is a row, since nothing it says can be trusted to filter it); store time; tags
and keys (a record that is not wanted is left out); checksums; compression (again, damage is a row).

Property strings that are not UTF-8 are read as Java reads them: what cannot be decoded becomes U+FFFD.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tiermq.errors import CorruptRecord
from tiermq.kernel.column_values import COLUMN_SHAPES, OWN_PLACES, Check, ColumnRequest, DecodedColumns, Shape
from tiermq.message.java_hash import java_hash
from tiermq.message.layout import PHYSICAL_OFFSET_AT, RECORD_BYTES_MIN
from tiermq.message.properties import get_property
from tiermq.message.record import CrcPropertyCheck, decode_record
from tiermq.message.stored_message import StoredMessage
from tiermq.message.system_flag import TransactionType

_PLACE = struct.Struct(">q")
_MICROSECONDS_OF_MS = 1000
_TIME_MS_MAX = ((1 << 63) - 1) // _MICROSECONDS_OF_MS
_DELAY_DIGITS_MAX = 15
_STATES = {
    TransactionType.NONE: None,
    TransactionType.PREPARED: b"prepared",
    TransactionType.COMMIT: b"commit",
    TransactionType.ROLLBACK: b"rollback",
}
_CRC_PROPERTY_CHECKS = {
    Check.NOTHING: CrcPropertyCheck.IGNORE,
    Check.BODY: CrcPropertyCheck.IGNORE,
    Check.BODY_AND_PROPERTY: CrcPropertyCheck.IF_PRESENT,
}


class Row:
    """One record that is wanted, or one that is damaged (`reason`; then `message` is None)."""

    __slots__ = ("body", "index", "log_offset", "message", "properties", "queue_offset", "reason")

    def __init__(self, index: int, log_offset: int, queue_offset: int | None) -> None:
        self.index = index
        self.log_offset = log_offset
        self.queue_offset = queue_offset
        self.message: StoredMessage | None = None
        self.body = b""
        self.properties = b""
        self.reason: str | None = None


def decode_columns(
    buffer: Any,
    starts: Any,
    sizes: Any,
    request: ColumnRequest,
    first: int = 0,
    max_rows: int = 8192,
    max_bytes: int = 64 << 20,
) -> DecodedColumns:
    """The rows of the records from number `first` on, until `max_rows` are found or bodies and properties of
    `max_bytes` are reached (but one row). Damage is never an error here: `corrupt` of the answer tells it.
    """
    view = memoryview(buffer).cast("B")
    if len(starts) != len(sizes):
        raise ValueError(f"a run has a start and a size for each record, found {len(starts)} and {len(sizes)}")
    if first < 0:
        raise ValueError(f"the first record of a run is number 0, found {first}")
    rows: list[Row] = []
    taken_bytes = 0
    index = first
    while index < len(starts) and len(rows) < max_rows and taken_bytes < max_bytes:
        row = take_row(view, int(starts[index]), int(sizes[index]), index, request)
        if row is not None:
            taken_bytes += len(row.body) + (len(row.message.encoded_properties) if row.message else 0)
            rows.append(row)
        index += 1
    corrupt = [(number, row.index, row.reason) for number, row in enumerate(rows) if row.reason is not None]
    return DecodedColumns(len(rows), index, corrupt, {name: _column(name, rows, request) for name in request.columns})


def take_row(view: memoryview, start: int, size: int, index: int, request: ColumnRequest) -> Row | None:
    """The record as a row, or None when it is not wanted. The compiled twin comes here for everything unusual."""
    place = _own_place(view, start, size) if request.log_base == OWN_PLACES else request.log_base + start
    row = Row(index, place, request.first_offset + index if request.first_offset >= 0 else None)
    try:
        message = _message_at(view, start, size, row, request)
        properties = _valid_text(message.encoded_properties)
        if not _is_wanted(message, properties, request):
            return None
        row.queue_offset = _queue_offset(message, request)
        if request.check is not Check.NOTHING:
            decode_record(view[start : start + size], crc_property=_CRC_PROPERTY_CHECKS[request.check])
        row.body = message.decompressed_body() if request.decompress and "body" in request.columns else message.body
    except CorruptRecord as error:
        # The record was decoded on its own; where it lies is what the reader needs.
        row.reason = str(error).replace("record at byte 0:", f"record at log offset {row.log_offset}:", 1)
        row.body = b""
        return row
    row.message = message
    row.properties = properties
    return row


def _own_place(view: memoryview, start: int, size: int) -> int:
    """Where a record says that it lies; -1 when there is none."""
    if start < 0 or size < RECORD_BYTES_MIN or start > len(view) - size:
        return -1
    place: int = _PLACE.unpack_from(view, start + PHYSICAL_OFFSET_AT)[0]
    return place


def _message_at(view: memoryview, start: int, size: int, row: Row, request: ColumnRequest) -> StoredMessage:
    """The record, if it is whole, in its place and of this queue."""
    if start < 0 or size < RECORD_BYTES_MIN or start > len(view) - size:
        raise CorruptRecord(
            f"record at log offset {row.log_offset}: {size} bytes from byte {start} are no record of the {len(view)} "
            "bytes that were read"
        )
    message = decode_record(view[start : start + size], check_crc=False)
    found: str | None = None
    if message.size != size:
        found = f"expected {size} bytes, found a record of {message.size}"
    elif message.physical_offset != row.log_offset:
        found = f"it says of itself that it lies at {message.physical_offset}"
    elif (number := _queue_offset(message, request)) is None:
        found = f"it is of topic {message.topic!r}, queue {message.queue_id}"
    elif row.queue_offset not in (None, number):
        found = f"expected queue offset {row.queue_offset}, found {number}"
    if found is not None:
        raise CorruptRecord(f"record at log offset {row.log_offset}: {found}")
    return message


def _queue_offset(message: StoredMessage, request: ColumnRequest) -> int | None:
    """Its number in the queue that is read; None when it is of another. Light queues share records of other topics."""
    if message.queue_id == request.queue_id and message.topic.encode() == request.topic:
        return message.queue_offset
    encoded = message.encoded_properties
    names = (get_property(encoded, b"INNER_MULTI_DISPATCH") or b"").split(b",")
    offsets = (get_property(encoded, b"INNER_MULTI_QUEUE_OFFSET") or b"").split(b",")
    if request.topic not in names or len(offsets) != len(names):
        return None
    text = offsets[names.index(request.topic)]
    return int(text) if text.isdigit() and len(text) <= 18 else None


def _valid_text(encoded: bytes) -> bytes:
    try:
        encoded.decode()
    except UnicodeDecodeError:
        return encoded.decode("utf-8", "replace").encode()
    return encoded


def _is_wanted(message: StoredMessage, properties: bytes, request: ColumnRequest) -> bool:
    if not request.begin_ms <= message.store_timestamp_ms <= request.end_ms:
        return False
    if request.tags and get_property(properties, b"TAGS") not in request.tags:
        return False
    if not request.keys:
        return True
    keys = (get_property(properties, b"KEYS") or b"").split(b" ")
    unique = get_property(properties, b"UNIQ_KEY")
    return any(key and key in request.keys for key in keys) or (unique is not None and unique in request.keys)


# From here on: rows to buffers.


def _column(name: str, rows: Sequence[Row], request: ColumnRequest) -> tuple[Any, ...]:
    shape = COLUMN_SHAPES[name]
    if name == "commitLogOffset":
        return _numbers("q", [row.log_offset for row in rows])
    if name == "queueOffset":
        return _numbers("q", [row.queue_offset for row in rows])
    value_of = _VALUES[name]
    values = [None if row.message is None else value_of(row, row.message, request) for row in rows]
    if shape in (Shape.I64, Shape.I32):
        return _numbers("q" if shape is Shape.I64 else "i", values)
    if shape in (Shape.TEXT, Shape.BYTES):
        return (_validity(values), *_strings(value or b"" for value in values))
    offsets = _offsets(len(value or ()) for value in values)
    if shape is Shape.LIST:
        return (_validity(values), offsets, *_strings(key for value in values for key in value or ()))
    names = _strings(pair[0] for value in values for pair in value or ())
    return (_validity(values), offsets, *names, *_strings(pair[1] for value in values for pair in value or ()))


def _numbers(kind: str, values: Sequence[int | None]) -> tuple[Any, ...]:
    return _validity(values), struct.pack(f"<{len(values)}{kind}", *(value or 0 for value in values))


def _validity(values: Sequence[Any]) -> bytes | None:
    """One bit per row, least significant first; None when there is nothing to say."""
    if all(value is not None for value in values):
        return None
    bits = sum(1 << number for number, value in enumerate(values) if value is not None)
    return bits.to_bytes((len(values) + 7) // 8, "little")


def _offsets(lengths: Iterable[int]) -> bytes:
    at = [0]
    for length in lengths:
        at.append(at[-1] + length)
    return struct.pack(f"<{len(at)}i", *at)


def _strings(values: Iterable[bytes]) -> tuple[bytes, bytes]:
    pieces = list(values)
    return _offsets(map(len, pieces)), b"".join(pieces)


def _microseconds(time_ms: int | None) -> int | None:
    """None for what no timestamp can say: a client may write any number."""
    return time_ms * _MICROSECONDS_OF_MS if time_ms is not None and abs(time_ms) <= _TIME_MS_MAX else None


def _tags_code(row: Row) -> int:
    return java_hash((get_property(row.properties, b"TAGS") or b"").decode())


def _keys(row: Row) -> list[bytes]:
    return [key for key in (get_property(row.properties, b"KEYS") or b"").split(b" ") if key]


def _pairs(row: Row) -> list[tuple[bytes, bytes]]:
    pairs: dict[bytes, bytes] = {}
    for piece in row.properties.split(b"\x02"):
        name, _, value = piece.partition(b"\x01")
        if name and value:
            pairs[name] = value
    return list(pairs.items())


def _message_id(row: Row, message: StoredMessage) -> bytes:
    return get_property(row.properties, b"UNIQ_KEY") or message.message_id.encode()


def _deliver_ms(row: Row, message: StoredMessage, request: ColumnRequest) -> int | None:
    """When a delayed message is due. The broker's own word comes first, then the client's wishes in its order."""

    def number(name: bytes) -> int | None:
        text = get_property(row.properties, name) or b""
        return int(text) if text.isdigit() and len(text) <= _DELAY_DIGITS_MAX else None

    if (due_ms := number(b"TIMER_OUT_MS")) is not None:
        return due_ms
    if (seconds := number(b"TIMER_DELAY_SEC")) is not None:
        return message.store_timestamp_ms + 1000 * seconds
    if (delay_ms := number(b"TIMER_DELAY_MS")) is not None:
        return message.store_timestamp_ms + delay_ms
    if (due_ms := number(b"TIMER_DELIVER_MS")) is not None:
        return due_ms
    level = number(b"DELAY") or 0
    if level < 1 or not request.delays_ms:
        return None
    return message.store_timestamp_ms + request.delays_ms[min(level, len(request.delays_ms)) - 1]


_VALUES: dict[str, Callable[[Row, StoredMessage, ColumnRequest], Any]] = {
    "bornTimestamp": lambda _, message, __: _microseconds(message.born_timestamp_ms),
    "storeTimestamp": lambda _, message, __: _microseconds(message.store_timestamp_ms),
    "tagsCode": lambda row, _, __: _tags_code(row),
    "preparedTransactionOffset": lambda _, message, __: message.prepared_transaction_offset,
    "deliverTime": lambda row, message, request: _microseconds(_deliver_ms(row, message, request)),
    "flag": lambda _, message, __: message.flag,
    "sysFlag": lambda _, message, __: message.sys_flag,
    "reconsumeTimes": lambda _, message, __: message.reconsume_times,
    "bodyCrc": lambda _, message, __: message.body_crc,
    "storeSize": lambda _, message, __: message.size,
    "tags": lambda row, _, __: get_property(row.properties, b"TAGS"),
    "uniqKey": lambda row, _, __: get_property(row.properties, b"UNIQ_KEY"),
    "bornHost": lambda _, message, __: message.born_host.encode(),
    "storeHost": lambda _, message, __: message.store_host.encode(),
    "msgId": lambda row, message, __: _message_id(row, message),
    "offsetMsgId": lambda _, message, __: message.message_id.encode(),
    "transactionState": lambda _, message, __: _STATES[message.transaction_type],
    "key": lambda row, _, __: get_property(row.properties, b"KEYS"),
    "body": lambda row, _, __: row.body,
    "keys": lambda row, _, __: _keys(row),
    "properties": lambda row, _, __: _pairs(row),
}
assert set(_VALUES) | {"queueOffset", "commitLogOffset"} == set(COLUMN_SHAPES)
