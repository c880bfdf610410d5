"""reindex: the key index of history that has none, or one that RocketMQ wrote and may have dropped keys of.

    with `check`: what is covered and lacks items (tier.verify_keys), which reads all messages
    what is not covered (reindex_plan) ─► keys (tasks) ─► places by their numbers ─► index files (tasks) ─► registered

Registration, so that nobody is ever told of more than is there:

    1  all files lie behind the others, each with a companion that says what was covered before, and is marked
    2  the marks go, but the last; rows in the metadata
    3  the last file's companion says what is covered now: from here on it is so, for whoever goes by the bucket
    4  the store's own record says the same

Killed before 3, the next run removes what is still marked and begins anew; killed after it, it only finds 4 to do.
Files whose marks went and whose run did not end stay: their items are true, and an item found twice counts once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tiermq.clock import Clock, SystemClock
from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.errors import BadConfig, StoreDamaged, TierError
from tiermq.files.os_file_access import OsFileAccess
from tiermq.spark.jobs.held_broker import HeldBroker, data_queues, hold_broker, homes_of
from tiermq.spark.jobs.index_files import (
    IndexFiles,
    queue_tails_of,
    read_companion,
    read_index_files,
    remove_index_file,
    replace_companion,
    write_index_manifest,
)
from tiermq.spark.jobs.job_report import JobReport
from tiermq.spark.jobs.job_tasks import JobTasks
from tiermq.spark.jobs.offload_task import driver_of
from tiermq.spark.jobs.reindex_plan import (
    LogRange,
    Stretch,
    coverage_of,
    grouped,
    in_both,
    joined,
    stretches,
    uncovered,
    with_queues,
    without,
)
from tiermq.spark.jobs.reindex_task import (
    STAGED,
    BuildTask,
    BuiltIndex,
    FoundKeys,
    KeyTask,
    KeyWork,
    run_build_task,
    run_key_task,
)
from tiermq.spark.jobs.task_runner import Progress
from tiermq.spark.jobs.verify import VerifyBundle, run_verify_bundle
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.index.index_coverage import CoverageRecord, QueueName, sealed_text
from tiermq.tier.index.index_item import SLOTS_DEFAULT, is_merged
from tiermq.tier.index.index_recovery import INDEX_DIRECTORY, RECORD_NAME
from tiermq.tier.index.index_write_file import FileFacts
from tiermq.tier.metadata.metadata_values import Segment, SegmentStatus
from tiermq.tier.names import INDEX_TOPIC, QueueKey, SegmentKey, SegmentType
from tiermq.tier.tier_listing import TierScope, list_tier
from tiermq.tier.verify import missing_keys_tasks
from tiermq.tier.verify_plan import plan_verify
from tiermq.tier.verify_task import VerifyResult, VerifyTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STRETCH_BYTES = 64 * 1024 * 1024
BUNDLE_BYTES = 256 * 1024 * 1024
ITEMS_MAX_DEFAULT = 20_000_000 - 1


@dataclass(frozen=True, slots=True)
class ReindexOptions:
    """What a caller may choose; see `reindex`."""

    topics: frozenset[str] = frozenset()
    slots: int | None = None
    items_max: int = ITEMS_MAX_DEFAULT
    stretch_bytes: int = STRETCH_BYTES
    check: bool = False
    step: Callable[[str], None] = field(default=lambda _name: None)

    def __post_init__(self) -> None:
        if self.items_max < 1 or self.stretch_bytes < 1 or (self.slots is not None and self.slots < 1):
            raise BadConfig(f"slots, items_max and stretch_bytes are positive, found {self}")


def reindex(
    spark: SparkSession | None,
    *,
    tier: str,
    cluster: str | None = None,
    broker: str | None = None,
    store: str | None = None,
    topics: Sequence[str] = (),
    dry_run: bool = False,
    progress: Progress | None = None,
    clock: Clock | None = None,
    **options: Any,
) -> JobReport:
    """Build the key index of what has none in the tier at URL `tier`; without `spark` in this process.

    `topics`: only these. `store`: the directory of one broker; what its own index covers is not built again, and its
    record follows. Further options are ReindexOptions': `slots` (tieredStoreIndexFileMaxHashSlotNum; default: as in the
    index files that are there, else 5,000,000), `items_max` of a file, `stretch_bytes` read at a time, `check`: also
    read everything that is covered, and index the messages that have no items all the same.
    Raises BadConfig, FutureManifest, LeaseHeld, StoreLocked, TierError; a queue that cannot be read is a problem in the
    report.
    """
    chosen = ReindexOptions(frozenset(topics), **options)
    tasks = JobTasks(spark, "reindex", progress)
    driver = driver_of(tier)
    report = JobReport("reindex", driver.url, dry_run, tasks.master)
    report.planned |= {"queues": 0, "ranges": 0, "bytes": 0}
    with report.timed():
        require_topics(driver, TierScope(cluster, broker), chosen.topics)
        for home in homes_of(driver, cluster=cluster, broker=broker, store=store):
            with hold_broker(driver, home, "reindex", dry_run=dry_run, clock=clock or SystemClock()) as held:
                report.details.setdefault("notes", []).extend(held.notes)
                _Reindex(held, tier, tasks, report, chosen).run()
    return report


def require_topics(driver: TierDriver, scope: TierScope, topics: frozenset[str]) -> None:
    """Raises TierError when a topic that was named has no history."""
    if not topics:
        return
    known = {info.key.queue.topic for info in list_tier(driver, scope).segments} - {INDEX_TOPIC}
    unknown, shown = sorted(topics - known), ", ".join(sorted(known)[:20])
    if unknown:
        raise TierError(f"{driver.url}: there is no topic {unknown[0]!r} in the tier; there are {shown or 'none'}")


@dataclass(frozen=True, slots=True)
class _Queue:
    """A queue: its log, the offsets of its messages, and what of the log nobody has indexed."""

    key: QueueKey
    topic_id: int
    log: LogRange
    offsets: tuple[int, int]
    missing: list[LogRange]

    @property
    def name(self) -> QueueName:
        return self.key.topic, self.key.queue_id


@dataclass(slots=True)
class _Reindex:
    """The index of one broker."""

    held: HeldBroker
    tier: str
    tasks: JobTasks
    report: JobReport
    options: ReindexOptions

    def run(self) -> None:
        held, report = self.held, self.report
        files = read_index_files(held)
        if not report.dry_run and self._sweep(files):
            files = read_index_files(held)
        try:
            uploaded = files.uploaded_coverage(queue_tails_of(held))
        except StoreDamaged as error:
            report.problems.append(f"the index of {held.home} is left as it is: {error}")
            return
        queues = list(self._queues(files, uploaded, self._lost() if self.options.check else {}))
        missing = [queue for queue in queues if queue.missing]
        works = [work for queue in missing for work in self._works(queue)]
        report.planned["queues"] += len(missing)
        report.planned["ranges"] += sum(len(queue.missing) for queue in missing)
        report.planned["bytes"] += sum(work.size_bytes for work in works)
        report.details.setdefault("missing", []).extend(
            {"topic": queue.key.topic, "queue": queue.key.queue_id, "ranges": queue.missing} for queue in missing
        )
        if report.dry_run:
            return
        if works:
            found = self._collect(works)
            built = self._build(files, uploaded, found)
            uploaded = self._register(files, uploaded, built, self._covered(uploaded, missing, found))
        self._write_local(files, uploaded, queues)
        self.options.step("unstage")
        self._unstage()

    def _sweep(self, files: IndexFiles) -> bool:
        """Remove what a run that did not end left: staged keys, and files that are still marked."""
        self._unstage()
        marked = [file.key for file in files.whole if file.is_unregistered]
        for key in marked:
            remove_index_file(self.held, key)
        cut = [info.key for info in files.broken if not info.sealed and self._is_ours(info.key)]
        for key in cut:
            remove_index_file(self.held, key)
        return bool(marked or cut)

    def _is_ours(self, key: SegmentKey) -> bool:
        """A companion stands before the first byte of every file of ours; RocketMQ writes none."""
        return read_companion(self.held.driver, key) is not None

    def _unstage(self) -> None:
        for name in self.held.driver.list_objects(f"{self.held.home.index.directory}/{STAGED}"):
            self.held.driver.delete_object(name)

    # What is missing

    def _lost(self) -> dict[QueueKey, list[LogRange]]:
        """Ranges of each queue with messages whose keys are covered and have no items."""
        home, found = self.held.home, dict[QueueKey, list[LogRange]]()
        plan = plan_verify(self.held.driver, TierScope(home.cluster, home.broker), metadata=self.held.metadata)
        results = self._verified(plan.tasks)
        results += self._verified(missing_keys_tasks(plan, results))
        for each in (lost for result in results for lost in result.lost_keys):
            found.setdefault(each.queue, []).append((each.start, each.stop))
        return found

    def _verified(self, tasks: Sequence[VerifyTask]) -> list[VerifyResult]:
        if not tasks:
            return []
        bundles = self.tasks.bundles(tasks, lambda task: task.size_bytes, BUNDLE_BYTES)
        sent = [VerifyBundle(self.tier, bundle) for bundle in bundles]
        return [result for some in self.tasks.run(run_verify_bundle, sent) for result in some]

    def _queues(
        self, files: IndexFiles, uploaded: CoverageRecord, lost: dict[QueueKey, list[LogRange]]
    ) -> Iterator[_Queue]:
        in_bucket = uploaded.coverage()
        local = files.local_record.coverage() if files.local_record is not None else None
        metadata, unsure = self.held.metadata, set[str]()
        for key in sorted(data_queues(metadata)):
            topic, queue = metadata.topic(key.topic), metadata.queue(key)
            logs = metadata.segments(key, SegmentType.COMMIT_LOG)
            if topic is None or queue is None or not logs or queue.max_offset <= max(0, queue.min_offset):
                continue
            if self.options.topics and key.topic not in self.options.topics:
                continue
            if key.topic in self.held.topics_without_id:
                unsure.add(key.topic)
                continue
            name, log = (key.topic, key.queue_id), (logs[0].key.base, max(row.end for row in logs))
            missing = uncovered(in_bucket.queues.get(name), topic.id, log)
            if local is not None and local.is_base_known:
                missing = in_both(missing, uncovered(local.queues.get(name), topic.id, log))
            missing = joined([*missing, *lost.get(key, ())])
            yield _Queue(key, topic.id, log, (max(0, queue.min_offset), queue.max_offset), missing)
        self.report.problems += [
            f"topic {name} of {self.held.home}: no manifest tells its id, which every index item carries; import or "
            "restore the tier into a store directory (`tiermq tier import`, `tiermq tier restore`) and give that as "
            "store"
            for name in sorted(unsure)
        ]

    def _works(self, queue: _Queue) -> list[KeyWork]:
        metadata, key = self.held.metadata, queue.key
        logs = metadata.segments(key, SegmentType.COMMIT_LOG)
        units = metadata.segments(key, SegmentType.CONSUME_QUEUE)
        cut = stretches(queue.missing, metadata.time_entries(key), queue.offsets, self.options.stretch_bytes)
        return [
            KeyWork(
                key,
                queue.topic_id,
                each,
                tuple(row for row in logs if row.key.base < each.stop and row.end > each.start),
                tuple(row for row in units if _holds(row, each)),
            )
            for each in cut
        ]

    # Tasks

    def _collect(self, works: Sequence[KeyWork]) -> list[FoundKeys]:
        self.options.step("keys")
        bundles = self.tasks.bundles(works, lambda work: work.size_bytes, BUNDLE_BYTES)
        sent = [KeyTask(self.tier, self.held.home.index, bundle) for bundle in bundles]
        found = [each for some in self.tasks.run(run_key_task, sent) for each in some]
        found.sort(key=lambda each: (each.work.queue, each.work.stretch.start))
        self.report.problems += [f"{each.work.queue.logical_path}: {each.error}" for each in found if each.error]
        sound = [each for each in found if not each.error]
        self.report.add(
            records=sum(each.records for each in sound),
            keys=sum(each.count for each in sound),
            bytes=sum(each.work.size_bytes for each in sound),
        )
        return found

    def _build(self, files: IndexFiles, uploaded: CoverageRecord, found: Sequence[FoundKeys]) -> list[BuiltIndex]:
        groups = grouped([each.count for each in found], self.options.items_max)
        if not groups:
            return []
        slots = self.options.slots or max([file.slots for file in files.whole], default=SLOTS_DEFAULT)
        coverage, base, begin_ms = uploaded.encode(), files.end, self.held.clock.now_ms()
        tasks: list[BuildTask] = []
        for group in groups:
            while is_merged(begin_ms) or not files.is_free(begin_ms):
                begin_ms += 1
            key = self.held.home.index.segment(SegmentType.INDEX, base)
            chosen = tuple(found[number] for number in group)
            tasks.append(BuildTask(self.tier, key, begin_ms, slots, chosen, coverage))
            base, begin_ms = base + tasks[-1].size, begin_ms + 1
        self.options.step("build")
        return self.tasks.run(run_build_task, tasks)

    # Registration

    def _covered(
        self, uploaded: CoverageRecord, queues: Sequence[_Queue], found: Sequence[FoundKeys]
    ) -> CoverageRecord:
        """What the bucket covers once the new files count. What could not be read stays missing."""
        known, changed = uploaded.coverage().queues, {}
        done: dict[QueueKey, list[LogRange]] = {}
        behind = {queue.key: queue.offsets[1] for queue in queues}
        for each in found:
            stretch = each.work.stretch
            # Behind the last message there may be records whose units do not exist yet: they are not covered.
            stop = each.end if stretch.to_offset >= behind[each.work.queue] else stretch.stop
            if not each.error:
                done.setdefault(each.work.queue, []).append((stretch.start, stop))
        for queue in queues:
            before = uncovered(known.get(queue.name), queue.topic_id, queue.log)
            left = without(before, done.get(queue.key, ()))
            changed[queue.name] = coverage_of(left, queue.topic_id, queue.log)
        return with_queues(uploaded, changed)

    def _register(
        self,
        files: IndexFiles,
        uploaded: CoverageRecord,
        built: Sequence[BuiltIndex],
        covered: CoverageRecord,
    ) -> CoverageRecord:
        """Let the new files count; what is covered then."""
        held = self.held
        held.check()
        for each in built:
            size = held.driver.size(each.key)
            if size != each.size or not held.driver.is_sealed(each.key):
                raise TierError(f"{each.key.path}: expected {each.size} sealed bytes, found {size}; run the job again")
        self.options.step("unmark")
        for each in built[:-1]:
            replace_companion(held.driver, each.key, each.size, replace(uploaded, files=(each.facts,)))
        self.options.step("rows")
        now_ms = held.clock.now_ms()
        with held.metadata.transaction():
            for each in built:
                times = (each.facts.begin_ms, each.facts.newest_ms)
                held.metadata.put_segment(
                    Segment(each.key, each.size, SegmentStatus.SEALED, now_ms, *times, now_ms, each.crc32)
                )
        self.options.step("cover")
        self._cover(files, covered, built)
        write_index_manifest(held)
        self.report.add(index_files=len(built), index_bytes=sum(each.size for each in built))
        self.report.details.setdefault("files", []).extend(
            {"path": each.key.path, "items": each.facts.item_count, "bytes": each.size} for each in built
        )
        return covered

    def _cover(self, files: IndexFiles, record: CoverageRecord, built: Sequence[BuiltIndex]) -> None:
        """Let the newest file say what is covered: one put, which is there or not. Without any, nobody asks."""
        registered = [file for file in files.whole if not file.is_unregistered]
        facts: tuple[FileFacts, ...] = ()
        if built:
            key, size, facts = built[-1].key, built[-1].size, (built[-1].facts,)
        elif registered:
            key, size, old = registered[-1].key, registered[-1].size, registered[-1].record()
            facts = old.files if old is not None else ()
        else:
            return
        replace_companion(self.held.driver, key, size, replace(record, files=facts))

    def _write_local(self, files: IndexFiles, uploaded: CoverageRecord, queues: Sequence[_Queue]) -> None:
        """The store's own record, if it has one: what uploaded files cover is not to be read back again."""
        record = files.local_record
        if record is None or self.held.root is None or not record.is_base_known:
            return
        local, in_bucket, changed = record.coverage().queues, uploaded.coverage().queues, {}
        for queue in queues:
            before = uncovered(local.get(queue.name), queue.topic_id, queue.log)
            left = in_both(before, uncovered(in_bucket.get(queue.name), queue.topic_id, queue.log))
            if left != before:
                changed[queue.name] = coverage_of(left, queue.topic_id, queue.log)
        if changed:
            self.options.step("record")
            path = os.path.join(self.held.root, INDEX_DIRECTORY, RECORD_NAME)
            OsFileAccess().write_bytes(path, sealed_text(with_queues(record, changed)))


def _holds(units: Segment, stretch: Stretch) -> bool:
    return units.key.base < stretch.to_offset * UNIT_BYTES and units.end > stretch.from_offset * UNIT_BYTES
