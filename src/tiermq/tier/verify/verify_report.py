"""The report of a verification: problems, which are loss or contradiction, and notes, which are not."""

from __future__ import annotations

import enum
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tiermq.store.readonly.check import FINDINGS_KEPT_MAX

if TYPE_CHECKING:
    from tiermq.tier.verify.missing_keys import KeyRange

COUNTS = (
    "queues", "segments", "bytes", "records", "units", "blank_units", "expired_units", "index_files", "index_items",
    "stale_items", "keys", "missing_items", "timer_objects", "timers",
)  # fmt: skip


class Problem(enum.Enum):
    """Kinds of problems. The value is the text for the reader."""

    UNREADABLE = "bytes that the tier lists and does not give"
    DAMAGED_LISTING = "objects of a segment that do not fit together"
    MISSING_SEGMENT = "a segment that is known and not there"
    SHORT_SEGMENT = "a segment with fewer bytes than are known of"
    CHECKSUM = "bytes that have another checksum than when they were written"
    HOLE = "offsets that no segment covers"
    OVERLAP = "two segments for the same offsets"
    MISALIGNED = "a consume-queue segment that is no run of whole units"
    DAMAGED_RECORD = "a record that is damaged"
    FOREIGN_RECORD = "a record of another topic or queue"
    UNIT_DISAGREES = "a unit that does not match its record"
    UNIT_WITHOUT_RECORD = "a unit whose record is not there"
    BLANK_WITHOUT_GAP = "a blank unit outside of every recorded gap"
    TIME_INDEX = "an entry of the time index that is not true"
    OFFSETS = "a manifest that claims messages which are not there"
    MANIFEST = "a manifest, lease, companion or table of a broker that cannot be read"
    INDEX_STRUCTURE = "an index file that is inconsistent"
    INDEX_ITEM = "an index item that does not lead to a message with such a key"
    MISSING_ITEMS = "messages whose keys the index covers and has no items of; queries by key do not find them"
    DAMAGED_TIMERS = "timers that cannot be read, so that their messages cannot be delivered"
    MISSING_TIMERS = "timers that are known and not there"


class Note(enum.Enum):
    """Kinds of notes: what a crash, a running writer or RocketMQ leaves behind."""

    TORN_TAIL = "a torn end, which the next writer cuts off"
    RECORDS_WITHOUT_UNITS = "records whose units are not there yet; the next writer makes them"
    UNREFERENCED = "bytes that no unit knows, such as a repeated upload leaves"
    NO_MANIFEST = "a queue without a manifest"
    BEYOND_MANIFEST = "messages that are newer than the manifest"
    HEAD_IS_GONE = "a segment at the head that expired after the manifest was written"
    BEING_DELETED = "a segment whose deletion is not finished"
    CHANGED_MEANWHILE = "something that a writer changed while it was read"
    PARTS_LEFT = "a sealed segment whose parts are still there"


class Finding(NamedTuple):
    """One problem or note: its kind, its path, and a text."""

    kind: str
    where: str
    text: str


@dataclass
class VerifyReport:
    """What was found. Counts are of all; `problems` and `notes` keep the first thousand. Any thread may add."""

    url: str
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    problems: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    problem_count: int = 0
    note_count: int = 0
    lost_keys: list[KeyRange] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def is_clean(self) -> bool:
        return self.problem_count == 0

    def count(self, what: str, amount: int = 1) -> None:
        with self._lock:
            self.counts[what] += amount

    def problem(self, kind: Problem, where: str, text: str) -> None:
        with self._lock:
            self.problem_count += 1
            if len(self.problems) < FINDINGS_KEPT_MAX:
                # Errors that are quoted begin with the place, too.
                self.problems.append(Finding(kind.name.lower(), where, text.removeprefix(f"{where}: ")))

    def note(self, kind: Note, where: str, text: str) -> None:
        with self._lock:
            self.note_count += 1
            if len(self.notes) < FINDINGS_KEPT_MAX:
                self.notes.append(Finding(kind.name.lower(), where, text))

    def add(
        self,
        counts: Mapping[str, int],
        problems: Sequence[Finding],
        problem_count: int,
        notes: Sequence[Finding],
        note_count: int,
    ) -> None:
        """Take over what a part of the verification has found."""
        with self._lock:
            for what, amount in counts.items():
                self.counts[what] += amount
            self.problems += problems[: FINDINGS_KEPT_MAX - len(self.problems)]
            self.notes += notes[: FINDINGS_KEPT_MAX - len(self.notes)]
            self.problem_count += problem_count
            self.note_count += note_count

    def to_dict(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "clean": self.is_clean,
            "counts": dict(self.counts),
            "problem_count": self.problem_count,
            "problems": [finding._asdict() for finding in self.problems],
            "note_count": self.note_count,
            "notes": [finding._asdict() for finding in self.notes],
        }
