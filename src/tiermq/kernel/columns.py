"""Records of one queue to Arrow columns, in pure Python; both twins use the same classes.

Names are those of the columns that users see. A column is returned as the buffers of Arrow's memory layout,
little-endian, each None where Arrow allows that (no validity bitmap: nothing is null):

    I64, I32     validity, values                       times in microseconds
    TEXT, BYTES  validity, offsets (i32, rows + 1), data
    LIST         validity, offsets, and of the elements: offsets, data
    MAP          validity, offsets, of the names: offsets, data, and of the values: offsets, data

Both twins check a record in this order: is it inside the buffer, is it whole and at its own offset, is it of this queue
(each time: damage is a row, since its fields cannot be trusted for filters); store time; tags and keys (a record that
does not match is left out); checksums; compression (again, damage is a row).

Property strings that are not UTF-8 are read as Java reads them: what cannot be decoded becomes U+FFFD.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tiermq.errors import CorruptRecord
from tiermq.message.java_hash import java_hash
from tiermq.message.layout import I64, PHYSICAL_OFFSET_AT, RECORD_BYTES_MIN
from tiermq.message.properties import get_property
from tiermq.message.record import CrcPropertyCheck, decode_record
from tiermq.message.stored_message import StoredMessage
from tiermq.message.system_flag import TransactionType


class Shape(enum.Enum):
    """Memory layout of a column."""

    I64 = enum.auto()
    I32 = enum.auto()
    TEXT = enum.auto()
    BYTES = enum.auto()
    LIST = enum.auto()
    MAP = enum.auto()


COLUMN_SHAPES = {
    "queueOffset": Shape.I64,
    "bornTimestamp": Shape.I64,
    "storeTimestamp": Shape.I64,
    "tagsCode": Shape.I64,
    "preparedTransactionOffset": Shape.I64,
    "commitLogOffset": Shape.I64,
    "deliverTime": Shape.I64,
    "flag": Shape.I32,
    "sysFlag": Shape.I32,
    "reconsumeTimes": Shape.I32,
    "bodyCrc": Shape.I32,
    "storeSize": Shape.I32,
    "tags": Shape.TEXT,
    "uniqKey": Shape.TEXT,
    "bornHost": Shape.TEXT,
    "storeHost": Shape.TEXT,
    "msgId": Shape.TEXT,
    "offsetMsgId": Shape.TEXT,
    "transactionState": Shape.TEXT,
    "key": Shape.BYTES,  # KEYS unchanged, not split.
    "body": Shape.BYTES,
    "keys": Shape.LIST,
    "properties": Shape.MAP,
}
"""Every column that is read from records, in the order of the compiled twin's numbers."""


class Check(enum.IntEnum):
    """Which checksums of a record are verified. Its structure and its offset always are."""

    NOTHING = 0
    BODY = 1
    BODY_AND_PROPERTY = 2  # The CRC property too, if there is one. In a tier it is stale: offsets were rewritten.


TIME_MIN_MS = -(1 << 63)
TIME_MAX_MS = (1 << 63) - 1
OWN_PLACES = -(1 << 63)
"""As `log_base`: the records come from different offsets, and each states its own."""


@dataclass(frozen=True, slots=True)
class ColumnRequest:
    """Columns and filters for the records of one range, and what the records must be.

    The record at `start` must have physical offset `log_base + start`, unless `log_base` is OWN_PLACES.
    `first_offset`: the queue offset of the range's first record, the rest follow one by one; -1: the records' own.
    `tags` and `keys`: at least one of them must be the record's tag, one of its keys or its unique key; empty: no
    restriction. Times are inclusive.
    """

    columns: tuple[str, ...]
    topic: bytes
    queue_id: int
    log_base: int = 0
    first_offset: int = -1
    check: Check = Check.BODY
    begin_ms: int = TIME_MIN_MS
    end_ms: int = TIME_MAX_MS
    tags: tuple[bytes, ...] = ()
    keys: tuple[bytes, ...] = ()
    decompress: bool = True
    delays_ms: tuple[int, ...] = ()  # Delays of the levels of the property DELAY; level n is element n - 1.

    def __post_init__(self) -> None:
        unknown = [name for name in self.columns if name not in COLUMN_SHAPES]
        if unknown:
            raise ValueError(f"no column of a record is called {unknown[0]!r}; there are {', '.join(COLUMN_SHAPES)}")


class DecodedColumns:
    """Rows as columns. `next_index` is the first record of the range that was not read.

    `corrupt` has (row, index in the range, reason) for each damaged row: it is null in every column but
    `commitLogOffset` and, where it is known, `queueOffset`.
    """

    __slots__ = ("buffers", "corrupt", "next_index", "rows")

    def __init__(
        self, rows: int, next_index: int, corrupt: list[tuple[int, int, str]], buffers: dict[str, tuple[Any, ...]]
    ) -> None:
        self.rows = rows
        self.next_index = next_index
        self.corrupt = corrupt
        self.buffers = buffers


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
    """One matching record, or a damaged one (`reason`; then `message` is None)."""

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
    `max_bytes` are reached (but at least one row). Damage is never an error here: it is in `corrupt` of the result.
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
    """The record as a row, or None when it does not match. The compiled twin calls this for special records."""
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
        # The record was decoded alone; the reader needs its offset in the log.
        row.reason = str(error).replace("record at byte 0:", f"record at log offset {row.log_offset}:", 1)
        row.body = b""
        return row
    row.message = message
    row.properties = properties
    return row


def _own_place(view: memoryview, start: int, size: int) -> int:
    """A record's own physical offset; -1 when there is no record."""
    if start < 0 or size < RECORD_BYTES_MIN or start > len(view) - size:
        return -1
    place: int = I64.unpack_from(view, start + PHYSICAL_OFFSET_AT)[0]
    return place


def _message_at(view: memoryview, start: int, size: int, row: Row, request: ColumnRequest) -> StoredMessage:
    """The record, if it is whole, at its own offset and of this queue."""
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
        found = f"its own physical offset is {message.physical_offset}"
    elif (number := _queue_offset(message, request)) is None:
        found = f"it is of topic {message.topic!r}, queue {message.queue_id}"
    elif row.queue_offset not in (None, number):
        found = f"expected queue offset {row.queue_offset}, found {number}"
    if found is not None:
        raise CorruptRecord(f"record at log offset {row.log_offset}: {found}")
    return message


def _queue_offset(message: StoredMessage, request: ColumnRequest) -> int | None:
    """Its offset in the queue that is read; None for another queue. Light queues share records of other topics."""
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
    """One bit per row, least significant first; None when nothing is null."""
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
    """None for a value that does not fit a timestamp: a client may write any number."""
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
    """When a delayed message is due: by the broker's property first, then by the client's, in the broker's order."""

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
