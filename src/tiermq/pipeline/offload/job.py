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

A wave ends when all of its tasks have. In a continuous job a task of a wave of several brokers has COMMON_TASK_S. A
broker whose task ran out of time has waves of its own from then on, in a thread of its own beside those of others
(`_SlowWave`), until one ends within that time: it holds others back for so long, once. It takes one processor of the
executors, or its share of all where it has a backlog that it returns quickly.

Between two waves a continuous job over the wire lends the lease of a broker to a job that asks for it, such as
`compact`, and begins the broker again when that has ended; the thread that keeps the leases does it while the job's
thread rests. Everything else belongs to the job's thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from tiermq.clock import Clock, SystemClock
from tiermq.errors import BadConfig, RemotingError, TierError, TierMQError
from tiermq.history.scan_values import StorePlace
from tiermq.pipeline.bundle_upkeep import tend_bundles
from tiermq.pipeline.index_build import StagedKeys
from tiermq.pipeline.job_report import JobReport
from tiermq.pipeline.leased_broker import LEASE_POLL_S, LeaseWait, in_use_is_reported, job_lease
from tiermq.pipeline.offload.broker import Counts, OffloadBroker
from tiermq.pipeline.offload.metrics import OffloadMetrics
from tiermq.pipeline.offload.offload_index import IndexTasks, OffloadIndex
from tiermq.pipeline.offload.origin import OffloadOrigin, StoreOrigin
from tiermq.pipeline.offload.plan import (
    COMMON_TASK_S,
    Backlog,
    OffloadSettings,
    OffloadTask,
    QueueCommit,
    QueueWork,
    cut,
    part,
    share,
)
from tiermq.pipeline.offload.preview import Waiting, require_topics, unread_at, waiting_at, waiting_in
from tiermq.pipeline.offload.task import run_offload_task
from tiermq.pipeline.offload.wave_log import WaveLog
from tiermq.pipeline.offload.wire_broker import WireBroker
from tiermq.pipeline.offload.wire_fleet import TOPICS_SHOWN_MAX, FleetScope, WireFleet
from tiermq.pipeline.store_directory import place_of, recover_store
from tiermq.pipeline.task_runner import JobTasks, TaskRunner
from tiermq.pipeline.worker_cache import driver_of
from tiermq.tier.dispatch.plan import TopicFilter
from tiermq.tier.metadata.broker_lease import LeaseHeld, LeaseKeeper
from tiermq.tier.names import QueueName
from tiermq.tier.queue.segments import list_brokers
from tiermq.tier.tier_config import TierConfig
from tiermq.tier.tier_wiring import topic_filter

_log = logging.getLogger(__name__)

IDLE_WAVES_MAX = 3
"""This number of consecutive waves without progress ends a job that runs once."""

RATE_WAVE_S = 60.0
LOOK_WAIT_S = 2.0
"""How long a wave of a continuous job waits for what brokers report; slower ones join a later wave."""
BACKOFF_MAX_S = 300.0
"""Between two tries of a continuous job whose waves fail, unless its trigger is longer."""

SLOW_BROKERS_MAX = 16
"""Threads for brokers that have waves of their own; further ones wait for one of these."""

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
    wait_for_leases: bool = False
    settings: OffloadSettings = field(default_factory=OffloadSettings)
    config: Mapping[str, Any] = field(default_factory=dict)
    progress: Progress = lambda _done, _total: None
    say: Callable[[str], object] = lambda _line: None
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
    `trigger_s`: repeat at this interval until `stop` is set; waves that fail are tried again, and `say` gets lines
    for a log (`WaveLog`). `wait_for_leases`: of a job that may have been killed, see `LeaseWait`.
    `config`: settings of the tier by their names in snake_case. `recover`: run crash recovery on the stores first.
    `forget_tier`: if the tier has nothing of what a store's metadata name, upload again what the store still has.
    `metrics_path`: a file that gets the job's metrics after each wave, in Prometheus' text format. Further options are
    OffloadOptions'.
    Raises what is known before tasks start: BadConfig, BadTierUrl, StoreNotRecovered, StoreLocked, LeaseHeld,
    TierError for another tier than the store's, RequestRefused for topics that an account may not read.
    """
    if index not in INDEX_CHOICES:
        raise BadConfig(f"index is 'now', 'small' or 'later', found {index!r}")
    chosen = OffloadOptions(topics=frozenset(topics), with_index=index != "later", all_slots=index == "now", **options)
    return OffloadJob(stores, tier, chosen, runner).run()


@dataclass(frozen=True, slots=True)
class _Waved:
    """What a wave did. `planned` bytes: about, of all that waited."""

    is_progress: bool
    tasks: int
    bytes: int
    planned: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class _SlowWave:
    """A wave of one broker, under way in a thread that owns the broker until the job's thread takes the result."""

    waved: Future[_Waved | None]
    problems: dict[QueueName, str]
    """As of its wave before."""


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
            self._fleet = WireFleet(_scope(options.fleet, options.config), options.clock, monotonic=options.monotonic)
        self._brokers: list[OffloadBroker] = []
        self._counts: dict[tuple[str, str], Counts] = {}
        self._begun: set[tuple[str, str]] = set()
        self._missing: list[tuple[str, str]] = []
        """Brokers of the tier that no name server knew when the job began."""
        self._troubles: dict[str, str] = {}
        self._held: dict[str, tuple[OffloadBroker, LeaseHeld]] = {}
        self._lease_wait = LeaseWait()
        self._refused: dict[tuple[str, str, str, int], dict[str, Any]] = {}
        self._dangers: dict[tuple[str, str, str, int], dict[str, Any]] = {}
        self._lent: dict[str, str] = {}
        """Brokers that other jobs have for a while, which are no offloads, and their owners."""
        self._working = threading.Lock()
        """Held by the job's thread, except while it rests: then the keeper's lends brokers."""
        self._slow_waves: dict[OffloadBroker, _SlowWave] = {}
        self._slow_pool: ThreadPoolExecutor | None = None
        self._stack = ExitStack()
        self._was_looked = False
        self._is_cut = False
        """Whether the last wave had more queues than fit: the next one goes on with what brokers reported before."""
        self._failures = 0
        self._metrics = OffloadMetrics()
        say = options.say if options.trigger_s is not None else lambda _line: None
        self._log = WaveLog(say, options.clock, options.monotonic)
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
        report, driver = self._report, driver_of(self._tier)
        found: list[Waiting] = []
        origins: list[OffloadOrigin] = [StoreOrigin(place) for place in self._places]
        if self._fleet is not None:
            self._find(self._fleet)
            self._fleet.check()
            self._find_missing(self._fleet)
            self._note_missing(self._fleet)
            self._note_passed_over(self._fleet)
            self._troubles |= self._fleet.troubles
            origins += self._fleet.brokers.values()
            for broker in self._fleet.brokers.values():
                found += waiting_at(broker, driver)
                self._troubles |= unread_at(broker, driver)
                if broker.error is not None:
                    self._troubles[broker.path] = str(broker.error)
                self._troubles |= {f"{broker.path} {topic}": why for topic, why in broker.failed.items()}
        for place in self._places:
            config, forget = self._config(place), self._options.forget_tier
            found += waiting_in(place, config, self._options.topics, driver, forget=forget)
        for origin in origins:
            try:
                with in_use_is_reported(origin.home):
                    job_lease(
                        driver, origin.home, "offload", self._config(origin), self._options.clock
                    ).require_free()  # fmt: skip
            except LeaseHeld as error:
                self._troubles.setdefault(origin.path, str(error))
        report.problems += [f"{path}: {text}" for path, text in self._troubles.items()]
        report.details["queues"] = [waiting.as_row() for waiting in found]
        report.planned |= {
            **({"stores": len(self._places)} if self._fleet is None else {"brokers": len(self._fleet.brokers)}),
            "queues": len(found),
            "messages": sum(waiting.backlog.messages for waiting in found),
            "bytes": sum(waiting.backlog.bytes for waiting in found),
        }

    def _copy(self) -> None:
        with self._working, ExitStack() as stack:
            self._stack = stack
            if self._fleet is None:
                for place in self._places:
                    chosen = topic_filter(self._config(place), self._options.topics)
                    self._begin_patiently(self._broker(StoreOrigin(place), chosen))
            else:
                self._find(self._fleet)
                self._fleet.check()
                self._find_missing(self._fleet)
            keeper = LeaseKeeper(self._keep_leases)
            stack.callback(keeper.stop)
            keeper.start()
            if self._options.trigger_s is not None:
                count = len(self._places) if self._fleet is None else len(self._fleet.brokers)
                self._log.start(count, self._report.place, self._options.trigger_s)
                for risk in () if self._fleet is None else self._settle_risks(self._fleet):
                    self._log.note(risk)
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
            busy_bytes=options.settings.task_bytes,
            packs=options.settings.packs,
            lends=options.trigger_s is not None and self._fleet is not None,
            counts=self._counts.setdefault((origin.cluster, origin.broker), Counts()),
        )
        self._brokers.append(broker)
        return broker

    def _begin(self, broker: OffloadBroker) -> None:
        """Raises what `OffloadBroker.begin` does."""
        broker.begin()
        home = broker.place.cluster, broker.place.broker
        if home not in self._begun:
            self._begun.add(home)
            self._stack.callback(self._report_counts, broker.place, broker.counts)  # Runs after the broker's end.
            self._stack.callback(self._end_open, home)
        if (job := self._lent.pop(broker.place.path, None)) is not None:
            self._log.note(f"{broker.place.path} is copied again, {job} has ended")
        path, notes = broker.place.path, self._report.details.setdefault("notes", [])
        notes += [f"{path}: put away what it knew of a tier, as {name}" for name in broker.forgotten]
        notes += broker.notes
        if self._options.trigger_s is None:
            broker.fix_targets()

    def _begin_patiently(self, broker: OffloadBroker) -> None:
        """The same, and wait for the lease of a job that may have been killed, if that was chosen."""
        while True:
            try:
                return self._begin(broker)
            except LeaseHeld as error:
                if not self._options.wait_for_leases or not self._lease_wait.is_of_use(broker.place.home, error):
                    raise
            self._options.stop.wait(LEASE_POLL_S)

    def _keep_leases(self) -> None:
        for broker in list(self._brokers):
            broker.keep_lease()
        if self._working.acquire(blocking=False):
            try:
                self._lend()
            finally:
                self._working.release()

    def _rest(self, wait_s: float) -> bool:
        """Wait between two waves, as long as `stop` is not set; whether it is."""
        self._working.release()
        try:
            return self._options.stop.wait(wait_s)
        finally:
            self._working.acquire()

    def _lend(self) -> None:
        """Lend brokers to the jobs that ask for them. What they change is read when a broker is begun again."""
        for broker in list(self._brokers):
            if broker in self._slow_waves or not (job := broker.borrower):
                continue
            path = broker.place.path
            self._lent[path] = job
            self._log.note(f"{path} is lent to {job}, and copied again when that has ended")
            with self._edge(broker):
                broker.close(lend=True)
            if broker in self._brokers:
                self._replace(broker)

    def _is_lent(self, broker: OffloadBroker, error: Exception) -> bool:
        """Whether another job than an offload has the broker for a while."""
        if self._options.trigger_s is None or not isinstance(error, LeaseHeld) or error.lease is None:
            return False
        owner, path = error.lease.owner, broker.place.path
        if not error.lease.is_by_job or owner.endswith("(pipeline offload)"):
            return False
        if path not in self._lent:
            self._log.note(f"{path} is copied when {owner} has ended")
        self._lent[path] = owner
        return True

    # Brokers over the wire

    def _find(self, fleet: WireFleet) -> None:
        """The fleet as it is now. Raises BadConfig, RemotingError."""
        for origin in fleet.find():
            self._broker(origin, fleet.scope.topic_filter(origin.cluster, origin.broker))
        fleet.look(self._look_wait_s)

    def _find_missing(self, fleet: WireFleet) -> None:
        """Brokers of the tier that no name server knows: without this a broker that is down would go unnoticed."""
        scope = fleet.scope
        known = {cluster for cluster, _ in fleet.brokers}
        for cluster in [scope.cluster] if scope.cluster is not None else sorted(known):
            homes = list_brokers(driver_of(self._tier), cluster) if not scope.brokers else ()
            self._missing += [home for home in homes if home not in fleet.brokers and scope.wants_broker(home[1])]

    def _note_missing(self, fleet: WireFleet) -> None:
        self._missing = [home for home in self._missing if home not in fleet.brokers]
        for cluster, broker in self._missing:
            self._troubles[f"broker {broker} of {cluster}"] = (
                "it has history in the tier, but no name server knows it: it is down or out of service, and what was "
                f"not copied yet is not copied. If it is gone for good: --exclude-broker {broker}"
            )

    def _note_passed_over(self, fleet: WireFleet) -> None:
        """Topics that cannot be copied by their kind, a note for each kind; and what a short settle time gives up."""
        self._report.details.setdefault("notes", []).extend(self._settle_risks(fleet))
        kinds: dict[str, set[str]] = {}
        for broker in fleet.brokers.values():
            for topic, why in broker.passed_over.items():
                kinds.setdefault(why, set()).add(topic)
        for why, topics in sorted(kinds.items()):
            names = ", ".join(sorted(topics)[:TOPICS_SHOWN_MAX]) + (", …" if len(topics) > TOPICS_SHOWN_MAX else "")
            self._report.details.setdefault("notes", []).append(f"not copied: {names}: {why}")

    def _settle_risks(self, fleet: WireFleet) -> list[str]:
        return [f"{broker.path}: {broker.settle_risk}" for broker in fleet.brokers.values() if broker.settle_risk]

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
            if self._is_lent(broker, error):
                return
            if isinstance(error, LeaseHeld):
                self._held[broker.place.path] = broker, error
            if not isinstance(error, TierMQError):
                _log.exception("%s: the broker is left out until the next wave", broker.place.path)
            self._troubles[broker.place.path] = str(error) if isinstance(error, TierMQError) else repr(error)
            if broker.is_open:
                with suppress(TierError):
                    broker.close()
                self._replace(broker)

    def _look(self) -> None:
        """Before a wave: ask every broker what it has, and begin those that were out of reach until now."""
        self._troubles.clear()
        self._held.clear()
        if self._fleet is None:
            return
        self._take_slow_waves()
        self._lend()
        self._fleet.busy = {broker.place for broker in self._slow_waves if isinstance(broker.place, WireBroker)}
        if self._was_looked and not self._is_cut:  # The first look was before the checks.
            try:
                self._find(self._fleet)
            except RemotingError as error:
                self._troubles["name servers"] = str(error)
                self._fleet.look(self._look_wait_s)
        self._was_looked = True
        self._note_missing(self._fleet)
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
            elif broker.is_open and broker not in self._slow_waves:
                ready.append(broker)
        return ready

    def _loop(self) -> None:
        with ThreadPoolExecutor(SLOW_BROKERS_MAX, thread_name_prefix="offload-slow") as self._slow_pool:
            self._run_waves()
            self._take_slow_waves(wait=True)
        if self._options.all_slots and self._options.trigger_s is None and not self._options.stop.is_set():
            self._index.merge(self._brokers, at_end=True)
        if self._fleet is not None:
            self._note_passed_over(self._fleet)
        self._report_problems()

    def _run_waves(self) -> None:
        options, idle_waves = self._options, 0
        while not options.stop.is_set():
            copied, is_through, ready = self._try_wave()
            self._note_wave()
            idle_waves = 0 if copied else idle_waves + 1
            if options.trigger_s is None:
                wait_s = self._wait_s(ready) if is_through else None
                if wait_s is not None:
                    idle_waves = 0
                    options.stop.wait(wait_s)
                elif is_through or idle_waves >= IDLE_WAVES_MAX:
                    break
            elif not copied:
                self._pause(options.trigger_s)

    def _try_wave(self) -> tuple[bool, bool, Sequence[OffloadBroker]]:
        """A wave: whether anything was done, whether nothing was left to do, and its brokers.

        One that fails ends a job that runs once; a continuous one tries again, at growing intervals.
        """
        before = int(self._report.done.get("bytes", 0)), sum(counts.messages for counts in self._counts.values())
        try:
            self._look()
            ready = self._ready()
            copied, is_through = self._wave(ready)
        except (TierMQError, OSError) as error:
            if self._options.trigger_s is None:
                raise
            self._failures += 1
            self._log.failed(self._failures, self._pause_s(self._options.trigger_s), error)
            return False, True, []
        self._failures = 0
        messages = sum(counts.messages for counts in self._counts.values()) - before[1]
        self._log.wave(messages, int(self._report.done.get("bytes", 0)) - before[0], self._problems())
        return copied, is_through, ready

    def _wait_s(self, ready: Sequence[OffloadBroker]) -> float | None:
        """How long a job that runs once waits for what it should copy: messages that settle, leases of killed jobs."""
        waits = [broker.wait_s() for broker in ready]
        if self._options.wait_for_leases:
            held = self._held.values()
            waits += [
                LEASE_POLL_S for broker, error in held if self._lease_wait.is_of_use(broker.place.home, error)
            ]  # fmt: skip
        return min((wait for wait in waits if wait is not None), default=None)

    def _report_problems(self) -> None:
        problems = self._problems()
        for broker in self._brokers:
            if broker.is_open and broker.index is not None and not broker.index.is_complete:
                problems.append(
                    f"{broker.place.path}: expected its whole key index in the tier, found records that are not "
                    "indexed; the messages are safe, and the next run goes on"
                )
        self._report.problems += problems

    def _problems(self) -> list[str]:
        """Brokers and queues of which the last wave could not copy everything, and why."""
        problems = [f"{place}: {text}" for place, text in self._troubles.items()]
        for broker in self._brokers:
            path = broker.place.path
            slow = self._slow_waves.get(broker)
            found = broker.problems if slow is None else slow.problems
            problems += [f"{path} {name[0]}-{name[1]}: {text}" for name, text in found.items()]
            if isinstance(broker.place, WireBroker):
                left_out = broker.place.refused | broker.place.failed
                problems += [f"{path} {topic}: {why}" for topic, why in left_out.items()]
        return problems

    def _pause(self, trigger_s: float) -> None:
        """Until the next wave. Brokers are looked at in between, so that what they have by then is settled for it."""
        pause_s = self._pause_s(trigger_s)
        origins = [broker.place for broker in self._brokers if isinstance(broker.place, WireBroker)]
        settles = [origin.settle_s for origin in origins if origin.must_be_seen and origin.settle_s < pause_s]
        if self._fleet is None or not settles or self._failures:
            self._rest(pause_s)
        elif not self._rest(pause_s - max(settles)):
            self._fleet.look(self._look_wait_s)
            self._rest(max(settles))

    def _pause_s(self, trigger_s: float) -> float:
        """The trigger, unless what a broker was seen to have would not count then; longer after failures."""
        if self._failures:
            return min(trigger_s * 2.0 ** min(self._failures, 30), max(trigger_s, BACKOFF_MAX_S))
        origins = [broker.place for broker in self._brokers if isinstance(broker.place, WireBroker)]
        return min([trigger_s, *(origin.settle_s for origin in origins if origin.forgets_between_looks)])

    def _note_wave(self) -> None:
        """What operators watch: gaps, refused queues, messages in danger."""
        details = self._report.details
        brokers = [broker for broker in self._brokers if broker not in self._slow_waves]
        for broker in brokers:
            self._note_found(broker)
        details["refused"], details["danger"] = list(self._refused.values()), list(self._dangers.values())
        if self._options.metrics_path is not None:
            self._metrics.note(brokers, self._troubles, self._held, self._missing)
            self._metrics.write(self._options.metrics_path, self._options.clock.now_ms(), self._failures)

    def _note_found(self, broker: OffloadBroker) -> None:
        self._report.details.setdefault("gaps", []).extend(broker.gaps)
        broker.gaps.clear()
        for name, row in broker.forks.items():
            self._refused[broker.place.cluster, broker.place.broker, *name] = row
        for name, row in broker.dangers.items():  # The wave in which it was worst.
            known = self._dangers.setdefault((broker.place.cluster, broker.place.broker, *name), row)
            if row["left_s"] < known["left_s"]:
                self._dangers[broker.place.cluster, broker.place.broker, *name] = row

    def _wave(self, brokers: Sequence[OffloadBroker]) -> tuple[bool, bool]:
        """Whether anything was done, and whether nothing was left to do."""
        options, self._is_cut = self._options, False
        if self._fleet is not None and options.trigger_s is not None:
            brokers = self._without_slow(brokers)
        force = options.trigger_s is None or self._fleet is not None  # Over the wire the trigger itself makes batches.
        most = max(1, options.settings.wave_queues // max(1, len(brokers)))
        works = [(broker, work) for broker in brokers for work in self._planned(broker, force, most)]
        waved = self._copied([broker for broker in brokers if broker.is_open], works, self._edge)
        if waved is None:
            return False, True
        self._is_cut = waved.is_progress and any(broker.is_cut for broker in brokers)
        self._count(waved)
        return waved.is_progress, False

    def _copied(
        self,
        brokers: Sequence[OffloadBroker],
        works: Sequence[tuple[OffloadBroker, QueueWork]],
        edge: Callable[[OffloadBroker], AbstractContextManager[None]],
        tasks_max: int | None = None,
    ) -> _Waved | None:
        """Copy and commit, with up to `tasks_max` tasks of a broker; None when there is nothing to copy."""
        options = self._options
        self._index.catch_up(brokers)
        if not works:
            return None
        total = sum(work.bytes for _, work in works)
        before = sum(broker.counts.rolled for broker in brokers)
        settings = self._wave_settings(len(brokers))
        counts = share([Backlog(work.to_offset - work.from_offset, work.bytes) for _, work in works], settings)
        chosen = [(broker, cut(work, count)) for (broker, work), count in zip(works, counts, strict=True) if count]
        tasks: list[OffloadTask] = []
        for broker in brokers:
            own = [work for each, work in chosen if each is broker]
            tasks += self._tasks_of(broker, own, tasks_max, is_common=tasks_max is None and len(brokers) > 1)
        options.step("tasks")
        commits: dict[str, list[QueueCommit]] = {}
        took_s: dict[str, float] = {}
        keys: dict[OffloadIndex, list[StagedKeys]] = {}
        indexes = {broker.place.path: broker.index for broker in brokers}
        try:
            results = self._tasks.run(run_offload_task, tasks)
            for task, result in zip(tasks, results, strict=True):
                commits.setdefault(task.store, []).extend(result.commits)
                took_s[task.store] = max(took_s.get(task.store, 0.0), result.took_s)
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
                with edge(broker):
                    broker.commit(commits[path], *found, took_s=took_s[path])
        self._index.merge(brokers)
        options.step("upkeep")
        written = [broker.directory for broker in brokers if broker.packs and broker.writer.may_write()]
        tend_bundles(self._tasks, self._tier, written)
        is_progress = copied > 0 or sum(broker.counts.rolled for broker in brokers) > before
        return _Waved(is_progress, len(tasks), copied, total, sum(result.cpu_s for result in results))

    def _count(self, waved: _Waved) -> None:
        report = self._report
        report.add(waves=1, tasks=waved.tasks, bytes=waved.bytes, task_cpu_s=waved.cpu_s)
        done = int(report.done["bytes"])
        self._options.progress(done, done + max(0, waved.planned - waved.bytes))

    # Slow brokers

    def _without_slow(self, brokers: Sequence[OffloadBroker]) -> list[OffloadBroker]:
        """The brokers of a common wave; for each of the others begin a wave of its own."""
        assert self._slow_pool is not None
        slow = [broker for broker in brokers if broker.is_slow]
        sharers = len(slow) + len(self._slow_waves) + (len(slow) < len(brokers))
        share = max(1, self._tasks.parallelism // max(1, sharers))
        for broker in slow:
            waved = self._slow_pool.submit(self._slow_wave, broker, share if broker.is_busy else 1)
            self._slow_waves[broker] = _SlowWave(waved, dict(broker.problems))
        return [broker for broker in brokers if not broker.is_slow]

    def _slow_wave(self, broker: OffloadBroker, tasks_max: int) -> _Waved | None:
        """All of a wave of one broker, in a thread of its own."""
        most = self._options.settings.wave_queues
        works = [(broker, work) for work in broker.plan(force=True, queues_max=most)]
        return self._copied([broker], works, lambda _broker: nullcontext(), tasks_max)

    def _take_slow_waves(self, *, wait: bool = False) -> None:
        """Take brokers back whose own wave has ended. `wait`: for all of them."""
        for broker, slow in list(self._slow_waves.items()):
            if not wait and not slow.waved.done():
                continue
            with self._edge(broker):
                try:
                    waved = slow.waved.result()
                finally:
                    del self._slow_waves[broker]
                if waved is not None:
                    self._count(waved)
                else:
                    broker.is_slow = False  # It has nothing to copy.

    def _planned(self, broker: OffloadBroker, force: bool, queues_max: int) -> list[QueueWork]:
        works: list[QueueWork] = []
        with self._edge(broker):
            works += broker.plan(force=force, queues_max=queues_max)
        return works

    def _replace(self, broker: OffloadBroker) -> None:
        """Let go of a broker that is closed; what its tasks wrote is found again when it begins again."""
        assert self._fleet is not None
        assert isinstance(broker.place, WireBroker)
        self._note_found(broker)
        self._count_index(broker)
        self._brokers.remove(broker)
        topics = self._fleet.scope.topic_filter(broker.place.cluster, broker.place.broker)
        self._broker(broker.place, topics).is_slow = broker.is_slow

    def _wave_settings(self, brokers: int) -> OffloadSettings:
        """With a rate limit, a wave is no longer than RATE_WAVE_S: what it copied is visible only at its end."""
        settings, rate = self._options.settings, self._options.rate
        most = int(rate * RATE_WAVE_S * brokers) or settings.wave_bytes
        return replace(settings, wave_bytes=max(1, min(settings.wave_bytes, most)))

    def _tasks_of(
        self, broker: OffloadBroker, works: Sequence[QueueWork], tasks_max: int | None, *, is_common: bool
    ) -> list[OffloadTask]:
        if not works:
            return []
        config, parallelism, settings = self._config(broker.place), self._tasks.parallelism, self._options.settings
        if is_common and self._options.trigger_s is not None:
            settings = replace(settings, task_s=min(settings.task_s, COMMON_TASK_S))
        groups = part(works, parallelism, settings, tasks_max)
        rate = self._options.rate / min(len(groups), parallelism)
        return [
            OffloadTask(
                broker.place.path,
                self._tier,
                group,
                broker.claim,
                config.tiered_store_commit_log_max_size,
                config.tiered_store_consume_queue_max_size,
                broker.index is not None,
                settings,
                broker.place.wire,
                rate,
            )
            for group in groups
        ]

    def _end_open(self, home: tuple[str, str]) -> None:
        for broker in self._brokers:
            if (broker.place.cluster, broker.place.broker) == home and broker.is_open:
                self._end(broker)

    def _end(self, broker: OffloadBroker) -> None:
        try:
            broker.close()
        except Exception as error:
            if self._fleet is None and not isinstance(error, TierError):
                raise
            self._report.problems.append(f"{broker.place.path}: its end was not written: {error}")
        self._count_index(broker)

    def _count_index(self, broker: OffloadBroker) -> None:
        index = broker.index
        self._report.add(
            keys=0 if index is None else index.keys,
            index_files=0 if index is None else index.files,
            index_files_merged=0 if index is None else index.files_merged,
        )

    def _report_counts(self, origin: OffloadOrigin, counts: Counts) -> None:
        """Once for each broker, however often it was given up and begun again."""
        self._report.add(
            queues=len(counts.queues),
            messages=counts.messages,
            adopted=counts.adopted,
            gaps=counts.gaps,
            gap_messages=counts.gap_messages,
            segments_begun=counts.rolled,
            segments_sealed=counts.sealed,
        )
        self._report.details.setdefault("stores", []).append(
            {"path": origin.path, "cluster": origin.cluster, "broker": origin.broker}
            | {"messages": counts.messages, "bytes": counts.bytes, "queues": len(counts.queues)}
        )


def _scope(scope: FleetScope, settings: Mapping[str, Any]) -> FleetScope:
    """`tierTransactionsEnable` copies the topics of half messages from running brokers as it does from directories."""
    if not settings.get("tier_transactions_enable"):
        return scope
    return replace(scope, include=scope.include | {"transactions"})
