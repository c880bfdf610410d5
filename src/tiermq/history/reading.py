"""Reads tasks into memory: runs of records of a few MiB, in the order of the queue, each message once.

    units ─► wanted ones ─► ranges of the log, neighbours joined ─► bytes ─► records checked against their units

Cold ranges are read through the driver, with read-ahead where the tier is remote (`ColdReader`). Hot records are not
copied: a run is a view of the mapped file (`HotReader`). A file that the broker has deleted since the plan was made is
read from the tier instead; a segment that is missing (expired, or merged) is looked up again. Messages that neither has
are a loss.

Nothing damaged becomes a row: a unit without a record, and a record that does not match its unit, are losses of
reason CORRUPT. They are passed to `on_loss`, or raised as DataLoss if the task requires it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from tiermq.errors import IllegalRange, SegmentMissing
from tiermq.history.cold_queues import find_cold_queue
from tiermq.history.cold_reading import ColdReader
from tiermq.history.open_history import OpenHistory
from tiermq.history.scan_values import (
    Loss,
    LossReason,
    RecordRun,
    ScanCounters,
    ScanTask,
    SegmentSpan,
    Side,
    corrupt,
    data_loss,
)
from tiermq.message.topic_name import is_light_queue
from tiermq.store.readonly.store import LogPiece, ReadOnlyStore
from tiermq.tier.queue.unit_array import (
    Bools,
    UnitArray,
    claimed_offsets,
    decode_units,
    locate,
    units_of_locations,
    wanted_by_tags,
)

RUN_RECORDS = 16_384
"""Records of one run at most; they are then decoded in batches."""


class Missing(NamedTuple):
    """Queue offsets [begin, end) that the broker deleted from the store since the plan, to be read from the tier."""

    begin: int
    end: int


class HotReader:
    """The hot side of a task. Used once."""

    def __init__(
        self, history: OpenHistory, task: ScanTask, counters: ScanCounters, lose: Callable[[Loss], None]
    ) -> None:
        self._task = task
        self._counters = counters
        self._lose = lose
        assert task.store is not None, "a hot task names its store"
        self._store: ReadOnlyStore = history.store(task.store.path)
        self._is_exact = False

    def steps(self) -> Iterator[RecordRun | Missing]:
        """Records, and missing ranges between them, in the order of the queue."""
        task, queue = self._task, self._task.queue
        self._is_exact = task.places is not None and all(self._store.log_file(at.log_offset) for at in task.places)
        if task.places is not None and self._is_exact:
            yield from self._steps(units_of_locations(task.places))
            return
        # The whole range is read when an offset is deleted: the tier does not know offsets of a store's log.
        if self._store.bounds(queue.topic, queue.queue_id)[1] < task.to_offset:
            self._store.refresh()  # This process read the bounds before the messages of this task were put.
        at = task.from_offset
        for piece in self._store.unit_pieces(queue.topic, queue.queue_id, at, task.to_offset, RUN_RECORDS):
            if at < piece.first_offset:
                yield Missing(at, piece.first_offset)
            units = decode_units(piece.data, piece.first_offset)
            at = piece.first_offset + len(units)
            sound = units.is_sound
            self._lose_units(units, ~sound & ~units.is_blank, "the unit points at no record")
            units = units.choose(sound)
            yield from self._steps(units.choose(wanted_by_tags(units, task.request.tags)))
        if at < task.to_offset:
            yield Missing(at, task.to_offset)

    def _steps(self, units: UnitArray) -> Iterator[RecordRun | Missing]:
        """The records of units, by file of the log."""
        first = 0
        while first < len(units):
            piece = self._store.log_file(int(units.log_offsets[first]))
            if piece is None:
                # Missing up to the first unit whose file exists: older files were deleted.
                behind = first + 1
                while behind < len(units) and self._store.log_file(int(units.log_offsets[behind])) is None:
                    behind += 1
                if not self._is_exact:
                    yield Missing(int(units.queue_offsets[first]), int(units.queue_offsets[behind - 1]) + 1)
            else:
                starts = units.log_offsets[first:] - piece.base
                inside = (starts >= 0) & (starts < len(piece.data))
                behind = first + (int(np.argmin(inside)) if not inside.all() else len(inside))
                run = self._run(units.choose(slice(first, behind)), piece)
                if run is not None:
                    yield run
            first = behind

    def _run(self, units: UnitArray, piece: LogPiece) -> RecordRun | None:
        task, queue = self._task, self._task.queue
        is_exact = self._is_exact
        is_light = is_light_queue(queue.topic)
        queue_id = None if is_light else queue.queue_id
        starts, good = locate(units, piece.data, piece.base, queue_id, trust_offsets=is_exact or is_light)
        if is_exact:
            # An index gives candidates: a record of another queue or range is not part of the task.
            offsets = claimed_offsets(piece.data, starts, good)
            good &= (offsets >= task.from_offset) & (offsets < task.to_offset)
        else:
            self._lose_units(units, ~good, "the record is not the one of its unit")
        if not good.any():
            return None
        sizes = units.sizes[good]
        self._counters.rows_read += len(sizes)
        self._counters.bytes_read += int(sizes.sum())
        self._counters.hot_bytes_read += int(sizes.sum())
        delays_ms = self._store.delays_ms
        return RecordRun(queue, Side.HOT, piece.data, starts[good], sizes, piece.base, piece.name, delays_ms=delays_ms)

    def _lose_units(self, units: UnitArray, bad: Bools, why: str) -> None:
        for begin, end in units.runs(bad):
            self._lose(corrupt(self._task.queue, begin, end, why))


OnLoss = Callable[[Loss], None]
LOOKS_MAX = 3


def read_task(
    history: OpenHistory, task: ScanTask, counters: ScanCounters, on_loss: OnLoss | None = None
) -> Iterator[RecordRun]:
    """The records of a task. Rows are still to be filtered by `task.request`.

    Raises DataLoss when something is missing and `task.loss_is_error`; otherwise calls `on_loss`. Raises what the
    driver raises when it cannot answer.
    """
    return _TaskReading(history, task, counters, on_loss).runs()


class _TaskReading:
    """The state of one task."""

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
                # Files of units and of records end at different messages, so a missing range comes in parts: join them.
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
        next_log_offset = 0
        for look in range(1, LOOKS_MAX + 1):
            reader = ColdReader(self.history, self.task, self.counters, self.lose, unit_spans, log_spans)
            reader.next_log_offset = next_log_offset
            try:
                yield from reader.runs(begin, end)
                return
            except (SegmentMissing, IllegalRange):
                if look == LOOKS_MAX:
                    raise
            # It expired or was merged since the plan was made: look the queue up again.
            begin, next_log_offset = reader.next_offset, reader.next_log_offset
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
