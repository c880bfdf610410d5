"""Where in its tier commit log the messages of a queue lie, about: for sizes of tasks and places to cut them. Pure.

The time index and the segments give exact places for some queue offsets; in between, messages are taken to be alike.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from tiermq.history.catalog import QueueHistory
from tiermq.history.time_ranges import OffsetRange


class LogPlaces:
    """Queue offset ↔ log offset of one queue's cold side."""

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
