"""Planning a verification: what there is, what is known of it, and the tasks that read it.

Planning lists the tier, reads the small objects, compares segments with each other and with what manifests and metadata
know, and cuts long queues. It reads no records but the heads of those at which a queue is cut.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.errors import FutureManifest, StoreDamaged
from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.index.index_coverage import CoverageRecord
from tiermq.tier.metadata.broker_lease import decode_lease, lease_name
from tiermq.tier.metadata.document import CorruptManifest
from tiermq.tier.metadata.manifest import QueueManifest, decode_manifest, queue_of_manifest
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import Gap, Segment
from tiermq.tier.names import INDEX_TOPIC, OBJECT_SUFFIX, QueueKey, SegmentKey, SegmentType, index_queue, segment_at
from tiermq.tier.tier_listing import TierScope, list_tier
from tiermq.tier.unit_cursor import UnitRow
from tiermq.tier.verify_keys import KeyRange, covered_ranges
from tiermq.tier.verify_layout import check_layout
from tiermq.tier.verify_report import Note, Problem, VerifyReport
from tiermq.tier.verify_split import TASK_BYTES, cuts_of
from tiermq.tier.verify_task import (
    IndexTask,
    LogPlaces,
    PlannedTask,
    QueueTask,
    VerifyPlan,
    VerifyResult,
    log_segments,
    unit_segments,
)

PLANNING = -1


def plan_verify(
    driver: TierDriver,
    scope: TierScope | None = None,
    *,
    metadata: MetadataStore | None = None,
    with_index: bool = True,
    task_bytes: int = TASK_BYTES,
) -> VerifyPlan:
    """The tasks for what lies within `scope` (default: all of it), numbered from 0. An index belongs to no topic.

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
        self._infos: dict[QueueKey, list[SegmentInfo]] = defaultdict(list)
        for info in self._listing.segments:
            self._infos[info.key.queue].append(info)

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
                decode_lease(stored.data, name)
        except (CorruptManifest, FutureManifest, StoreDamaged) as error:
            self._report.problem(Problem.MANIFEST, name, str(error))

    def _lease_names(self) -> set[str]:
        return {lease_name(*home) for home in self._listing.brokers}

    # Queues

    def _queue_tasks(self, key: QueueKey) -> Iterator[QueueTask]:
        infos, manifest = self._infos.get(key, ()), self._manifests.get(key)
        known, gaps = self._rows(key)
        rows = (*(manifest.segments if manifest else ()), *known)
        logs, units = log_segments(infos), unit_segments(infos)
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
        for cut in cuts_of(self._driver, whole.logs, whole.units, self._task_bytes):
            yield self._piece(whole, log_from, cut.place, unit_from, cut.queue_offset, then=cut)
            log_from, unit_from = cut.place, cut.queue_offset
        yield self._piece(whole, log_from, whole.log_to, unit_from, whole.unit_to, then=None)

    def _piece(self, whole: QueueTask, *bounds: int, then: UnitRow | None) -> QueueTask:
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
        """What of a part of the log the uploaded index covers, as its newest file says; nothing without an index."""
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
        begin, end = max(log_from, logs[0].key.base), min(log_to, logs[-1].key.base + logs[-1].size)
        return covered_ranges(key, record.queues.get((key.topic, key.queue_id)), topic_id, begin, end)

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
        end = (units[-1].key.base + units[-1].size) // UNIT_BYTES if units else 0
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
        logs = {key: log_segments(infos) for key, infos in self._infos.items() if (key.cluster, key.broker) == home}
        return LogPlaces(topics, logs, {key: self._key_ranges[key] for key in logs if self._key_ranges.get(key)})
