"""What a walk over a queue's units finds out: which records begin and end each segment, which belong into the time
index, and which units are odd. Collected chunk by chunk, so that a long queue needs little memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.tier.metadata.metadata_values import Segment, TimeEntry
from tiermq.tier.metadata.record_peek import UnitPlace
from tiermq.tier.metadata.time_index import Stretch, sample
from tiermq.tier.metadata.unit_walk import UnitChunk


class UnitFindings:
    """The collected findings of one queue; used by one thread."""

    def __init__(
        self, logs: Sequence[Segment], units: Sequence[Segment], last_entry: TimeEntry | None, stretch: Stretch
    ) -> None:
        self._logs, self._units, self._stretch = logs, units, stretch
        self._last_entry = last_entry
        self.log_ends: list[tuple[UnitPlace, UnitPlace] | None] = [None] * len(logs)
        self.unit_ends: list[tuple[UnitPlace, UnitPlace] | None] = [None] * len(units)
        self.samples: list[UnitPlace] = []
        self.blank: list[int] = []
        self.expired_count = 0
        self.lost: list[int] = []
        self.beyond: list[int] = []
        self.bad: list[int] = []

    def take(self, chunk: UnitChunk) -> None:
        """Add the next chunk."""
        self.blank += chunk.blank
        self.expired_count += len(chunk.expired)
        self.lost += chunk.lost
        self.beyond += chunk.beyond
        self.bad += chunk.bad
        if not chunk.log_offsets:
            return
        for index, log in enumerate(self._logs):
            self.log_ends[index] = _extended(self.log_ends[index], chunk, chunk.in_log(log.key.base, log.end))
        for index, units in enumerate(self._units):
            found = chunk.in_queue(units.key.base // UNIT_BYTES, units.end // UNIT_BYTES)
            self.unit_ends[index] = _extended(self.unit_ends[index], chunk, found)
        for index in sample(self._last_entry, chunk.queue_offsets, chunk.log_offsets, self._stretch):
            place = chunk.place(index)
            self.samples.append(place)
            self._last_entry = TimeEntry(place.queue_offset, 0, place.log_offset)

    def places(self) -> list[UnitPlace]:
        """The records whose times are wanted, in the order of the queue."""
        ends = (place for pair in (*self.log_ends, *self.unit_ends) if pair for place in pair)
        wanted = {place.queue_offset: place for place in (*ends, *self.samples)}
        return [wanted[queue_offset] for queue_offset in sorted(wanted)]

    def good_end(self, end: int) -> int:
        """The end of the queue without the units at its very end that have no record."""
        odd = sorted(self.beyond + self.bad)
        while odd and odd[-1] == end - 1:
            end = odd.pop()
        return end

    def bad_before(self, end: int) -> list[int]:
        """Damaged units, and such without a record, that are followed by good ones."""
        return sorted(_before(self.bad, end) + _before(self.beyond, end))


def _extended(
    ends: tuple[UnitPlace, UnitPlace] | None, chunk: UnitChunk, found: tuple[int, int]
) -> tuple[UnitPlace, UnitPlace] | None:
    first, behind = found
    if first >= behind:
        return ends
    return (ends[0] if ends else chunk.place(first)), chunk.place(behind - 1)


def _before(offsets: Iterable[int], end: int) -> list[int]:
    return [offset for offset in offsets if offset < end]
