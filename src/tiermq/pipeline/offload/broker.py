"""OffloadBroker: one broker's messages and its part of the tier, in the driver of an offload.

    begin      lock, lease, metadata, index               no other process copies this broker from now on
    plan       settle the source; own, recover and plan queues ─► QueueWorks
    commit     check each commit row ─► one transaction ─► index files ─► manifests ─► seals

Only this, in the driver's process, ever decides where a queue ends: it recovers (adopts whole records that a crash left
in the tier, trims torn ones), begins segments and records gaps. Tasks only append what a plan names.
A crash anywhere leaves either bytes that are not in the metadata, which the next `plan` adopts or trims, or commits
that the index does not cover, which `OffloadIndex` finds and tasks read back.
Where the messages come from, a store directory or a broker over the wire, is the origin's affair.
Files of queues are open while a wave works on them. Of all others only their end is known (`_resting`): a driver has
100,000 queues, and a file takes 3 KB.
Threads: one, besides the pool for requests to the tier and for copies of the broker's tables, and the lease renewal.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from tiermq.clock import Clock
from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.errors import (
    BundlesFenced,
    CorruptRecord,
    ForkedHistory,
    RemotingError,
    StaleWriter,
    TierError,
    TierMQError,
)
from tiermq.message.record import decode_records
from tiermq.pipeline.index_build import BuiltIndex, StagedKeys
from tiermq.pipeline.job_report import counted_noun
from tiermq.pipeline.leased_broker import LeasedBroker, in_use_is_reported, open_broker, read_bucket
from tiermq.pipeline.offload.offload_index import OffloadIndex
from tiermq.pipeline.offload.origin import OffloadOrigin
from tiermq.pipeline.offload.plan import (
    COMMON_TASK_S,
    TASK_BYTES,
    TASK_S,
    LeaseClaim,
    QueueCommit,
    QueueWork,
    Stop,
    cut,
)
from tiermq.tier.dispatch.bundle_step import QUIET_BYTES_MAX, is_manifest_behind
from tiermq.tier.dispatch.dispatch_step import NoIndex, Outcome, execute
from tiermq.tier.dispatch.local_source import require_same_history
from tiermq.tier.dispatch.plan import Hold, LocalState, Nothing, Plan, QueueState, Reason, TopicFilter, Upload, plan
from tiermq.tier.dispatch.ready_queue import QueueDispatchState
from tiermq.tier.dispatch.writer import QueueWriter
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.flat.flat_file_store import FlatFileStore
from tiermq.tier.flat.flat_message_file import FlatMessageFile
from tiermq.tier.flat.flat_segment import FlatSegment
from tiermq.tier.metadata.broker_lease import BrokerLease, LeaseHeld
from tiermq.tier.metadata.manifest import ManifestCause, ManifestPolicy
from tiermq.tier.metadata.manifest_changes import encode_note, grown
from tiermq.tier.metadata.metadata_store import SegmentSize
from tiermq.tier.metadata.metadata_values import NEVER_MS, UNKNOWN_OFFSET, Segment, TopicStatus
from tiermq.tier.names import QueueKey, QueueName, SegmentKey, broker_directory
from tiermq.tier.tier_config import TierConfig
from tiermq.tier.tier_wiring import dispatch_config, state_copy, topic_filter

_log = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R")

STEPS_MAX = 8
"""Init, gap, retry and roll come before an upload, each once or twice; more in a row are left to the next wave."""

REQUEST_THREADS = 16
FILES_AT_ONCE = 1_000
"""Files that are opened together: to compare them with the source, or to plan them."""
DANGER_AGE = 0.75
"""Of a broker's retention: older than that, a message that is not copied is in danger."""


@dataclass(slots=True)
class Counts:
    """What was done to one broker."""

    messages: int = 0
    bytes: int = 0
    gaps: int = 0
    gap_messages: int = 0
    rolled: int = 0
    sealed: int = 0
    adopted: int = 0  # Messages that an earlier run had written and not committed.
    queues: set[QueueName] = field(default_factory=set)


class OffloadBroker:
    """See the module. Made closed; `begin` opens it."""

    def __init__(
        self,
        place: OffloadOrigin,
        config: TierConfig,
        driver: TierDriver,
        clock: Clock,
        *,
        topics: TopicFilter | None = None,
        with_index: bool = True,
        forget_tier: bool = False,
        step: Callable[[str], None] = lambda _name: None,
        counts: Counts | None = None,
        task_s: float = TASK_S,
        busy_bytes: int = TASK_BYTES,
        packs: bool = True,
        lends: bool = False,
    ) -> None:
        """`counts` go on from an earlier one of the broker. `task_s`: the time of a task. `busy_bytes`: see `is_busy`.
        `packs`: quiet queues share objects, if the tier has objects. `lends`: to other jobs that ask, see `borrower`.

        `step` is called with the name of each step before it; crash tests end the process there.
        """
        self.place = place
        self.counts = counts or Counts()
        self.problems: dict[QueueName, str] = {}
        self.gaps: list[dict[str, Any]] = []
        self.forks: dict[QueueName, dict[str, Any]] = {}
        self.dangers: dict[QueueName, dict[str, Any]] = {}
        self.is_open = False
        self.is_slow = False
        """Whether a task of the last wave ran out of time, or needed more than a common wave gives it."""
        self.is_busy = False
        """Whether the last wave copied much nevertheless: it is a backlog that takes time, not the broker."""
        self.is_cut = False
        """Whether the last plan left queues to the next one, since there were more than fit into a wave."""
        self.next_due_ms: int | None = None
        self._config = config
        self._driver = driver
        self._clock = clock
        self._step = step
        self._lends = lends
        self.forgotten: list[str] = []
        self._forget_tier = forget_tier
        self._with_index = with_index and config.message_index_enable
        self._filter = topics or topic_filter(config)
        self._life = place.life
        self._runs: dict[QueueName, QueueDispatchState] = {}
        self._resting: dict[QueueName, int] = {}
        """Where queues of the tier end whose file is not open; -1 before they have a place."""
        self._task_s = task_s
        self._busy_bytes = busy_bytes
        self.packs = packs and driver.packs_chunks
        self.directory = broker_directory(place.cluster, place.broker)
        self._not_quiet: set[QueueName] = set()
        """Queues that had more than an estimate promised, until all of it is copied."""
        self._targets: dict[QueueName, int] | None = None
        self._late_topics: set[str] = set()
        self._paces: dict[QueueName, int] = {}
        """Messages of a queue that its broker gives within half the time of a task, where that was too short."""
        self._not_started: set[QueueName] = set()
        self._watched: list[tuple[QueueName, LocalState]] = []
        self._open = ExitStack()
        self.lease: BrokerLease | None = None
        self.index: OffloadIndex | None = None
        self._named: set[str] = set()  # Topics whose id is in a manifest for certain.

    # Life

    @property
    def claim(self) -> LeaseClaim:
        assert self.lease is not None
        return LeaseClaim(self.lease.owner, self.lease.epoch)

    def begin(self) -> None:
        """Take the broker's tier. Raises StoreNotRecovered, StoreLocked, LeaseHeld, TierError, RemotingError."""
        config, clock, home = self._config, self._clock, self.place.home
        with ExitStack() as undo:
            self.source = undo.enter_context(self.place.open())
            broker = undo.enter_context(
                open_broker(
                    self._driver,
                    home,
                    "offload",
                    config=config,
                    may_be_new=True,
                    forget_tier=self._forget_tier,
                    clock=clock,
                    in_bundles=self.packs,
                )
            )
            self._held = broker
            self.metadata, self.lease, self.forgotten = broker.metadata, broker.lease, broker.forgotten
            self.writer = self._claimed_writer(broker)
            undo.callback(self._quietly, self.writer.release)
            if home.store is None:
                read_bucket(broker)
            self.notes = broker.notes
            self.files = FlatFileStore(
                self._driver,
                self.metadata,
                self.place.cluster,
                self.place.broker,
                clock,
                log_segment_bytes=config.tiered_store_commit_log_max_size,
                queue_segment_bytes=config.tiered_store_consume_queue_max_size,
                opens_all=False,
            )
            self.place.expect(self.files.names())
            ends = {queue.name: end // UNIT_BYTES for queue, end in self.metadata.unrolled_ends().items()}
            for name in self.files.names():
                if name in ends:
                    self._resting[name] = ends[name]
                else:  # It may have a segment that is not sealed, or be damaged.
                    self._opened(name)
                    self._let_go()
            assert self.lease is not None
            self._state = state_copy(config, self.place.read_tables, self._driver, self.writer, self.lease, clock)
            self.metadata.record_names(self.place.cluster, self.place.broker)
            self._pool = undo.enter_context(ThreadPoolExecutor(REQUEST_THREADS, thread_name_prefix="offload"))
            self._copying: Future[list[str]] = self._pool.submit(self._state.run)
            if self._with_index:
                known = {topic.name for topic in self.metadata.topics()} if home.store is None else set()
                self._named = known - broker.topics_without_id
                self.index = OffloadIndex(
                    broker, config, self._filter, name_topics=self._name_topics, step=self._step
                )  # fmt: skip
                self.index.open()
            if self.packs:
                self._note_bundle()  # Of a job before this one that could not publish its last one.
            self._open = undo.pop_all()
            self.is_open = True

    def _claimed_writer(self, broker: LeasedBroker) -> QueueWriter:
        """The writer of the broker's queues, which holds the lease and takes it again after an outage."""
        assert broker.manifests is not None
        assert broker.lease is not None
        broker.lease.lends = self._lends
        writer = QueueWriter(
            broker.metadata,
            broker.manifests,
            lease=broker.lease,
            policy=ManifestPolicy(self._config.tier_manifest_interval),
            clock=self._clock,
            renew_ms=self._config.tier_lease_term // 3,
            epoch_min=broker.epoch_min,
            fence=partial(self._driver.fence_bundles, self.directory, create=self.packs),
        )
        with in_use_is_reported(broker.home):
            broker.lease.require_free()  # The writer would only log the holder.
        writer.claim()
        if writer.refusal:
            raise LeaseHeld(f"broker {broker.home} is in use: {writer.refusal}")
        return writer

    @property
    def borrower(self) -> str:
        """The job that asks for the lease, as far as its last renewal or check has found it; empty: none."""
        request = self.writer.request if self.is_open else None
        return "" if request is None else request.owner

    def close(self, *, lend: bool = False) -> None:
        """Write the manifests, and release the lease, or lend it to the `borrower`. Nothing, if it was never begun."""
        if not self.is_open:
            return
        self.is_open = False
        with self._open:
            self._step("close")
            self._write_manifests(ManifestCause.CLOSE)
            self._copying.result()
            self._state.run(is_last=True)
            if self.index is not None and self.writer.may_write():
                self.index.close()
            if self.writer.may_write():
                self._held.publish_last()
            if lend:
                self.writer.lend()

    def _copy_state(self) -> None:
        """Copy the broker's tables, beside the wave: a broker that answers late holds up no other one."""
        if self._copying.done():
            self._copying.result()
            self._copying = self._pool.submit(self._state.run)

    def fix_targets(self) -> None:
        """Copy what is there now, and nothing that is put later: the job ends while producers continue."""
        self.source.settle()
        self._targets = {name: self.source.max_offset(*name) for name in self.source.queues()}
        self._late_topics = set(self.place.failed)

    def _target(self, name: QueueName) -> int | None:
        """Up to where the queue is copied; None: to its end. A topic that could not be asked for is fixed later."""
        if self._targets is None:
            return None
        if name not in self._targets and name[0] in self._late_topics:
            self._targets[name] = self.source.max_offset(*name)
        return self._targets.get(name, 0)

    def wait_s(self) -> float | None:
        """How long until more of the targets may be copied, without any message that is put later; None: all is done.

        Only a source that needs time until its messages are durable is waited for.
        """
        waits = []
        for name, target in (self._targets or {}).items():
            if max(0, self._end(name)) < target and name not in self.problems:
                waits.append(self.place.wait_s(name, target))
        return min((wait for wait in waits if wait is not None), default=None)

    def keep_lease(self) -> None:
        """Renew the lease when it is time, while the broker is open."""
        if self.is_open:
            self.writer.keep_lease()

    # Planning

    def plan(self, *, force: bool, queues_max: int) -> list[QueueWork]:
        """What waits, queue by queue, after everything was done that is not copying. Raises StaleWriter, StoreError.

        Of more than `queues_max` queues the rest comes first in the next plan.
        """
        self.writer.keep_lease()
        if not self.writer.may_write():
            raise StaleWriter(f"{self.place.path}: this job may not write its tier any more; {self.writer.refusal}")
        self.problems.clear()
        self.next_due_ms = None
        self.dangers.clear()
        self._copy_state()
        self._step("settle")
        self.source.settle()
        if self.place.life != self._life:  # It may have lost its tail, and given the same offsets out again.
            self._life = self.place.life
            for run in self._runs.values():
                run.commit_offset = -1
        works: list[QueueWork] = []
        self.is_cut = False
        behind = self._behind(self._unchanged(queues_max))
        behind.sort(key=lambda name: name not in self._not_started)
        self._not_started.clear()
        for names in _groups(behind):
            if len(works) >= queues_max:
                self._not_started.update(names)
                self.is_cut = True
                continue
            for file in self._compared(self._owned(self._open_files(names))):
                name = file.queue.name
                if len(works) >= queues_max:
                    self._not_started.add(name)
                    self.is_cut = True
                    continue
                try:
                    work = self._plan_queue(name, file, force)
                except (TierError, RemotingError) as error:
                    self._refuse(name, error)
                    continue
                if work is not None:
                    works.append(work)
            for name in self._watch_all():
                works = [work for work in works if work.queue.name != name]
        return works

    # Files

    def _end(self, name: QueueName) -> int:
        """Where the queue ends in the tier; -1 before it has a place."""
        file = self.files.find(*name)
        return self._resting.get(name, -1) if file is None else file.commit_offset

    def _opened(self, name: QueueName) -> FlatMessageFile | None:
        """The queue's file; None when it is damaged, which is a problem of the queue."""
        file = self.files.find(*name) or self.files.find_usable(*name)
        is_known = self._resting.pop(name, None) is not None
        if file is None:
            self.problems[name] = str(self.files.damaged[name])
        elif is_known and (run := self._runs.get(name)) is not None and run.epoch:
            file.trust_metadata()  # It rests only when all that is committed is recorded.
        return file

    def _open_files(self, names: Iterable[QueueName]) -> list[FlatMessageFile]:
        return [file for name in names if (file := self._opened(name)) is not None]

    def _let_go(self, recorded: Collection[QueueName] = (), keep: Collection[QueueName] = ()) -> None:
        """Let go of files of queues that are not ours yet, and of `recorded` ones: their rows have all of the file."""
        for file in self.files:
            name, run = file.queue.name, self._runs.get(file.queue.name)
            is_ours = run is not None and run.epoch
            if name in keep or (is_ours and not (name in recorded and file.recovered)):
                continue
            if file.is_settled and not file.log.unsealed() and not file.units.unsealed():
                self._resting[name] = file.commit_offset
                self.files.release(file)

    def _unchanged(self, files_max: int) -> list[QueueName]:
        """The queues to look at, without those whose history is not the source's any more.

        Of a broker what the tier has is compared first, also of queues of which nothing is to be copied: one that lost
        its newest messages may have given their offsets to others. Files that the plan needs next stay open, up to
        `files_max` of them.
        """
        deleting = {topic.name for topic in self.metadata.topics() if topic.status == TopicStatus.DELETING}
        found: list[QueueName] = []
        for name in self.source.queues():
            if self._filter.is_filtered(name[0]) or name[0] in deleting:
                continue
            damage = self.files.damaged.get(name)
            run = self._runs.get(name)
            if damage is not None:
                self.problems[name] = str(damage)
            elif run is not None and run.fenced:
                self.problems[name] = run.fenced
            else:
                found.append(name)
        self._note_unread(deleting)
        if not self.place.is_shared:
            return found  # One read after the other: only what is to be copied is compared.
        changed: set[QueueName] = set()
        begun = [name for name in found if self._end(name) > 0 and self._run(name).commit_offset < 0]
        needed: set[QueueName] = set()
        for names in _groups(begun):
            rested = self._resting.keys() & set(names)
            same = self._compared(self._open_files(names))
            changed.update(set(names) - {file.queue.name for file in same})
            if len(needed) < files_max:
                needed.update(name for name in names if self.source.max_offset(*name) > self._end(name))
            self._let_go(rested, needed)
        return [name for name in found if name not in changed]

    def _note_unread(self, deleting: Container[str]) -> None:
        """Messages in queues that the broker lets no client read: raising their number is left to its operator."""
        for name, messages in self.place.unread.items():
            text = unread_text(name, messages, self._end(name))
            if text and not self._filter.is_filtered(name[0]) and name[0] not in deleting:
                self.problems[name] = text

    def _behind(self, found: Iterable[QueueName]) -> list[QueueName]:
        """The queues of which the tier may lack something."""
        behind = []
        for name in found:
            at, file = self._end(name), self.files.find(*name)
            if at > self.source.max_offset(*name):
                self._note_ahead(name, at)
                continue
            target = self._target(name)
            if target is not None and at >= target:
                continue
            if self.source.max_offset(*name) != max(0, at) or (file is not None and file.committed):
                try:
                    state = self.source.state(*name, at)
                except RemotingError as error:
                    self.problems[name] = str(error)
                    continue
                is_known = file is not None or name in self._resting
                if is_known or (state is not None and state.next_offset is not None):
                    behind.append(name)
        return behind

    def _note_ahead(self, name: QueueName, at: int) -> None:
        """The tier has messages that the source has not: it is compared again until the source has caught up."""
        if (run := self._runs.get(name)) is not None:
            run.commit_offset = -1
        self.problems[name] = (
            f"the tier has messages up to {at - 1}, but the source ends at {self.source.max_offset(*name)}: it lost "
            "its newest messages, or the topic was deleted and created again. Nothing is copied, and the tier's "
            "history stays as it is"
        )

    def _owned(self, files: Sequence[FlatMessageFile]) -> list[FlatMessageFile]:
        """The files that are owned and recovered. Many requests, with limited concurrency."""
        new = [file for file in files if not self._run(file.queue.name).epoch or not file.recovered]
        if new:
            self._step("recover")
        refused = set(new) - set(self._without_refused(new, self._each(self._own, new)))
        return [file for file in files if file not in refused]

    def _without_refused(
        self, files: Sequence[FlatMessageFile], errors: Iterable[TierMQError | None]
    ) -> list[FlatMessageFile]:
        kept = []
        for file, error in zip(files, errors, strict=True):
            if error is None:
                kept.append(file)
            else:
                self._refuse(file.queue.name, error)
        return kept

    def _own(self, file: FlatMessageFile) -> TierError | None:
        """Take over the queue, then read its end: in the other order another writer could still move the end."""
        run = self._run(file.queue.name)
        try:
            run.epoch = self.writer.own(file)
            before = file.commit_offset
            file.recover()
            assert self._held.manifests is not None
            taken_over = self._held.manifests.taken_over(file.queue)
            if self.packs and not self.writer.is_manifest_wrong(file) and taken_over and taken_over.segments:
                run.manifest_written_ms = self._clock.now_ms()  # Acquiring the queue has written it.
            self._held.manifests.forget_taken_over(file.queue)
            self.counts.adopted += max(0, file.commit_offset - max(0, before))
            if file.commit_offset != before:
                run.commit_offset = -1  # What was adopted is not compared yet.
                run.causes.add(ManifestCause.COMMIT)
                if self.index is not None:
                    self.index.expect([file.queue])
        except TierError as error:
            return error
        return None

    def _compared(self, files: Sequence[FlatMessageFile]) -> list[FlatMessageFile]:
        """The files whose newest message is the one of that offset at the source, each compared once."""
        new = [file for file in files if self._run(file.queue.name).commit_offset < 0]
        errors = self._each(self._compare, new) if self.place.is_shared else map(self._compare, new)
        refused = set(new) - set(self._without_refused(new, errors))
        return [file for file in files if file not in refused]

    def _compare(self, file: FlatMessageFile) -> TierMQError | None:
        try:
            require_same_history(file, self.source, self.place.fork_advice)
        except (TierError, RemotingError, CorruptRecord) as error:
            return error
        self._run(file.queue.name).commit_offset = max(0, file.commit_offset)
        return None

    def _refuse(self, name: QueueName, error: TierMQError) -> None:
        self.problems[name] = str(error)
        _log.warning("queue %s-%d is left out: %s", *name, error)
        if isinstance(error, StaleWriter):
            self._runs[name].fenced = str(error)
        if isinstance(error, ForkedHistory):
            tier, source = map(described, error.records)
            self.forks[name] = self._row(name, offset=error.offset, tier=tier, source=source)

    def _plan_queue(self, name: QueueName, file: FlatMessageFile, force: bool) -> QueueWork | None:
        run = self._run(name)
        for _ in range(STEPS_MAX):
            local = self.source.state(*name, file.append_offset)
            decided = self._decide(run, file, local, force)
            if isinstance(decided, Upload):
                assert local is not None
                if self._may_be_in_danger(file):
                    self._watched.append((name, local))
                return self._work(file, local)
            if isinstance(decided, Nothing | Hold):
                self._rest(name, file, decided)
                return None
            self._step(type(decided).__name__.lower())
            self._note(run, file, execute(decided, file, self.source, NoIndex()))
        return None

    def _may_be_in_danger(self, file: FlatMessageFile) -> bool:
        """Whether the newest message that was copied, or for a queue that begins the oldest of the broker, is old."""
        keeps_ms = self.place.retention_ms
        copied_ms = NEVER_MS if file.log.is_empty else file.log.last.end_ms
        before_ms = self.place.earliest_ms if copied_ms == NEVER_MS else copied_ms
        return keeps_ms is not None and self._clock.now_ms() - before_ms >= keeps_ms * DANGER_AGE

    def _watch_all(self) -> list[QueueName]:
        """Note queues whose oldest message that is not copied is soon old enough for their broker to delete it.

        Returns those of which the broker does not return that message: they are refused.
        """
        watched, self._watched = self._watched, []
        refused = []
        for (name, _), error in zip(watched, self._each(self._watch, watched), strict=True):
            if error is not None:
                self._refuse(name, error)
                refused.append(name)
        return refused

    def _watch(self, waiting: tuple[QueueName, LocalState]) -> RemotingError | None:
        (name, local), now_ms, keeps_ms = waiting, self._clock.now_ms(), self.place.retention_ms
        assert keeps_ms is not None, "otherwise no message is in danger"
        try:
            stored_ms = self.place.store_time_of(name, local.next_offset or 0)
        except RemotingError as error:
            return error
        if 0 <= stored_ms <= now_ms - keeps_ms * DANGER_AGE:
            left_s = max(0, stored_ms + keeps_ms - now_ms) // 1000
            self.dangers[name] = self._row(
                name, offset=local.next_offset, behind=local.max_offset - (local.next_offset or 0),
                stored_ms=stored_ms, keeps_s=keeps_ms // 1000, left_s=left_s,
            )  # fmt: skip
        return None

    def _each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """What `work` returns for each item, by several threads: they send requests.

        A thread takes one item after the other: a future for each costs more than what is done here for many queues.
        """
        results: dict[int, R] = {}
        numbers = iter(range(len(items)))  # `next` of it is atomic.

        def run(_thread: int) -> None:
            try:
                for number in numbers:
                    results[number] = work(items[number])
            except BaseException:
                deque(numbers, maxlen=0)
                raise

        list(self._pool.map(run, range(min(REQUEST_THREADS, len(items)))))
        return [results[number] for number in range(len(items))]

    def _row(self, name: QueueName, **values: Any) -> dict[str, Any]:
        return {
            "cluster": self.place.cluster, "broker": self.place.broker, "topic": name[0], "queue": name[1], **values
        }  # fmt: skip

    def _decide(self, run: QueueDispatchState, file: FlatMessageFile, local: LocalState | None, force: bool) -> Plan:
        last = None if file.log.is_empty else file.log.last
        state = QueueState(
            initialised=file.initialised,
            commit_offset=file.commit_offset,
            append_offset=file.append_offset,
            epoch=run.epoch,
            unindexed=bool(file.committed),
            log_bytes=0 if last is None else last.append_position,
            log_created_ms=0 if last is None else last.created_ms,
        )
        return plan(state, local, dispatch_config(self._config), self._clock.now_ms(), force=force)

    def _rest(self, name: QueueName, file: FlatMessageFile, decided: Nothing | Hold) -> None:
        if isinstance(decided, Hold):
            self.next_due_ms = min(self.next_due_ms or decided.until_ms, decided.until_ms)
        elif decided.reason is Reason.AHEAD_OF_LOCAL:
            self._note_ahead(name, file.commit_offset)

    def _work(self, file: FlatMessageFile, local: LocalState) -> QueueWork:
        log, units = self._row_of(file.log.last), self._row_of(file.units.last)
        at, entry = file.commit_offset, self.metadata.last_time_entry(file.queue)
        size = local.backlog_bytes
        is_packed = self.packs and size < QUIET_BYTES_MAX and file.queue.name not in self._not_quiet
        work = QueueWork(file.queue, file.topic, log, units, entry, at, local.max_offset, size, is_packed)
        if (pace := self._paces.get(file.queue.name)) is not None:
            work = cut(work, min(pace, work.to_offset - at))
        target = self._target(file.queue.name)
        if target is None:
            return work
        return cut(work, max(1, min(work.to_offset, target) - at))

    def _row_of(self, segment: FlatSegment) -> Segment:
        """The segment's row, with the checksums that its recovery completed: the task continues from them."""
        return replace(self._require_row(segment.key), crc32=segment.crc32, sums=segment.sums)

    def _require_row(self, key: SegmentKey) -> Segment:
        row = self.metadata.segment(key)
        assert row is not None, "a segment has its row before its first byte"
        return row

    # Committing

    def commit(
        self,
        commits: Sequence[QueueCommit],
        keys: Sequence[StagedKeys] = (),
        built: Sequence[BuiltIndex] = (),
        *,
        took_s: float = 0.0,
    ) -> None:
        """Make what tasks did visible, all of it or nothing. Raises StaleWriter when the broker is not ours any more.

        The index files `built` of the staged `keys` follow; if they cannot, the index finds what is missing. `took_s`:
        of the longest task.
        """
        self._step("validate")
        for commit in commits:
            self._validate(commit)
        assert self.lease is not None
        self.lease.check()
        done = [commit for commit in commits if commit.messages]
        self._commit_chunks(done)
        self._step("commit")
        with self.metadata.transaction():
            for commit in done:
                self.metadata.record_commit(commit.queue, _known(commit), commit.entries)
        self._step("committed")
        is_late = self.is_slow and took_s > COMMON_TASK_S
        self.is_slow = is_late or any(commit.stop is Stop.SLOW for commit in commits)
        self.is_busy = sum(commit.bytes for commit in commits) >= self._busy_bytes
        for commit in commits:
            self._settle(commit)
        if self.index is not None:
            self.index.expect({commit.queue for commit in done} - {each.queue for each in keys})
            self.index.register(keys, built)
        self._step("manifests")
        self._write_manifests()
        self._quietly(self._held.publish)
        self._seal()
        self._let_go({commit.queue.name for commit in done})

    def _commit_chunks(self, commits: Sequence[QueueCommit]) -> None:
        """Let the chunks of tasks count: one object, whatever the number of queues. Raises BundlesFenced, TierError."""
        packed = [commit for commit in commits if commit.ranges]
        if not packed:
            return
        self._step("chunks")
        ranges = [entry for commit in packed for entry in commit.ranges]
        notes = {
            commit.queue.logical_path: encode_note(
                commit.queue, [grown(self._require_row(size.key), size) for size in commit.sizes]
            )
            for commit in packed
        }
        try:
            self._driver.commit_chunks(self.directory, ranges, notes)
        except BundlesFenced:
            self.writer.fence_again()  # The next wave goes on only if the lease is ours nevertheless.
            raise
        self._note_bundle()

    def _note_bundle(self) -> None:
        if self._held.changes is not None:
            self._held.changes.note_bundle()

    def _validate(self, commit: QueueCommit) -> None:
        """A row must start exactly where the queue ends, and its parts must agree. Anything else is a defect."""
        file = self._file(commit)
        log, units = (size.size for size in commit.sizes)
        agrees = (
            commit.from_offset == file.commit_offset
            and commit.to_offset >= commit.from_offset
            and [size.key for size in commit.sizes] == [file.log.last.key, file.units.last.key]
            and log - file.log.last.commit_position == commit.bytes >= 0
            and file.units.last.key.base + units == commit.to_offset * UNIT_BYTES
            and all(
                entry.position == part.last.commit_position and entry.position + entry.length == size.size
                for part, size in zip((file.log, file.units), commit.sizes, strict=True)
                for entry in commit.ranges
                if entry.key == size.key
            )
        )
        if not agrees:
            raise TierError(
                f"{commit.queue.logical_path}: expected a commit row that goes on at {file.commit_offset}, found "
                f"{commit}; nothing of this wave was committed, run the job again"
            )

    def _settle(self, commit: QueueCommit) -> None:
        """Let the queue's file know what was committed, and begin segments where one is full."""
        file, run = self._file(commit), self._run(commit.queue.name)
        if commit.messages:
            file.take_rows()
            if is_manifest_behind(run, commit.bytes, is_bundled=bool(commit.ranges)):
                run.causes.add(ManifestCause.COMMIT)
            run.commit_offset = file.commit_offset
            self.counts.messages += commit.messages
            self.counts.bytes += commit.bytes
            self.counts.queues.add(run.name)
        if commit.error:
            self.problems[run.name] = commit.error
        elif commit.stop is Stop.NO_RECORD and not commit.messages and self.place.wire is not None:
            self.problems[run.name] = f"the broker returned nothing that can be copied at {commit.from_offset}"
        self._set_pace(run.name, commit)
        if commit.stop is Stop.NOT_QUIET:
            self._not_quiet.add(run.name)
        elif commit.stop is Stop.TARGET:
            self._not_quiet.discard(run.name)
        if not commit.is_settled:
            file.doubt()
        elif commit.stop in (Stop.LOG_FULL, Stop.UNITS_FULL):
            self._step("roll")
            (file.log if commit.stop is Stop.LOG_FULL else file.units).roll()
            self.counts.rolled += 1
            run.causes.add(ManifestCause.ROLL)
            self.writer.note_unsealed(file)

    def _set_pace(self, name: QueueName, commit: QueueCommit) -> None:
        """How much the next task takes of a queue whose broker is slow: what comes within half of a task's time."""
        if commit.stop is Stop.SLOW and not commit.took_s:
            self._not_started.add(name)
        elif commit.stop is Stop.SLOW and not commit.messages:
            self._paces[name] = max(1, commit.seen // 2)
            if not commit.seen and commit.took_s > self._task_s / 2:  # Else its own wave finds out.
                self.problems[name] = f"the broker returned nothing within {commit.took_s:.0f} s"
        elif name in self._paces and commit.took_s < self._task_s / 2:
            self._paces[name] *= 2
            if commit.stop is Stop.TARGET and commit.messages < self._paces[name] // 2:
                del self._paces[name]  # It was all that there was.

    def doubt(self, works: Iterable[QueueWork]) -> None:
        """A wave failed, and what its tasks wrote is unknown: read the tier before these queues are written again."""
        for work in works:
            file = self.files.find(work.queue.topic, work.queue.queue_id)
            if file is not None:
                file.doubt()

    # State of the tier

    def _write_manifests(self, cause: ManifestCause | None = None) -> None:
        now_ms = self._clock.now_ms()
        due = []
        for run in self._runs.values():
            if cause is not None and run.causes:
                run.causes.add(cause)
            due_ms = self.writer.manifest_due_ms(run)
            if run.epoch and due_ms is not None and due_ms <= now_ms:
                due.append(run)
        for run, error in zip(due, self._each(self._write_manifest, due), strict=True):
            if error is not None:
                self._refuse(run.name, error)

    def _name_topics(self, queues: Iterable[QueueKey]) -> None:
        """Write a manifest for each topic whose id may be in none. Raises TierError.

        Index items carry the id: on another machine it is known from manifests alone.
        """
        for queue in sorted(queues):
            if queue.topic in self._named:
                continue
            run = self._run(queue.name)
            if not run.epoch:
                file = self._opened(queue.name)
                error = self.files.damaged[queue.name] if file is None else self._own(file)
                if error is not None:
                    raise error
            run.causes.add(ManifestCause.COMMIT)
            self.writer.write_manifest(run, queue)
            self._named.add(queue.topic)

    def _write_manifest(self, run: QueueDispatchState) -> TierError | None:
        try:
            self.writer.write_manifest(run, QueueKey(self.place.cluster, self.place.broker, *run.name))
        except TierError as error:
            return error
        return None

    def _seal(self) -> None:
        """Seal what has ended. A segment that cannot be sealed now is found again by the next run."""
        self._step("seal")
        while (sealed := self.writer.seal_next()) is not None:
            self.counts.sealed += 1
            self._runs[sealed.topic, sealed.queue_id].causes.add(ManifestCause.SEAL)

    # Small things

    def _note(self, run: QueueDispatchState, file: FlatMessageFile, outcome: Outcome) -> None:
        if outcome.rolled:
            self.counts.rolled += outcome.rolled
            run.causes.add(ManifestCause.ROLL)
            self.writer.note_unsealed(file)
        if outcome.gap is not None:
            gap, keeps_ms = outcome.gap, self.place.retention_ms
            self.counts.gaps += 1
            self.counts.gap_messages += gap.to_offset - gap.from_offset
            run.causes.add(ManifestCause.GAP)
            keeps_s = None if keeps_ms is None else keeps_ms // 1000
            row = {"from": gap.from_offset, "to": gap.to_offset, "reason": gap.reason, "keeps_s": keeps_s}
            row["left_s"] = self._left_s(run.name, gap.to_offset)
            self.gaps.append(self._row(run.name, **row))
            _log.error("queue %s-%d has a gap in the tier: %r", *run.name, outcome.gap)
        if not outcome.done:
            raise outcome.error or TierError(f"{file.queue.logical_path}: a step of its plan did not succeed")

    def _left_s(self, name: QueueName, offset: int) -> int | None:
        """How long the broker still keeps the message; None when that is not known."""
        keeps_ms = self.place.retention_ms
        try:
            stored_ms = -1 if keeps_ms is None else self.place.store_time_of(name, offset)
        except RemotingError:
            return None
        if keeps_ms is None or stored_ms < 0:
            return None
        return max(0, stored_ms + keeps_ms - self._clock.now_ms()) // 1000

    def _file(self, commit: QueueCommit) -> FlatMessageFile:
        file = self._opened(commit.queue.name)
        assert file is not None, "a work was made of it"
        return file

    def _run(self, name: QueueName) -> QueueDispatchState:
        run = self._runs.get(name)
        return run if run is not None else self._runs.setdefault(name, QueueDispatchState(name))

    def _quietly(self, act: Callable[[], object]) -> None:
        try:
            act()
        except TierError as error:
            _log.warning("left to time: %s", error)


def _groups(names: Sequence[QueueName]) -> Iterator[Sequence[QueueName]]:
    return (names[at : at + FILES_AT_ONCE] for at in range(0, len(names), FILES_AT_ONCE))


def unread_text(name: QueueName, messages: range, end: int) -> str:
    """The problem of a queue that no client may read, and whose messages the tier has up to `end`; empty: none."""
    left = messages.stop - max(messages.start, end)
    if left <= 0:
        return ""
    return (
        f"the broker has {counted_noun(left, 'message')} in this queue that the tier has not, and lets no client read "
        f"them: expected readQueueNums of topic {name[0]} above {name[1]}, found no more than that. Raise it to "
        f"{name[1] + 1} (`mqadmin updateTopic -r {name[1] + 1}`, with -w as it is) until they are copied"
    )


def described(record: bytes) -> dict[str, Any]:
    """A record in words, for an operator who compares two of them."""
    try:
        (message,) = decode_records(record)
    except (CorruptRecord, ValueError):
        return {"bytes": len(record)}
    return {
        "bytes": len(record),
        "stored_ms": message.store_timestamp_ms,
        "born_ms": message.born_timestamp_ms,
        "body_bytes": len(message.body),
        "body_crc": message.body_crc,
        "keys": list(message.keys),
        "tags": message.tags,
    }


def _known(commit: QueueCommit) -> list[SegmentSize]:
    """The sizes as the metadata takes them: an offset that is not known stays as it is."""
    return [
        size._replace(
            begin_offset=None if size.begin_offset == UNKNOWN_OFFSET else size.begin_offset,
            end_offset=None if size.end_offset == UNKNOWN_OFFSET else size.end_offset,
        )
        for size in commit.sizes
    ]
