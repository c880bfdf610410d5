"""Units of a queue in the tier: which record each one points to, and which of them cannot be true.

Unit n is at byte 20 * n of the consume queue and points forward through the queue's own commit log:

    units     | u0 | u1 | u2 | gap | u3 |
    log       | record 0 | record 1 | end mark | record 2 | record 3 |

A *gap* is a pre-blank unit: a message that is missing for good. A unit may point at the end mark of a sealed segment
instead of at the record behind it (`records.CODA_BYTES`). Units may outlive their records (expired), lose them to a
missing segment (lost), or point to records that never arrived (beyond). Everything else is damage.

Chunks that are all good are checked without a loop of our own; only chunks with something odd in them are looked at
unit by unit. `unit_array` has the same as numpy arrays, for scans.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import add, le
from typing import NamedTuple

from tiermq.consumequeue.unit import PRE_BLANK_SIZE, UNIT, UNIT_BYTES
from tiermq.message.layout import RECORD_BYTES_MIN, ReadableBuffer
from tiermq.tier.queue.segments import END, SegmentList, StoredSegment

CHUNK_UNITS = 65_536
RUN_BYTES = 8 * 1024 * 1024
"""What the records of one run have at most, so that one read holds them; a larger record is a run alone."""


class Unit(NamedTuple):
    """One unit and the queue offset that it has: the message is at that offset of the queue's log, and so long."""

    queue_offset: int
    log_offset: int
    size: int
    tags_code: int = 0

    @property
    def end(self) -> int:
        return self.log_offset + self.size

    @property
    def is_blank(self) -> bool:
        """Whether it stands for a message that is missing for good."""
        return self.size == PRE_BLANK_SIZE and self.log_offset == 0

    @property
    def is_sound(self) -> bool:
        """Whether it can be the unit of a record; a blank one cannot."""
        return self.log_offset >= 0 and RECORD_BYTES_MIN <= self.size < PRE_BLANK_SIZE

    def packed(self) -> bytes:
        return UNIT.pack(self.log_offset, self.size, self.tags_code)


def unit_at(units: ReadableBuffer, index: int, first_offset: int = 0) -> Unit:
    """Unit number `index` of a run whose first one has queue offset `first_offset`; -1 is the last one."""
    index = index if index >= 0 else len(units) // UNIT_BYTES + index
    return Unit(first_offset + index, *UNIT.unpack_from(units, index * UNIT_BYTES))


def iter_units(units: ReadableBuffer, first_offset: int = 0) -> Iterator[Unit]:
    """All of a run, blank ones too. A unit that is cut at the end is left out."""
    whole = len(units) // UNIT_BYTES * UNIT_BYTES
    for queue_offset, values in enumerate(UNIT.iter_unpack(memoryview(units)[:whole]), first_offset):
        yield Unit(queue_offset, *values)


def log_offset_at(units: ReadableBuffer, index: int) -> int:
    """Where the record of unit number `index` begins."""
    return int(UNIT.unpack_from(units, index * UNIT_BYTES)[0])


def log_range(units: ReadableBuffer) -> tuple[int, int]:
    """Where the record of the first unit begins and that of the last one ends."""
    log_offset, size, _ = UNIT.unpack_from(units, len(units) - UNIT_BYTES)
    return int(UNIT.unpack_from(units)[0]), int(log_offset) + int(size)


def first_behind(units: ReadableBuffer, log_offset: int, low: int = 0) -> int:
    """The first unit from `low` on that points to `log_offset` or behind it; their count without one."""
    return bisect_left(range(len(units) // UNIT_BYTES), log_offset, lo=low, key=lambda at: log_offset_at(units, at))


def chunks_of(start: int, stop: int, begin: int = 0, end: int = END) -> Iterator[tuple[int, int]]:
    """The whole units in bytes [start, stop) of a queue's file and of queue offsets [begin, end), many at a time.

    Each chunk as (queue offset of its first, count). Every reader of units walks by these, whatever it reads with.
    """
    first, behind = max(begin, -(-start // UNIT_BYTES)), min(end, stop // UNIT_BYTES)
    for offset in range(first, behind, CHUNK_UNITS):
        yield offset, min(CHUNK_UNITS, behind - offset)


def runs_of_records(units: ReadableBuffer, queue_offset: int) -> Iterator[tuple[int, memoryview]]:
    """The units in runs whose records are contiguous and fit one read, each with the queue offset of its first."""
    view = memoryview(units)
    first = count = length = end = 0
    for number, (log_offset, size, _) in enumerate(UNIT.iter_unpack(view)):
        is_blank = size == PRE_BLANK_SIZE and log_offset == 0
        if count and (is_blank or log_offset != end or length + size > RUN_BYTES):
            yield queue_offset + first, view[first * UNIT_BYTES : (first + count) * UNIT_BYTES]
            count = length = 0
        if is_blank:
            continue
        first = number if count == 0 else first
        count, length, end = count + 1, length + size, log_offset + size
    if count:
        yield queue_offset + first, view[first * UNIT_BYTES : (first + count) * UNIT_BYTES]


def offset_runs(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Sorted offsets as ranges [begin, end)."""
    begin = end = -1
    for offset in offsets:
        if offset != end:
            if begin >= 0:
                yield begin, end
            begin = offset
        end = offset + 1
    if begin >= 0:
        yield begin, end


# Many at a time, sorted by what they are


@dataclass(slots=True)
class UnitChunk:
    """Consecutive units: the good ones in parallel lists, and the offsets of blank and damaged ones."""

    begin: int
    end: int
    queue_offsets: Sequence[int]
    log_offsets: Sequence[int]
    sizes: Sequence[int]
    blank: list[int] = field(default_factory=list)
    expired: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    beyond: list[int] = field(default_factory=list)
    bad: list[int] = field(default_factory=list)

    def unit(self, index: int) -> Unit:
        return Unit(self.queue_offsets[index], self.log_offsets[index], self.sizes[index])

    def in_log(self, begin: int, end: int) -> tuple[int, int]:
        """The indexes [first, behind) of good units whose records begin in the log range [begin, end)."""
        return bisect_left(self.log_offsets, begin), bisect_left(self.log_offsets, end)

    def in_queue(self, begin: int, end: int) -> tuple[int, int]:
        """The indexes [first, behind) of good units with queue offsets in [begin, end)."""
        return bisect_left(self.queue_offsets, begin), bisect_left(self.queue_offsets, end)


def sort_units(data: ReadableBuffer, begin: int, logs: SegmentList[StoredSegment], previous_end: int) -> UnitChunk:
    """The units in `data`, the first of which is that of queue offset `begin`.

    A unit is good when its record is behind the record of the unit before it and within one segment of the log.
    """
    count = len(data) // UNIT_BYTES
    fields = struct.unpack(UNIT.format[:1] + UNIT.format[1:] * count, data[: count * UNIT_BYTES])
    offsets, sizes = fields[0::3], fields[1::3]
    ends = tuple(map(add, offsets, sizes))
    all_good = (
        count > 0
        and len(logs) > 0
        and logs.is_contiguous
        and min(sizes) >= RECORD_BYTES_MIN
        and offsets[0] >= max(previous_end, logs.begin)
        and ends[-1] <= logs.end
        and all(map(le, ends, offsets[1:]))
    )
    if all_good:
        return UnitChunk(begin, begin + count, range(begin, begin + count), offsets, sizes)
    return _sort_one_by_one(begin, offsets, sizes, logs, previous_end)


def _sort_one_by_one(
    begin: int, offsets: Sequence[int], sizes: Sequence[int], logs: SegmentList[StoredSegment], previous_end: int
) -> UnitChunk:
    queue_offsets: list[int] = []
    log_offsets: list[int] = []
    good_sizes: list[int] = []
    chunk = UnitChunk(begin, begin + len(offsets), queue_offsets, log_offsets, good_sizes)
    for queue_offset, (log_offset, size) in enumerate(zip(offsets, sizes, strict=True), start=begin):
        unit = Unit(queue_offset, log_offset, size)
        if unit.is_blank:
            chunk.blank.append(queue_offset)
        elif not unit.is_sound:
            chunk.bad.append(queue_offset)
        elif log_offset < logs.begin or not len(logs):
            chunk.expired.append(queue_offset)
        elif log_offset + size > logs.end:
            chunk.beyond.append(queue_offset)
        elif not logs.covers(log_offset, log_offset + size):
            chunk.lost.append(queue_offset)
        elif log_offset < previous_end:
            chunk.bad.append(queue_offset)
        else:
            queue_offsets.append(queue_offset)
            log_offsets.append(log_offset)
            good_sizes.append(size)
            previous_end = log_offset + size
    return chunk


# One at a time


class UnitCursor:
    """Stands before a unit, or at the end. Blank units are passed over and reported to `on_blank`.

    `chunks` are units with the queue offset of their first, as `chunks_of` divides them. `then` is the unit behind the
    end, when another reader continues there: it can be read and not passed.
    """

    def __init__(
        self, chunks: Iterator[tuple[int, memoryview]], on_blank: Callable[[int], None], then: Unit | None = None
    ) -> None:
        self._chunks = chunks
        self._on_blank = on_blank
        self._rest = memoryview(b"")  # Units of the chunk that were not passed yet.
        self._next_offset = 0
        self.then = then
        self.passed = 0

    def peek(self) -> Unit | None:
        """The next unit that stands for a message; None, or `then`, at the end."""
        while True:
            while not len(self._rest):
                chunk = next(self._chunks, None)
                if chunk is None:
                    return self.then
                self._next_offset, self._rest = chunk
            unit = unit_at(self._rest, 0, self._next_offset)
            if not unit.is_blank:
                return unit
            self._on_blank(self._next_offset)
            self.advance(1)

    @property
    def window(self) -> memoryview:
        """Units from the next one on, as many as are at hand; after a `peek` that found one, it is the first."""
        return self._rest

    def advance(self, count: int) -> None:
        self._rest = self._rest[count * UNIT_BYTES :]
        self._next_offset += count
        self.passed += count


# Which bytes of the log they reach


class Reach(NamedTuple):
    """The first `kept` units of a run, and the bytes [start, end) of the log that they point to; -1, -1: none."""

    kept: int
    start: int
    end: int


def quick_reach(units: ReadableBuffer, log_min: int, log_end: int, bytes_max: int) -> Reach | None:
    """The range of ordered units, at most `bytes_max` bytes, at least one record. None when they are not ordered.

    Only the first and the last unit are read; when the records then do not fit, `careful_reach` decides.
    """
    count = len(units) // UNIT_BYTES
    first, last = unit_at(units, 0), unit_at(units, count - 1)
    start, end = first.log_offset, last.end
    in_log = log_min <= start <= last.log_offset and end <= log_end
    if not in_log or first.size < RECORD_BYTES_MIN or last.size < RECORD_BYTES_MIN or first.end > end:
        return None
    if end - start > bytes_max:
        # Records of a queue are mostly alike, but a few huge ones are enough: find the cut by halving.
        low, high = 1, count
        while high - low > 1:
            middle = (low + high) // 2
            if log_offset_at(units, middle) - start > bytes_max:
                high = middle
            else:
                low = middle
        count = low
        end = unit_at(units, count - 1).end
    if end - start < count * RECORD_BYTES_MIN or end > log_end:
        return None
    return Reach(count, start, end)


def careful_reach(units: ReadableBuffer, log_min: int, log_end: int, bytes_max: int) -> Reach:
    """The same when some units are gaps or damaged: those stay in the count and add nothing to the range.

    The longest chain of units that point forward counts, so that one bad unit costs one message.
    """
    chain = _longest_chain(units, log_min, log_end)
    if not chain:
        return Reach(len(units) // UNIT_BYTES, -1, -1)
    start = end = log_offset_at(units, chain[0])
    for number, index in enumerate(chain):
        unit = unit_at(units, index)
        if number and unit.end - start > bytes_max:
            return Reach(index, start, end)
        end = unit.end
    return Reach(len(units) // UNIT_BYTES, start, end)


def _longest_chain(units: ReadableBuffer, log_min: int, log_end: int) -> list[int]:
    """Numbers of units, as many as possible, each of which points behind the end of the one before."""
    ends: list[int] = []  # The smallest end of a chain of each length.
    tails: list[int] = []  # The unit with which it ends.
    before: dict[int, int] = {}
    for unit in iter_units(units):
        index, log_offset = unit.queue_offset, unit.log_offset
        if not unit.is_sound or log_offset < log_min or unit.end > log_end:
            continue
        length = bisect_right(ends, log_offset)
        if length:
            before[index] = tails[length - 1]
        if length == len(ends):
            ends.append(unit.end)
            tails.append(index)
        elif unit.end < ends[length]:
            ends[length] = unit.end
            tails[length] = index
    chain: list[int] = []
    at = tails[-1] if tails else -1
    while at >= 0:
        chain.append(at)
        at = before.get(at, -1)
    return chain[::-1]
