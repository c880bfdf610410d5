"""reindex: builds the key index of history without one, or with one from RocketMQ, which may have dropped keys.

    with `check`: what is covered and lacks items (tier.verify.missing_keys), which reads all messages
    what is not covered ─► keys, staged (tasks) ─► index files (tasks) ─► registered (`BrokerIndex`)

What is missing is what the uploaded files and the store's own record both lack: each speaks of items that are there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tiermq.clock import Clock, SystemClock
from tiermq.errors import BadConfig, StoreDamaged, TierError
from tiermq.pipeline.broker_index import KEY_CHUNK_BYTES, BrokerIndex
from tiermq.pipeline.index_build import StagedKeys, run_build_task, unstage
from tiermq.pipeline.job_report import JobReport
from tiermq.pipeline.leased_broker import (
    BrokerResult,
    LeasedBroker,
    Sleep,
    data_queues,
    homes_of,
    lease_broker,
    refusals,
)
from tiermq.pipeline.reindex.task import BUNDLE_BYTES, KeyTask, KeyWork, run_key_task
from tiermq.pipeline.task_runner import JobTasks, Progress, TaskRunner
from tiermq.pipeline.verify.job import VerifyBundle, run_verify_bundle
from tiermq.pipeline.worker_cache import driver_of
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.index.index_coverage import LogRange, in_both, joined
from tiermq.tier.metadata.broker_lease import LeaseHeld
from tiermq.tier.names import INDEX_TOPIC, QueueKey
from tiermq.tier.queue.segments import TierScope, list_tier
from tiermq.tier.verify.verify import missing_keys_tasks
from tiermq.tier.verify.verify_plan import VerifyResult, VerifyTask, plan_verify

ITEMS_MAX_DEFAULT = 20_000_000 - 1


@dataclass(frozen=True, slots=True)
class ReindexOptions:
    """What a caller may choose; see `reindex`."""

    topics: frozenset[str] = frozenset()
    slots: int | None = None
    items_max: int = ITEMS_MAX_DEFAULT
    chunk_bytes: int = KEY_CHUNK_BYTES
    check: bool = False
    step: Callable[[str], None] = field(default=lambda _name: None)

    def __post_init__(self) -> None:
        if self.items_max < 1 or self.chunk_bytes < 1 or (self.slots is not None and self.slots < 1):
            raise BadConfig(f"slots, items_max and chunk_bytes are positive, found {self}")


def reindex(
    runner: TaskRunner | None,
    *,
    tier: str,
    cluster: str | None = None,
    broker: str | None = None,
    store: str | None = None,
    topics: Sequence[str] = (),
    dry_run: bool = False,
    progress: Progress | None = None,
    clock: Clock | None = None,
    wait: Sleep | None = None,
    **options: Any,
) -> JobReport:
    """Build the key index of what has none in the tier at URL `tier`; without a `runner` in this process.

    `topics`: only these. `store`: the directory of one broker; what its own index covers is not built again, and its
    record follows. Further options are ReindexOptions': `slots` (tieredStoreIndexFileMaxHashSlotNum; default: as in the
    index files that are there, else 5,000,000), `items_max` of a file, `chunk_bytes` read at a time, `check`: also
    read everything that is covered, and index the messages that have no items nevertheless.
    Raises BadConfig, FutureManifest, LeaseHeld, StoreLocked, TierError; a queue that cannot be read is a problem in the
    report.
    """
    chosen = ReindexOptions(frozenset(topics), **options)
    tasks = JobTasks(runner, "reindex", progress)
    driver = driver_of(tier)
    report = JobReport("reindex", driver.url, dry_run, tasks.master)
    report.planned |= {"queues": 0, "ranges": 0, "bytes": 0}
    with report.timed():
        require_topics(driver, TierScope(cluster, broker), chosen.topics)
        results = []
        for home in homes_of(driver, cluster=cluster, broker=broker, store=store):
            refusal: LeaseHeld | None = None
            try:
                with lease_broker(
                    driver, home, "reindex", dry_run=dry_run, clock=clock or SystemClock(), wait=wait
                ) as held:
                    report.details.setdefault("notes", []).extend(held.notes)
                    _Reindex(held, tier, tasks, report, chosen).run()
            except LeaseHeld as error:
                refusal = error
            results.append(BrokerResult(home, None, refusal))
        report.problems += refusals(results)
    return report


def require_topics(driver: TierDriver, scope: TierScope, topics: frozenset[str]) -> None:
    """Raises TierError when a topic that was named has no history."""
    if not topics:
        return
    known = {info.key.queue.topic for info in list_tier(driver, scope).segments} - {INDEX_TOPIC}
    unknown, shown = sorted(topics - known), ", ".join(sorted(known)[:20])
    if unknown:
        raise TierError(f"{driver.url}: there is no topic {unknown[0]!r} in the tier; there are {shown or 'none'}")


@dataclass(slots=True)
class _Reindex:
    """The index of one broker."""

    held: LeasedBroker
    tier: str
    tasks: JobTasks
    report: JobReport
    options: ReindexOptions

    def run(self) -> None:
        held, report, options = self.held, self.report, self.options
        index = BrokerIndex(held, self.tier, slots=options.slots, items_max=options.items_max, step=options.step)
        try:
            index.open(settle=not report.dry_run)
        except StoreDamaged as error:
            report.problems.append(f"the index of {held.home} is left as it is: {error}")
            return
        unindexed: Counter[QueueKey] = Counter()
        missing = self._missing(index, self._lost(unindexed) if options.check else {})
        works = [work for queue, ranges in missing.items() for work in index.works(queue, ranges, options.chunk_bytes)]
        report.planned["queues"] += len(missing)
        report.planned["ranges"] += sum(map(len, missing.values()))
        report.planned["bytes"] += sum(work.size_bytes for work in works)
        if options.check:
            found = sum(unindexed[queue] for queue in missing)
            report.planned["unindexed_messages"] = report.planned.get("unindexed_messages", 0) + found
        report.details.setdefault("missing", []).extend(
            {"topic": queue.topic, "queue": queue.queue_id, "ranges": ranges}
            | ({"unindexed": unindexed[queue]} if options.check else {})
            for queue, ranges in missing.items()
        )
        if report.dry_run:
            return
        if works:
            staged = self._collect(works)
            self._register(index, staged)
        index.write_local()
        options.step("unstage")
        unstage(held.driver, held.home.index)

    # What is missing

    def _lost(self, unindexed: Counter[QueueKey]) -> dict[QueueKey, list[LogRange]]:
        """Ranges of each queue with messages whose keys are covered and have no items; counts these in `unindexed`."""
        home, found = self.held.home, dict[QueueKey, list[LogRange]]()
        plan = plan_verify(self.held.driver, TierScope(home.cluster, home.broker), metadata=self.held.metadata)
        results = self._verified(plan.tasks)
        results += self._verified(missing_keys_tasks(plan, results))
        for result in results:
            for each in result.lost_keys:
                found.setdefault(each.queue, []).append((each.start, each.stop))
                unindexed[each.queue] += result.counts["missing_items"]  # Such a task has one range.
        return found

    def _verified(self, tasks: Sequence[VerifyTask]) -> list[VerifyResult]:
        if not tasks:
            return []
        bundles = self.tasks.bundles(tasks, lambda task: task.size_bytes, BUNDLE_BYTES)
        sent = [VerifyBundle(self.tier, bundle) for bundle in bundles]
        return [result for some in self.tasks.run(run_verify_bundle, sent) for result in some]

    def _missing(self, index: BrokerIndex, lost: dict[QueueKey, list[LogRange]]) -> dict[QueueKey, list[LogRange]]:
        """Ranges of each queue without index. What the store's own files have is not missing."""
        record, found, unsure = index.files.local_record, dict[QueueKey, list[LogRange]](), set[str]()
        local = record.coverage() if record is not None else None
        for key in sorted(data_queues(self.held.metadata)):
            if self.options.topics and key.topic not in self.options.topics:
                continue
            missing = index.missing(key)
            if missing and local is not None and local.is_base_known:
                missing = in_both(missing, index.missing(key, of=local.queues))
            missing = joined([*missing, *lost.get(key, ())])
            if missing and key.topic in self.held.topics_without_id:
                unsure.add(key.topic)
            elif missing:
                found[key] = missing
        self.report.problems += [
            f"topic {name} of {self.held.home}: no manifest has its id, which every index item carries; import or "
            "restore the tier into a store directory (`tiermq tier import`, `tiermq tier restore`) and give that as "
            "store"
            for name in sorted(unsure)
        ]
        return found

    # Tasks

    def _collect(self, works: Sequence[KeyWork]) -> list[StagedKeys]:
        self.options.step("keys")
        bundles = self.tasks.bundles(works, lambda work: work.size_bytes, BUNDLE_BYTES)
        sent = [KeyTask(self.tier, self.held.home.index, bundle) for bundle in bundles]
        found = self.tasks.run(run_key_task, sent)
        self.report.problems += [error for each in found for error in each.errors]
        staged = sorted((keys for each in found for keys in each.keys), key=lambda keys: (keys.queue, keys.start))
        self.report.add(
            records=sum(each.records for each in found),
            keys=sum(keys.count for keys in staged),
            bytes=sum(each.bytes for each in found),
        )
        return staged

    def _register(self, index: BrokerIndex, staged: Sequence[StagedKeys]) -> None:
        tasks = index.build_tasks(staged)
        self.options.step("build")
        built = self.tasks.run(run_build_task, tasks) if tasks else []
        index.register(built, staged)
        self.report.add(index_files=len(built), index_bytes=sum(each.size for each in built))
        self.report.details.setdefault("files", []).extend(
            {"path": each.key.path, "items": each.facts.item_count, "bytes": each.size} for each in built
        )
