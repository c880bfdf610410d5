"""What retention would remove from a broker's tier, and why, by its metadata alone. Pure reading.

The rules are `tier.retention_plan`'s, which the broker's retention uses; here they are applied to rows instead of open
files, so that a dry run shows segments with reasons and touches nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import Segment, Topic, TopicStatus
from tiermq.tier.names import INDEX_TOPIC, QueueKey, SegmentType
from tiermq.tier.retention.retention_plan import plan_by_size, plan_by_time


@dataclass(frozen=True, slots=True)
class Leaving:
    """An object to delete: a segment or an orphan, and why."""

    path: str
    size: int
    reason: str

    def as_row(self) -> dict[str, Any]:
        return {"path": self.path, "bytes": self.size, "reason": self.reason}


class _Facts:
    """A row as `retention_plan` wants to see a segment; a commit-log segment's offsets are its row's."""

    pending_bytes = 0

    def __init__(self, row: Segment) -> None:
        self.row = row
        self.base = row.key.base
        self.commit_position = row.size
        self.commit_offset = row.end
        self.begin_ms, self.end_ms = row.begin_ms, row.end_ms
        is_unit = row.key.type is SegmentType.CONSUME_QUEUE
        self.begin_offset = row.key.base // UNIT_BYTES if is_unit else row.begin_offset
        self.end_offset = row.end // UNIT_BYTES if is_unit else row.end_offset


def planned_expiry(
    metadata: MetadataStore,
    kept_ms: Callable[[Topic | None], int],
    bytes_max: Callable[[Topic], int],
    now_ms: int,
    *,
    is_delete_enabled: bool = True,
) -> list[Leaving]:
    """Everything that one round of retention would remove. Index files are left to the index.

    `kept_ms` and `bytes_max` are how long and how much of a topic is kept, as `Retention` does.
    """
    leaving = [
        Leaving(row.key.path, row.size, "its deletion was begun and not finished")
        for row in metadata.segments_being_deleted()
    ]
    topics = {topic.name: topic for topic in metadata.topics()}
    deleting = {name for name, topic in topics.items() if topic.status == TopicStatus.DELETING}
    for name in sorted(deleting):
        leaving += [Leaving(row.key.path, row.size, f"topic {name} is deleted") for row in metadata.all_segments(name)]
    if not is_delete_enabled:
        return leaving
    queues = [q.key for q in metadata.queues() if q.key.topic != INDEX_TOPIC and q.key.topic not in deleting]
    left: dict[QueueKey, tuple[list[_Facts], list[_Facts]]] = {}
    for key in queues:
        log = [_Facts(row) for row in metadata.segments(key, SegmentType.COMMIT_LOG)]
        units = [_Facts(row) for row in metadata.segments(key, SegmentType.CONSUME_QUEUE)]
        hours = kept_ms(topics.get(key.topic)) / 3_600_000
        plan = plan_by_time(log, units, now_ms - kept_ms(topics.get(key.topic)))
        reason = f"every message in it is older than {hours:,.6g} h"
        leaving += [_leaving(each, reason) for each in (*units[: plan.unit_count], *log[: plan.log_count])]
        left[key] = (log[plan.log_count :], units[plan.unit_count :])
    for topic in topics.values():
        if topic.name not in deleting:
            files = [files for key, files in left.items() if key.topic == topic.name]
            leaving += _by_size(files, bytes_max(topic))
    return leaving


def _by_size(files: Sequence[tuple[list[_Facts], list[_Facts]]], limit: int) -> list[Leaving]:
    """The oldest segments of a topic, until it fits."""
    leaving: list[Leaving] = []
    size = sum(each.commit_position for log, units in files for each in (*log, *units))
    reason = f"its topic has more than {limit:,} bytes, and it is the oldest"
    while 0 <= limit < size:
        able = [file for file in files if plan_by_size(*file)]
        if not able:
            break
        log, units = min(able, key=lambda file: file[0][0].end_ms)
        plan = plan_by_size(log, units)
        gone = [*units[: plan.unit_count], *log[: plan.log_count]]
        del units[: plan.unit_count], log[: plan.log_count]
        size -= sum(each.commit_position for each in gone)
        leaving += [_leaving(each, reason) for each in gone]
    return leaving


def _leaving(facts: _Facts, reason: str) -> Leaving:
    return Leaving(facts.row.key.path, facts.row.size, reason)
