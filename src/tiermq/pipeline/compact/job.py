"""compact: fewer and larger objects, with the same history in them.

seal    full segments that are stored in parts become one object each                            tasks: driver.seal
parts   small parts of segments that still grow become fewer objects; their writer appends behind  tasks: driver.merge
sums    segments whose manifest lacks checksums of blocks get them                               tasks: sums_of
index   small index files become large ones (`BrokerIndex`)                                      tasks: merge
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from tiermq.clock import Clock, SystemClock
from tiermq.errors import BadConfig, SegmentMissing, StoreDamaged, TierError
from tiermq.pipeline.broker_index import BrokerIndex
from tiermq.pipeline.bundle_upkeep import tend_bundles
from tiermq.pipeline.compact.merge import ITEMS_MAX_DEFAULT, plan_merges, run_merge_task
from tiermq.pipeline.job_report import JobReport
from tiermq.pipeline.leased_broker import BrokerResult, LeasedBroker, Sleep, homes_of, lease_broker, refusals
from tiermq.pipeline.task_runner import JobTasks, Progress, TaskRunner
from tiermq.pipeline.worker_cache import driver_of
from tiermq.tier.block_sums import BlockSums
from tiermq.tier.driver.contract import SegmentInfo
from tiermq.tier.metadata.broker_lease import LeaseHeld
from tiermq.tier.metadata.metadata_values import Segment, SegmentStatus
from tiermq.tier.names import INDEX_TOPIC, QueueKey, SegmentKey, SegmentType, broker_directory
from tiermq.tier.repair.manifest_repair import sums_of

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
    runner: TaskRunner | None,
    *,
    tier: str,
    cluster: str | None = None,
    broker: str | None = None,
    store: str | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    clock: Clock | None = None,
    wait: Sleep | None = None,
    seal: bool = True,
    index: bool = True,
    items_max: int = ITEMS_MAX_DEFAULT,
    small_items: int | None = None,
    step: Callable[[str], None] = lambda _name: None,
) -> JobReport:
    """Compact the tier at URL `tier`; without a `runner` in this process.

    `seal` (with it parts of open segments, and the checksums of blocks) and `index` choose what is done. Index files
    with fewer than `small_items` items (default: half of `items_max`) are merged, into files of up to `items_max`.
    `store`: the directory of one broker, whose metadata then follow. `step` is called before each step.
    `wait`: for the lease of a killed job (`LeaseWait`), by `time.sleep`. Raises BadConfig, LeaseHeld,
    StoreLocked, TierError.
    """
    options = CompactOptions(seal, index, items_max, small_items, step)
    tasks = JobTasks(runner, "compact", progress)
    driver = driver_of(tier)
    report = JobReport("compact", driver.url, dry_run, tasks.master)
    counted = ("segments", "open_segments", "parts", "summed_segments", "index_files", "merged_files", "bytes")
    report.planned |= dict.fromkeys(counted, 0)
    with report.timed():
        results = []
        for home in homes_of(driver, cluster=cluster, broker=broker, store=store):
            refusal: LeaseHeld | None = None
            try:
                with lease_broker(
                    driver, home, "compact", dry_run=dry_run, clock=clock or SystemClock(), wait=wait
                ) as held:
                    _compact_broker(held, tier, tasks, report, options)
            except LeaseHeld as error:
                refusal = error
            results.append(BrokerResult(home, None, refusal))
        report.problems += refusals(results)
    return report


def _compact_broker(held: LeasedBroker, tier: str, tasks: JobTasks, report: JobReport, options: CompactOptions) -> None:
    report.details.setdefault("notes", []).extend(held.notes)
    if options.seal:
        _Sealing(held, tier, tasks, report, options).run()
        _PartMerging(held, tier, tasks, report, options).run()
        if not report.dry_run:
            directory = broker_directory(held.home.cluster, held.home.broker)
            tend_bundles(tasks, tier, [directory])  # The listing has loaded them.
        _Summing(held, tier, tasks, report, options).run()
    if options.index:
        _Merging(held, tier, tasks, report, options).run()


@dataclass(slots=True)
class _Pass:
    """One pass of the job over one broker."""

    held: LeasedBroker
    tier: str
    tasks: JobTasks
    report: JobReport
    options: CompactOptions


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


@dataclass(slots=True)
class _Sealing(_Pass):
    """The seals of one broker."""

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
            _tell(self.held, queue, self.report)
        sizes = {info.key: info.size for info in wanted}
        report.add(segments=len(sealed), bytes=sum(sizes[key] for key in sealed))

    def _crc_of(self, info: SegmentInfo) -> int | None:
        row = self.held.metadata.segment(info.key)
        return row.crc32 if row is not None and row.size == info.size else None

    def _wanted(self) -> Iterator[SegmentInfo]:
        """Full segments: another segment follows, or the metadata mark it, or its sealing was interrupted."""
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


# Parts of segments that still grow


@dataclass(frozen=True, slots=True)
class PartsTask:
    """Open segments whose small parts are to be merged."""

    tier: str
    keys: tuple[SegmentKey, ...]


def run_parts_task(task: PartsTask) -> tuple[int, ...]:
    """How many parts of each were merged. May be run again, or twice at once: merged parts are named by their range."""
    driver = driver_of(task.tier)
    return tuple(driver.merge(key) for key in task.keys)


@dataclass(slots=True)
class _PartMerging(_Pass):
    """The open segments of one broker. Rows and manifests do not change: they know segments, not parts."""

    def run(self) -> None:
        report, held = self.report, self.held
        wanted = [
            info
            for info in held.driver.list_segments(held.home.scope.prefix)
            if info.merge_count and info.key.topic != INDEX_TOPIC and held.metadata.segment(info.key) is not None
        ]
        report.planned["open_segments"] += len(wanted)
        report.planned["parts"] += sum(info.merge_count for info in wanted)
        report.details.setdefault("parts", []).extend(
            {"path": info.key.path, "bytes": info.size, "parts": info.part_count} for info in wanted
        )
        if report.dry_run or not wanted:
            return
        self.options.step("parts")
        bundles = self.tasks.bundles(wanted, lambda info: info.size, SEAL_BUNDLE_BYTES)
        sent = [PartsTask(self.tier, tuple(info.key for info in bundle)) for bundle in bundles]
        merged = [count for counts in self.tasks.run(run_parts_task, sent) for count in counts]
        report.add(open_segments=len(merged), parts=sum(merged))


def _tell(held: LeasedBroker, queue: QueueKey, report: JobReport) -> None:
    try:
        held.write_manifest(queue)
    except TierError as error:
        report.problems.append(f"{queue.logical_path}: its manifest does not say so yet: {error}")


# Checksums of blocks


@dataclass(frozen=True, slots=True)
class SumTask:
    """Segments whose blocks are to be summed up."""

    tier: str
    rows: tuple[Segment, ...]


def run_sum_task(task: SumTask) -> tuple[tuple[Segment, BlockSums | None], ...]:
    """The checksums of each, None where its bytes are not those of its row's checksum. May be run again."""
    driver = driver_of(task.tier)
    found = []
    for row in task.rows:
        crc, sums = sums_of(driver, row.key, row.size)
        found.append((row, sums if crc == row.crc32 else None))
    return tuple(found)


@dataclass(slots=True)
class _Summing(_Pass):
    """The checksums that one broker's manifests lack. Only of bytes that a checksum of the whole segment proves: what
    has none, as RocketMQ's segments, is for `verify --repair`, which looks at every record first.
    """

    def run(self) -> None:
        report, held = self.report, self.held
        wanted = [
            row
            for row in held.metadata.all_segments()
            if row.key.topic != INDEX_TOPIC and row.crc32 is not None and not row.has_all_sums
        ]
        report.planned["summed_segments"] += len(wanted)
        report.planned["bytes"] += sum(row.size for row in wanted)
        if report.dry_run or not wanted:
            return
        self.options.step("sum")
        sent = [
            SumTask(self.tier, rows) for rows in self.tasks.bundles(wanted, lambda row: row.size, SEAL_BUNDLE_BYTES)
        ]
        results = [result for some in self.tasks.run(run_sum_task, sent) for result in some]
        held.check()
        summed = [replace(row, sums=sums) for row, sums in results if sums is not None]
        with held.metadata.transaction():
            for row in summed:
                held.metadata.put_segment(row)
        self.options.step("sums")
        for queue in sorted({row.key.queue for row in summed}):
            _tell(held, queue, report)
        report.add(summed_segments=len(summed), bytes=sum(row.size for row in summed))
        report.problems += [
            f"{row.key.path}: its {row.size} bytes are not what was written; run `tiermq pipeline verify --repair`"
            for row, sums in results
            if sums is None
        ]


# Merging


@dataclass(slots=True)
class _Merging(_Pass):
    """The index of one broker."""

    def run(self) -> None:
        held, report, options = self.held, self.report, self.options
        index = BrokerIndex(held, self.tier, items_max=options.items_max, step=options.step)
        try:
            index.open(settle=not report.dry_run)
        except StoreDamaged as error:
            report.problems.append(f"the index of {held.home} is left as it is: {error}")
            return
        report.problems += [
            f"{info.key.path}: no whole index file; `tiermq pipeline verify --repair` builds it again"
            for info in index.files.broken
        ]
        groups = plan_merges(index.files.registered, options.items_max, options.small)
        report.planned["index_files"] += sum(map(len, groups))
        report.planned["merged_files"] += len(groups)
        report.planned["bytes"] += sum(file.size for group in groups for file in group)
        if report.dry_run or not groups:
            return
        tasks = index.merge_tasks(groups)
        options.step("merge")
        for task, made in zip(tasks, self.tasks.run(run_merge_task, tasks), strict=True):
            index.swap(task, made)
            report.add(index_files=len(task.sources), merged_files=1, bytes=made.file.size)
            report.details.setdefault("merged", []).append(
                {"path": task.key.path, "items": made.file.item_count, "from": [file.key.path for file in task.sources]}
            )
