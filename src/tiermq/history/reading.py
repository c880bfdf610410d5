"""Tasks become records in memory: runs of a few MiB, in the order of the queue, each message once.

    units ─► which of them are wanted ─► ranges of the log, neighbours joined ─► bytes ─► records checked by their units

Cold ranges are read through the driver, the next one already on its way where the tier is far. Hot records are not
read at all: a run is a view of the mapped file. A file that the broker has deleted since the plan was made is read from
the tier instead; a segment that went (expired, or merged) is looked up again. Only what is nowhere is a loss.

Nothing damaged becomes a row: a unit that points nowhere, and a record that is not the one of its unit, are losses of
reason CORRUPT. They are told to `on_loss`, or raised as DataLoss when the task says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tiermq.errors import IllegalRange, SegmentMissing
from tiermq.history.cold_queues import find_cold_queue
from tiermq.history.cold_reading import ColdReader
from tiermq.history.hot_reading import HotReader, Missing
from tiermq.history.losses import data_loss
from tiermq.history.open_history import OpenHistory
from tiermq.history.scan_values import Loss, LossReason, RecordRun, ScanCounters, ScanTask, SegmentSpan, Side

OnLoss = Callable[[Loss], None]
LOOKS_MAX = 3


def read_task(
    history: OpenHistory, task: ScanTask, counters: ScanCounters, on_loss: OnLoss | None = None
) -> Iterator[RecordRun]:
    """The records of a task. Rows are still to be filtered by `task.request`.

    Raises DataLoss when something is missing and `task.loss_is_error`; otherwise `on_loss` is told. Raises what the
    driver raises when it cannot answer.
    """
    return _TaskReading(history, task, counters, on_loss).runs()


class _TaskReading:
    """One task under way. `at` is the queue offset behind everything that was given or lost."""

    def __init__(self, history: OpenHistory, task: ScanTask, counters: ScanCounters, on_loss: OnLoss | None) -> None:
        self.history = history
        self.task = task
        self.counters = counters
        self.on_loss = on_loss

    def runs(self) -> Iterator[RecordRun]:
        if self.task.side is Side.HOT:
            yield from self._hot_runs()
        else:
            yield from self._cold_runs(self.task.from_offset, self.task.unit_spans, self.task.log_spans)

    def lose(self, loss: Loss) -> None:
        if self.task.loss_is_error:
            raise data_loss([loss])
        if self.on_loss is not None:
            self.on_loss(loss)

    def _hot_runs(self) -> Iterator[RecordRun]:
        missing: Missing | None = None
        for step in HotReader(self.history, self.task, self.counters, self.lose).steps():
            if isinstance(step, Missing):
                # Files of units and of records end at different messages: what is missing comes in pieces.
                missing = step if missing is None else Missing(missing.begin, step.end)
                continue
            if missing is not None:
                yield from self._instead(*missing)
                missing = None
            yield step
        if missing is not None:
            yield from self._instead(*missing)

    def _instead(self, begin: int, end: int) -> Iterator[RecordRun]:
        """Read from the tier what the store has lost since the plan was made."""
        task = self.task
        cold = None
        if self.history.has_tier:
            cold = find_cold_queue(self.history.tier, task.queue, self.history.clock.now_ms())
        low = begin if cold is None else max(begin, min(cold.min_offset, end))
        high = begin if cold is None else max(low, min(cold.max_offset, end))
        detail = "deleted from the store since the scan was planned, and not in the tier"
        if cold is None or low >= high:
            self.lose(Loss(task.queue, begin, end, LossReason.EXPIRED, detail))
            return
        if begin < low:
            self.lose(Loss(task.queue, begin, low, LossReason.EXPIRED, detail))
        units = tuple(SegmentSpan.of(segment) for segment in cold.units)
        logs = tuple(SegmentSpan.of(segment) for segment in cold.logs)
        yield from self._cold_runs(low, units, logs, high)
        if high < end:
            self.lose(Loss(task.queue, high, end, LossReason.EXPIRED, detail))

    def _cold_runs(
        self,
        begin: int,
        unit_spans: tuple[SegmentSpan, ...],
        log_spans: tuple[SegmentSpan, ...],
        end: int | None = None,
    ) -> Iterator[RecordRun]:
        end = self.task.to_offset if end is None else end
        next_place = 0
        for look in range(1, LOOKS_MAX + 1):
            reader = ColdReader(self.history, self.task, self.counters, self.lose, unit_spans, log_spans)
            reader.next_place = next_place
            try:
                yield from reader.runs(begin, end)
                return
            except (SegmentMissing, IllegalRange):
                if look == LOOKS_MAX:
                    raise
            # It expired or was merged since the plan was made: look where things are now.
            begin, next_place = reader.next_offset, reader.next_place
            cold = find_cold_queue(self.history.tier, self.task.queue, self.history.clock.now_ms())
            low = end if cold is None else min(max(begin, cold.min_offset), end)
            if begin < low:
                detail = "gone from the tier since the scan was planned"
                self.lose(Loss(self.task.queue, begin, low, LossReason.EXPIRED, detail))
            if cold is None or low >= end:
                return
            begin = low
            unit_spans = tuple(SegmentSpan.of(segment) for segment in cold.units)
            log_spans = tuple(SegmentSpan.of(segment) for segment in cold.logs)
