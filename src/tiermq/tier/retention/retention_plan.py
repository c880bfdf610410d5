"""Which segments of a queue may be deleted. Pure.

    log     | 0 | 1 | 2 | 3 ...      deleted when its newest record is too old, or by size when it is the oldest
    units   | 0     | 1     | ...    deleted when its newest unit is too old, or when no record of it is left

Rules: segments are deleted from the head only; never one without bytes (it is for the next message), nor one with bytes
that are not committed yet; the last segment is deleted once everything in it is too old, and never by size. Units go
before the records that they point to, so no unit points to a deleted record: between the two steps, and after a crash
between them, the first unit is the beginning of the queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.tier.metadata.metadata_values import NEVER_MS, UNKNOWN_OFFSET, UNLIMITED

FOR_EVER_HOURS = (1 << 31) - 1
"""A topic with this retention in hours, or more, keeps its messages for ever."""


class SegmentFacts(Protocol):
    """What a plan needs to know of a segment (`flat.flat_segment.FlatSegment`)."""

    @property
    def base(self) -> int: ...
    @property
    def commit_offset(self) -> int: ...
    @property
    def commit_position(self) -> int: ...
    @property
    def pending_bytes(self) -> int: ...
    @property
    def begin_ms(self) -> int: ...
    @property
    def end_ms(self) -> int: ...
    @property
    def begin_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Kept:
    """How long, and how many bytes, of a topic are kept; None: for ever, and any number."""

    hours: int | None = None
    max_bytes: int | None = None

    @classmethod
    def by(cls, own_hours: int, own_bytes: int, default_hours: int, default_bytes: int) -> Kept:
        """The one rule: a topic's own value where it has one (above 0), else the setting for all topics."""
        hours = own_hours if own_hours > 0 else default_hours
        max_bytes = own_bytes if own_bytes > 0 else default_bytes
        return cls(hours if 0 < hours < FOR_EVER_HOURS else None, max_bytes if max_bytes > 0 else None)

    def __str__(self) -> str:
        days, rest = divmod(self.hours or 0, 24)
        time = "for ever" if self.hours is None else f"{days:,} d" if days and not rest else f"{self.hours:,} h"
        return time if self.max_bytes is None else f"{time}, at most {self.max_bytes:,} bytes of a topic"


KEPT_FOR_EVER = Kept.by(UNLIMITED, UNLIMITED, UNLIMITED, UNLIMITED)


@dataclass(frozen=True, slots=True)
class ExpiryPlan:
    """How many leading segments of each file go. Units first."""

    unit_count: int = 0
    log_count: int = 0

    def __bool__(self) -> bool:
        return bool(self.unit_count or self.log_count)


def plan_by_time(log: Sequence[SegmentFacts], units: Sequence[SegmentFacts], threshold_ms: int) -> ExpiryPlan:
    """What is to go of a queue whose messages are kept since `threshold_ms`."""
    log_count = _leading(segment.end_ms < threshold_ms and _may_go(segment) for segment in log)
    begin = first_offset_left(log, units, log_count)
    unit_count = _leading(
        _may_go(segment) and (segment.end_ms < threshold_ms or segment.commit_offset <= begin * UNIT_BYTES)
        for segment in units
    )
    return ExpiryPlan(unit_count, log_count)


def plan_by_size(log: Sequence[SegmentFacts], units: Sequence[SegmentFacts]) -> ExpiryPlan:
    """What is to go when a queue must give its oldest commit-log segment; nothing when it has no other."""
    if len(log) < 2 or not _may_go(log[0]):
        return ExpiryPlan()
    begin = first_offset_left(log, units, 1)
    unit_count = _leading(_may_go(segment) and segment.commit_offset <= begin * UNIT_BYTES for segment in units)
    return ExpiryPlan(unit_count, 1)


def first_offset_left(log: Sequence[SegmentFacts], units: Sequence[SegmentFacts], log_count: int) -> int:
    """The queue offset of the first record behind the leading `log_count` segments; -1 when that is not known."""
    end = units[-1].commit_offset // UNIT_BYTES if units else UNKNOWN_OFFSET
    rest = [segment for segment in log[log_count:] if segment.commit_position or segment.pending_bytes]
    if not rest:
        return end
    if rest[0].begin_offset != UNKNOWN_OFFSET:
        return min(rest[0].begin_offset, end)
    return min(log[log_count - 1].end_offset, end) if log_count else UNKNOWN_OFFSET


def wants_roll(segment: SegmentFacts, threshold_ms: int) -> bool:
    """Whether the growing segment holds messages that are too old beside others that are not.

    Rolled now, it is deleted when the newest of them is too old. Without that a quiet queue keeps its first message for
    as long as another comes now and then, because its segment never fills.
    """
    return _may_go(segment) and segment.begin_ms < threshold_ms <= segment.end_ms


def _may_go(segment: SegmentFacts) -> bool:
    return segment.commit_position > 0 and not segment.pending_bytes and segment.end_ms != NEVER_MS


def _leading(answers: Iterable[bool]) -> int:
    count = 0
    for answer in answers:
        if not answer:
            break
        count += 1
    return count
