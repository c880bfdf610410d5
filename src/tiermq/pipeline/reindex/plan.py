"""How the parts of a queue's log that no index covers are cut into chunks. Functions of values, nothing else."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tiermq.tier.index.index_coverage import LogRange
from tiermq.tier.metadata.metadata_values import TimeEntry


@dataclass(frozen=True, slots=True)
class Stretch:
    """Records in [start, stop) of a queue's log, to be found by its units [from_offset, to_offset)."""

    from_offset: int
    to_offset: int
    start: int
    stop: int


def stretches(
    ranges: Iterable[LogRange], entries: Sequence[TimeEntry], offsets: tuple[int, int], stretch_bytes: int
) -> list[Stretch]:
    """The ranges in chunks of about this number of bytes, split where the sparse time index has a log offset.

    `offsets` are the queue's [minimum, maximum). Units may be a few more than the records need: the range decides.
    """
    known = [entry for entry in entries if offsets[0] <= entry.queue_offset < offsets[1]]
    places = [entry.log_offset for entry in known]
    found = []
    for start, stop in ranges:
        first = bisect_right(places, start) - 1
        from_offset = known[first].queue_offset if first >= 0 else offsets[0]
        at = start
        for entry in known[first + 1 : bisect_left(places, stop)]:
            if entry.log_offset - at >= stretch_bytes:
                found.append(Stretch(from_offset, entry.queue_offset, at, entry.log_offset))
                from_offset, at = entry.queue_offset, entry.log_offset
        last = bisect_left(places, stop)
        to_offset = known[last].queue_offset if last < len(known) else offsets[1]
        found.append(Stretch(from_offset, to_offset, at, stop))
    return found
