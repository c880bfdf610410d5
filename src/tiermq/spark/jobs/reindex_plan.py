"""What of a broker's history no index covers, and how it is parted. Functions of values, nothing else.

    coverage of the store's own record ─┐
    coverage of the uploaded files ─────┴─► not in either: ranges of each queue's log ─► pieces ─► index files

Both are true: each speaks of items that are there. So what is missing is what both lack; what RocketMQ indexed is
doubtful, and counts as missing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tiermq.tier.index.index_coverage import Coverage, CoverageRecord, Hole, QueueCoverage, QueueName
from tiermq.tier.metadata.metadata_values import TimeEntry

LogRange = tuple[int, int]
"""Offsets [start, stop) of a queue's commit log."""


def uncovered(known: QueueCoverage | None, topic_id: int, log: LogRange) -> list[LogRange]:
    """Ranges of the log that a coverage does not speak for, in order. `known` of another topic id covers nothing."""
    if known is None or known.topic_id != topic_id:
        return [log] if log[0] < log[1] else []
    missing = [(0, known.doubtful_end), *known.holes, (known.end, log[1])]
    return joined((max(start, log[0]), min(stop, log[1])) for start, stop in missing)


def joined(ranges: Iterable[LogRange]) -> list[LogRange]:
    """The ranges in order, those that touch made one, empty ones left out."""
    found: list[LogRange] = []
    for start, stop in sorted(each for each in ranges if each[0] < each[1]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return found


def in_both(one: Sequence[LogRange], other: Sequence[LogRange]) -> list[LogRange]:
    """What is in both."""
    return joined((max(a, c), min(b, d)) for a, b in one for c, d in other)


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
    """The ranges in stretches of about so many bytes, cut where the sparse time index knows a message's place.

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


def grouped(counts: Sequence[int], items_max: int) -> list[list[int]]:
    """Numbers of fragments in groups of up to `items_max` keys, in order; those without keys are in none."""
    groups: list[list[int]] = []
    total = 0
    for number, count in enumerate(counts):
        if not count:
            continue
        if not groups or total + count > items_max:
            groups.append([])
            total = 0
        groups[-1].append(number)
        total += count
    return groups


def without(ranges: Sequence[LogRange], done: Iterable[LogRange]) -> list[LogRange]:
    """What is left of the ranges when others were done."""
    left = list(ranges)
    for start, stop in done:
        left = [part for a, b in left for part in ((a, min(b, start)), (max(a, stop), b)) if part[0] < part[1]]
    return joined(left)


def coverage_of(left: Sequence[LogRange], topic_id: int, log: LogRange) -> QueueCoverage:
    """The coverage of a queue of whose log these ranges are missing: the last one is behind its end, others holes."""
    if left and left[-1][1] >= log[1]:
        return QueueCoverage(topic_id, left[-1][0], [Hole(*hole) for hole in left[:-1]])
    return QueueCoverage(topic_id, log[1], [Hole(*hole) for hole in left])


def with_queues(record: CoverageRecord, queues: Mapping[QueueName, QueueCoverage]) -> CoverageRecord:
    """The record with other coverages of some queues; nobody needs to ask what was before it."""
    coverage = Coverage({**record.coverage().queues, **queues})
    return CoverageRecord.of(coverage, record.files, record.next_base)
