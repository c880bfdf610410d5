"""What a restore did, and everything about the tier that was not as it should be. Nothing is dropped in silence."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Finding(enum.Enum):
    """Kinds of findings. The value is the text for the reader."""

    MISSING_MANIFEST = "no manifest, so the queue was rebuilt from its records"
    CORRUPT_MANIFEST = "a damaged manifest, so the queue was rebuilt from its records"
    FUTURE_MANIFEST = "a manifest that a newer TierMQ wrote, so the queue was left out"
    MISPLACED_MANIFEST = "a manifest of another queue, so it was not used"
    MANIFEST_DISAGREES = "a manifest that the segments contradict, so the queue was rebuilt from its records"
    BEYOND_MANIFEST = "messages newer than the manifest, found in the segments"
    MISSING_SEGMENT = "a segment that the manifest names and the tier does not have"
    DAMAGED_SEGMENT = "a segment that is damaged"
    OVERLAP = "two segments for the same offsets; the later one is used"
    HOLE = "offsets without a segment"
    TRIMMED = "a torn tail, of which only the whole part counts"
    DAMAGED_UNITS = "consume-queue units that no record can have"
    DAMAGED_RECORD = "a record that does not match its unit"
    RECORDS_WITHOUT_UNITS = "complete records behind the last unit; the queue's recovery gives them units"
    MISSING_CONSUME_QUEUE = "a commit log without a consume queue; its messages cannot be found"
    MISSING_COMMIT_LOG = "a consume queue without a commit log; all of its messages have expired or are lost"
    ORPHAN = "a segment that nothing refers to; retention may delete it"
    TOPIC_ID_CONFLICT = "manifests that disagree about a topic's id"
    TOPIC_ID_ASSIGNED = "a topic without a known id, which got a new one"
    UNKNOWN_TOPIC_IN_INDEX = "index entries with the id of no known topic; key queries will not find their messages"
    CORRUPT_STATE = "a damaged table of the broker, which was not restored"
    FUTURE_STATE = "a table of the broker that a newer TierMQ wrote, which was not restored"
    ODD_ENTRY = "an entry of a table that no broker has, which was left out"
    FILE_KEPT = "a file that was there already, and was kept"
    OFFSET_CUT = "an offset beyond the end of its queue in the tier, cut to the end"
    TOPIC_ADDED = "a topic that is newer than the table of topics, added"
    TOPIC_GREW = "a topic with queues that are newer than the table of topics, added"


HARMLESS = frozenset(
    {
        Finding.BEYOND_MANIFEST,
        Finding.RECORDS_WITHOUT_UNITS,
        Finding.FILE_KEPT,
        Finding.OFFSET_CUT,
        Finding.TOPIC_ADDED,
        Finding.TOPIC_GREW,
    }
)
"""What an ordinary crash or an ordinary lag leaves behind."""


@dataclass(frozen=True, slots=True)
class Remark:
    """One finding: what, where (a path in the tier, or a topic), and the particulars."""

    finding: Finding
    where: str
    text: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.finding.value}" + (f" ({self.text})" if self.text else "")


@dataclass(frozen=True, slots=True)
class RestoredTable:
    """A table of the broker in the tier: its file in `config`, when it was taken, and how many entries it has.

    `is_kept`: the directory had such a file already, and the table was not written.
    """

    name: str
    words: str
    file: str
    taken_ms: int
    count: int
    is_kept: bool = False


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
    tables: list[RestoredTable] = field(default_factory=list)
    not_restored: list[str] = field(default_factory=list)
    last_message_ms: int = 0
    """When the newest message that was restored had been stored; 0 for none."""

    @property
    def is_clean(self) -> bool:
        """Whether the tier was as a healthy writer leaves it."""
        return all(remark.finding in HARMLESS for remark in self.remarks)

    def found(self, finding: Finding) -> list[Remark]:
        """The remarks of one kind."""
        return [remark for remark in self.remarks if remark.finding is finding]


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """Passed on after each queue: how many of how many are done, and the last one."""

    done: int
    total: int
    where: str
