"""The offsets of a queue that can hold messages of a time, from its segments and sparse time index. Pure.

    entries     100 @ 10:00      200 @ 10:05      300 @ 10:09
    ranges      [min, 100) ≤ 10:00   [100, 200) 10:00–10:05   [200, 300) 10:05–10:09   [300, max) ≥ 10:09

Store times of a queue do not decrease, unless a clock was set back. Where entries disagree with their order, each range
gets the widest times that they allow. What a wrong clock did between two entries is not known here, and may be left out
(docs/guarantees.md).
The result must still be filtered row by row.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from tiermq.history.catalog import QueueHistory
from tiermq.tier.metadata.metadata_values import NEVER_MS, Segment, TimeEntry

OffsetRange = tuple[int, int]


def narrow_by_entries(
    entries: Sequence[TimeEntry], begin_ms: int, end_ms: int, from_offset: int, to_offset: int
) -> OffsetRange:
    """The part of [from, to) outside of which no entry allows a message of the time."""
    low, high = from_offset, to_offset
    newest = -1
    for entry in entries:
        newest = max(newest, entry.store_ms)
        if newest >= begin_ms:
            break
        # Everything before this entry is older than begin.
        low = max(low, entry.queue_offset)
    oldest = NEVER_MS
    for entry in reversed(entries):
        oldest = min(oldest, entry.store_ms)
        if oldest <= end_ms:
            break
        high = min(high, entry.queue_offset)
    return (low, high) if low < high else (from_offset, from_offset)


def without_segments(
    ranges: Iterable[OffsetRange], segments: Iterable[Segment], begin_ms: int, end_ms: int
) -> list[OffsetRange]:
    """The ranges without the messages of segments entirely outside the time range."""
    left = list(ranges)
    for segment in segments:
        known = 0 <= segment.begin_offset < segment.end_offset and segment.end_ms != NEVER_MS
        if known and (segment.end_ms < begin_ms or segment.begin_ms > end_ms):
            left = subtract(left, (segment.begin_offset, segment.end_offset))
    return left


def subtract(ranges: Iterable[OffsetRange], hole: OffsetRange) -> list[OffsetRange]:
    """Ranges without a hole."""
    left = []
    for begin, end in ranges:
        pieces = ((begin, min(end, hole[0])), (max(begin, hole[1]), end))
        left += [piece for piece in pieces if piece[0] < piece[1]]
    return left


def intersect(ranges: Iterable[OffsetRange], other: OffsetRange) -> list[OffsetRange]:
    """The parts of ranges within another one."""
    cut = ((max(begin, other[0]), min(end, other[1])) for begin, end in ranges)
    return [(begin, end) for begin, end in cut if begin < end]


class LogPlaces:
    """Estimates log offsets of a queue's messages in the tier, for task sizes and split points.

    The time index and the segments have exact log offsets for some queue offsets; in between they are interpolated.
    """

    def __init__(self, queue: QueueHistory) -> None:
        knots = {entry.queue_offset: entry.log_offset for entry in queue.time_entries}
        knots |= {log.begin_offset: log.key.base for log in queue.logs if log.begin_offset >= 0}
        end = max((log.end for log in queue.logs), default=0)
        begin = min((log.key.base for log in queue.logs), default=0)
        knots.setdefault(queue.cold_min, begin)
        knots[queue.cold_max] = end
        self._offsets: list[int] = []
        self._places: list[int] = []
        for offset in sorted(knots):
            # A knot that does not ascend was damaged, or is of an expired time.
            if not self._places or knots[offset] >= self._places[-1]:
                self._offsets.append(offset)
                self._places.append(min(knots[offset], end))

    def place(self, offset: int) -> int:
        at = bisect_right(self._offsets, offset) - 1
        if at < 0:
            return self._places[0]
        if at + 1 >= len(self._offsets):
            return self._places[-1]
        return _between(offset, self._offsets[at], self._offsets[at + 1], self._places[at], self._places[at + 1])

    def bytes_of(self, from_offset: int, to_offset: int) -> int:
        return max(0, self.place(to_offset) - self.place(from_offset))

    def offset_at(self, place: int, slack: int) -> int:
        """The queue offset at a log offset; an exactly known one when it is no farther than `slack` bytes away."""
        at = bisect_right(self._places, place) - 1
        if at < 0:
            return self._offsets[0]
        if at + 1 >= len(self._places):
            return self._offsets[-1]
        if place - self._places[at] <= slack:
            return self._offsets[at]
        if self._places[at + 1] - place <= slack:
            return self._offsets[at + 1]
        return _between(place, self._places[at], self._places[at + 1], self._offsets[at], self._offsets[at + 1])

    def around(self, begin: int, end: int) -> tuple[OffsetRange, OffsetRange]:
        """The smallest (queue offsets, log offsets) that hold the log range [begin, end) and begin and end where both
        are known exactly."""
        low = max(0, bisect_right(self._places, begin) - 1)
        high = min(bisect_left(self._places, end), len(self._places) - 1)
        return (self._offsets[low], self._offsets[high]), (self._places[low], self._places[high])


def _between(value: int, low: int, high: int, low_to: int, high_to: int) -> int:
    return low_to if high <= low else low_to + (value - low) * (high_to - low_to) // (high - low)
