"""offload: copy local stores into a tier, in waves, on Spark or in this process.

    report = offload(["/var/store=prod/broker-a"], "s3://history", spark=spark)          what is there now, then end
    report = offload([...], "s3://history", spark=spark, trigger_s=20, stop=event)       for ever, every 20 seconds

A wave: every broker plans (`OffloadBroker.plan`), the works of all are shared out to tasks, tasks copy
(`run_offload_task`), each broker commits. Between waves nothing is under way, so a job may be stopped there at any
time; killed anywhere else it loses nothing, see `offload_broker`. It is a plain loop and no Structured Streaming: a
wave that finds nothing costs no job at all, and the tier's own metadata is the checkpoint.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tiermq.clock import Clock, SystemClock
from tiermq.errors import BadConfig, TierError, TierMQError
from tiermq.history.scan_values import StorePlace
from tiermq.service import Service
from tiermq.spark.jobs.job_report import JobReport
from tiermq.spark.jobs.offload_broker import OffloadBroker
from tiermq.spark.jobs.offload_place import place_of, recover_store, require_topics, waiting_in
from tiermq.spark.jobs.offload_task import driver_of, run_offload_task
from tiermq.spark.jobs.offload_values import OffloadSettings, OffloadTask, QueueWork, TaskResult
from tiermq.spark.jobs.offload_wave import Backlog, cut, part, share
from tiermq.spark.jobs.task_runner import run_here, run_tasks
from tiermq.tier.tier_config import TierConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

IDLE_WAVES_MAX = 3
"""So many waves in a row that got nothing done, though there is something to do, end a job that should end."""

INDEX_CHOICES = ("now", "local", "later")

Run = Callable[[Sequence[OffloadTask]], list[TaskResult]]
Progress = Callable[[int, int], None]
"""Told (bytes copied, bytes that are known of) after each wave."""


@dataclass(slots=True)
class OffloadOptions:
    """What a caller may choose; see `offload`."""

    topics: frozenset[str] = frozenset()
    with_index: bool = True
    publish_index: bool = True
    trigger_s: float | None = None
    recover: bool = False
    forget_tier: bool = False
    dry_run: bool = False
    settings: OffloadSettings = field(default_factory=OffloadSettings)
    config: Mapping[str, Any] = field(default_factory=dict)
    progress: Progress = lambda _done, _total: None
    stop: threading.Event = field(default_factory=threading.Event)
    clock: Clock = field(default_factory=SystemClock)
    step: Callable[[str], None] = lambda _name: None


def offload(
    stores: Iterable[str | StorePlace],
    tier: str,
    *,
    spark: SparkSession | None = None,
    topics: Iterable[str] = (),
    index: str = "now",
    **options: Any,
) -> JobReport:
    """Copy the stores into the tier at URL `tier`; without `spark` in this process, one task after the other.

    `stores` are directories, `DIR` or `DIR=cluster/broker`. `index`, of the keys: "now" puts the index of
    everything into the tier at the end (with `trigger_s` a file whenever one is full, as "local" always does, which
    leaves the open file to a later run); "later" leaves all of it to `reindex`.
    `trigger_s`: look again every so many seconds until `stop` is set. `config`: settings of the tier by their names in
    snake_case. `recover`: open stores whose process died, once, before. `forget_tier`: where the tier has nothing of
    what a store says it has there, begin anew with what the store still has. Further options are OffloadOptions'.
    Raises what is known before tasks start: BadConfig, BadTierUrl, StoreNotRecovered, StoreLocked, LeaseHeld, and
    TierError for a tier that is not the one that a store was copied to.
    """
    if index not in INDEX_CHOICES:
        raise BadConfig(f"index is 'now', 'local' or 'later', found {index!r}")
    chosen = OffloadOptions(
        topics=frozenset(topics), with_index=index != "later", publish_index=index == "now", **options
    )
    return OffloadJob(stores, tier, chosen, spark).run()


class OffloadJob:
    """One run of an offload. `run` belongs to one thread."""

    def __init__(
        self,
        stores: Iterable[str | StorePlace],
        tier: str,
        options: OffloadOptions,
        spark: SparkSession | None = None,
        *,
        run: Run | None = None,
    ) -> None:
        """`run` replaces the way in which tasks are run; for tests."""
        self._places = [place if isinstance(place, StorePlace) else place_of(place) for place in stores]
        if not self._places:
            raise BadConfig("an offload needs a store directory, such as --store ~/store")
        if len({(place.cluster, place.broker) for place in self._places}) < len(self._places):
            raise BadConfig(
                "two of the stores have the same cluster and broker name, so their histories would be mixed; "
                "name them: --store DIR=cluster/broker"
            )
        self._tier = tier
        self._options = options
        self._parallelism = 1 if spark is None else parallelism_of(spark)
        self._run = run or _runner(spark)
        self._report = JobReport("offload", driver_of(tier).url, options.dry_run, master_of(spark))

    def run(self) -> JobReport:
        report = self._report
        with report.timed():
            if self._options.recover and not self._options.dry_run:
                report.details["recovered"] = [place.path for place in self._places if recover_store(place.path)]
            if self._options.topics and self._options.trigger_s is None:
                require_topics(self._places, self._options.topics)
            if self._options.dry_run:
                self._preview()
            else:
                self._copy()
        return report

    def _config(self, place: StorePlace) -> TierConfig:
        return TierConfig(
            broker_name=place.broker,
            broker_cluster_name=place.cluster,
            store_path_root_dir=place.path,
            tier_url=self._tier,
        ).with_settings(**self._options.config)

    def _preview(self) -> None:
        report, found = self._report, []
        for place in self._places:
            config, driver, forget = self._config(place), driver_of(self._tier), self._options.forget_tier
            found += waiting_in(place, config, self._options.topics, driver, forget=forget)
        report.details["queues"] = [waiting.as_row() for waiting in found]
        report.planned |= {
            "stores": len(self._places),
            "queues": len(found),
            "messages": sum(waiting.backlog.messages for waiting in found),
            "bytes": sum(waiting.backlog.bytes for waiting in found),
        }

    def _copy(self) -> None:
        options = self._options
        with ExitStack() as stack:
            brokers = []
            for place in self._places:
                broker = OffloadBroker(
                    place,
                    self._config(place),
                    driver_of(self._tier),
                    options.clock,
                    topics=options.topics,
                    with_index=options.with_index,
                    forget_tier=options.forget_tier,
                    step=options.step,
                )
                broker.begin()
                self._report.details.setdefault("notes", []).extend(
                    f"{place.path}: put away what it knew of a tier, as {name}" for name in broker.forgotten
                )
                brokers.append(broker)
                stack.callback(self._end, broker)
            keeper = _LeaseKeeper(brokers)
            stack.callback(keeper.stop)
            keeper.start()
            if options.trigger_s is None:
                for broker in brokers:
                    broker.fix_targets()
            self._loop(brokers)

    def _loop(self, brokers: Sequence[OffloadBroker]) -> None:
        options, idle_waves, failures = self._options, 0, 0
        while not options.stop.is_set():
            try:
                copied, is_through = self._wave(brokers)
                failures = 0
            except (TierMQError, OSError) as error:
                failures += 1
                if options.trigger_s is None or failures > IDLE_WAVES_MAX:
                    raise
                _log.warning("a wave failed and is tried again: %s", error)
                copied, is_through = False, True
            idle_waves = 0 if copied else idle_waves + 1
            if options.trigger_s is None:
                if is_through or idle_waves >= IDLE_WAVES_MAX:
                    break
            elif not copied:
                options.stop.wait(options.trigger_s)
        if options.publish_index and options.trigger_s is None and not options.stop.is_set():
            self._publish_index(brokers)
        problems = [(broker, name, text) for broker in brokers for name, text in broker.problems.items()]
        self._report.problems += [f"{broker.place.path} {name[0]}-{name[1]}: {text}" for broker, name, text in problems]

    def _publish_index(self, brokers: Sequence[OffloadBroker]) -> None:
        for broker in brokers:
            try:
                broker.publish_index()
            except (TierError, OSError) as error:
                self._report.problems.append(str(error))

    def _wave(self, brokers: Sequence[OffloadBroker]) -> tuple[bool, bool]:
        """Whether anything was done, and whether nothing was left to do."""
        options, report = self._options, self._report
        works = [(broker, work) for broker in brokers for work in broker.plan(force=options.trigger_s is None)]
        if not works:
            return False, True
        total = sum(work.bytes for _, work in works)
        before = sum(broker.counts.rolled for broker in brokers)
        counts = share([Backlog(work.to_offset - work.from_offset, work.bytes) for _, work in works], options.settings)
        chosen = [(broker, cut(work, count)) for (broker, work), count in zip(works, counts, strict=True) if count]
        tasks = [task for broker in brokers for task in self._tasks(broker, [w for b, w in chosen if b is broker])]
        options.step("tasks")
        try:
            results = self._run(tasks)
        except BaseException:
            for broker, work in chosen:
                broker.doubt([work])
            raise
        by_store: dict[str, list[Any]] = {}
        for task, result in zip(tasks, results, strict=True):
            by_store.setdefault(task.store, []).extend(result.commits)
        copied = sum(commit.bytes for commits in by_store.values() for commit in commits)
        for broker in brokers:
            commits = by_store.get(broker.place.path, [])
            if commits:
                broker.commit(commits)
        report.add(waves=1, tasks=len(tasks), bytes=copied, task_cpu_s=sum(result.cpu_s for result in results))
        options.progress(int(report.done["bytes"]), int(report.done["bytes"]) + max(0, total - copied))
        return copied > 0 or sum(broker.counts.rolled for broker in brokers) > before, False

    def _tasks(self, broker: OffloadBroker, works: Sequence[QueueWork]) -> list[OffloadTask]:
        if not works:
            return []
        config = self._config(broker.place)
        return [
            OffloadTask(
                broker.place.path,
                self._tier,
                group,
                broker.claim,
                config.tiered_store_commit_log_max_size,
                config.tiered_store_consume_queue_max_size,
                broker.spool,
                broker.index is not None,
                self._options.settings,
            )
            for group in part(works, self._parallelism, self._options.settings)
        ]

    def _end(self, broker: OffloadBroker) -> None:
        counts = broker.counts
        try:
            broker.close()
        except TierError as error:
            self._report.problems.append(f"{broker.place.path}: its end was not written: {error}")
        self._report.add(
            queues=len(counts.queues),
            messages=counts.messages,
            adopted=counts.adopted,
            keys=counts.keys,
            index_files=counts.index_files,
            gaps=counts.gaps,
            segments_begun=counts.rolled,
            segments_sealed=counts.sealed,
        )
        self._report.details.setdefault("stores", []).append(
            {"path": broker.place.path, "cluster": broker.place.cluster, "broker": broker.place.broker}
            | {"messages": counts.messages, "bytes": counts.bytes, "queues": len(counts.queues)}
        )


class _LeaseKeeper(Service):
    """Renews the brokers' leases while tasks run."""

    def __init__(self, brokers: Sequence[OffloadBroker]) -> None:
        super().__init__("offload-lease")
        self._brokers = brokers

    def run_once(self) -> float:
        for broker in self._brokers:
            broker.writer.keep_lease()
        return 1.0


def _runner(spark: SparkSession | None) -> Run:
    if spark is None:
        return lambda tasks: run_here(run_offload_task, tasks)
    session = spark
    return lambda tasks: run_tasks(session, run_offload_task, tasks, name="tiermq offload")


def parallelism_of(spark: SparkSession) -> int:
    """How many tasks run at a time, as far as the session can be asked."""
    context = getattr(spark, "_sc", None)
    return int(context.defaultParallelism) if context is not None else 8


def master_of(spark: SparkSession | None) -> str:
    return "" if spark is None else str(spark.conf.get("spark.master", "") or "")
