"""Planning a verification: what there is, what is known of it, and the tasks that read it.

Planning lists the tier, reads the small objects, compares segments with each other and with what manifests and metadata
know, and cuts long queues. It reads no records but the heads of those at which a queue is cut.

A cut is a unit: it, and the unit before it, must lead to records, in order, and its own record must be the one it
promises. Where that does not hold, there is no cut: what is damaged stays within one task, which sees all around it.
Units are in the order of the log, so the unit for a log offset is found by halving; blank units are stepped over.

A verification cut into tasks: small values that can be sent anywhere, and what comes back from each.

    plan_verify ──► VerifyPlan(tasks) ──► run_verify_task, anywhere, in any order ──► join_verify ──► VerifyReport

A queue is one task, or several that share nothing: each has a range of the commit log and exactly the units of its
records. They are cut between two records that both agree with their units. An index file is one task. Where what those
two found does not fit together, a third kind compares a range of messages and the items of their keys (`missing_keys`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeAlias

from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.errors import FutureManifest, StoreDamaged
from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.index.index_coverage import CoverageRecord
from tiermq.tier.metadata.broker_lease import LeaseRole, decode_lease, lease_name
from tiermq.tier.metadata.broker_state import decode_table, state_kind_at
from tiermq.tier.metadata.document import CorruptManifest
from tiermq.tier.metadata.manifest import QueueManifest, decode_manifest, queue_of_manifest
from tiermq.tier.metadata.manifest_changes import changes_name, decode_changes
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import Gap, Segment, SegmentStatus, TimeEntry
from tiermq.tier.metadata.offset_history import is_day_object, points_in
from tiermq.tier.names import INDEX_TOPIC, OBJECT_SUFFIX, QueueKey, SegmentKey, SegmentType, index_queue, segment_at
from tiermq.tier.queue.segments import END, SegmentList, TierScope, list_tier, of_type
from tiermq.tier.queue.tier_queue import TierQueue
from tiermq.tier.queue.units import Unit
from tiermq.tier.verify.checked_segment import CrcPiece
from tiermq.tier.verify.missing_keys import KeyRange, KeySum, MissingKeysTask, covered_ranges
from tiermq.tier.verify.verify_report import Finding, Note, Problem, VerifyReport


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
    then: Unit | None = None
    key_ranges: tuple[KeyRange, ...] = ()  # What of it the key index covers.

    @property
    def is_first(self) -> bool:
        return self.log_from == 0 and self.unit_from == 0

    @property
    def is_last(self) -> bool:
        return self.then is None

    def log_ranges(self) -> list[tuple[SegmentInfo, int, int]]:
        """The segments of the log that this task reads, and the bytes of each."""
        return SegmentList(self.logs).ranges(self.log_from, self.log_to)

    def unit_ranges(self) -> list[tuple[SegmentInfo, int, int]]:
        stop = END if self.unit_to == END else self.unit_to * UNIT_BYTES
        return SegmentList(self.units).ranges(self.unit_from * UNIT_BYTES, stop)

    @property
    def size_bytes(self) -> int:
        """How much there is to read."""
        return sum(stop - start for _, start, stop in self.log_ranges() + self.unit_ranges())


class LogPlaces:
    """The commit logs of one broker: topics by the low 32 bits of their ids, segments by queue.

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
    """One index file, and the commit logs that its items point to."""

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
    """What one task found; task -1 is the planning."""

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


# The segments of one file of a queue against each other and against what is known of them. No byte is read.


def check_layout(infos: Sequence[SegmentInfo], rows: Sequence[Segment], report: VerifyReport) -> None:
    """Segments of one type, sorted by base, and the rows of manifest and metadata about that type."""
    for info in infos:
        _check_one(info, is_last=info is infos[-1], report=report)
    for before, after in pairwise(infos):
        end = before.key.base + before.size
        if end < after.key.base and after.key.type is not SegmentType.INDEX:  # Index files are independent.
            report.problem(Problem.HOLE, after.key.path, f"no segment for offsets {end} to {after.key.base}")
        elif end > after.key.base:
            text = f"the segment at {before.key.base} ends at {end}, the next begins at {after.key.base}"
            report.problem(Problem.OVERLAP, after.key.path, text)
    _check_rows(infos, rows, report)


def _check_one(info: SegmentInfo, *, is_last: bool, report: VerifyReport) -> None:
    if info.damage is not None:
        report.problem(Problem.DAMAGED_LISTING, info.key.path, info.damage)
    if info.sealed and info.part_count:
        report.note(Note.PARTS_LEFT, info.key.path, f"{info.part_count} parts; sealing it again removes them")
    if info.key.type is SegmentType.CONSUME_QUEUE:
        if info.key.base % UNIT_BYTES:
            report.problem(Problem.MISALIGNED, info.key.path, f"its base is no multiple of {UNIT_BYTES}")
        if info.size % UNIT_BYTES:
            text = f"{info.size} bytes, of which {info.size % UNIT_BYTES} are of a unit that was cut"
            if is_last:
                report.note(Note.TORN_TAIL, info.key.path, text)
            else:
                report.problem(Problem.MISALIGNED, info.key.path, text)


def _check_rows(infos: Sequence[SegmentInfo], rows: Sequence[Segment], report: VerifyReport) -> None:
    sizes = {info.key: info.size for info in infos}
    first_base = infos[0].key.base if infos else None
    for row in {row.key: row for row in sorted(rows, key=lambda row: row.size)}.values():
        path, size = row.key.path, sizes.get(row.key, 0)
        if row.status is SegmentStatus.DELETED:
            if size:
                report.note(Note.BEING_DELETED, path, f"{size} bytes")
        elif size >= row.size:
            continue
        elif size:
            report.problem(Problem.SHORT_SEGMENT, path, f"expected {row.size} bytes, found {size}")
        elif first_base is not None and row.key.base < first_base:
            report.note(Note.HEAD_IS_GONE, path, f"{row.size} bytes")
        else:
            report.problem(Problem.MISSING_SEGMENT, path, f"expected {row.size} bytes, found none")


PLANNING = -1
TASK_BYTES = 256 * 1024 * 1024


def plan_verify(
    driver: TierDriver,
    scope: TierScope | None = None,
    *,
    metadata: MetadataStore | None = None,
    with_index: bool = True,
    task_bytes: int = TASK_BYTES,
) -> VerifyPlan:
    """The tasks for everything within `scope` (default: all), numbered from 0. An index belongs to no topic.

    Raises what the driver raises when the tier cannot be reached.
    """
    return _Planner(driver, scope or TierScope(), metadata, with_index, task_bytes).plan()


class _Planner:
    """One planning."""

    def __init__(
        self,
        driver: TierDriver,
        scope: TierScope,
        metadata: MetadataStore | None,
        with_index: bool,
        task_bytes: int,
    ) -> None:
        self._driver, self._metadata, self._task_bytes = driver, metadata, task_bytes
        self._report = VerifyReport(driver.url)
        self._listing = list_tier(driver, scope)
        self._with_index = with_index and scope.topic is None
        self._manifests: dict[QueueKey, QueueManifest] = {}
        self._companions: dict[SegmentKey, CoverageRecord] = {}
        self._key_ranges: dict[QueueKey, list[KeyRange]] = {}
        self._infos = self._listing.by_queue()

    def plan(self) -> VerifyPlan:
        for name in self._listing.objects:
            self._read_object(name)
        tasks: list[PlannedTask] = []
        queues = sorted(self._known_queues(), key=lambda key: (key.topic == INDEX_TOPIC, key))
        for key in queues:  # An index comes behind the queues whose messages its items lead to.
            if key.topic != INDEX_TOPIC:
                tasks += self._queue_tasks(key)
            elif self._with_index:
                tasks += self._index_tasks(key)
        numbered = tuple(replace(task, number=number) for number, task in enumerate(tasks))
        return VerifyPlan(self._driver.url, numbered, VerifyResult.of(PLANNING, self._report))

    def _known_queues(self) -> Iterable[QueueKey]:
        known = self._infos.keys() | self._manifests.keys()
        if self._metadata is None:
            return known
        rows = {row.key.queue for row in self._metadata.all_segments(INDEX_TOPIC)}  # An index has no row as a queue.
        rows |= {queue.key for queue in self._metadata.queues()}
        return known | {key for key in rows if self._listing.scope.holds(key)}

    # Small objects

    def _read_object(self, name: str) -> None:
        key = queue_of_manifest(name)
        segment = segment_at(name.removesuffix(OBJECT_SUFFIX))
        stored = self._driver.get_object(name)
        if stored is None:
            return  # Deleted since it was listed.
        try:
            if key is not None:
                manifest = decode_manifest(stored.data, name)
                if manifest.key != key:
                    raise CorruptManifest(f"expected the manifest of {key.directory}, found that of {manifest.key}")
                self._manifests[key] = manifest
            elif segment is not None:
                self._companions[segment] = CoverageRecord.decode(stored.data, name)
            elif name in self._lease_names():
                lease = decode_lease(stored.data, name)
                if not lease.is_believed:
                    raise CorruptManifest(
                        f"expected a lease that TierMQ wrote, found epoch {lease.epoch}: its next holder, or `tiermq "
                        "tier takeover`, writes one above the manifests' epochs"
                    )
            elif (home := {changes_name(*each): each for each in self._listing.brokers}.get(name)) is not None:
                decode_changes(stored.data, name, index_queue(*home))
            elif (kind := state_kind_at(name)) is not None:
                decode_table(stored.data, name, kind)
            elif is_day_object(name):
                points_in(stored.data, name)
        except (CorruptManifest, FutureManifest, StoreDamaged) as error:
            self._report.problem(Problem.MANIFEST, name, str(error))

    def _lease_names(self) -> set[str]:
        return {lease_name(*home, role) for home in self._listing.brokers for role in LeaseRole}

    # Queues

    def _queue_tasks(self, key: QueueKey) -> Iterator[QueueTask]:
        infos, manifest = self._infos.get(key, ()), self._manifests.get(key)
        known, gaps = self._rows(key)
        rows = (*(manifest.segments if manifest else ()), *known)
        logs, units = of_type(infos, SegmentType.COMMIT_LOG), of_type(infos, SegmentType.CONSUME_QUEUE)
        self._report.count("queues")
        self._report.count("segments", len(logs) + len(units))
        for segments, kind in ((logs, SegmentType.COMMIT_LOG), (units, SegmentType.CONSUME_QUEUE)):
            check_layout(segments, [row for row in rows if row.key.type is kind], self._report)
        self._check_offsets(key, manifest, logs, units)
        whole = QueueTask(
            0,
            key,
            logs,
            units,
            tuple(row for row in rows if row.crc32 is not None),
            (*(manifest.gaps if manifest else ()), *gaps),
            manifest.time_index if manifest else (),
            manifest is not None,
        )
        return self._cut(whole)

    def _cut(self, whole: QueueTask) -> Iterator[QueueTask]:
        log_from = unit_from = 0
        for cut in cuts_of(TierQueue(self._driver, whole.key, whole.logs, whole.units), self._task_bytes):
            yield self._piece(whole, log_from, cut.log_offset, unit_from, cut.queue_offset, then=cut)
            log_from, unit_from = cut.log_offset, cut.queue_offset
        yield self._piece(whole, log_from, whole.log_to, unit_from, whole.unit_to, then=None)

    def _piece(self, whole: QueueTask, *bounds: int, then: Unit | None) -> QueueTask:
        log_from, log_to, unit_from, unit_to = bounds
        ranges = self._covered(whole.key, whole.logs, log_from, log_to)
        self._key_ranges.setdefault(whole.key, []).extend(ranges)
        return replace(
            whole,
            log_from=log_from,
            log_to=log_to,
            unit_from=unit_from,
            unit_to=unit_to,
            then=then,
            gaps=tuple(gap for gap in whole.gaps if gap.from_offset < unit_to and gap.to_offset > unit_from),
            time_entries=tuple(entry for entry in whole.time_entries if unit_from <= entry.queue_offset < unit_to),
            key_ranges=tuple(ranges),
        )

    def _covered(self, key: QueueKey, logs: Sequence[SegmentInfo], log_from: int, log_to: int) -> list[KeyRange]:
        """The part of a log range that the newest uploaded index file covers; nothing without an index."""
        home = index_queue(key.cluster, key.broker)
        files = [info for info in self._infos.get(home, ()) if info.size > 0 and info.key in self._companions]
        if not self._with_index or not files or not logs:
            return []
        record = self._companions[max(files, key=lambda info: info.key.base).key].coverage()
        manifest = self._manifests.get(key)
        topic = self._metadata.topic(key.topic) if self._metadata is not None else None
        topic_id = topic.id if topic is not None else manifest.topic_id if manifest is not None else -1
        if topic_id < 0 or not record.is_base_known:
            return []
        log = SegmentList(logs)
        begin, end = max(log_from, log.begin), min(log_to, log.end)
        return covered_ranges(key, record.queues.get(key.name), topic_id, begin, end)

    def _rows(self, key: QueueKey) -> tuple[Sequence[Segment], Sequence[Gap]]:
        """What the broker's metadata knows of a queue."""
        if self._metadata is None:
            return (), ()
        deleted = [row for row in self._metadata.segments_being_deleted() if row.key.queue == key]
        return [*self._metadata.segments(key), *deleted], self._metadata.gaps(key)

    def _check_offsets(
        self,
        key: QueueKey,
        manifest: QueueManifest | None,
        logs: Sequence[SegmentInfo],
        units: Sequence[SegmentInfo],
    ) -> None:
        if manifest is None:
            if logs or units:
                self._report.note(Note.NO_MANIFEST, key.directory, "a restore reads all of its units")
            return
        end = SegmentList(units).end // UNIT_BYTES
        claimed = manifest.max_offset
        if claimed > end and units:
            text = f"its manifest has messages up to {claimed}, the units end at {end}"
            self._report.problem(Problem.OFFSETS, key.directory, text)
        elif 0 <= claimed < end:
            self._report.note(Note.BEYOND_MANIFEST, key.directory, f"queue offsets {claimed} to {end}")

    # Indexes

    def _index_tasks(self, key: QueueKey) -> Iterator[IndexTask]:
        infos = sorted(self._infos.get(key, ()), key=lambda info: info.key.base)
        manifest = self._manifests.get(key)
        rows = [*(manifest.segments if manifest else ()), *self._rows(key)[0]]
        check_layout(infos, rows, self._report)
        self._report.count("segments", len(infos))
        places = self._places(key) if infos else None
        for info in infos:
            if places is not None:
                known = tuple(row for row in rows if row.key == info.key and row.crc32 is not None)
                yield IndexTask(0, info, places, known)

    def _places(self, index: QueueKey) -> LogPlaces:
        home = (index.cluster, index.broker)
        topics = {
            manifest.topic_id & 0xFFFFFFFF: key.topic
            for key, manifest in self._manifests.items()
            if (key.cluster, key.broker) == home and manifest.topic_id >= 0
        }
        if self._metadata is not None:
            topics |= {topic.id & 0xFFFFFFFF: topic.name for topic in self._metadata.topics()}
        logs = {
            key: of_type(infos, SegmentType.COMMIT_LOG)
            for key, infos in self._infos.items()
            if (key.cluster, key.broker) == home
        }
        return LogPlaces(topics, logs, {key: self._key_ranges[key] for key in logs if self._key_ranges.get(key)})


def cuts_of(queue: TierQueue, task_bytes: int = TASK_BYTES) -> list[Unit]:
    """The units at which new tasks begin, in order; none when the queue is short, or not whole."""
    logs, units = queue.logs, queue.units
    is_whole = logs.is_contiguous and units.is_contiguous and not any(_is_damaged(info) for info in (*logs, *units))
    if not len(logs) or not len(units) or not is_whole or any(info.key.base % UNIT_BYTES for info in units):
        return []
    cuts: list[Unit] = []
    for target in range(logs.begin + task_bytes, logs.end - task_bytes // 4, task_bytes):
        found = _cut_at(queue, target)
        if found is not None and found.log_offset > (cuts[-1].log_offset if cuts else logs.begin):
            cuts.append(found)
    return cuts


def _is_damaged(segment: object) -> bool:
    return isinstance(segment, SegmentInfo) and segment.damage is not None


def _cut_at(queue: TierQueue, target: int) -> Unit | None:
    """The first unit whose record begins at `target` or behind; None when it may not be cut there."""
    low, high = queue.units.begin // UNIT_BYTES, queue.units.end // UNIT_BYTES
    while low < high:
        middle = (low + high) // 2
        unit = queue.first_unit(middle, high)
        if unit is None or unit.log_offset >= target:
            high = middle
        else:
            low = unit.queue_offset + 1
    before, unit = queue.first_unit(low - 1, low), queue.first_unit(low, low + 1)
    if before is None or unit is None or not before.end <= unit.log_offset:
        return None
    return unit if queue.leads(before) and queue.leads(unit) else None
