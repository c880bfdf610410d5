"""DispatchEngine: copies messages into the tier in the background, fairly; puts never wait for it.

    arrivals ─┐
    sweep ────┼─► ReadyQueue (one line, each queue once) ─► workers: plan ─► execute ─► manifest
    due times ┘                                                 └─ outage: back off; many: circuit breaker

* The thread that reports arrivals only notes the queue: no request, no file, no lock that a worker holds for long.
* One step is one plan: one batch at most. So among thousands of queues a busy one cannot starve the rest.
* Batches in memory are bounded in all (`MemoryBudget`); after a failure a batch may be dropped, because it can be
  collected again after the tier was asked which part of it is stored.
* A back end that is down costs each queue one failure: then the circuit breaker holds all steps back, except one as a
  probe.
* Nothing is written to a queue whose epoch this writer does not own, nor while the broker's lease is in doubt.

Threads: `tick` belongs to the scheduler (or to the caller of an engine without threads), `step` to the workers; all
else may be called by any thread. Without `start`, `tick` and `step` by hand do the same work, step by step.
"""

from __future__ import annotations

import heapq
import logging
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from tiermq.clock import Clock, SystemClock
from tiermq.errors import StoreClosed, TierError, TierMQError
from tiermq.metrics import Registry
from tiermq.service import Service
from tiermq.tier.dispatch.bundle_step import BundleStep
from tiermq.tier.dispatch.dispatch_step import DispatchStep, IndexSink, NoIndex
from tiermq.tier.dispatch.local_source import LocalSource
from tiermq.tier.dispatch.plan import DispatchConfig, TopicFilter
from tiermq.tier.dispatch.proof import EvictionProof
from tiermq.tier.dispatch.ready_queue import BackOff, MemoryBudget, Pace, PaceSettings, QueueDispatchState, ReadyQueue
from tiermq.tier.dispatch.writer import QueueWriter
from tiermq.tier.driver.retry import BreakerState, CircuitBreaker
from tiermq.tier.flat.flat_file_store import FlatFileStore
from tiermq.tier.metadata.manifest import ManifestCause
from tiermq.tier.names import QueueName
from tiermq.tier.tier_config import CHECKSUM
from tiermq.tier.tier_metrics import DispatchMetrics

_log = logging.getLogger(__name__)

UploadListener = Callable[[str, int, int], None]
"""Topic, queue id, and the offset up to which the tier has the queue now."""
IDLE_WAIT_S = 0.2
FAILING_TRIES = 3
"""Failures in a row of a queue until they are reported: fewer are hiccups of the tier."""
SEAL_EVERY_TURNS = 8


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How the engine works; what it decides for a queue is DispatchConfig's."""

    sweep_interval_ms: int = 20_000
    worker_count: int = 8
    memory_bytes_max: int = 256 * 1024 * 1024
    back_off: BackOff = field(default_factory=BackOff)
    breaker_failures_max: int = 8
    breaker_rest_ms: int = 10_000
    proof_mode: str = CHECKSUM
    pace: PaceSettings = field(default_factory=PaceSettings)
    bundle_interval_ms: int = 0  # 0: every queue writes its own objects.


class DispatchEngine:
    """See the module."""

    def __init__(
        self,
        files: FlatFileStore,
        source: LocalSource,
        writer: QueueWriter,
        *,
        index: IndexSink | None = None,
        topic_filter: TopicFilter | None = None,
        config: DispatchConfig | None = None,
        settings: EngineSettings | None = None,
        clock: Clock | None = None,
        registry: Registry | None = None,
        chance: Callable[[], float] = random.random,
        put_count: Callable[[], int] = lambda: 0,
    ) -> None:
        """`put_count` returns the number of puts so far: at a high rate the threads are throttled (see `Pace`)."""
        self.files = files
        self.filter = topic_filter or TopicFilter(files.broker, files.cluster)
        self.config = config or DispatchConfig()
        self.settings = settings or EngineSettings()
        self.metrics = DispatchMetrics(registry or Registry())
        self.proof = EvictionProof(
            source, files, self.filter, self.metrics, mode=self.settings.proof_mode, may_write=self._owns
        )
        self._source = source
        self._writer = writer
        self._clock = clock or SystemClock()
        self._turns = ReadyQueue()
        self._pace = Pace(put_count, self.settings.pace)
        self._runs: dict[QueueName, QueueDispatchState] = {}
        self._runs_lock = threading.Lock()
        self._budget = MemoryBudget(self.settings.memory_bytes_max)
        self._breaker = CircuitBreaker(self.settings.breaker_failures_max, self.settings.breaker_rest_ms, self._clock)
        self._due: list[tuple[int, QueueName]] = []
        self._due_lock = threading.Lock()
        self._touched: deque[QueueName] = deque()
        self._opened_at_s: float | None = None
        self._next_sweep_ms = 0
        self._turn_count = 0
        self.held_topics: frozenset[str] = frozenset()
        self.on_upload: list[UploadListener] = []
        self._paused = False
        self._stopping = False
        self._stop_asked = threading.Event()  # For threads that rest.
        interval_ms = self.settings.bundle_interval_ms
        self._bundles = (
            BundleStep(files.driver, writer, interval_ms, self.settings.back_off, self._clock) if interval_ms else None
        )
        self._turn = DispatchStep(
            files,
            source,
            writer,
            index or NoIndex(),
            self.filter,
            self.config,
            self.settings.back_off,
            self._breaker,
            self._budget,
            self.metrics,
            self._clock,
            chance,
            self,
            self._bundles,
        )
        self._scheduler = _Scheduler(self)
        self._workers: list[threading.Thread] = []
        source.on_arrival(self._arrived)
        self.metrics.watch_engine(self._figures())

    # Living

    def start(self) -> None:
        """Start the threads. Sends no request on this one."""
        self._scheduler.start()
        for number in range(self.settings.worker_count):
            worker = threading.Thread(target=self._work, name=f"tier-dispatch-{number}", daemon=True)
            self._workers.append(worker)
            worker.start()

    def stop(self, timeout_s: float = 10.0) -> bool:
        """End the running steps, write the manifests that are due, release the lease; False when time ran out.

        A request that hangs in the back end is not waited for any longer than that: its thread ends with the process,
        and what it was writing is found by the next start.
        """
        deadline = time.monotonic() + timeout_s
        self._stopping = True
        self._stop_asked.set()
        self._scheduler.ask_to_stop()
        self._turns.nudge()
        for thread in [*self._workers, *self._scheduler.threads()]:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in [*self._workers, *self._scheduler.threads()]):
            return False
        # In a separate thread, because a request that hangs must not delay the stop.
        closing = threading.Thread(target=self._finish, args=(deadline,), name="tier-dispatch-close", daemon=True)
        closing.start()
        closing.join(max(0.0, deadline - time.monotonic()))
        return not closing.is_alive()

    def _finish(self, deadline: float) -> None:
        """Write the manifests that are due, as far as the back end is reachable, and release the lease."""
        if self.write_manifests(deadline):
            self._quietly(None, self._writer.release)

    def write_manifests(self, deadline: float = math.inf) -> bool:
        """Write the manifests of queues that changed since theirs was; False when the back end does not answer, or
        the time, of `time.monotonic`, is over. Only while no step runs.
        """
        for run in list(self._runs.values()):
            file = self.files.find(*run.name)
            if file is None or not (run.causes and run.epoch):
                continue
            if self._breaker.state is not BreakerState.CLOSED or time.monotonic() >= deadline:
                return False
            run.causes.add(ManifestCause.CLOSE)
            self._quietly(run, partial(self._writer.write_manifest, run, file.queue))
        return True

    def pause(self, timeout_s: float = 10.0) -> bool:
        """Begin nothing more; False when a running step takes longer than `timeout_s`."""
        self._paused = True
        is_idle = self._turns.wait_idle(timeout_s)
        return is_idle and (self._bundles is None or self._bundles.wait_idle(timeout_s))

    def resume(self) -> None:
        """Continue after a pause: messages put meanwhile are found like any backlog."""
        self._paused = False
        self._next_sweep_ms = 0
        self._scheduler.wake()
        self._turns.nudge()

    @property
    def paused(self) -> bool:
        return self._paused

    def keep_lease(self) -> None:
        """Renew the broker's lease when it is time; a failure is noted."""
        if not self._paused and not self._stopping:
            self._quietly(None, self._writer.keep_lease)

    def start_over(self) -> None:
        """Another process has written the tier: each queue is acquired and compared again before its next upload."""
        with self._runs_lock:
            runs = list(self._runs.values())
        for run in runs:
            run.epoch = 0
            if run.forked_at < 0:
                run.fenced = ""

    def hold(self, topics: Iterable[str], timeout_s: float = 10.0) -> bool:
        """Let only these topics rest, because they are being deleted: nothing of them is copied, nor proven.

        False when a step of one of them takes longer than `timeout_s`.
        """
        self.held_topics = self.proof.held_topics = held = frozenset(topics)
        if not held:
            return True
        is_free = self._turns.wait_free(held, timeout_s)
        return is_free and (self._bundles is None or self._bundles.wait_idle(timeout_s))

    def changed(self, topic: str, queue_id: int, cause: ManifestCause) -> None:
        """The queue's manifest is out of date: write it again."""
        self._run((topic, queue_id)).causes.add(cause)
        self._turns.push([(topic, queue_id)])

    def forget(self, topic: str, queue_id: int) -> None:
        """The queue was deleted: it starts over if it is created again."""
        with self._runs_lock:
            self._runs.pop((topic, queue_id), None)

    def flush(self, timeout_s: float | None = None, *, is_last: bool = False) -> bool:
        """Upload everything that was put before, and wait; False when time ran out or a queue cannot be uploaded.

        Without threads the work is done here, until nothing more can be done. Nothing can be while the engine is
        paused, or the broker is not ours. `is_last`: the store closes. A queue that rests after a failure is tried now,
        and a back end that the circuit breaker takes for down is not waited for.
        """
        self._source.settle()
        self._quietly(None, self._writer.claim)
        targets = self._flush_targets()
        for name, target in targets.items():
            run = self._run(name)
            run.force_to, run.refused = target, False
            if is_last:
                run.retry_at_ms = 0
        if is_last and self._bundles is not None:
            self._bundles.retry_now()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._turns.push(targets)
        left = list(targets.items())  # From its end, and each queue until it is done.
        stuck = False
        while left:
            run, target = self._run(left[-1][0]), left[-1][1]
            is_stuck = bool(run.fenced or run.refused)
            if is_stuck or self._has_reached(run.name, target):
                stuck = stuck or is_stuck
                left.pop()
                continue
            if self._paused or not self._writer.may_write():
                return False
            if is_last and self._breaker.state is BreakerState.OPEN:
                return False
            if deadline is not None and time.monotonic() >= deadline:
                return False
            if self._workers:
                rest = IDLE_WAIT_S if deadline is None else min(IDLE_WAIT_S, max(0.0, deadline - time.monotonic()))
                self._turns.wait_left(rest)
                idle = self._is_idle()
            else:
                idle = not self.step()
            if idle and not self._has_reached(run.name, target):
                return False
        return not stuck

    @property
    def has_threads(self) -> bool:
        return bool(self._workers)

    def not_uploaded(self) -> dict[QueueName, int]:
        """How many messages of each queue the local store has and the tier lacks; queues that have some."""
        left, forked = {}, self.forked()
        for (topic, queue_id), target in self._flush_targets().items():
            file = self.files.find(topic, queue_id)
            local = self._source.state(topic, queue_id, -1)
            copied_to = forked.get((topic, queue_id), -1 if file is None else file.commit_offset)
            at = max(copied_to, 0 if local is None else local.min_offset)
            if target > at:
                left[topic, queue_id] = target - at
        return left

    def forked(self) -> dict[QueueName, int]:
        """The queues that are not uploaded any more, and where the tier's messages begin to be others."""
        return {run.name: run.forked_at for run in list(self._runs.values()) if run.forked_at >= 0}

    def failing(self) -> str:
        """In words, the queues whose uploads failed FAILING_TRIES times in a row or more; empty when none did."""
        runs = [run for run in list(self._runs.values()) if run.failures >= FAILING_TRIES]
        if not runs:
            return ""
        first = min(runs, key=lambda run: run.name)
        topic, queue_id = first.name
        more = f" and of {len(runs) - 1:,} more" if len(runs) > 1 else ""
        return f"the uploads of queue {topic}-{queue_id}{more} fail, {first.failures:,} times in a row: {first.trouble}"

    def _flush_targets(self) -> dict[QueueName, int]:
        targets = {}
        for topic, queue_id in self._source.queues():
            if not self.filter.is_filtered(topic):
                local = self._source.state(topic, queue_id, -1)
                if local is not None and local.max_offset > local.min_offset:
                    targets[topic, queue_id] = local.max_offset
        return targets

    def _is_idle(self) -> bool:
        """Whether no queue is in a step, ready for one, or scheduled."""
        with self._due_lock:
            return not self._due and self._turns.is_empty() and not self._bundles

    def _has_reached(self, name: QueueName, target: int) -> bool:
        file = self.files.find(*name)
        return file is not None and file.compared and file.commit_offset >= target and file.is_settled

    # Scheduling

    def _arrived(self, topic: str, queue_id: int, next_offset: int) -> None:
        """On the local dispatch thread: make the queue ready when a step would change something."""
        name = (topic, queue_id)
        run = self._runs.get(name)
        if run is not None:
            waiting = next_offset - run.commit_offset
            full = waiting > self.config.group_commit_count
            full = full or waiting * run.average_bytes >= self.config.group_commit_bytes
            if run.woken or (run.due_ms and not full):
                return
            run.woken = True
        elif self.filter.is_filtered(topic):
            return
        self._touched.append(name)
        self._scheduler.wake()

    def tick(self) -> float:
        """Push the queues that are due; returns how long to rest, in seconds, unless woken."""
        now_ms = self._clock.now_ms()
        if self._paused or self._stopping:
            return IDLE_WAIT_S
        self.keep_lease()
        names = []
        while self._touched:
            names.append(self._touched.popleft())
        if now_ms >= self._next_sweep_ms:
            self._next_sweep_ms = now_ms + self.settings.sweep_interval_ms
            names += [name for name in self._source.queues() if not self.filter.is_filtered(name[0])]
        with self._due_lock:
            while self._due and self._due[0][0] <= now_ms:
                names.append(heapq.heappop(self._due)[1])
            soonest_ms = self._due[0][0] if self._due else self._next_sweep_ms
            if names:
                self._turns.push(names)  # Under the lock: a queue is nowhere for a moment otherwise, see `_is_idle`.
        return max(0.001, (min(soonest_ms, self._next_sweep_ms) - now_ms) / 1000)

    def look_again(self, run: QueueDispatchState, at_ms: int) -> None:
        """Schedule another step of the queue at that time."""
        run.due_ms = at_ms
        with self._due_lock:
            heapq.heappush(self._due, (at_ms, run.name))
            is_soonest = self._due[0][1] == run.name
        if is_soonest:
            self._scheduler.wake()

    def push(self, names: Iterable[QueueName]) -> None:
        """Make those queues ready for a step."""
        self._turns.push(names)

    def uploaded(self, name: QueueName, commit_offset: int) -> None:
        """On a worker: the tier now has the queue up to that offset."""
        for listener in self.on_upload:
            listener(*name, commit_offset)

    @property
    def batch_factor(self) -> int:
        """How many times larger than usual the batch of a step may be."""
        return self._pace.batch_factor

    def _work(self) -> None:
        while not self._stopping:
            version = self._turns.version
            rest_s = self._pace.begin()
            if rest_s:
                self._stop_asked.wait(rest_s)
                continue
            began_s = time.thread_time()
            try:
                worked = self.step()
            finally:
                self._pace.end(time.thread_time() - began_s)
            if not worked:
                self._turns.wait(version, IDLE_WAIT_S)

    # Working

    def step(self) -> bool:
        """One step of one queue, or the sealing of one segment; False when there is nothing to do now."""
        if self._paused or self._stopping:
            return False
        if not self._may_ask():
            return False
        self._turn_count += 1
        if self._bundles is not None and self._bundles.is_due() and self._write_bundle():
            return True
        if self._turn_count % SEAL_EVERY_TURNS == 0 and self._seal_one():
            return True
        name = self._turns.take()
        if name is None:
            return (self._turns.is_empty() and self._write_bundle()) or self._seal_one()
        if name[0] in self.held_topics:
            self._turns.done(name, False)
            return True
        again = False
        asked = self._turn.asked
        try:
            again = self._turn.take(self._run(name))
        finally:
            if self._turn.asked != asked:
                self._opened_at_s = None  # If the breaker is open now, that was the probe: it rests again.
            self._turns.done(name, again)
        return True

    def _write_bundle(self) -> bool:
        try:
            return self._turn.write_bundle(self.held_topics)
        except TierError as error:
            _log.warning("quiet queues are uploaded later: %s", error)
            return False

    def _may_ask(self) -> bool:
        """Whether the circuit breaker would admit a request."""
        state = self._breaker.state
        if state is BreakerState.CLOSED:
            self._opened_at_s = None
            return True
        if state is BreakerState.HALF_OPEN:
            self._opened_at_s = None
            return False
        if self._opened_at_s is None:
            self._opened_at_s = self._clock.monotonic()
        return self._clock.monotonic() - self._opened_at_s >= self.settings.breaker_rest_ms / 1000

    def _seal_one(self) -> bool:
        sealed = self._writer.seal_next()
        if sealed is None:
            return False
        name = (sealed.topic, sealed.queue_id)
        self._run(name).causes.add(ManifestCause.SEAL)
        self._turns.push([name])
        return True

    def _run(self, name: QueueName) -> QueueDispatchState:
        with self._runs_lock:
            run = self._runs.get(name)
            if run is None:
                run = self._runs[name] = QueueDispatchState(name)
                self._watch(run)
            return run

    def _owns(self, topic: str, queue_id: int) -> bool:
        """Whether this process is the queue's writer now."""
        run = self._runs.get((topic, queue_id))
        return run is not None and run.epoch > 0 and not run.fenced and self._writer.may_write()

    def _quietly(self, run: QueueDispatchState | None, act: Callable[[], object]) -> None:
        """Run something that is repeated anyway: a failure is only noted."""
        try:
            act()
        except TierMQError as error:
            self.metrics.failed("upkeep")
            if run is not None:
                run.trouble = str(error)
            _log.warning("the tier's upkeep goes on later: %s", error)

    # Showing

    def status(self) -> dict[str, object]:
        """The main figures for operators."""
        runs = list(self._runs.values())
        lag = self.proof.lag()
        return {
            "paused": self._paused,
            "paced": self._pace.is_paced,
            "breaker": self._breaker.state.value,
            "lease": self._writer.lease_state,
            "queues": len(runs),
            "waiting": len(self._turns),
            "pending_bytes": self._budget.used_bytes,
            "copied_to": lag.copied_to,
            "lag_bytes": lag.bytes,
            "unproven": self.proof.state,
            "fenced": {f"{run.name[0]}-{run.name[1]}": run.fenced for run in runs if run.fenced},
            "troubles": {f"{run.name[0]}-{run.name[1]}": run.trouble for run in runs if run.trouble},
        }

    def _watch(self, run: QueueDispatchState) -> None:
        self.metrics.watch_queue(*run.name, lambda: self._behind(*run.name)[0], lambda: self._behind(*run.name)[1])

    def _behind(self, topic: str, queue_id: int) -> tuple[float, float]:
        """Messages that wait, and the age of the oldest in seconds; zeros once the local store is closed."""
        file = self.files.find(topic, queue_id)
        at = -1 if file is None else file.commit_offset
        try:
            local = self._source.state(topic, queue_id, at)
        except StoreClosed:
            return 0, 0
        if local is None or local.next_offset is None or self.filter.is_filtered(topic):
            return 0, 0
        return local.max_offset - max(at, local.min_offset), max(0, self._clock.now_ms() - local.next_ms) / 1000

    def _queues(self) -> list[QueueName]:
        try:
            return list(self._source.queues())
        except StoreClosed:
            return []

    def backlog(self) -> tuple[float, float]:
        """Messages that wait, over all queues, and the age of the oldest in seconds; also of queues that are new."""
        behind = [self._behind(*name) for name in self._queues()]
        return sum(count for count, _ in behind), max((age for _, age in behind), default=0.0)

    def lag_bytes(self) -> float:
        """Bytes of the local log from the first message on that is not in the tier; 0 once the store is closed."""
        try:
            return self.proof.lag().bytes
        except StoreClosed:
            return 0

    def _figures(self) -> dict[str, tuple[str, Callable[[], float]]]:
        return {
            "tiermq_dispatch_backlog_bytes": ("Bytes of local log that are not in the tier yet.", self.lag_bytes),
            "tiermq_dispatch_backlog_age_seconds": (
                "Age of the oldest message that waits.",
                lambda: self.backlog()[1],
            ),
            "tiermq_dispatch_backlog_messages": ("Messages that wait, over all queues.", lambda: self.backlog()[0]),
            "tiermq_dispatch_pending_bytes": ("Bytes of batches in memory.", lambda: float(self._budget.used_bytes)),
            "tiermq_dispatch_waiting_queues": ("Queues that wait for an upload step.", lambda: float(len(self._turns))),
            "tiermq_tier_paused": (
                "1 while a job has the broker's lease, and uploads wait for its end.",
                lambda: float(bool(self._writer.job)),
            ),
            "tiermq_dispatch_paced": (
                "1 while uploads are throttled because many messages are put.",
                lambda: float(self._pace.is_paced),
            ),
            "tiermq_dispatch_breaker_open": (
                "1 while uploads are paused because the back end is down.",
                lambda: float(self._breaker.state is not BreakerState.CLOSED),
            ),
        }


class _Scheduler(Service):
    """The engine's scheduler thread."""

    def __init__(self, engine: DispatchEngine) -> None:
        super().__init__("tier-dispatch")
        self._engine = engine

    def run_once(self) -> float:
        return self._engine.tick()

    def threads(self) -> list[threading.Thread]:
        return [] if self._thread is None else [self._thread]
