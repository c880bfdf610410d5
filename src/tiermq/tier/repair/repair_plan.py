"""The actions of a repair, from the findings of a verification. Pure.

    about the records of a queue                       LOG, UNITS, MANIFEST
    about its units                                    UNITS, MANIFEST
    about its manifest, its time index, its offsets    MANIFEST
    about an index file                                INDEX
    about messages without items                       KEYS, once for a broker's index
    about anything else                                NONE
    a queue without a manifest, beside others          MANIFEST (`lost_manifests`)
    a manifest without checksums of all blocks         MANIFEST (`lost_manifests`)

A finding may have several causes (a unit that disagrees with its record, or a record with its unit), so an action
checks again and does nothing where nothing is wrong. What changes a queue's segments changes its manifest.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tiermq.errors import BadTierName
from tiermq.tier.metadata.manifest import queue_of_manifest
from tiermq.tier.metadata.metadata_values import SegmentStatus
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
from tiermq.tier.verify.missing_keys import KeyRange
from tiermq.tier.verify.verify_plan import QueueTask, VerifyPlan
from tiermq.tier.verify.verify_report import Finding, Note, Problem, VerifyReport

# What a repair would do, did, and could not do.


class RepairKind(enum.Enum):
    """What an action works on, in the order in which actions must be run. The value is its source."""

    LOG = "records of a commit log, from a local store that still has them"
    UNITS = "a consume queue, from the records of its commit log"
    MANIFEST = "a manifest, from the segments of its queue"
    INDEX = "an index file, from the keys of the messages that it covers"
    KEYS = "items of the key index that are missing, from the messages that lack them"
    NONE = "nothing that could be rebuilt from anything"


class RepairState(enum.Enum):
    """How an action ended."""

    DONE = "done"
    PLANNED = "planned"  # A dry run: this is what would be done.
    UNCHANGED = "unchanged"  # Nothing was wrong (any more).
    PARTLY = "partly"  # Some of it was done (or planned), some is not possible.
    NOT_POSSIBLE = "not possible"


@dataclass(frozen=True, slots=True)
class RepairAction:
    """One repair. Idempotent, and without effect when nothing is wrong."""

    kind: RepairKind
    queue: QueueKey
    segment: SegmentKey | None = None  # Of an index file.
    reasons: tuple[str, ...] = ()
    key_ranges: tuple[KeyRange, ...] = ()  # Where messages lack items.

    @property
    def where(self) -> str:
        return self.queue.directory if self.segment is None else self.segment.path


@dataclass(frozen=True, slots=True)
class RepairOutcome:
    """Result of an action: changes made (or planned), copies kept, what cannot be repaired and why."""

    action: RepairAction
    state: RepairState
    changes: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    not_possible: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        action: RepairAction,
        changes: list[str],
        kept: list[str],
        not_possible: list[str],
        *,
        is_dry_run: bool,
    ) -> RepairOutcome:
        if not_possible:
            state = RepairState.PARTLY if changes else RepairState.NOT_POSSIBLE
        elif changes:
            state = RepairState.PLANNED if is_dry_run else RepairState.DONE
        else:
            state = RepairState.UNCHANGED
        return cls(action, state, tuple(changes), tuple(kept), tuple(not_possible))

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.action.kind.name.lower(),
            "where": self.action.where,
            "reasons": list(self.action.reasons),
            "state": self.state.value,
            "changes": list(self.changes),
            "kept": list(self.kept),
            "not_possible": list(self.not_possible),
        }


@dataclass
class RepairReport:
    """All outcomes of a repair, and how many problems a verification found before and after (-1: none ran after it)."""

    url: str
    is_dry_run: bool
    problems_before: int = 0
    problems_after: int = -1
    outcomes: list[RepairOutcome] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether everything is repaired, or after a dry run, can be."""
        if self.is_dry_run:
            return not any(outcome.not_possible for outcome in self.outcomes)
        return self.problems_after == 0 or (self.problems_before == 0 and self.problems_after < 0)

    def to_dict(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "dry_run": self.is_dry_run,
            "complete": self.is_complete,
            "problems_before": self.problems_before,
            "problems_after": self.problems_after if self.problems_after >= 0 else None,
            "actions": [outcome.to_dict() for outcome in self.outcomes],
        }


_KINDS_IN_ORDER = (
    RepairKind.LOG,
    RepairKind.UNITS,
    RepairKind.MANIFEST,
    RepairKind.INDEX,
    RepairKind.KEYS,
    RepairKind.NONE,
)
NO_SUMS = "no_block_checksums"
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
    """The actions in their order: logs before units, units before manifests, index last."""
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
    """Manifests to make, of queues that have none beside others of their broker that do, or that lack checksums.

    A queue is valid without one, so it is no problem; where no queue has one, RocketMQ wrote the tier.
    """
    queues = [task for task in plan.tasks if isinstance(task, QueueTask)]
    with_some = {(task.key.cluster, task.key.broker) for task in queues if task.has_manifest}
    noted = [queue_at(note.where) for note in found.notes if note.kind == Note.NO_MANIFEST.name.lower()]
    covered = {queue_at(problem.where) for problem in found.problems}
    lost = {queue for queue in noted if queue is not None and (queue.cluster, queue.broker) in with_some}
    unsummed = {
        task.key
        for task in queues
        if task.has_manifest and not all(row.has_all_sums or row.status is SegmentStatus.DELETED for row in task.rows)
    }
    return [
        RepairAction(RepairKind.MANIFEST, queue, None, (Note.NO_MANIFEST.name.lower() if queue in lost else NO_SUMS,))
        for queue in sorted((lost | unsummed) - covered)
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
