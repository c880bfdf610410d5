"""A verification cut into tasks: small values that can be sent anywhere, and what comes back from each.

    plan_verify ──► VerifyPlan(tasks) ──► run_verify_task, anywhere, in any order ──► join_verify ──► VerifyReport

A queue is one task, or several that share nothing: each has a range of the commit log and exactly the units of its
records. They are cut between two records that both agree with their units. An index file is one task. Where what those
two found does not fit together, a third sort looks at a range of messages and the items of their keys (`verify_keys`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.tier.checked_segment import CrcPiece
from tiermq.tier.driver.contract import SegmentInfo
from tiermq.tier.metadata.metadata_values import Gap, Segment, TimeEntry
from tiermq.tier.names import QueueKey, SegmentType
from tiermq.tier.unit_cursor import UnitRow
from tiermq.tier.verify_keys import KeyRange, KeySum, MissingKeysTask
from tiermq.tier.verify_report import Finding, VerifyReport

END = (1 << 63) - 1
"""Where the last range ends: at whatever the last segment has."""


@dataclass(frozen=True, slots=True)
class QueueTask:
    """Records [log_from, log_to) of a queue's commit log and its units [unit_from, unit_to), which are theirs.

    `logs` are all of the queue's, since a unit that is wrong here may be right elsewhere; `then` is the unit with
    which the next task begins.
    """

    number: int
    key: QueueKey
    logs: tuple[SegmentInfo, ...]
    units: tuple[SegmentInfo, ...]
    rows: tuple[Segment, ...] = ()
    gaps: tuple[Gap, ...] = ()
    time_entries: tuple[TimeEntry, ...] = ()
    has_manifest: bool = False
    log_from: int = 0
    log_to: int = END
    unit_from: int = 0
    unit_to: int = END
    then: UnitRow | None = None
    key_ranges: tuple[KeyRange, ...] = ()  # What of it the key index covers.

    @property
    def is_first(self) -> bool:
        return self.log_from == 0 and self.unit_from == 0

    @property
    def is_last(self) -> bool:
        return self.then is None

    def log_ranges(self) -> list[tuple[SegmentInfo, int, int]]:
        """The segments of the log that this task reads, and the bytes of each."""
        return _ranges(self.logs, self.log_from, self.log_to)

    def unit_ranges(self) -> list[tuple[SegmentInfo, int, int]]:
        stop = END if self.unit_to == END else self.unit_to * UNIT_BYTES
        return _ranges(self.units, self.unit_from * UNIT_BYTES, stop)

    @property
    def size_bytes(self) -> int:
        """How much there is to read."""
        return sum(stop - start for _, start, stop in self.log_ranges() + self.unit_ranges())


def _ranges(infos: Sequence[SegmentInfo], begin: int, end: int) -> list[tuple[SegmentInfo, int, int]]:
    cut = [
        (info, max(begin - info.key.base, 0), min(end - info.key.base, info.size))
        for info in infos
        if info.key.base < end
    ]
    return [(info, start, stop) for info, start, stop in cut if start < stop]


class LogPlaces:
    """Where the commit logs of one broker lie: topics by the low 32 bits of their ids, segments by queue.

    `key_ranges`: what of each queue the key index covers, as its tasks have it.
    """

    __slots__ = ("_logs", "_topics", "key_ranges")

    def __init__(
        self,
        topics: Mapping[int, str],
        logs: Mapping[QueueKey, Sequence[SegmentInfo]],
        key_ranges: Mapping[QueueKey, Sequence[KeyRange]] | None = None,
    ) -> None:
        self._topics = dict(topics)
        self._logs = dict(logs)
        self.key_ranges = dict(key_ranges or {})

    def __repr__(self) -> str:
        return f"LogPlaces({self._topics!r}, {self._logs!r})"

    def topic(self, topic_id: int) -> str | None:
        return self._topics.get(topic_id & 0xFFFFFFFF)

    def logs(self, queue: QueueKey) -> Sequence[SegmentInfo]:
        """The queue's commit-log segments by base."""
        return self._logs.get(queue, ())


@dataclass(frozen=True, slots=True)
class IndexTask:
    """One index file, and where the messages lie to which its items lead."""

    number: int
    info: SegmentInfo
    places: LogPlaces
    rows: tuple[Segment, ...] = ()

    @property
    def key(self) -> QueueKey:
        return self.info.key.queue

    @property
    def size_bytes(self) -> int:
        return self.info.size


PlannedTask: TypeAlias = QueueTask | IndexTask
VerifyTask: TypeAlias = PlannedTask | MissingKeysTask


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What one task found; task -1 is the planning itself."""

    task: int
    counts: dict[str, int] = field(default_factory=dict)
    problems: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()
    problem_count: int = 0
    note_count: int = 0
    pieces: tuple[CrcPiece, ...] = ()
    key_sums: tuple[KeySum, ...] = ()  # Of the records of a queue's task, of the items of an index file's.
    lost_keys: tuple[KeyRange, ...] = ()  # Ranges with messages that lack items.
    oldest_ms: int | None = None  # Store times of the records that were checked.
    newest_ms: int | None = None

    @classmethod
    def of(
        cls,
        task: int,
        report: VerifyReport,
        pieces: Sequence[CrcPiece] = (),
        times: tuple[int, int] | None = None,
        key_sums: Sequence[KeySum] = (),
        lost_keys: Sequence[KeyRange] = (),
    ) -> VerifyResult:
        counts = {what: amount for what, amount in report.counts.items() if amount}
        oldest_ms, newest_ms = times or (None, None)
        return cls(
            task,
            counts,
            tuple(report.problems),
            tuple(report.notes),
            report.problem_count,
            report.note_count,
            tuple(pieces),
            tuple(key_sums),
            tuple(lost_keys),
            oldest_ms,
            newest_ms,
        )


@dataclass(frozen=True, slots=True)
class VerifyPlan:
    """The tasks of a verification, by number, and what planning it found already. Small, and can be sent anywhere."""

    url: str
    tasks: tuple[PlannedTask, ...]
    found: VerifyResult

    @property
    def size_bytes(self) -> int:
        return sum(task.size_bytes for task in self.tasks)


def log_segments(infos: Sequence[SegmentInfo]) -> tuple[SegmentInfo, ...]:
    return _of(infos, SegmentType.COMMIT_LOG)


def unit_segments(infos: Sequence[SegmentInfo]) -> tuple[SegmentInfo, ...]:
    return _of(infos, SegmentType.CONSUME_QUEUE)


def _of(infos: Sequence[SegmentInfo], segment_type: SegmentType) -> tuple[SegmentInfo, ...]:
    return tuple(sorted((i for i in infos if i.key.type is segment_type), key=lambda i: i.key.base))
