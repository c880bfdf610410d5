"""OffloadBroker: one store directory and its broker's place in the tier, as the driver of an offload holds them.

    begin      lock, lease, metadata, index               nobody else copies this store from now on
    plan       settle the store; own, recover and plan queues ─► QueueWorks
    commit     check each commit row ─► one transaction ─► index ─► manifests ─► seals

Only this, in the driver's process, ever decides where a queue ends: it recovers (adopts whole records that a crash left
in the tier, trims torn ones), begins segments and records gaps. Tasks only append what a plan names.
A crash anywhere leaves either bytes that the metadata does not know, which the next `plan` adopts or trims, or commits
that the index does not know, which the next `begin` finds and reads back.
Threads: one, besides the pool for requests to the tier and whoever renews the lease.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tiermq.clock import Clock
from tiermq.errors import StaleWriter, TierError
from tiermq.history.scan_values import StorePlace
from tiermq.spark.jobs.offload_index import open_index, publish_index, put_fragments
from tiermq.spark.jobs.offload_place import require_free, settle_tier
from tiermq.spark.jobs.offload_values import LeaseClaim, QueueCommit, QueueWork, Stop
from tiermq.spark.jobs.offload_wave import cut
from tiermq.store.read_only_store import ReadOnlyStore
from tiermq.tier.dispatch.execute import IndexSink, NoIndex, Outcome, execute
from tiermq.tier.dispatch.plan import Hold, LocalState, Nothing, Plan, QueueState, Reason, Upload, plan
from tiermq.tier.dispatch.queue_run import QueueRun
from tiermq.tier.dispatch.read_only_source import ReadOnlySource
from tiermq.tier.dispatch.same_history import require_same_history
from tiermq.tier.dispatch.tier_lock import TierLock
from tiermq.tier.dispatch.topic_filter import TopicFilter
from tiermq.tier.dispatch.turns import QueueName
from tiermq.tier.dispatch.writer import QueueWriter
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.flat.flat_file_store import FlatFileStore
from tiermq.tier.flat.flat_message_file import FlatMessageFile
from tiermq.tier.index.index_store import IndexStore
from tiermq.tier.metadata.broker_lease import BrokerLease, LeaseHeld
from tiermq.tier.metadata.manifest_policy import ManifestCause, ManifestPolicy
from tiermq.tier.metadata.manifest_store import ManifestStore
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import UNKNOWN_OFFSET, TopicStatus
from tiermq.tier.metadata.segment_rows import SegmentSize
from tiermq.tier.tier_assembly import dispatch_config
from tiermq.tier.tier_config import TierConfig

_log = logging.getLogger(__name__)

STEPS_MAX = 8
"""Init, gap, retry and roll come before an upload, each once or twice; more in a row are left to the next wave."""

REQUEST_THREADS = 16
SPOOL = "offload"


@dataclass(slots=True)
class Counts:
    """What was done to one broker."""

    messages: int = 0
    bytes: int = 0
    gaps: int = 0
    rolled: int = 0
    sealed: int = 0
    adopted: int = 0  # Messages that an earlier run had written and not committed.
    keys: int = 0
    index_files: int = 0
    queues: set[QueueName] = field(default_factory=set)


class OffloadBroker:
    """See the module. Made closed; `begin` opens it."""

    def __init__(
        self,
        place: StorePlace,
        config: TierConfig,
        driver: TierDriver,
        clock: Clock,
        *,
        topics: Iterable[str] = (),
        with_index: bool = True,
        forget_tier: bool = False,
        step: Callable[[str], None] = lambda _name: None,
    ) -> None:
        """`step` is told the name of each step before it is taken; a test ends the process there."""
        self.place = place
        self.counts = Counts()
        self.problems: dict[QueueName, str] = {}
        self.next_due_ms: int | None = None
        self._config = config
        self._driver = driver
        self._clock = clock
        self._step = step
        self.forgotten: list[str] = []
        self._forget_tier = forget_tier
        self._with_index = with_index and config.message_index_enable
        chosen = frozenset(topics)
        self._filter = TopicFilter(place.broker, place.cluster, whitelist=chosen or None)
        self._runs: dict[QueueName, QueueRun] = {}
        self._targets: dict[QueueName, int] | None = None
        self._open = ExitStack()
        self.spool = str(Path(place.path).expanduser() / "config" / SPOOL)

    # Life

    @property
    def owner(self) -> str:
        """Whom the lease names: one job at a time works on a directory of a machine, as its lock makes sure."""
        return f"{socket.gethostname()}:{os.path.abspath(self.place.path)} (pipeline offload)"

    def begin(self) -> None:
        """Take the store's tier. Raises StoreNotRecovered, StoreLocked, LeaseHeld, TierError, and what opening does."""
        config, clock = self._config, self._clock
        with ExitStack() as undo:
            self.store = undo.enter_context(ReadOnlyStore.open(self.place.path))
            self.store.require_recovered()
            self.source = ReadOnlySource(self.store)
            undo.callback(TierLock(self.store.root, self.owner).release)
            require_free(self._driver, self.place, self.owner, clock)
            self.forgotten = settle_tier(self._driver, self.place, config, clock, forget=self._forget_tier)
            config.metadata_path.parent.mkdir(parents=True, exist_ok=True)
            self.metadata = undo.enter_context(MetadataStore(config.metadata_path, clock=clock))
            self.files = FlatFileStore(
                self._driver,
                self.metadata,
                self.place.cluster,
                self.place.broker,
                clock,
                log_segment_bytes=config.tiered_store_commit_log_max_size,
                queue_segment_bytes=config.tiered_store_consume_queue_max_size,
            )
            self._take_lease()
            undo.callback(self._quietly, self.writer.release)
            self._pool = undo.enter_context(ThreadPoolExecutor(REQUEST_THREADS, thread_name_prefix="offload"))
            self.index = self._start_index() if self._with_index else None
            if self.index is not None:
                undo.callback(self.index.close)
            self._empty_spool()
            self._open = undo.pop_all()

    def _take_lease(self) -> None:
        config, clock = self._config, self._clock
        epochs = [queue.epoch for queue in self.metadata.queues()]
        self.lease = BrokerLease(
            self._driver, self.place.cluster, self.place.broker, self.owner, term_ms=config.tier_lease_term, clock=clock
        )
        self.writer = QueueWriter(
            self.metadata,
            ManifestStore(self._driver, self.owner, lease=self.lease, clock=clock),
            lease=self.lease,
            policy=ManifestPolicy(config.tier_manifest_interval),
            clock=clock,
            renew_ms=config.tier_lease_term // 3,
            epoch_min=max(epochs, default=0) + 1,
        )
        self.writer.claim()
        if self.writer.refusal:
            raise LeaseHeld(
                f"{self.place.path}: its broker's history is being copied by somebody else, {self.writer.refusal}. A "
                "store that runs with its own dispatcher keeps the lease: set tierDispatchEnable=false there, and "
                "this job does the copying"
            )

    def _start_index(self) -> IndexStore:
        root, may_write = str(self.store.root), self.writer.may_write
        return open_index(self._config, root, self._driver, self.metadata, self.files, may_write, self._clock)

    def _empty_spool(self) -> None:
        os.makedirs(self.spool, exist_ok=True)
        for name in os.listdir(self.spool):
            if name.endswith(".keys"):
                os.unlink(os.path.join(self.spool, name))

    def close(self) -> None:
        """Say in the tier what is there, and let others in."""
        with self._open:
            self._step("close")
            if self.index is not None and self.writer.may_write():
                while self.index.run_once() == 0.0:  # Read back what an earlier run left, and upload what is full.
                    continue
            self._write_manifests(ManifestCause.CLOSE)

    def publish_index(self) -> None:
        """Put the whole key index into the tier, so that the tier alone answers look-ups. Raises TierError."""
        if self.index is not None:
            self._step("index upload")
            self.counts.index_files += publish_index(self.index, self.place.path, self.writer.may_write)

    def fix_targets(self) -> None:
        """Copy what is there now, and nothing that is put later: the job ends though producers go on."""
        self.source.settle()
        self._targets = {name: self.store.max_offset(*name) for name in self.source.queues()}

    @property
    def claim(self) -> LeaseClaim:
        return LeaseClaim(self.owner, self.lease.epoch)

    # Planning

    def plan(self, *, force: bool) -> list[QueueWork]:
        """What waits, queue by queue, after everything was done that is not copying. Raises StaleWriter, StoreError."""
        self.writer.keep_lease()
        if not self.writer.may_write():
            raise StaleWriter(f"{self.place.path}: this job may not write its tier any more; {self.writer.refusal}")
        self.problems.clear()
        self.next_due_ms = None
        self._step("settle")
        self.source.settle()
        works = []
        for file in self._owned(self._behind()):
            name = (file.queue.topic, file.queue.queue_id)
            try:
                work = self._plan_queue(name, file, force)
            except TierError as error:
                self._refuse(name, error)
                continue
            if work is not None:
                works.append(work)
        return works

    def _behind(self) -> list[FlatMessageFile]:
        """The files of queues of which the tier may lack something."""
        deleting = {topic.name for topic in self.metadata.topics() if topic.status == TopicStatus.DELETING}
        found = []
        for name in self.source.queues():
            if self._filter.is_filtered(name[0]) or name[0] in deleting:
                continue
            damage = self.files.damaged.get(name)
            if damage is not None:
                self.problems[name] = str(damage)
                continue
            run = self._runs.get(name)
            if run is not None and run.fenced:
                self.problems[name] = run.fenced
                continue
            file = self.files.find(*name)
            at = -1 if file is None else file.commit_offset
            if self._targets is not None and at >= self._targets.get(name, 0):
                continue
            if self.store.max_offset(*name) != max(0, at) or (file is not None and file.committed):
                state = self.source.state(*name, at)
                if file is not None or (state is not None and state.next_offset is not None):
                    found.append(file or self.files.find_or_create(*name))
        return found

    def _owned(self, files: Sequence[FlatMessageFile]) -> list[FlatMessageFile]:
        """Those of the files that are ours and recovered. Many requests, so many at a time."""
        new = [file for file in files if not self._run(file).epoch or not file.recovered]
        if new:
            self._step("recover")
        refused = set()
        for file, error in zip(new, self._pool.map(self._own, new), strict=True):
            if error is not None:
                self._refuse((file.queue.topic, file.queue.queue_id), error)
                refused.add(file)
        return [file for file in files if file not in refused]

    def _own(self, file: FlatMessageFile) -> TierError | None:
        """Own the queue, then know where it ends: the other way round somebody could still move the end."""
        run = self._run(file)
        try:
            run.epoch = self.writer.own(file)
            before = file.commit_offset
            file.recover()
            self.counts.adopted += max(0, file.commit_offset - max(0, before))
            if file.commit_offset != before:
                run.causes.add(ManifestCause.COMMIT)
        except TierError as error:
            return error
        return None

    def _refuse(self, name: QueueName, error: TierError) -> None:
        self.problems[name] = str(error)
        _log.warning("queue %s-%d is left out: %s", *name, error)
        if isinstance(error, StaleWriter):
            self._runs[name].fenced = str(error)

    def _plan_queue(self, name: QueueName, file: FlatMessageFile, force: bool) -> QueueWork | None:
        run = self._run(file)
        if run.commit_offset < 0:
            require_same_history(file, self.source)
            run.commit_offset = max(0, file.commit_offset)
        for _ in range(STEPS_MAX):
            local = self.source.state(*name, file.append_offset)
            decided = self._decide(run, file, local, force)
            if isinstance(decided, Upload):
                assert local is not None
                return self._work(file, local)
            if isinstance(decided, Nothing | Hold):
                self._rest(name, decided)
                return None
            self._step(type(decided).__name__.lower())
            self._note(run, file, execute(decided, file, self.source, self._sink()))
        return None

    def _decide(self, run: QueueRun, file: FlatMessageFile, local: LocalState | None, force: bool) -> Plan:
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

    def _rest(self, name: QueueName, decided: Nothing | Hold) -> None:
        if isinstance(decided, Hold):
            self.next_due_ms = min(self.next_due_ms or decided.until_ms, decided.until_ms)
        elif decided.reason is Reason.AHEAD_OF_LOCAL:
            self.problems[name] = f"{decided.reason.value}; nothing is copied"

    def _work(self, file: FlatMessageFile, local: LocalState) -> QueueWork:
        last = {key: self.metadata.segment(key) for key in (file.log.last.key, file.units.last.key)}
        log, units = last[file.log.last.key], last[file.units.last.key]
        assert log is not None, "a segment has its row before its first byte"
        assert units is not None, "a segment has its row before its first byte"
        at, entry = file.commit_offset, self.metadata.last_time_entry(file.queue)
        work = QueueWork(file.queue, file.topic, log, units, entry, at, local.max_offset, local.backlog_bytes)
        if self._targets is None:
            return work
        target = self._targets[file.queue.topic, file.queue.queue_id]
        return cut(work, max(1, min(local.max_offset, target) - at))

    # Committing

    def commit(self, commits: Sequence[QueueCommit]) -> None:
        """Make what tasks did visible, all of it or nothing. Raises StaleWriter when the broker is not ours any more.

        The index follows; if it cannot, this raises, and the next `begin` reads back what it lacks.
        """
        self._step("validate")
        for commit in commits:
            self._validate(commit)
        self.lease.check()
        done = [commit for commit in commits if commit.messages]
        self._step("commit")
        with self.metadata.transaction():
            for commit in done:
                self.metadata.record_commit(commit.queue, _known(commit), commit.entries)
        self._step("committed")
        for commit in commits:
            self._settle(commit)
        if self.index is not None:
            self._step("index")
            self.counts.keys += put_fragments(self.index, done)
            self._step("index sync")
            self.index.run_once()
        self._step("manifests")
        self._write_manifests()
        self._seal()

    def _validate(self, commit: QueueCommit) -> None:
        """A row must go on exactly where the queue ends, and its parts must agree. Anything else is a defect."""
        file = self._file(commit)
        log, units = (size.size for size in commit.sizes)
        agrees = (
            commit.from_offset == file.commit_offset
            and commit.to_offset >= commit.from_offset
            and [size.key for size in commit.sizes] == [file.log.last.key, file.units.last.key]
            and log - file.log.last.commit_position == commit.bytes >= 0
            and file.units.last.key.base + units == commit.to_offset * 20
        )
        if not agrees:
            raise TierError(
                f"{commit.queue.logical_path}: expected a commit row that goes on at {file.commit_offset}, found "
                f"{commit}; nothing of this wave was committed, run the job again"
            )

    def _settle(self, commit: QueueCommit) -> None:
        """Let the queue's file know what was committed, and begin segments where one is full."""
        file, run = self._file(commit), self._run(self._file(commit))
        if commit.messages:
            file.take_rows()
            run.causes.add(ManifestCause.COMMIT)
            run.commit_offset = file.commit_offset
            self.counts.messages += commit.messages
            self.counts.bytes += commit.bytes
            self.counts.queues.add(run.name)
        if not commit.is_settled:
            file.doubt()
            self.problems[run.name] = commit.error
        elif commit.stop in (Stop.LOG_FULL, Stop.UNITS_FULL):
            self._step("roll")
            (file.log if commit.stop is Stop.LOG_FULL else file.units).roll()
            self.counts.rolled += 1
            run.causes.add(ManifestCause.ROLL)
            self.writer.note_unsealed(file)

    def doubt(self, works: Iterable[QueueWork]) -> None:
        """A wave failed, and nobody knows what its tasks wrote: ask the tier before these queues are written again."""
        for work in works:
            file = self.files.find(work.queue.topic, work.queue.queue_id)
            if file is not None:
                file.doubt()

    # What the tier says of itself

    def _write_manifests(self, cause: ManifestCause | None = None) -> None:
        now_ms = self._clock.now_ms()
        due = []
        for run in self._runs.values():
            if cause is not None and run.causes:
                run.causes.add(cause)
            due_ms = self.writer.manifest_due_ms(run)
            if run.epoch and due_ms is not None and due_ms <= now_ms:
                due.append(run)
        for run, error in zip(due, self._pool.map(self._write_manifest, due), strict=True):
            if error is not None:
                self._refuse(run.name, error)

    def _write_manifest(self, run: QueueRun) -> TierError | None:
        file = self.files.find(*run.name)
        try:
            if file is not None:
                self.writer.write_manifest(run, file)
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

    def _note(self, run: QueueRun, file: FlatMessageFile, outcome: Outcome) -> None:
        if outcome.rolled:
            self.counts.rolled += outcome.rolled
            run.causes.add(ManifestCause.ROLL)
            self.writer.note_unsealed(file)
        if outcome.gap is not None:
            self.counts.gaps += 1
            run.causes.add(ManifestCause.GAP)
            _log.error("queue %s-%d has a gap in the tier: %r", *run.name, outcome.gap)
        if not outcome.done:
            raise outcome.error or TierError(f"{file.queue.logical_path}: a step of its plan did not succeed")

    def _sink(self) -> IndexSink:
        return NoIndex() if self.index is None else self.index

    def _file(self, commit: QueueCommit) -> FlatMessageFile:
        file = self.files.find(commit.queue.topic, commit.queue.queue_id)
        assert file is not None, "a work was made of it"
        return file

    def _run(self, file: FlatMessageFile) -> QueueRun:
        name = (file.queue.topic, file.queue.queue_id)
        return self._runs.setdefault(name, QueueRun(name))

    def _quietly(self, act: Callable[[], object]) -> None:
        try:
            act()
        except TierError as error:
            _log.warning("left to time: %s", error)


def _known(commit: QueueCommit) -> list[SegmentSize]:
    """The sizes as the metadata takes them: an offset that is not known stays as it is."""
    return [
        size._replace(
            begin_offset=None if size.begin_offset == UNKNOWN_OFFSET else size.begin_offset,
            end_offset=None if size.end_offset == UNKNOWN_OFFSET else size.end_offset,
        )
        for size in commit.sizes
    ]
