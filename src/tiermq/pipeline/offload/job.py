"""offload: copy brokers into a tier, from store directories or over the wire, in waves, by a runner or in this process.

    report = offload(["/var/store=prod/broker-a"], "s3://history", runner=runner)          copy once
    report = offload([...], "s3://history", runner=runner, trigger_s=20, stop=event)       continuously, every 20 s
    report = offload([], "s3://history", fleet=FleetScope("ns1:9876;ns2:9876", "prod"))    running brokers

A wave: every broker plans (`OffloadBroker.plan`), the works of all are shared out to tasks, tasks copy
(`run_offload_task`) and stage keys, further tasks make index files of those (`run_build_task`), each broker commits.
Committed records that the index does not cover are read back first; small index files are merged afterwards; both by
tasks. Between waves nothing is under way, so a job may be stopped there at any
time; killed anywhere else it loses nothing, see `offload_broker`. It is a plain loop and no Structured Streaming: a
wave that finds nothing costs no job at all, and the tier's own metadata is the checkpoint.
"""

from __future__ import annotations

import difflib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from tiermq.clock import Clock, SystemClock
from tiermq.errors import BadConfig, RemotingError, TierError, TierMQError
from tiermq.history.scan_values import StorePlace
from tiermq.pipeline.index_build import StagedKeys
from tiermq.pipeline.job_report import JobReport
from tiermq.pipeline.offload.broker import OffloadBroker
from tiermq.pipeline.offload.metrics import OffloadMetrics
from tiermq.pipeline.offload.offload_index import IndexTasks, OffloadIndex
from tiermq.pipeline.offload.origin import OffloadOrigin, StoreOrigin
from tiermq.pipeline.offload.plan import (
    Backlog,
    OffloadSettings,
    OffloadTask,
    QueueCommit,
    QueueWork,
    cut,
    part,
    share,
)
from tiermq.pipeline.offload.task import run_offload_task
from tiermq.pipeline.offload.wire_broker import WireBroker
from tiermq.pipeline.offload.wire_fleet import TOPICS_SHOWN_MAX, FleetScope, WireFleet
from tiermq.pipeline.store_directory import place_of, recover_store
from tiermq.pipeline.task_runner import JobTasks, TaskRunner
from tiermq.pipeline.worker_cache import driver_of
from tiermq.store.readonly.store import ReadOnlyStore
from tiermq.tier.dispatch.local_source import ReadOnlySource
from tiermq.tier.dispatch.plan import TopicFilter
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.metadata.broker_lease import LeaseKeeper
from tiermq.tier.metadata.manifest import manifest_name
from tiermq.tier.metadata.manifest_store import ManifestStore
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.names import QueueKey
from tiermq.tier.queue.segments import TierScope, list_tier
from tiermq.tier.tier_config import TierConfig
from tiermq.tier.tier_identity import missing_tail, require_known_tier, require_sound_metadata
from tiermq.tier.tier_wiring import topic_filter

_log = logging.getLogger(__name__)

IDLE_WAVES_MAX = 3
"""This number of consecutive waves without progress ends a job that runs once."""

RATE_WAVE_S = 60.0
LOOK_WAIT_S = 2.0
"""How long a wave of a continuous job waits for what brokers report; slower ones join a later wave."""

INDEX_CHOICES = ("now", "small", "later")

Progress = Callable[[int, int], None]
"""Called with (bytes copied, bytes known) after each wave."""


@dataclass(slots=True)
class OffloadOptions:
    """What a caller may choose; see `offload`."""

    topics: frozenset[str] = frozenset()
    fleet: FleetScope | None = None
    rate: float = 0.0
    metrics_path: str | None = None
    with_index: bool = True
    all_slots: bool = True
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
    monotonic: Callable[[], float] = time.monotonic


def offload(
    stores: Iterable[str | StorePlace],
    tier: str,
    *,
    runner: TaskRunner | None = None,
    topics: Iterable[str] = (),
    index: str = "now",
    **options: Any,
) -> JobReport:
    """Copy brokers into the tier at URL `tier`; without a `runner` in this process, one task after the other.

    `stores` are directories, `DIR` or `DIR=cluster/broker`. `fleet`, instead: running brokers, over the wire, with at
    most `rate` bytes a second of each. `index`, of the keys: every wave brings its index files into the tier. They have
    few slots while they have few keys; with "now" those of a job that ends get as many as the settings say, which
    RocketMQ needs, and with "small" not. "later" leaves all of it to `reindex`.
    `trigger_s`: repeat at this interval until `stop` is set. `config`: settings of the tier by their names in
    snake_case. `recover`: run crash recovery on the stores first. `forget_tier`: if the tier has nothing of
    what a store's metadata name, upload again what the store still has. `metrics_path`: a file that gets the job's
    metrics after each wave, in Prometheus' text format. Further options are OffloadOptions'.
    Raises what is known before tasks start: BadConfig, BadTierUrl, StoreNotRecovered, StoreLocked, LeaseHeld,
    TierError for another tier than the store's, RequestRefused for topics that an account may not read.
    """
    if index not in INDEX_CHOICES:
        raise BadConfig(f"index is 'now', 'small' or 'later', found {index!r}")
    chosen = OffloadOptions(topics=frozenset(topics), with_index=index != "later", all_slots=index == "now", **options)
    return OffloadJob(stores, tier, chosen, runner).run()


class OffloadJob:
    """One run of an offload. `run` belongs to one thread."""

    def __init__(
        self,
        stores: Iterable[str | StorePlace],
        tier: str,
        options: OffloadOptions,
        runner: TaskRunner | None = None,
    ) -> None:
        self._places = [place if isinstance(place, StorePlace) else place_of(place) for place in stores]
        if (not self._places) == (options.fleet is None):
            raise BadConfig(
                "an offload needs store directories (--store ~/store), or name servers (--namesrv host:port)"
            )
        if len({(place.cluster, place.broker) for place in self._places}) < len(self._places):
            raise BadConfig(
                "two of the stores have the same cluster and broker name, so their histories would be mixed; "
                "name them: --store DIR=cluster/broker"
            )
        self._tier = tier
        self._options = options
        self._fleet: WireFleet | None = None
        if options.fleet is not None:
            self._fleet = WireFleet(options.fleet, options.clock, monotonic=options.monotonic)
        self._brokers: list[OffloadBroker] = []
        self._troubles: dict[str, str] = {}
        self._refused: dict[tuple[str, str, str, int], dict[str, Any]] = {}
        self._dangers: dict[tuple[str, str, str, int], dict[str, Any]] = {}
        self._stack = ExitStack()
        self._was_looked = False
        self._metrics = OffloadMetrics()
        self._tasks = JobTasks(runner, "offload")
        self._report = JobReport("offload", driver_of(tier).url, options.dry_run, self._tasks.master)
        self._index = IndexTasks(self._tasks, self._report, options.step)

    def run(self) -> JobReport:
        report = self._report
        with report.timed():
            if self._options.recover and not self._options.dry_run:
                report.details["recovered"] = [place.path for place in self._places if recover_store(place.path)]
            if self._options.topics and self._options.trigger_s is None and self._fleet is None:
                require_topics(self._places, self._options.topics)
            if self._options.dry_run:
                self._preview()
            else:
                self._copy()
        return report

    def _config(self, place: StorePlace | OffloadOrigin) -> TierConfig:
        return TierConfig(
            broker_name=place.broker,
            broker_cluster_name=place.cluster,
            store_path_root_dir="" if isinstance(place, WireBroker) else place.path,
            tier_url=self._tier,
        ).with_settings(**self._options.config)

    def _preview(self) -> None:
        report, found = self._report, []
        if self._fleet is not None:
            self._find(self._fleet)
            self._fleet.check()
            found = [
                each for broker in self._fleet.brokers.values() for each in waiting_at(broker, driver_of(self._tier))
            ]
            report.problems += [f"{broker}: {why}" for broker, why in self._fleet.troubles.items()]
            report.problems += [
                str(broker.error) for broker in self._fleet.brokers.values() if broker.error is not None
            ]
        for place in self._places:
            config, driver, forget = self._config(place), driver_of(self._tier), self._options.forget_tier
            found += waiting_in(place, config, self._options.topics, driver, forget=forget)
        report.details["queues"] = [waiting.as_row() for waiting in found]
        report.planned |= {
            **({"stores": len(self._places)} if self._fleet is None else {"brokers": len(self._fleet.brokers)}),
            "queues": len(found),
            "messages": sum(waiting.backlog.messages for waiting in found),
            "bytes": sum(waiting.backlog.bytes for waiting in found),
        }

    def _copy(self) -> None:
        with ExitStack() as stack:
            self._stack = stack
            if self._fleet is None:
                for place in self._places:
                    chosen = topic_filter(self._config(place), self._options.topics)
                    self._begin(self._broker(StoreOrigin(place), chosen))
            else:
                self._find(self._fleet)
                self._fleet.check()
                self._note_missing(self._fleet)
            keeper = LeaseKeeper(self._keep_leases)
            stack.callback(keeper.stop)
            keeper.start()
            self._loop()

    def _broker(self, origin: OffloadOrigin, topics: TopicFilter) -> OffloadBroker:
        options = self._options
        broker = OffloadBroker(
            origin,
            self._config(origin),
            driver_of(self._tier),
            options.clock,
            topics=topics,
            with_index=options.with_index,
            forget_tier=options.forget_tier,
            step=options.step,
            task_s=options.settings.task_s,
        )
        self._brokers.append(broker)
        return broker

    def _begin(self, broker: OffloadBroker) -> None:
        """Raises what `OffloadBroker.begin` does."""
        broker.begin()
        self._stack.callback(self._end, broker)
        path, notes = broker.place.path, self._report.details.setdefault("notes", [])
        notes += [f"{path}: put away what it knew of a tier, as {name}" for name in broker.forgotten]
        notes += broker.notes
        if self._options.trigger_s is None:
            broker.fix_targets()

    def _keep_leases(self) -> None:
        for broker in list(self._brokers):
            broker.keep_lease()

    # Brokers over the wire

    def _find(self, fleet: WireFleet) -> None:
        """The fleet as it is now. Raises BadConfig, RemotingError."""
        for origin in fleet.find():
            self._broker(origin, fleet.scope.topic_filter(origin.cluster, origin.broker))
        fleet.look(self._look_wait_s)

    def _note_missing(self, fleet: WireFleet) -> None:
        """Brokers of the tier that no name server knows: they may be down, and nobody would notice."""
        scope = fleet.scope
        if scope.brokers:
            return
        known = {cluster for cluster, _ in fleet.brokers}
        for cluster in [scope.cluster] if scope.cluster is not None else sorted(known):
            for home in list_tier(driver_of(self._tier), TierScope(cluster)).brokers:
                if home not in fleet.brokers:
                    self._report.details.setdefault("notes", []).append(
                        f"broker {home[1]} of {home[0]} has history in the tier, but no name server knows it: it is "
                        "down or out of service, and what is not copied yet is not copied"
                    )

    @property
    def _look_wait_s(self) -> float | None:
        """A job that goes on does not wait for slow brokers; one that runs once does."""
        return LOOK_WAIT_S if self._was_looked and self._options.trigger_s is not None else None

    @contextmanager
    def _edge(self, broker: OffloadBroker) -> Iterator[None]:
        """What fails of one broker over the wire is that broker's problem, and delays no other one.

        The next wave begins it again, with what the tier then has.
        """
        try:
            yield
        except Exception as error:
            if self._fleet is None:
                raise
            if not isinstance(error, TierMQError):
                _log.exception("%s: the broker is left out until the next wave", broker.place.path)
            self._troubles[broker.place.path] = str(error) if isinstance(error, TierMQError) else repr(error)
            if broker.is_open:
                self._give_up(broker)

    def _look(self) -> None:
        """Before a wave: ask every broker what it has, and begin those that were out of reach until now."""
        self._troubles.clear()
        if self._fleet is None:
            return
        if self._was_looked:  # The first look was before the checks.
            try:
                self._find(self._fleet)
            except RemotingError as error:
                self._troubles["name servers"] = str(error)
                self._fleet.look(self._look_wait_s)
        self._was_looked = True
        self._troubles |= self._fleet.troubles
        for broker in list(self._brokers):
            if not broker.is_open:
                with self._edge(broker):
                    self._begin(broker)

    def _ready(self) -> list[OffloadBroker]:
        """The brokers of a wave. One that is out of reach is left out, and delays no other one."""
        if self._fleet is None:
            return self._brokers
        ready = []
        for broker in self._brokers:
            origin = broker.place
            assert isinstance(origin, WireBroker)
            if origin.error is not None:
                self._troubles[origin.path] = str(origin.error)
            elif broker.is_open:
                ready.append(broker)
        return ready

    def _loop(self) -> None:
        options, idle_waves, failures = self._options, 0, 0
        while not options.stop.is_set():
            try:
                self._look()
                ready = self._ready()
                copied, is_through = self._wave(ready)
                failures = 0
            except (TierMQError, OSError) as error:
                failures += 1
                if options.trigger_s is None or failures > IDLE_WAVES_MAX:
                    raise
                _log.warning("a wave failed and is tried again: %s", error)
                copied, is_through, ready = False, True, []
            self._note_wave()
            idle_waves = 0 if copied else idle_waves + 1
            if options.trigger_s is None:
                waits = [broker.wait_s() for broker in ready] if is_through else []
                wait_s = min((wait for wait in waits if wait is not None), default=None)
                if wait_s is not None:
                    idle_waves = 0
                    options.stop.wait(wait_s)
                elif is_through or idle_waves >= IDLE_WAVES_MAX:
                    break
            elif not copied:
                options.stop.wait(self._pause_s(options.trigger_s))
        if options.all_slots and options.trigger_s is None and not options.stop.is_set():
            self._index.merge(self._brokers, at_end=True)
        if self._fleet is not None:
            self._note_passed_over(self._fleet)
        self._report_problems()

    def _note_passed_over(self, fleet: WireFleet) -> None:
        """Topics that cannot be copied by their kind, a note for each kind."""
        kinds: dict[str, set[str]] = {}
        for broker in fleet.brokers.values():
            for topic, why in broker.passed_over.items():
                kinds.setdefault(why, set()).add(topic)
        for why, topics in sorted(kinds.items()):
            names = ", ".join(sorted(topics)[:TOPICS_SHOWN_MAX]) + (", …" if len(topics) > TOPICS_SHOWN_MAX else "")
            self._report.details.setdefault("notes", []).append(f"not copied: {names}: {why}")

    def _report_problems(self) -> None:
        problems = [f"{place}: {text}" for place, text in self._troubles.items()]
        for broker in self._brokers:
            path = broker.place.path
            if broker.is_open and broker.index is not None and not broker.index.is_complete:
                problems.append(
                    f"{path}: expected its whole key index in the tier, found records that are not indexed; the "
                    "messages are safe, and the next run goes on"
                )
            problems += [f"{path} {name[0]}-{name[1]}: {text}" for name, text in broker.problems.items()]
            if isinstance(broker.place, WireBroker):
                left_out = broker.place.refused | broker.place.failed
                problems += [f"{path} {topic}: {why}" for topic, why in left_out.items()]
        self._report.problems += problems

    def _pause_s(self, trigger_s: float) -> float:
        """The trigger, unless what a broker was seen to have would not count any more by then."""
        origins = [broker.place for broker in self._brokers if isinstance(broker.place, WireBroker)]
        return min([trigger_s, *(origin.settle_s for origin in origins if origin.forgets_between_looks)])

    def _note_wave(self) -> None:
        """What operators watch: gaps, refused queues, messages in danger."""
        details = self._report.details
        for broker in self._brokers:
            details.setdefault("gaps", []).extend(broker.gaps)
            broker.gaps.clear()
            for name, row in broker.forks.items():
                self._refused[broker.place.cluster, broker.place.broker, *name] = row
            for name, row in broker.dangers.items():
                self._dangers[broker.place.cluster, broker.place.broker, *name] = row
        details["refused"], details["danger"] = list(self._refused.values()), list(self._dangers.values())
        if self._options.metrics_path is not None:
            self._metrics.write(self._options.metrics_path, self._brokers, self._troubles, self._options.clock.now_ms())

    def _wave(self, brokers: Sequence[OffloadBroker]) -> tuple[bool, bool]:
        """Whether anything was done, and whether nothing was left to do."""
        options, report = self._options, self._report
        force = options.trigger_s is None or self._fleet is not None  # Over the wire the trigger itself makes batches.
        works = [(broker, work) for broker in brokers for work in self._planned(broker, force)]
        brokers = [broker for broker in brokers if broker.is_open]
        self._index.catch_up(brokers)
        if not works:
            return False, True
        total = sum(work.bytes for _, work in works)
        before = sum(broker.counts.rolled for broker in brokers)
        settings = self._wave_settings(len(brokers))
        counts = share([Backlog(work.to_offset - work.from_offset, work.bytes) for _, work in works], settings)
        chosen = [(broker, cut(work, count)) for (broker, work), count in zip(works, counts, strict=True) if count]
        tasks = [task for broker in brokers for task in self._tasks_of(broker, [w for b, w in chosen if b is broker])]
        options.step("tasks")
        commits: dict[str, list[QueueCommit]] = {}
        keys: dict[OffloadIndex, list[StagedKeys]] = {}
        indexes = {broker.place.path: broker.index for broker in brokers}
        try:
            results = self._tasks.run(run_offload_task, tasks)
            for task, result in zip(tasks, results, strict=True):
                commits.setdefault(task.store, []).extend(result.commits)
                if (index := indexes[task.store]) is not None:
                    keys.setdefault(index, []).extend(result.keys)
            built = self._index.build(keys)
        except BaseException:
            for broker, work in chosen:
                broker.doubt([work])
            raise
        copied = sum(commit.bytes for some in commits.values() for commit in some)
        for broker in brokers:
            path = broker.place.path
            if path in commits:
                found = ((), ()) if broker.index is None else (keys[broker.index], built[broker.index])
                with self._edge(broker):
                    broker.commit(commits[path], *found)
        self._index.merge(brokers)
        report.add(waves=1, tasks=len(tasks), bytes=copied, task_cpu_s=sum(result.cpu_s for result in results))
        options.progress(int(report.done["bytes"]), int(report.done["bytes"]) + max(0, total - copied))
        return copied > 0 or sum(broker.counts.rolled for broker in brokers) > before, False

    def _planned(self, broker: OffloadBroker, force: bool) -> list[QueueWork]:
        works: list[QueueWork] = []
        with self._edge(broker):
            works = broker.plan(force=force)
        return works  # noqa: RET504 - the edge may have caught an error

    def _give_up(self, broker: OffloadBroker) -> None:
        """Let go of a broker; what its tasks wrote is found again when it begins again."""
        assert self._fleet is not None
        assert isinstance(broker.place, WireBroker)
        self._brokers.remove(broker)
        self._broker(broker.place, self._fleet.scope.topic_filter(broker.place.cluster, broker.place.broker))
        with suppress(TierError):
            broker.close()

    def _wave_settings(self, brokers: int) -> OffloadSettings:
        """With a rate limit, a wave is no longer than RATE_WAVE_S: what it copied is visible only at its end."""
        settings, rate = self._options.settings, self._options.rate
        most = int(rate * RATE_WAVE_S * brokers) or settings.wave_bytes
        return replace(settings, wave_bytes=max(1, min(settings.wave_bytes, most)))

    def _tasks_of(self, broker: OffloadBroker, works: Sequence[QueueWork]) -> list[OffloadTask]:
        if not works:
            return []
        config = self._config(broker.place)
        groups = part(works, self._tasks.parallelism, self._options.settings)
        rate = self._options.rate / min(len(groups), self._tasks.parallelism)
        return [
            OffloadTask(
                broker.place.path,
                self._tier,
                group,
                broker.claim,
                config.tiered_store_commit_log_max_size,
                config.tiered_store_consume_queue_max_size,
                broker.index is not None,
                self._options.settings,
                broker.place.wire,
                rate,
            )
            for group in groups
        ]

    def _end(self, broker: OffloadBroker) -> None:
        counts, index = broker.counts, broker.index
        try:
            broker.close()
        except Exception as error:
            if self._fleet is None and not isinstance(error, TierError):
                raise
            self._report.problems.append(f"{broker.place.path}: its end was not written: {error}")
        self._report.add(
            queues=len(counts.queues),
            messages=counts.messages,
            adopted=counts.adopted,
            keys=0 if index is None else index.keys,
            index_files=0 if index is None else index.files,
            index_files_merged=0 if index is None else index.files_merged,
            gaps=counts.gaps,
            gap_messages=counts.gap_messages,
            segments_begun=counts.rolled,
            segments_sealed=counts.sealed,
        )
        self._report.details.setdefault("stores", []).append(
            {"path": broker.place.path, "cluster": broker.place.cluster, "broker": broker.place.broker}
            | {"messages": counts.messages, "bytes": counts.bytes, "queues": len(counts.queues)}
        )


# What waits: for a dry run, and for topics that were named


@dataclass(frozen=True, slots=True)
class Waiting:
    """A queue that is not wholly in the tier: where the tier ends (-1: not begun), where the store does."""

    store: str
    queue: QueueKey
    tier_offset: int
    max_offset: int
    backlog: Backlog

    def as_row(self) -> dict[str, str | int]:
        return {
            "store": self.store,
            "topic": self.queue.topic,
            "queue": self.queue.queue_id,
            "from": self.tier_offset,
            "to": self.max_offset,
            "messages": self.backlog.messages,
            "bytes": self.backlog.bytes,
        }


def require_topics(places: Iterable[StorePlace], topics: frozenset[str]) -> None:
    """Raises BadConfig when none of the stores has a topic that was named."""
    known: set[str] = set()
    for place in places:
        with ReadOnlyStore.open(place.path) as store:
            known |= {topic for topic, _ in ReadOnlySource(store, trusted=True).queues()}
    for topic in sorted(topics - known):
        near = difflib.get_close_matches(topic, known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise BadConfig(f"there is no topic {topic!r} in these stores{hint} There are {', '.join(sorted(known)[:20])}")


def waiting_in(
    place: StorePlace, config: TierConfig, topics: frozenset[str], driver: TierDriver, *, forget: bool = False
) -> list[Waiting]:
    """What an offload would copy now. Writes nothing and takes no lock. Raises TierError for a tier that is not known.

    `forget`: what would be copied if the store first forgot a tier that it does not know again.
    """
    ends: dict[tuple[str, int], int] = {}
    if require_sound_metadata(config.root_path).is_file():
        with MetadataStore(config.metadata_path) as metadata:
            if not forget:
                require_known_tier(driver, metadata, place.path)
            if not forget or missing_tail(driver, metadata) is None:
                ends = {(queue.key.topic, queue.key.queue_id): queue.max_offset for queue in metadata.queues()}
    chosen = topic_filter(config, topics)
    found = []
    with ReadOnlyStore.open(place.path) as store:
        store.require_recovered()
        source = ReadOnlySource(store, trusted=True)
        for topic, queue_id in source.queues():
            if chosen.is_filtered(topic):
                continue
            end = ends.get((topic, queue_id), -1)
            state = source.state(topic, queue_id, end)
            if state is not None and state.next_offset is not None:
                backlog = Backlog(state.max_offset - state.next_offset, state.backlog_bytes)
                key = QueueKey(place.cluster, place.broker, topic, queue_id)
                found.append(Waiting(place.path, key, end, state.max_offset, backlog))
    return found


def waiting_at(broker: WireBroker, driver: TierDriver) -> list[Waiting]:
    """The same of a running broker: by the tier's manifests. Messages that are not settled yet count as well."""
    scope = TierScope(broker.cluster, broker.broker)
    listing = list_tier(driver, scope)
    found, manifests = [], ManifestStore(driver, "a reader")
    for name in broker.queues():
        key = QueueKey(broker.cluster, broker.broker, *name)
        known = manifests.read(key) if manifest_name(key) in listing.objects else None
        at, end = -1 if known is None else known.max_offset, broker.max_offset(*name)
        start = max(at, broker.min_offset(*name))
        if start < end:
            backlog = Backlog(end - start, (end - start) * broker.record_bytes)
            found.append(Waiting(broker.path, key, at, end, backlog))
    return found
