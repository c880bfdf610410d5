"""DispatchStep: one step of one queue: read its state, plan, execute, and handle the result.

    look ─► own and recover, once ─► plan ─► execute ─► manifest, when it is due
              └──────── under the circuit breaker's eyes ────────┘

Failures are handled here: the queue backs off, longer each time, and logs why; a fenced writer stops for good. A
failure of one queue does not affect another.
Threads: any, but one at a time for each queue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from tiermq.clock import Clock
from tiermq.errors import ForkedHistory, StaleWriter, StoreClosed, TierError, TierMQError, TierUnavailable
from tiermq.tier.dispatch.bundle_step import QUIET_BYTES_MAX, BundleStep, is_manifest_behind
from tiermq.tier.dispatch.local_source import LocalSource, RecordReader, require_same_history
from tiermq.tier.dispatch.plan import (
    DispatchConfig,
    Gap,
    Hold,
    Init,
    LocalState,
    Nothing,
    Plan,
    QueueState,
    Reason,
    RetryCommit,
    Roll,
    TopicFilter,
    Upload,
    plan,
)
from tiermq.tier.dispatch.ready_queue import BackOff, MemoryBudget, QueueDispatchState
from tiermq.tier.dispatch.writer import QueueWriter
from tiermq.tier.driver.retry import CircuitBreaker
from tiermq.tier.flat.flat_file_store import FlatFileStore
from tiermq.tier.flat.flat_message_file import FlatMessageFile
from tiermq.tier.flat.flat_segment import AppendStatus
from tiermq.tier.index.index_request import PutOutcome
from tiermq.tier.metadata.manifest import ManifestCause
from tiermq.tier.metadata.metadata_values import Gap as RecordedGap
from tiermq.tier.names import QueueName
from tiermq.tier.queue.records import RecordBatch
from tiermq.tier.tier_metrics import DispatchMetrics

# execute: carry out a plan for one queue. The same code for the embedded engine and for jobs.
#
#     Upload       collect ── commit log ── consume queue ── metadata ── index
#     RetryCommit            commit log ── consume queue ── metadata ── index      (the missing steps)
#
# The index comes last and gets every committed record, in order, once: a batch leaves `file.committed` only when the
# index has all of it. After a crash the index reads the records that it missed.
# The caller owns the queue (its epoch), holds no locks, and calls from one thread at a time per queue.


class IndexSink(Protocol):
    """Where keys go: `tiermq.tier.index.index_store.IndexStore`."""

    def put_batch(self, batch: RecordBatch, topic: str, topic_id: int, queue_id: int) -> PutOutcome: ...


class NoIndex:
    """For a tier without a key index (messageIndexEnable = false)."""

    def put_batch(self, _batch: RecordBatch, _topic: str, _topic_id: int, _queue_id: int) -> PutOutcome:
        return PutOutcome.SUCCESS


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a plan. Not `done`: the back end was out of reach, and the same can be tried again."""

    done: bool = True
    messages: int = 0  # Committed by this, retried ones included.
    bytes: int = 0
    rolled: int = 0  # Segments that were begun.
    gap: RecordedGap | None = None
    empty: bool = False  # There was nothing to collect after all.
    error: TierUnavailable | None = None


def execute(plan: Plan, file: FlatMessageFile, source: RecordReader, index: IndexSink) -> Outcome:
    """Raises TierError when repeating would not help, and the errors of the local store and of the index."""
    with file.lock:
        before, segments, log_end = file.commit_offset, _segment_count(file), file.log.commit_offset
        gap, empty = None, False
        if isinstance(plan, Nothing | Hold):
            return Outcome()
        if isinstance(plan, Init):
            file.init(plan.offset)
            return Outcome()
        file.recover()
        if isinstance(plan, Upload):
            done, empty = _upload(plan, file, source)
        elif isinstance(plan, Gap):
            gap = file.skip_to(plan.to_offset, plan.reason)
            done = gap is not None
        elif isinstance(plan, Roll):
            done = file.roll_log()
        else:
            assert isinstance(plan, RetryCommit)
            done = file.commit()
        feed_index(file, index)
        return Outcome(
            done=done,
            messages=0 if gap is not None else file.commit_offset - before,
            bytes=file.log.commit_offset - log_end,
            rolled=_segment_count(file) - segments,
            gap=gap,
            empty=empty,
            error=None if done else _last_error(file),
        )


def _upload(plan: Upload, file: FlatMessageFile, source: RecordReader) -> tuple[bool, bool]:
    """Whether it is done, and whether there was nothing to do."""
    if file.append_offset != plan.offset:
        return file.commit(), False  # Recovery found messages that the plan lacks; plan again.
    queue = file.queue
    found = source.collect(
        queue.topic, queue.queue_id, plan.offset, plan.max_count, plan.max_bytes, file.log.append_offset
    )
    return file.write(found), found.count == 0


def feed_index(file: FlatMessageFile, index: IndexSink) -> bool:
    """Give the index every committed record that it has not got; False when it takes no more. Raises DiskFull."""
    with file.lock:
        while file.committed:
            if not _feed_batch(file.committed[0], file, index):
                return False
            del file.committed[0]
    return True


def _feed_batch(batch: RecordBatch, file: FlatMessageFile, index: IndexSink) -> bool:
    outcome = index.put_batch(batch, file.queue.topic, file.topic.id, file.queue.queue_id)
    return outcome is not PutOutcome.SHUTDOWN


def _segment_count(file: FlatMessageFile) -> int:
    return len(file.log.segments) + len(file.units.segments)


def _last_error(file: FlatMessageFile) -> TierUnavailable | None:
    return file.log.last.last_error or file.units.last.last_error


_log = logging.getLogger(__name__)


class StepSchedule(Protocol):
    """The engine as a step uses it: notes for later, and limits."""

    @property
    def batch_factor(self) -> int:
        """How many times larger than usual the batch of a step may be."""
        ...

    def look_again(self, run: QueueDispatchState, at_ms: int) -> None:
        """Schedule another step of the queue at that time."""

    def push(self, names: Iterable[QueueName]) -> None:
        """Make those queues ready for a step."""

    def uploaded(self, name: QueueName, commit_offset: int) -> None:
        """The tier now has the queue up to that offset."""


class _NotTried(Exception):
    """The circuit breaker refused the request."""


class DispatchStep:
    """See the module."""

    def __init__(
        self,
        files: FlatFileStore,
        source: LocalSource,
        writer: QueueWriter,
        index: IndexSink,
        topic_filter: TopicFilter,
        config: DispatchConfig,
        back_off: BackOff,
        breaker: CircuitBreaker,
        budget: MemoryBudget,
        metrics: DispatchMetrics,
        clock: Clock,
        chance: Callable[[], float],
        schedule: StepSchedule,
        bundles: BundleStep | None = None,
    ) -> None:
        self._files = files
        self._source = source
        self._writer = writer
        self._index = index
        self._filter = topic_filter
        self._config = config
        self._back_off = back_off
        self._breaker = breaker
        self._budget = budget
        self._metrics = metrics
        self._clock = clock
        self._chance = chance
        self._schedule = schedule
        self._bundles = bundles
        self.asked = 0  # How often the circuit breaker was asked.

    def take(self, run: QueueDispatchState) -> bool:
        """Run one step; True when the queue is ready for another."""
        run.woken = False
        now_ms = self._clock.now_ms()
        if run.fenced or self._filter.is_filtered(run.name[0]):
            return False
        if now_ms < run.retry_at_ms:
            if not run.due_ms:
                self._schedule.look_again(run, run.retry_at_ms)
            return False
        run.due_ms = 0
        try:
            return self._visit(run, now_ms)
        except _NotTried:
            return True  # It keeps its place in the line until the back end is there again.
        except StaleWriter as error:
            run.fenced, run.epoch = str(error), 0
            run.forked_at = error.offset if isinstance(error, ForkedHistory) else -1
            self._metrics.failed("fenced")
            _log.error("queue %s-%d is no longer written by this process: %s", *run.name, error)
        except StoreClosed as error:
            self._fail(run, "closed", error)
        except TierUnavailable as error:
            self._fail(run, "unavailable", error)
        except TierError as error:
            self._give_up_pending(run)
            run.refused = True
            self._fail(run, "refused", error)
        except TierMQError as error:
            self._fail(run, "local", error)
        except Exception as error:  # noqa: BLE001 - a worker's outermost edge; one queue must not stop the rest
            _log.exception("queue %s-%d: a dispatch step failed with an unexpected error", *run.name)
            self._give_up_pending(run)
            self._fail(run, "unexpected", error)
        return False

    def write_bundle(self, held_topics: Collection[str]) -> bool:
        """Write what waits of quiet queues as one object; False when there is nothing, or not now. Any thread."""
        if self._bundles is None:
            return False

        def ask(request: Callable[[], None]) -> bool:
            try:
                self._asking(request)
            except _NotTried:
                return False
            return True

        return self._bundles.write(ask, self._schedule.push, held_topics)

    def _visit(self, run: QueueDispatchState, now_ms: int) -> bool:
        if run.is_packed:
            return False  # Its step follows when the bundle is written.
        file = self._files.find(*run.name)
        local = self._source.state(*run.name, -1 if file is None else file.append_offset)
        if file is None:
            if local is None or local.next_offset is None:
                return False
            file = self._files.find_or_create(*run.name)
        if (not file.recovered or not run.epoch) and self._writer.may_write():
            known_end = file.append_offset
            self._asking(lambda: self._prepare(run, file))
            if file.append_offset != known_end:
                local = self._source.state(*run.name, file.append_offset)
        decided = self._plan(run, file, local, now_ms)
        if isinstance(decided, Init):  # Only rows: the queue's first batch follows in the same step.
            begin = decided
            self._asking(lambda: execute(begin, file, self._source, self._index))
            decided = self._plan(run, file, local, now_ms)
        if isinstance(decided, Nothing | Hold):
            self._rest(run, file, decided)
            return self._write_due_manifest(run, file, now_ms)
        if isinstance(decided, Upload) and not self._budget.take(run.name, decided.max_bytes):
            return False  # The release of memory makes this queue ready again.
        if isinstance(decided, Upload) and self._pack(run, file, decided, local):
            return False
        try:
            outcome = self._asking(lambda: execute(decided, file, self._source, self._index))
        finally:
            run.commit_offset = file.commit_offset
            self._settle_memory(run, file)
        self._note(run, file, outcome)
        if not outcome.done:
            raise outcome.error or TierUnavailable(f"{file.queue.logical_path}: a commit did not succeed")
        run.worked()
        self._write_due_manifest(run, file, now_ms)
        if outcome.empty:
            self._schedule.look_again(run, now_ms + self._back_off.first_ms)
        return not outcome.empty

    def _pack(self, run: QueueDispatchState, file: FlatMessageFile, decided: Upload, local: LocalState | None) -> bool:
        """Let a small upload wait for the next bundle; False when the queue is to write its own objects."""
        if self._bundles is None or local is None or local.backlog_bytes > QUIET_BYTES_MAX:
            return False
        with file.lock:
            file.recover()
            if file.append_offset != decided.offset or file.pending_bytes:
                return False
            found = self._source.collect(
                *run.name, decided.offset, decided.max_count, decided.max_bytes, file.log.append_offset
            )
            if not found.count or len(found.data) > QUIET_BYTES_MAX:
                return False
            if file.append(found) is not AppendStatus.SUCCESS:
                return False
        self._settle_memory(run, file)
        run.is_bundled = True
        self._bundles.add(run, file)
        return True

    def _prepare(self, run: QueueDispatchState, file: FlatMessageFile) -> None:
        """Own the queue, then read its end: in the reverse order another writer could still move the end."""
        epoch = self._writer.own(file)
        if epoch:
            file.recover()
            run.commit_offset = file.commit_offset
            require_same_history(file, self._source)
            if self._writer.is_manifest_wrong(file):
                run.causes.add(ManifestCause.START)
        run.epoch = epoch  # Last: after a failed comparison the next step compares again.

    def _plan(self, run: QueueDispatchState, file: FlatMessageFile, local: LocalState | None, now_ms: int) -> Plan:
        last = None if file.log.is_empty else file.log.last
        state = QueueState(
            initialised=file.initialised,
            commit_offset=file.commit_offset,
            append_offset=file.append_offset,
            epoch=run.epoch if self._writer.may_write() else 0,
            unindexed=bool(file.committed),
            log_bytes=0 if last is None else last.append_position,
            log_created_ms=0 if last is None else last.created_ms,
        )
        decided = plan(state, local, self._config, now_ms, force=file.append_offset < run.force_to)
        factor = self._schedule.batch_factor
        if factor > 1 and isinstance(decided, Upload) and local is not None:
            most = min(local.max_offset - decided.offset, factor * self._config.group_commit_count)
            decided = replace(decided, max_count=most, max_bytes=factor * decided.max_bytes)
        return decided

    def _rest(self, run: QueueDispatchState, file: FlatMessageFile, decided: Nothing | Hold) -> None:
        run.commit_offset = file.commit_offset
        before, run.trouble = run.trouble, ""
        if isinstance(decided, Hold):
            until_ms = decided.until_ms if self._bundles is None else self._bundles.aligned(decided.until_ms)
            self._schedule.look_again(run, until_ms)
        elif decided.reason is Reason.AHEAD_OF_LOCAL:
            run.trouble = decided.reason.value
            if before != run.trouble:  # Every put triggers a step of the queue.
                self._metrics.failed("ahead")
                _log.warning("queue %s-%d: %s; nothing is copied until that is ahead", *run.name, decided.reason.value)

    def _asking(self, ask: Callable[[], Outcome | None]) -> Outcome:
        """Send a request to the tier through the circuit breaker."""
        self.asked += 1
        permission = self._breaker.admit()
        if permission is None:
            raise _NotTried
        try:
            outcome = ask() or Outcome()
        except TierUnavailable:
            self._breaker.failed(permission)
            raise
        except BaseException:
            self._breaker.answered(permission)
            raise
        if outcome.done:
            self._breaker.answered(permission)
        else:
            self._breaker.failed(permission)
        return outcome

    def _note(self, run: QueueDispatchState, file: FlatMessageFile, outcome: Outcome) -> None:
        if outcome.messages:
            self._metrics.dispatched(*run.name, outcome.messages, outcome.bytes)
            run.average_bytes = outcome.bytes / outcome.messages
            was_bundled, run.is_bundled = run.is_bundled, False
            if is_manifest_behind(run, outcome.bytes, is_bundled=was_bundled):
                run.causes.add(ManifestCause.COMMIT)
            self._schedule.uploaded(run.name, file.commit_offset)
        if outcome.rolled:
            run.causes.add(ManifestCause.ROLL)
            self._writer.note_unsealed(file)
        if outcome.gap is not None:
            run.causes.add(ManifestCause.GAP)
            self._metrics.gaps.add()
            self._metrics.gap_messages.add(outcome.gap.to_offset - outcome.gap.from_offset)
            _log.error("queue %s-%d has a gap in the tier: %r", *run.name, outcome.gap)

    def _write_due_manifest(self, run: QueueDispatchState, file: FlatMessageFile, now_ms: int) -> bool:
        due_ms = self._writer.manifest_due_ms(run)
        if due_ms is None or not run.epoch:
            return False
        if due_ms > now_ms:
            if not run.due_ms:
                self._schedule.look_again(run, due_ms)
            return False
        self._asking(lambda: self._writer.write_manifest(run, file.queue))
        return False

    # Failing

    def _fail(self, run: QueueDispatchState, kind: str, error: BaseException) -> None:
        run.failures += 1
        run.trouble = str(error)
        rest_ms = self._back_off.rest_ms(run.failures, self._chance())
        run.retry_at_ms = self._clock.now_ms() + rest_ms
        self._metrics.failed(kind)
        level = logging.WARNING if kind == "unavailable" else logging.ERROR
        _log.log(level, "queue %s-%d rests for %d ms after failure %d: %s", *run.name, rest_ms, run.failures, error)
        self._schedule.look_again(run, run.retry_at_ms)

    def _settle_memory(self, run: QueueDispatchState, file: FlatMessageFile) -> None:
        """Keep what a failed commit left in memory only while there is plenty of memory."""
        if file.pending_bytes and self._budget.used_bytes * 2 > self._budget.limit_bytes:
            file.discard_pending()
        held = file.pending_bytes + sum(len(batch.data) for batch in file.committed)
        freed = self._budget.settle(run.name, held)
        if freed:
            self._schedule.push(freed)

    def _give_up_pending(self, run: QueueDispatchState) -> None:
        file = self._files.find(*run.name)
        if file is not None:
            file.discard_pending()
            self._schedule.push(self._budget.settle(run.name, 0))
