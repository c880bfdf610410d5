"""From what a verification found to what a repair looks at. Pure.

    about the records of a queue                       LOG, UNITS, MANIFEST
    about its units                                    UNITS, MANIFEST
    about its manifest, its time index, its offsets    MANIFEST
    about an index file                                INDEX
    about messages without items                       KEYS, once for a broker's index
    about anything else                                NONE
    a queue without a manifest, beside others          MANIFEST (`lost_manifests`)

A finding may have several causes (a unit that disagrees with its record, or a record with its unit), so an action looks
for itself and does nothing where nothing is wrong. What changes a queue's segments changes its manifest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tiermq.errors import BadTierName
from tiermq.tier.metadata.manifest import queue_of_manifest
from tiermq.tier.names import (
    INDEX_TOPIC,
    OBJECT_SUFFIX,
    QueueKey,
    SegmentKey,
    SegmentType,
    cluster_directory,
    index_queue,
    segment_at,
)
from tiermq.tier.repair.repair_report import RepairAction, RepairKind
from tiermq.tier.verify_keys import KeyRange
from tiermq.tier.verify_report import Finding, Note, Problem, VerifyReport
from tiermq.tier.verify_task import QueueTask, VerifyPlan

_KINDS_IN_ORDER = (
    RepairKind.LOG,
    RepairKind.UNITS,
    RepairKind.MANIFEST,
    RepairKind.INDEX,
    RepairKind.KEYS,
    RepairKind.NONE,
)
_OF_UNITS = {
    problem.name.lower()
    for problem in (
        Problem.UNIT_DISAGREES,
        Problem.UNIT_WITHOUT_RECORD,
        Problem.BLANK_WITHOUT_GAP,
        Problem.MISALIGNED,
    )
}
_OF_MANIFEST = {problem.name.lower() for problem in (Problem.MANIFEST, Problem.TIME_INDEX, Problem.OFFSETS)}


def plan_repair(report: VerifyReport) -> list[RepairAction]:
    """What to look at, in an order in which it can be run: logs before units, units before manifests, index last."""
    reasons: defaultdict[tuple[RepairKind, QueueKey, SegmentKey | None], set[str]] = defaultdict(set)
    lost: list[RepairAction] = []
    for finding in report.problems:
        if finding.kind == Problem.MISSING_ITEMS.name.lower():
            continue
        found = list(_actions_for(finding))
        for kind, queue, segment in found:
            reasons[kind, queue, segment].add(finding.kind)
        if not found:
            queue = queue_at(finding.where) or QueueKey("unknown", "unknown", "unknown", 0)
            lost.append(RepairAction(RepairKind.NONE, queue, None, (f"{finding.kind} {finding.where}",)))
    actions = [
        RepairAction(kind, queue, segment, tuple(sorted(why))) for (kind, queue, segment), why in reasons.items()
    ]
    actions += _keys_actions(report)
    order = {kind: number for number, kind in enumerate(_KINDS_IN_ORDER)}
    actions.sort(key=lambda action: (order[action.kind], action.queue, action.segment.base if action.segment else 0))
    return actions + lost


def _keys_actions(report: VerifyReport) -> list[RepairAction]:
    """One for each broker: its missing items go into one new index file."""
    homes: defaultdict[QueueKey, list[KeyRange]] = defaultdict(list)
    for each in report.lost_keys:
        homes[index_queue(each.queue.cluster, each.queue.broker)].append(each)
    reason = (Problem.MISSING_ITEMS.name.lower(),)
    return [RepairAction(RepairKind.KEYS, index, None, reason, tuple(some)) for index, some in sorted(homes.items())]


def lost_manifests(plan: VerifyPlan, found: VerifyReport) -> list[RepairAction]:
    """Manifests to make, of queues that have none beside others of their broker that do.

    A queue is sound without one, so it is no problem; where nobody has one, RocketMQ wrote the tier, which knows none.
    """
    with_some = {
        (task.key.cluster, task.key.broker) for task in plan.tasks if isinstance(task, QueueTask) and task.has_manifest
    }
    noted = [queue_at(note.where) for note in found.notes if note.kind == Note.NO_MANIFEST.name.lower()]
    covered = {queue_at(problem.where) for problem in found.problems}
    return [
        RepairAction(RepairKind.MANIFEST, queue, None, (Note.NO_MANIFEST.name.lower(),))
        for queue in sorted({queue for queue in noted if queue is not None} - covered)
        if (queue.cluster, queue.broker) in with_some
    ]


def _actions_for(finding: Finding) -> Iterable[tuple[RepairKind, QueueKey, SegmentKey | None]]:
    queue = queue_at(finding.where)
    if queue is None:
        return []
    if queue.topic == INDEX_TOPIC:
        segment = segment_at(finding.where.removesuffix(OBJECT_SUFFIX))
        if segment is not None:
            return [(RepairKind.INDEX, queue, segment)]
        return [(RepairKind.MANIFEST, queue, None)] if finding.kind in _OF_MANIFEST else []
    return [(kind, queue, None) for kind in _kinds(finding)]


def _kinds(finding: Finding) -> tuple[RepairKind, ...]:
    if finding.kind in _OF_MANIFEST:
        return (RepairKind.MANIFEST,)
    segment = segment_at(finding.where)
    is_of_units = segment is not None and segment.type is SegmentType.CONSUME_QUEUE
    if is_of_units or (finding.kind in _OF_UNITS and finding.kind != Problem.UNIT_WITHOUT_RECORD.name.lower()):
        return RepairKind.UNITS, RepairKind.MANIFEST
    return RepairKind.LOG, RepairKind.UNITS, RepairKind.MANIFEST


def queue_at(where: str) -> QueueKey | None:
    """The queue that a path, a directory or a name of a small object belongs to; None when it belongs to none."""
    manifest = queue_of_manifest(where)
    if manifest is not None:
        return manifest
    parts = where.split("/")
    if len(parts) < 4 or not (parts[3].isascii() and parts[3].isdigit()):
        return None
    try:
        key = QueueKey(parts[0].partition("_")[2], parts[1], parts[2], int(parts[3]))
    except BadTierName:
        return None
    return key if parts[0] == cluster_directory(key.cluster) else None
