"""All units of a queue in the tier, in order, many at a time, with those set aside that cannot be true.

A unit is good when its record lies behind the record of the unit before it and within one segment of the commit log.
A pre-blank unit stands for a message that is missing for good. Units may outlive their records (expired), lose them to
a missing segment (lost), or point to records that never arrived (beyond). Everything else is damage.

A chunk that is all good is checked without a loop of our own; only chunks with something odd in them are looked at
unit by unit.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import add, le

from tiermq.consumequeue.unit import PRE_BLANK_SIZE, UNIT_BYTES
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.metadata.metadata_values import Segment
from tiermq.tier.metadata.record_peek import UnitPlace

CHUNK_UNITS = 65_536


@dataclass(slots=True)
class UnitChunk:
    """Consecutive units: the good ones in parallel lists, and the offsets of the others by what they are."""

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

    def place(self, index: int) -> UnitPlace:
        return UnitPlace(self.queue_offsets[index], self.log_offsets[index], self.sizes[index])

    def in_log(self, begin: int, end: int) -> tuple[int, int]:
        """The indexes [first, behind) of good units whose records begin in the log range [begin, end)."""
        return bisect_left(self.log_offsets, begin), bisect_left(self.log_offsets, end)

    def in_queue(self, begin: int, end: int) -> tuple[int, int]:
        """The indexes [first, behind) of good units with queue offsets in [begin, end)."""
        return bisect_left(self.queue_offsets, begin), bisect_left(self.queue_offsets, end)


class LogRanges:
    """The offsets that a commit log's segments cover."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._bases = [segment.key.base for segment in segments]
        self._ends = [segment.end for segment in segments]

    def covers(self, begin: int, end: int) -> bool:
        """Whether one segment holds all of [begin, end): records never span two."""
        index = bisect_right(self._bases, begin) - 1
        return index >= 0 and end <= self._ends[index]

    @property
    def is_empty(self) -> bool:
        return not self._bases

    @property
    def is_contiguous(self) -> bool:
        return self._ends[:-1] == self._bases[1:]

    @property
    def begin(self) -> int:
        return self._bases[0] if self._bases else 0

    @property
    def end(self) -> int:
        return self._ends[-1] if self._ends else 0


def walk_units(
    driver: TierDriver, segments: Sequence[Segment], log: LogRanges, from_offset: int, previous_end: int = 0
) -> Iterator[UnitChunk]:
    """The units from queue offset `from_offset` on. Segments are aligned to units and in order; holes are fine."""
    for segment in segments:
        position = max(from_offset * UNIT_BYTES - segment.key.base, 0)
        while position < segment.size:
            length = min(CHUNK_UNITS * UNIT_BYTES, segment.size - position)
            data = driver.read(segment.key, position, length)
            chunk = sort_units(data, (segment.key.base + position) // UNIT_BYTES, log, previous_end)
            if chunk.log_offsets:
                previous_end = chunk.log_offsets[-1] + chunk.sizes[-1]
            yield chunk
            position += length


def sort_units(data: memoryview | bytes, begin: int, log: LogRanges, previous_end: int) -> UnitChunk:
    """The units in `data`, the first of which is that of queue offset `begin`."""
    count = len(data) // UNIT_BYTES
    fields = struct.unpack(">" + "qiq" * count, data[: count * UNIT_BYTES])
    offsets, sizes = fields[0::3], fields[1::3]
    ends = tuple(map(add, offsets, sizes))
    all_good = (
        count > 0
        and log.is_contiguous
        and not log.is_empty
        and min(sizes) > 0
        and offsets[0] >= max(previous_end, log.begin)
        and ends[-1] <= log.end
        and all(map(le, ends, offsets[1:]))
    )
    if all_good:
        return UnitChunk(begin, begin + count, range(begin, begin + count), offsets, sizes)
    return _sort_one_by_one(begin, offsets, sizes, log, previous_end)


def _sort_one_by_one(
    begin: int, offsets: Sequence[int], sizes: Sequence[int], log: LogRanges, previous_end: int
) -> UnitChunk:
    queue_offsets: list[int] = []
    log_offsets: list[int] = []
    good_sizes: list[int] = []
    chunk = UnitChunk(begin, begin + len(offsets), queue_offsets, log_offsets, good_sizes)
    for queue_offset, (log_offset, size) in enumerate(zip(offsets, sizes, strict=True), start=begin):
        if size == PRE_BLANK_SIZE and log_offset == 0:
            chunk.blank.append(queue_offset)
        elif size <= 0 or log_offset < 0:
            chunk.bad.append(queue_offset)
        elif log_offset < log.begin or log.is_empty:
            chunk.expired.append(queue_offset)
        elif log_offset + size > log.end:
            chunk.beyond.append(queue_offset)
        elif not log.covers(log_offset, log_offset + size):
            chunk.lost.append(queue_offset)
        elif log_offset < previous_end:
            chunk.bad.append(queue_offset)
        else:
            queue_offsets.append(queue_offset)
            log_offsets.append(log_offset)
            good_sizes.append(size)
            previous_end = log_offset + size
    return chunk


def runs(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
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
