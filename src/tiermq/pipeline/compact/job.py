"""compact: fewer and larger objects, with the same history in them.

    seal    segments that have ended and still lie in parts become one object each                   tasks: driver.seal
    index   small index files become large ones                                                      tasks: index_merge

Order of a merge, so that a reader finds every key at any time, and a crash anywhere is gone on from:

    1  the merged file, with the bases of its sources in its companion, behind all others       both are there: an item
    2  its row in the metadata                                                                  that is found twice
    3  the sources are hidden (rows), then removed                                              counts once

A file whose sources are still there is finished first by the next run; a file that was cut short is removed by it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tiermq.clock import Clock, SystemClock
from tiermq.errors import BadConfig, SegmentMissing, StoreDamaged, TierError
from tiermq.spark.jobs.held_broker import HeldBroker, hold_broker, homes_of
from tiermq.spark.jobs.index_files import (
    IndexFile,
    IndexFiles,
    queue_tails_of,
    read_companion,
    read_index_files,
    remove_index_file,
    write_index_manifest,
)
from tiermq.spark.jobs.index_merge import ITEMS_MAX_DEFAULT, MadeIndex, MergeTask, plan_merges, run_merge_task
from tiermq.spark.jobs.job_report import JobReport
from tiermq.spark.jobs.job_tasks import JobTasks
from tiermq.spark.jobs.offload_task import driver_of
from tiermq.spark.jobs.task_runner import Progress
from tiermq.tier.driver.contract import SegmentInfo
from tiermq.tier.index.index_item import MINUTE_MS, merged_begin_ms
from tiermq.tier.metadata.metadata_values import SegmentStatus
from tiermq.tier.names import INDEX_TOPIC, QueueKey, SegmentKey, SegmentType

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEAL_BUNDLE_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class CompactOptions:
    """What a caller may choose; see `compact`."""

    seal: bool = True
    index: bool = True
    items_max: int = ITEMS_MAX_DEFAULT
    small_items: int | None = None
    step: Callable[[str], None] = field(default=lambda _name: None)

    def __post_init__(self) -> None:
        if self.items_max < 2 or (self.small_items is not None and self.small_items < 1):
            raise BadConfig(f"items_max is 2 at least and small_items 1, found {self.items_max} and {self.small_items}")

    @property
    def small(self) -> int:
        return self.small_items if self.small_items is not None else max(2, self.items_max // 2)


def compact(
    spark: SparkSession | None,
    *,
    tier: str,
    cluster: str | None = None,
    broker: str | None = None,
    store: str | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    clock: Clock | None = None,
    seal: bool = True,
    index: bool = True,
    items_max: int = ITEMS_MAX_DEFAULT,
    small_items: int | None = None,
    step: Callable[[str], None] = lambda _name: None,
) -> JobReport:
    """Compact the tier at URL `tier`; without `spark` in this process.

    `seal` and `index` choose what is done. Index files with fewer than `small_items` items (default: half of
    `items_max`) are merged, into files of up to `items_max`. `store`: the directory of one broker, whose metadata then
    follow. `step` is told each step before it is taken. Raises BadConfig, LeaseHeld, StoreLocked, TierError.
    """
    options = CompactOptions(seal, index, items_max, small_items, step)
    tasks = JobTasks(spark, "compact", progress)
    driver = driver_of(tier)
    report = JobReport("compact", driver.url, dry_run, tasks.master)
    report.planned |= dict.fromkeys(("segments", "index_files", "merged_files", "bytes"), 0)
    with report.timed():
        for home in homes_of(driver, cluster=cluster, broker=broker, store=store):
            with hold_broker(driver, home, "compact", dry_run=dry_run, clock=clock or SystemClock()) as held:
                report.details.setdefault("notes", []).extend(held.notes)
                if options.seal:
                    _Sealing(held, tier, tasks, report, options).run()
                if options.index:
                    _Merging(held, tier, tasks, report, options).run()
    return report


# Sealing


@dataclass(frozen=True, slots=True)
class SealTask:
    """Segments that are to become one object each, and the checksum of each, as far as it is known."""

    tier: str
    keys: tuple[tuple[SegmentKey, int | None], ...]


def run_seal_task(task: SealTask) -> tuple[SegmentKey, ...]:
    """Seal them; those that are there. May be run again, or twice at once."""
    driver = driver_of(task.tier)
    sealed = []
    for key, crc32 in task.keys:
        try:
            driver.seal(key, crc32=crc32)
        except SegmentMissing:
            continue  # Expired since it was listed.
        sealed.append(key)
    return tuple(sealed)


@dataclass(frozen=True, slots=True)
class _Sealing:
    """The seals of one broker."""

    held: HeldBroker
    tier: str
    tasks: JobTasks
    report: JobReport
    options: CompactOptions

    def run(self) -> None:
        report, held = self.report, self.held
        wanted = list(self._wanted())
        report.planned["segments"] += len(wanted)
        report.planned["bytes"] += sum(info.size for info in wanted)
        report.details.setdefault("seal", []).extend(
            {"path": info.key.path, "bytes": info.size, "parts": info.part_count} for info in wanted
        )
        if report.dry_run or not wanted:
            return
        self.options.step("seal")
        bundles = self.tasks.bundles(wanted, lambda info: info.size, SEAL_BUNDLE_BYTES)
        sent = [SealTask(self.tier, tuple((info.key, self._crc_of(info)) for info in bundle)) for bundle in bundles]
        sealed = [key for keys in self.tasks.run(run_seal_task, sent) for key in keys]
        held.check()
        self.options.step("rows")
        changed: set[QueueKey] = set()
        with held.metadata.transaction():
            for key in sealed:
                row = held.metadata.segment(key)
                if row is not None and row.status is SegmentStatus.NEW:
                    held.metadata.seal_segment(key)
                    changed.add(key.queue)
        self.options.step("manifests")
        for queue in sorted(changed):
            self._tell(queue)
        sizes = {info.key: info.size for info in wanted}
        report.add(segments=len(sealed), bytes=sum(sizes[key] for key in sealed))

    def _crc_of(self, info: SegmentInfo) -> int | None:
        row = self.held.metadata.segment(info.key)
        return row.crc32 if row is not None and row.size == info.size else None

    def _tell(self, queue: QueueKey) -> None:
        try:
            self.held.write_manifest(queue)
        except TierError as error:
            self.report.problems.append(f"{queue.logical_path}: its manifest does not say so yet: {error}")

    def _wanted(self) -> Iterator[SegmentInfo]:
        """What has ended: another segment follows it, or the metadata say so, or its sealing was cut short."""
        held = self.held
        files: defaultdict[tuple[QueueKey, SegmentType], list[SegmentInfo]] = defaultdict(list)
        for info in held.driver.list_segments(held.home.scope.prefix):
            if info.key.topic != INDEX_TOPIC:
                files[info.key.queue, info.key.type].append(info)
        for infos in files.values():
            infos.sort(key=lambda info: info.key.base)
            for info in infos:
                if info.sealed and not info.part_count:
                    continue
                row = held.metadata.segment(info.key)
                has_ended = info.sealed or info is not infos[-1] or (row and row.status is SegmentStatus.SEALED)
                if row is None or row.status is SegmentStatus.DELETED or not has_ended:
                    continue
                if row.size != info.size or info.damage is not None:
                    self.report.problems.append(
                        f"{info.key.path}: expected {row.size} bytes, found {info.size}; it is left as it is until "
                        "`tiermq pipeline verify --repair` has looked at it"
                    )
                    continue
                yield info


# Merging


@dataclass(slots=True)
class _Merging:
    """The index of one broker."""

    held: HeldBroker
    tier: str
    tasks: JobTasks
    report: JobReport
    options: CompactOptions

    def run(self) -> None:
        held, report = self.held, self.report
        files = read_index_files(held)
        if not report.dry_run:
            self._finish_deletions()
            if self._settle(files):
                files = read_index_files(held)
        for info in files.broken:
            report.problems.append(
                f"{info.key.path}: no whole index file; `tiermq pipeline verify --repair` makes it anew"
            )
        able = [file for file in files.whole if not file.is_unregistered]
        groups = plan_merges(able, self.options.items_max, self.options.small)
        report.planned["index_files"] += sum(map(len, groups))
        report.planned["merged_files"] += len(groups)
        report.planned["bytes"] += sum(file.size for group in groups for file in group)
        if report.dry_run or not groups:
            return
        try:
            tasks = self._tasks(files, groups)
        except StoreDamaged as error:
            report.problems.append(f"the index of {held.home} is left as it is: {error}")
            return
        self.options.step("merge")
        for task, made in zip(tasks, self.tasks.run(run_merge_task, tasks), strict=True):
            self._commit(task, made)
        write_index_manifest(held)

    def _finish_deletions(self) -> None:
        for row in self.held.metadata.segments_being_deleted():
            if row.key.queue == self.held.home.index:
                remove_index_file(self.held, row.key)

    def _settle(self, files: IndexFiles) -> bool:
        """Go on where a run before this one ended; whether anything was changed."""
        held, changed = self.held, False
        bases = {file.key.base: file for file in files.whole}
        for file in files.whole:
            if held.metadata.segment(file.key) is None and not file.is_unregistered:
                held.driver.seal(file.key)
                held.metadata.put_segment(file.row(held.clock.now_ms()))
                changed = True
            sources = [bases[base] for base in file.merged_from or () if base in bases]
            if sources:
                held.driver.seal(file.key)
                self._remove(sources)
                changed = True
        for info in files.broken:
            if self._is_cut(info):
                remove_index_file(held, info.key)  # Whoever began it makes it again.
                changed = True
        if changed:
            write_index_manifest(held)
        return changed

    def _is_cut(self, info: SegmentInfo) -> bool:
        """Whether an upload of ours was cut short. Its companion stood before its first byte; RocketMQ writes none."""
        is_known = self.held.home.store is not None and self.held.metadata.segment(info.key) is not None
        return not info.sealed and not is_known and read_companion(self.held.driver, info.key) is not None

    def _tasks(self, files: IndexFiles, groups: Sequence[Sequence[IndexFile]]) -> list[MergeTask]:
        """Every merged file has its place behind the one before; all say what the newest file says is indexed."""
        coverage = files.uploaded_coverage(queue_tails_of(self.held)).encode()
        base = files.end
        taken: set[int] = set()
        tasks = []
        for group in groups:
            begin_ms = merged_begin_ms(min(file.begin_ms for file in group))
            while begin_ms in taken or not files.is_free(begin_ms):
                begin_ms -= MINUTE_MS
            taken.add(begin_ms)
            key = self.held.home.index.segment(SegmentType.INDEX, base)
            tasks.append(MergeTask(self.tier, tuple(group), key, begin_ms, coverage))
            base += tasks[-1].size
        return tasks

    def _commit(self, task: MergeTask, made: MadeIndex) -> None:
        held = self.held
        held.check()
        size = held.driver.size(task.key)
        if (made.file.size, size) != (task.size, task.size) or not held.driver.is_sealed(task.key):
            raise TierError(f"{task.key.path}: expected {task.size} sealed bytes, found {size}; nothing was removed")
        self.options.step("row")
        held.metadata.put_segment(made.file.row(held.clock.now_ms(), made.crc32))
        write_index_manifest(held)
        self._remove(task.sources)
        self.report.add(index_files=len(task.sources), merged_files=1, bytes=made.file.size)
        self.report.details.setdefault("merged", []).append(
            {"path": task.key.path, "items": made.file.item_count, "from": [file.key.path for file in task.sources]}
        )

    def _remove(self, sources: Sequence[IndexFile]) -> None:
        for source in sources:
            self.options.step("remove")
            remove_index_file(self.held, source.key)
