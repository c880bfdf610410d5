"""Records of a queue in the tier: is one whole, and the one that its unit promises; what follows when it is not.

A record belongs to its unit when it is complete, its body has its CRC, and its fields have this queue, this queue
offset and this physical offset. Everything else is damage: never served, and never skipped.

An *end mark* ends a sealed segment (RocketMQ's coda). It may stand before a record, and a unit may point to it instead
of to the record behind it.

    0        4        8                16
    +--------+--------+----------------+
    | size 16| magic  | newest time    |   big-endian, i32 i32 i64; the magic is that of a blank record
    +--------+--------+----------------+
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from tiermq.consumequeue.unit import UNIT, UNIT_BYTES
from tiermq.errors import CorruptRecord, CorruptSegment
from tiermq.kernel import check_window
from tiermq.message.java_hash import tags_code
from tiermq.message.layout import (
    FIXED_PARTS,
    FIXED_SIZES,
    I64,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SHAPE_MASK,
    SHAPE_SHIFT,
    SIZE_AND_MAGIC,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_LOW_BYTE_AT,
    V6_EXTRA_BYTES,
    ReadableBuffer,
)
from tiermq.message.properties import TAGS, get_property
from tiermq.message.record import CrcPropertyCheck, decode_record
from tiermq.message.record_head import HeadKind, read_head
from tiermq.message.stored_message import StoredMessage
from tiermq.message.system_flag import BORN_HOST_V6
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.names import QueueName
from tiermq.tier.queue.segments import StoredSegment
from tiermq.tier.queue.units import Unit, iter_units, log_offset_at, unit_at

CODA = struct.Struct(
    ">"
    "i"  # size       of the mark
    "i"  # magic
    "q"  # newest_ms  store time of the newest record in the segment
)
CODA_BYTES = CODA.size
assert CODA_BYTES == 16
PEEK_BYTES = CODA_BYTES + max(FIXED_SIZES)
"""The most bytes needed to identify the record of a unit: its fixed part, behind an end mark."""

_BODY_BYTES = struct.Struct(">i")  # The last field of the fixed part.

ReadLog = Callable[[int, int], bytes | memoryview]
"""(log offset, length) -> bytes of a queue's commit log."""


def is_coda(data: ReadableBuffer, at: int = 0) -> bool:
    """Whether an end mark begins at position `at`."""
    return at + SIZE_AND_MAGIC.size <= len(data) and SIZE_AND_MAGIC.unpack_from(data, at)[1] == MAGIC_BLANK


def is_whole_coda(data: ReadableBuffer) -> bool:
    """Whether `data` begins with all of an end mark; one that claims another size than its own is damage."""
    return len(data) >= CODA_BYTES and SIZE_AND_MAGIC.unpack_from(data) == (CODA_BYTES, MAGIC_BLANK)


def behind_coda(data: ReadableBuffer, at: int = 0) -> int:
    """Where the record begins of a unit that points to position `at`: there, or behind an end mark."""
    return at + CODA_BYTES if is_coda(data, at) else at


def bytes_to_read(unit: Unit) -> int:
    """How many bytes from a unit's offset on hold its record, also where that is behind an end mark."""
    return unit.size + CODA_BYTES


# One record


def record_of(
    unit: Unit, data: ReadableBuffer, log_offset: int, owner: QueueName | None = None
) -> tuple[int, StoredMessage]:
    """The record of a unit, and where it begins in `data`, which is the log from `log_offset` on.

    `owner`: the topic and the queue, where they are known. A unit without a queue offset (-1) leads to any message.
    Raises CorruptRecord, with the reason, when the record is not whole, not intact or not the unit's own.
    """
    where = f"log offset {unit.log_offset}"
    start = unit.log_offset - log_offset
    if start < 0 or unit.size < RECORD_BYTES_MIN or start + unit.size > len(data):
        raise CorruptRecord(f"its record of {unit.size} bytes at {where} is not there")
    start = behind_coda(data, start)
    try:
        message = decode_record(
            data[start : start + unit.size],
            expect_physical_offset=log_offset + start,
            crc_property=CrcPropertyCheck.IGNORE,
        )
    except CorruptRecord as error:
        raise CorruptRecord(f"{where}: {error}") from None
    if message.size != unit.size:
        raise CorruptRecord(f"{where}: a record of {message.size} bytes, not of {unit.size}")
    if unit.queue_offset not in (-1, message.queue_offset):
        raise CorruptRecord(f"{where}: a record of queue offset {message.queue_offset}")
    if owner is not None and (message.topic, message.queue_id) != owner:
        raise CorruptRecord(f"{where}: a record of queue {message.queue_id} of topic {message.topic!r}")
    return start, message


def split(
    units: ReadableBuffer,
    data: ReadableBuffer,
    log_offset: int,
    first_offset: int,
    owner: QueueName | None = None,
) -> tuple[list[Unit], list[int]]:
    """The good messages behind units, in order, and the queue offsets of the damaged ones; blank units are neither.

    The units returned point to the record, not to an end mark before it.
    """
    found: list[Unit] = []
    damaged: list[int] = []
    for unit in iter_units(units, first_offset):
        if unit.is_blank:
            continue
        try:
            start, _ = record_of(unit, data, log_offset, owner)
        except CorruptRecord:
            damaged.append(unit.queue_offset)
        else:
            found.append(unit._replace(log_offset=log_offset + start))
    return found, damaged


def claimed_record(unit: Unit, head: ReadableBuffer) -> tuple[int, int]:
    """(log offset, store time) of the record of a unit, by its fixed part alone: `head` begins where the unit points.

    Raises CorruptRecord for another record. The body is not checked.
    """
    at = behind_coda(head)
    if len(head) - at < RECORD_BYTES_MIN:
        raise CorruptRecord(f"only {len(head) - at} bytes")
    size, magic = SIZE_AND_MAGIC.unpack_from(head, at)
    shape = (head[at + SYS_FLAG_LOW_BYTE_AT] & SHAPE_MASK) >> SHAPE_SHIFT
    if magic not in (MAGIC_V1, MAGIC_V2) or size != unit.size or len(head) - at < FIXED_SIZES[shape]:
        raise CorruptRecord(f"magic {magic & 0xFFFFFFFF:#010x} and size {size}")
    fields = FIXED_PARTS[shape].unpack_from(head, at)
    queue_offset, log_offset, store_ms = fields[5], fields[6], fields[11]
    if queue_offset != unit.queue_offset or log_offset != unit.log_offset + at:
        raise CorruptRecord(f"queue offset {queue_offset} and log offset {log_offset}")
    return int(log_offset), int(store_ms)


def behind_body(head: ReadableBuffer, size: int) -> tuple[int, int] | None:
    """The end of a record's body, and its own end, relative to its unit's offset; None: the record is invalid.

    `head` begins where the unit points and has PEEK_BYTES, or all there is; `size` is the unit's.
    """
    at = behind_coda(head) if len(head) >= PEEK_BYTES else 0
    if len(head) <= at + SYS_FLAG_LOW_BYTE_AT:
        return None
    fixed = FIXED_SIZES[(head[at + SYS_FLAG_LOW_BYTE_AT] & SHAPE_MASK) >> SHAPE_SHIFT]
    if len(head) < at + fixed:
        return None
    body_bytes = _BODY_BYTES.unpack_from(head, at + fixed - _BODY_BYTES.size)[0]
    if body_bytes < 0 or fixed + body_bytes > size:
        return None
    return at + fixed + body_bytes, at + size


def peek_store_ms(driver: TierDriver, segment: StoredSegment, unit: Unit) -> int:
    """The store time of the record of `unit`, which is in `segment`: one request, however large the message is.

    Raises CorruptSegment when the record is not the one of the unit.
    """
    position = unit.log_offset - segment.key.base
    head = driver.read(segment.key, position, min(PEEK_BYTES, segment.size - position))
    try:
        return claimed_record(unit, head)[1]
    except CorruptRecord as error:
        raise CorruptSegment(
            f"{segment.key.path}: expected at {unit.log_offset} the record of queue offset {unit.queue_offset} with "
            f"{unit.size} bytes, found {error}; verify the queue"
        ) from None


# Records without units


def derive_units(data: ReadableBuffer, log_offset: int, queue_offset: int) -> bytes:
    """The units of the complete records at the start of `data`, which is at `log_offset` of the queue's commit log.

    The first must be the message with `queue_offset`, each further one the next; the first that is cut, damaged or out
    of order ends the run.
    """
    units = bytearray()
    position = 0
    while position < len(data):
        head = read_head(data, position)
        number = queue_offset + len(units) // UNIT_BYTES
        is_here = head.kind is HeadKind.OK and head.physical_offset == log_offset + position
        if not is_here or head.queue_offset != number:
            break
        properties = bytes(data[head.properties_position : head.properties_position + head.properties_length])
        tag = get_property(properties, TAGS.encode())
        # A tag that is no UTF-8 is read as the local dispatch reads it, so that it gets the same code.
        code = tags_code(None if tag is None else tag.decode("utf-8", "replace"))
        units += UNIT.pack(log_offset + position, head.size, code)
        position += head.size
    whole = check_window(bytes(units), data, log_offset, queue_offset)
    return bytes(units[: whole * UNIT_BYTES])


class CollectedRecords(Protocol):
    """What a batch is made of: `tiermq.kernel.Collected`."""

    @property
    def data(self) -> bytes: ...
    @property
    def units(self) -> bytes: ...
    @property
    def count(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def begin_ms(self) -> int: ...
    @property
    def end_ms(self) -> int: ...


def store_time_at(data: bytes | memoryview, position: int) -> int:
    """The store time of the record at `position`; where it stands depends on the shape of the born host."""
    is_v6 = data[position + SYS_FLAG_LOW_BYTE_AT] & BORN_HOST_V6
    return int(I64.unpack_from(data, position + STORE_TIMESTAMP_AT + (V6_EXTRA_BYTES if is_v6 else 0))[0])


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """A run of one queue's records with their units, as it is appended, committed and indexed.

    Invariants: record k of `data` is that of unit k; records are contiguous from `log_offset` on; their queue
    offsets count up from `first_offset` by one.
    """

    data: bytes | memoryview
    units: bytes | memoryview
    first_offset: int
    log_offset: int
    begin_ms: int
    end_ms: int

    @classmethod
    def of(cls, collected: CollectedRecords) -> RecordBatch:
        """The batch that the kernel collected; it must have a record."""
        return cls(
            collected.data,
            collected.units,
            collected.next_offset - collected.count,
            log_offset_at(collected.units, 0),
            collected.begin_ms,
            collected.end_ms,
        )

    @classmethod
    def of_bytes(cls, data: bytes | memoryview, units: bytes | memoryview, first_offset: int) -> RecordBatch:
        """The batch of those records; its times are read from them."""
        log_offset = log_offset_at(units, 0)
        times = [store_time_at(data, unit.log_offset - log_offset) for unit in iter_units(units)]
        return cls(data, units, first_offset, log_offset, min(times), max(times))

    @property
    def count(self) -> int:
        return len(self.units) // UNIT_BYTES

    @property
    def next_offset(self) -> int:
        return self.first_offset + self.count

    def location(self, number: int) -> tuple[int, int]:
        """(position in `data`, size) of one record."""
        unit = unit_at(self.units, number)
        return unit.log_offset - self.log_offset, unit.size

    def locations(self) -> Iterator[tuple[int, int, int]]:
        """(position in `data`, size, tags code) of each record."""
        for _, log_offset, size, code in iter_units(self.units):
            yield log_offset - self.log_offset, size, code

    def end_of(self, count: int) -> int:
        """Where the first `count` records end in `data`."""
        return len(self.data) if count == self.count else self.location(count)[0]

    def runs(self, messages_max: int, bytes_max: int) -> Iterator[tuple[int, int]]:
        """The batch in runs [first, end) of records, each as long as both limits allow, and of one record at least."""
        count, first = self.count, 0
        if count <= messages_max and len(self.data) <= bytes_max:
            yield 0, count
            return
        while first < count:
            limit = self.location(first)[0] + bytes_max
            fitting = bisect_right(range(count + 1), limit, lo=first + 1, key=self.end_of) - 1
            end = max(first + 1, min(fitting, first + messages_max))
            yield first, end
            first = end

    def split(self, room_bytes: int, room_units: int) -> tuple[RecordBatch | None, RecordBatch | None]:
        """The part that fits into `room` bytes, and the rest; None for an empty one."""
        if len(self.data) <= room_bytes and self.count <= room_units:
            return self, None
        taken = 0
        for position, size, _ in self.locations():
            if position + size > room_bytes or taken == room_units:
                break
            taken += 1
        if taken == 0:
            return None, self
        cut = log_offset_at(self.units, taken) - self.log_offset
        data, units = memoryview(self.data), memoryview(self.units)
        return (
            RecordBatch.of_bytes(data[:cut], units[: taken * UNIT_BYTES], self.first_offset),
            RecordBatch.of_bytes(data[cut:], units[taken * UNIT_BYTES :], self.first_offset + taken),
        )
