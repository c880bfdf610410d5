"""The hot/cold map: where the messages of a queue are, as ranges of offsets with times. Pure.

    |  expired  |  tiered  |   gap   |  tiered  |  both  |  local  |
    0        cold_min                         hot_min  cold_max  hot_max

A queue's history (`history.catalog`) has the bounds of both sides, the gaps and the segments; a point where any of
them changes begins a new range. Times come from the time index of the manifest, from segments, and from messages that
were sampled in the store; between two of them they are interpolated.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tiermq.tier.metadata.metadata_values import NEVER_MS, Segment, SegmentStatus

if TYPE_CHECKING:
    from tiermq.history.catalog import QueueHistory


class Where(enum.StrEnum):
    """Where the messages of a range are. The order is that of the legend."""

    EXPIRED = "expired"
    TIERED = "tiered"
    PROVEN = "proven"
    BOTH = "both"
    EVICTABLE = "evictable"
    LOCAL = "local"
    GAP = "gap"
    MISSING = "missing"
    DAMAGED = "damaged"


WORDS = {
    Where.EXPIRED: "expired: deleted by retention",
    Where.TIERED: "in the tier only, in a segment that still grows",
    Where.PROVEN: "in the tier only, in a sealed segment with its checksum",
    Where.BOTH: "in the tier and still on the local disk, not proven",
    Where.EVICTABLE: "evictable: proven in the tier, and still on the local disk",
    Where.LOCAL: "on the local disk only",
    Where.GAP: "a gap: gone before it was copied to the tier",
    Where.MISSING: "neither in the tier nor on the local disk",
    Where.DAMAGED: "damaged, or a segment that is missing",
}


@dataclass(frozen=True, slots=True)
class Span:
    """Messages [from_offset, to_offset) of a queue that are in one place. Times are None where nothing knows them."""

    where: Where
    from_offset: int
    to_offset: int
    begin_ms: int | None = None
    end_ms: int | None = None
    detail: str = ""

    @property
    def messages(self) -> int:
        return self.to_offset - self.from_offset

    def to_dict(self) -> dict[str, Any]:
        return {
            "where": self.where.value,
            "fromOffset": self.from_offset,
            "toOffset": self.to_offset,
            "messages": self.messages,
            "beginMs": self.begin_ms,
            "endMs": self.end_ms,
            "detail": self.detail,
        }


class Times:
    """Store times at offsets: known ones, and in between interpolated. Offsets ascend, times never decrease."""

    def __init__(self, known: Iterable[tuple[int, int]]) -> None:
        self._offsets: list[int] = []
        self._times: list[int] = []
        for offset, moment in sorted(known):
            if self._offsets and offset == self._offsets[-1]:
                continue
            self._offsets.append(offset)
            self._times.append(max(moment, self._times[-1]) if self._times else moment)

    def at(self, offset: int) -> int | None:
        """None before the first known time; behind the last known one, that."""
        index = bisect_left(self._offsets, offset)
        if index < len(self._offsets) and self._offsets[index] == offset:
            return self._times[index]
        if index == 0:
            return None
        if index == len(self._offsets):
            return self._times[-1]
        low, high = self._offsets[index - 1], self._offsets[index]
        before, after = self._times[index - 1], self._times[index]
        return before + (after - before) * (offset - low) // (high - low)

    @property
    def range_ms(self) -> tuple[int, int] | None:
        """The first and the last known time."""
        return (self._times[0], self._times[-1]) if self._times else None

    def offset_after(self, moment_ms: int, end: int) -> int:
        """About the first message that was stored after this time; `end` where all known ones were stored before it."""
        index = bisect_right(self._times, moment_ms)
        if index == len(self._times):
            return end
        if index == 0:
            return self._offsets[0]
        low, high = self._offsets[index - 1], self._offsets[index]
        before, after = self._times[index - 1], self._times[index]
        return low + 1 + (high - low - 1) * (moment_ms - before) // (after - before)


def times_of(queue: QueueHistory, newest_ms: int | None = None) -> Times:
    """What a queue's history knows of its times; `newest_ms` is that of its last message."""
    known = [(entry.queue_offset, entry.store_ms) for entry in (*queue.time_entries, *queue.hot_time_entries)]
    for log in queue.logs:
        if log.begin_offset >= 0 and log.begin_ms != NEVER_MS:
            known.append((log.begin_offset, log.begin_ms))
        if log.end_offset > 0 and log.end_ms != NEVER_MS:
            known.append((log.end_offset - 1, log.end_ms))
    if newest_ms is not None and newest_ms > 0 and queue.max_offset > 0:
        known.append((queue.max_offset - 1, newest_ms))
    return Times(known)


def spans_of(queue: QueueHistory, newest_ms: int | None = None, damaged: Mapping[str, str] | None = None) -> list[Span]:
    """The whole queue from offset 0 to its end, as ranges that touch each other. `damaged`: what is wrong with a
    segment, by its path.
    """
    times = times_of(queue, newest_ms)
    gaps = [(gap.from_offset, gap.to_offset, gap.reason) for gap in queue.gaps]
    holes = [*_holes(queue.logs), *_bad(queue.logs, damaged or {})]
    points = {0, queue.max_offset, queue.cold_min, queue.cold_max, queue.hot_min, queue.hot_max}
    points |= {at for begin, end, _ in (*gaps, *holes) for at in (begin, end)}
    points |= {at for log in queue.logs for at in (log.begin_offset, log.end_offset) if at >= 0}
    bounds = sorted(point for point in points if 0 <= point <= queue.max_offset)
    found: list[Span] = []
    for begin, end in pairwise(bounds):
        where, detail = _where(queue, begin, gaps, holes)
        if found and (found[-1].where, found[-1].detail) == (where, detail):
            found[-1] = replace(found[-1], to_offset=end)
        else:
            found.append(Span(where, begin, end, detail=detail))
    return [
        replace(span, begin_ms=times.at(span.from_offset), end_ms=times.at(span.to_offset - 1))
        if span.where is not Where.EXPIRED
        else span
        for span in found
    ]


Range = tuple[int, int, str]


def _holes(logs: Sequence[Segment]) -> list[Range]:
    """Offsets between two log segments that do not meet: what is there cannot be read."""
    found = []
    for before, after in pairwise(logs):
        if before.end < after.key.base and 0 <= before.end_offset < after.begin_offset:
            lost = after.key.base - before.end
            found.append((before.end_offset, after.begin_offset, f"{lost:,} bytes of the log are missing"))
    return found


def _bad(logs: Sequence[Segment], damaged: Mapping[str, str]) -> list[Range]:
    """Segments with bytes that are not what was written; which, the text names."""
    return [
        (log.begin_offset, log.end_offset, damaged[log.key.path])
        for log in logs
        if log.key.path in damaged and log.begin_offset >= 0
    ]


def _where(queue: QueueHistory, at: int, gaps: Sequence[Range], holes: Sequence[Range]) -> tuple[Where, str]:
    is_cold = queue.has_cold and queue.cold_min <= at < queue.cold_max
    is_hot = queue.hot_min <= at < queue.hot_max
    for ranges, where in ((holes, Where.DAMAGED), (gaps, Where.GAP)):
        inside = next((detail for begin, end, detail in ranges if begin <= at < end), None)
        if inside is not None and not is_hot:
            return where, inside
    if is_cold:
        is_proven = _is_proven(queue, at)
        if is_hot:
            return (Where.EVICTABLE if is_proven else Where.BOTH), ""
        return (Where.PROVEN if is_proven else Where.TIERED), ""
    if is_hot:
        return Where.LOCAL, ""
    return (Where.EXPIRED if at < queue.min_offset else Where.MISSING), ""


def _is_proven(queue: QueueHistory, at: int) -> bool:
    log = next((log for log in queue.logs if 0 <= log.begin_offset <= at < log.end_offset), None)
    return log is not None and log.status is SegmentStatus.SEALED and (log.crc32 is not None or log.has_all_sums)
