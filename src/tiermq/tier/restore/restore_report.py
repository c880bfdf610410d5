"""What a restore did, and everything about the tier that was not as it should be. Nothing is dropped in silence."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Finding(enum.Enum):
    """Kinds of what a restore has to say. The value says what it means for the reader."""

    MISSING_MANIFEST = "no manifest, so the queue was rebuilt from its records"
    CORRUPT_MANIFEST = "a damaged manifest, so the queue was rebuilt from its records"
    FUTURE_MANIFEST = "a manifest that a newer TierMQ wrote, so the queue was left out"
    MISPLACED_MANIFEST = "a manifest of another queue, so it was not believed"
    MANIFEST_DISAGREES = "a manifest that the segments contradict, so the queue was rebuilt from its records"
    BEYOND_MANIFEST = "messages newer than the manifest, found in the segments"
    MISSING_SEGMENT = "a segment that the manifest names and the tier does not have"
    DAMAGED_SEGMENT = "a segment that is damaged"
    OVERLAP = "two segments for the same offsets; the later one is believed"
    HOLE = "offsets without a segment"
    TRIMMED = "a torn tail, of which only the whole part counts"
    DAMAGED_UNITS = "consume-queue units that no record can have"
    DAMAGED_RECORD = "a record that is not what its unit says"
    RECORDS_WITHOUT_UNITS = "whole records behind the last unit; the queue's recovery gives them units"
    MISSING_CONSUME_QUEUE = "a commit log without a consume queue; its messages cannot be found"
    MISSING_COMMIT_LOG = "a consume queue without a commit log; all of its messages have expired or are lost"
    ORPHAN = "a segment that nothing refers to; retention may delete it"
    TOPIC_ID_CONFLICT = "manifests that disagree about a topic's id"
    TOPIC_ID_ASSIGNED = "a topic without a known id, which got a new one"
    UNKNOWN_TOPIC_IN_INDEX = "index entries with the id of no known topic; key queries will not find their messages"


NOT_IN_THE_TIER = (
    "consumer groups, their settings and their offsets",
    "numbers of queues (a topic gets as many as have messages in the tier)",
    "permissions, order and attributes of topics, except how long they are kept",
)
"""What a broker's `config` directory has and no tier: a restore does not bring it back. Keep copies of it."""

HARMLESS = frozenset({Finding.BEYOND_MANIFEST, Finding.RECORDS_WITHOUT_UNITS})
"""What an ordinary crash or an ordinary lag leaves behind."""


@dataclass(frozen=True, slots=True)
class Remark:
    """One finding: what, where (a path in the tier, or a topic), and the particulars."""

    finding: Finding
    where: str
    text: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.finding.value}" + (f" ({self.text})" if self.text else "")


@dataclass(slots=True)
class RestoreReport:
    """The result of a restore. `epoch_max` is the least epoch below which a new writer would be stale."""

    cluster: str = ""
    broker: str = ""
    topic_count: int = 0
    queue_count: int = 0
    segment_count: int = 0
    message_count: int = 0
    size_bytes: int = 0
    epoch_max: int = 0
    remarks: list[Remark] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether the tier was as a healthy writer leaves it."""
        return all(remark.finding in HARMLESS for remark in self.remarks)

    def found(self, finding: Finding) -> list[Remark]:
        """The remarks of one kind."""
        return [remark for remark in self.remarks if remark.finding is finding]


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """Told after each queue: how many of how many are done, and which one was the last."""

    done: int
    total: int
    where: str
