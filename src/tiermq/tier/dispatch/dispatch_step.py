"""QueueTurn: one turn of one queue, from looking at it to knowing what became of it.

    look ─► own and recover, once ─► plan ─► execute ─► manifest, when it is due
              └──────── under the circuit breaker's eyes ────────┘

Whatever fails is settled here: the queue rests, longer each time, and says why; a writer that was fenced stops for
good. Nothing that goes wrong with one queue reaches another one.
Threads: any, but one at a time for each queue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from tiermq.clock import Clock
from tiermq.errors import ForkedHistory, StaleWriter, StoreClosed, TierError, TierMQError, TierUnavailable
from tiermq.tier.dispatch.dispatch_metrics import DispatchMetrics
from tiermq.tier.dispatch.execute import IndexSink, Outcome, execute
from tiermq.tier.dispatch.local_source import LocalSource
from tiermq.tier.dispatch.plan import (
    DispatchConfig,
    Hold,
    Init,
    LocalState,
    Nothing,
    Plan,
    QueueState,
    Reason,
    Upload,
    plan,
)
from tiermq.tier.dispatch.queue_run import BackOff, MemoryBudget, QueueRun
from tiermq.tier.dispatch.same_history import require_same_history
from tiermq.tier.dispatch.topic_filter import TopicFilter
from tiermq.tier.dispatch.turns import QueueName
from tiermq.tier.dispatch.writer import QueueWriter
from tiermq.tier.driver.circuit_breaker import CircuitBreaker
from tiermq.tier.flat.flat_file_store import FlatFileStore
from tiermq.tier.flat.flat_message_file import FlatMessageFile
from tiermq.tier.metadata.manifest_policy import ManifestCause

_log = logging.getLogger(__name__)


class Agenda(Protocol):
    """Where a turn leaves word for later, and hears how large it may be."""

    @property
    def batch_factor(self) -> int:
        """How many times larger than usual the batch of a turn may be."""
        ...

    def look_again(self, run: QueueRun, at_ms: int) -> None:
        """Give the queue another turn at that time."""

    def push(self, names: Iterable[QueueName]) -> None:
        """Give those queues a turn as soon as it is theirs."""

    def uploaded(self, name: QueueName, commit_offset: int) -> None:
        """Hear that the tier now has the queue up to that offset."""


class _NotTried(Exception):
    """The circuit breaker let nobody through."""


class QueueTurn:
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
        agenda: Agenda,
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
        self._agenda = agenda
        self.asked = 0  # How often the circuit breaker was asked, with whatever answer.

    def take(self, run: QueueRun) -> bool:
        """One turn; True when the queue should stand in line again."""
        run.woken = False
        now_ms = self._clock.now_ms()
        if run.fenced or self._filter.is_filtered(run.name[0]):
            return False
        if now_ms < run.retry_at_ms:
            if not run.due_ms:
                self._agenda.look_again(run, run.retry_at_ms)
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
        except Exception as error:  # noqa: BLE001 - a worker's outermost edge; one queue must not end the others' turns
            _log.exception("queue %s-%d: a turn failed in a way that nobody thought of", *run.name)
            self._give_up_pending(run)
            self._fail(run, "unexpected", error)
        return False

    def _visit(self, run: QueueRun, now_ms: int) -> bool:
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
        if isinstance(decided, Init):  # Only rows: the queue's first batch goes in the same turn.
            begin = decided
            self._asking(lambda: execute(begin, file, self._source, self._index))
            decided = self._plan(run, file, local, now_ms)
        if isinstance(decided, Nothing | Hold):
            self._rest(run, file, decided)
            return self._write_due_manifest(run, file, now_ms)
        if isinstance(decided, Upload) and not self._budget.take(run.name, decided.max_bytes):
            return False  # Whoever gives memory back brings this queue into the line again.
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
            self._agenda.look_again(run, now_ms + self._back_off.first_ms)
        return not outcome.empty

    def _prepare(self, run: QueueRun, file: FlatMessageFile) -> None:
        """Own the queue, then know where it ends: the other way round somebody could still move the end."""
        epoch = self._writer.own(file)
        if epoch:
            file.recover()
            run.commit_offset = file.commit_offset
            require_same_history(file, self._source)
            if self._writer.is_manifest_wrong(file):
                run.causes.add(ManifestCause.START)
        run.epoch = epoch  # Last: what could not be compared is compared at the next turn.

    def _plan(self, run: QueueRun, file: FlatMessageFile, local: LocalState | None, now_ms: int) -> Plan:
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
        factor = self._agenda.batch_factor
        if factor > 1 and isinstance(decided, Upload) and local is not None:
            most = min(local.max_offset - decided.offset, factor * self._config.group_commit_count)
            decided = replace(decided, max_count=most, max_bytes=factor * decided.max_bytes)
        return decided

    def _rest(self, run: QueueRun, file: FlatMessageFile, decided: Nothing | Hold) -> None:
        run.commit_offset = file.commit_offset
        before, run.trouble = run.trouble, ""
        if isinstance(decided, Hold):
            self._agenda.look_again(run, decided.until_ms)
        elif decided.reason is Reason.AHEAD_OF_LOCAL:
            run.trouble = decided.reason.value
            if before != run.trouble:  # Every put looks at the queue again.
                self._metrics.failed("ahead")
                _log.warning("queue %s-%d: %s; nothing is copied", *run.name, decided.reason.value)

    def _asking(self, ask: Callable[[], Outcome | None]) -> Outcome:
        """Ask something of the tier under the circuit breaker's eyes."""
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

    def _note(self, run: QueueRun, file: FlatMessageFile, outcome: Outcome) -> None:
        if outcome.messages:
            self._metrics.dispatched(*run.name, outcome.messages, outcome.bytes)
            run.average_bytes = outcome.bytes / outcome.messages
            run.causes.add(ManifestCause.COMMIT)
            self._agenda.uploaded(run.name, file.commit_offset)
        if outcome.rolled:
            run.causes.add(ManifestCause.ROLL)
            self._writer.note_unsealed(file)
        if outcome.gap is not None:
            run.causes.add(ManifestCause.GAP)
            self._metrics.gaps.add()
            self._metrics.gap_messages.add(outcome.gap.to_offset - outcome.gap.from_offset)
            _log.error("queue %s-%d has a gap in the tier: %r", *run.name, outcome.gap)

    def _write_due_manifest(self, run: QueueRun, file: FlatMessageFile, now_ms: int) -> bool:
        due_ms = self._writer.manifest_due_ms(run)
        if due_ms is None or not run.epoch:
            return False
        if due_ms > now_ms:
            if not run.due_ms:
                self._agenda.look_again(run, due_ms)
            return False
        self._asking(lambda: self._writer.write_manifest(run, file))
        return False

    # Failing

    def _fail(self, run: QueueRun, kind: str, error: BaseException) -> None:
        run.failures += 1
        run.trouble = str(error)
        rest_ms = self._back_off.rest_ms(run.failures, self._chance())
        run.retry_at_ms = self._clock.now_ms() + rest_ms
        self._metrics.failed(kind)
        level = logging.WARNING if kind == "unavailable" else logging.ERROR
        _log.log(level, "queue %s-%d rests for %d ms after failure %d: %s", *run.name, rest_ms, run.failures, error)
        self._agenda.look_again(run, run.retry_at_ms)

    def _settle_memory(self, run: QueueRun, file: FlatMessageFile) -> None:
        """Keep what a failed commit left in memory only while there is plenty of room."""
        if file.pending_bytes and self._budget.used_bytes * 2 > self._budget.limit_bytes:
            file.discard_pending()
        held = file.pending_bytes + sum(len(batch.data) for batch in file.committed)
        freed = self._budget.settle(run.name, held)
        if freed:
            self._agenda.push(freed)

    def _give_up_pending(self, run: QueueRun) -> None:
        file = self._files.find(*run.name)
        if file is not None:
            file.discard_pending()
            self._agenda.push(self._budget.settle(run.name, 0))
