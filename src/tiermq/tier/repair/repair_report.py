"""What a repair would do, did, and could not do."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from tiermq.tier.names import QueueKey, SegmentKey
from tiermq.tier.verify_keys import KeyRange


class RepairKind(enum.Enum):
    """What an action works on, in the order in which actions must be run. The value says from what it is rebuilt."""

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
    """One thing to look at and mend. Running it again, or when nothing is wrong, is harmless."""

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
    """What came of an action: changes made (or planned), what was kept aside, what cannot be mended and why."""

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
        """Whether nothing is left to be mended, or nothing that cannot be after a dry run."""
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
