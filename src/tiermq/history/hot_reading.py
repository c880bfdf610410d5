"""The hot side of a task: records where they lie in the mapped files of a store's commit log. Nothing is copied.

What the broker deleted since the plan was made is given as a range in its place, for the tier to answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from tiermq.history.hot_store import HotStore, LogPiece
from tiermq.history.losses import corrupt
from tiermq.history.open_history import OpenHistory
from tiermq.history.scan_values import Loss, RecordRun, ScanCounters, ScanTask, Side
from tiermq.history.unit_array import (
    Bools,
    UnitArray,
    claimed_offsets,
    decode_units,
    locate,
    units_of_places,
)
from tiermq.history.wanted_units import wanted_by_tags
from tiermq.message.topic_name import is_light_queue

RUN_RECORDS = 16_384
"""Records of one run at most; what they hold is then decoded in batches."""


class Missing(NamedTuple):
    """Queue offsets [begin, end) that the store does not have any more."""

    begin: int
    end: int


class HotReader:
    """Reads one task once."""

    def __init__(
        self, history: OpenHistory, task: ScanTask, counters: ScanCounters, lose: Callable[[Loss], None]
    ) -> None:
        self._task = task
        self._counters = counters
        self._lose = lose
        assert task.store is not None, "a hot task names its store"
        self._store: HotStore = history.store(task.store.path)
        self._is_exact = False

    def steps(self) -> Iterator[RecordRun | Missing]:
        """Records, and what is missing between them, in the order of the queue."""
        task, queue = self._task, self._task.queue
        self._is_exact = task.places is not None and all(self._store.log_file(at.log_offset) for at in task.places)
        if task.places is not None and self._is_exact:
            yield from self._steps(units_of_places(task.places))
            return
        # The whole range is read when a place is gone: the tier knows nothing of places in a store's log.
        if self._store.bounds(queue.topic, queue.queue_id)[1] < task.to_offset:
            self._store.refresh()  # This process looked before the messages of this task were put.
        at = task.from_offset
        for piece in self._store.units(queue.topic, queue.queue_id, at, task.to_offset, RUN_RECORDS):
            if at < piece.first_offset:
                yield Missing(at, piece.first_offset)
            units = decode_units(piece.data, piece.first_offset)
            at = piece.first_offset + len(units)
            sound = units.is_sound
            self._tell(units, ~sound & ~units.is_blank, "the unit points at no record")
            units = units.choose(sound)
            yield from self._steps(units.choose(wanted_by_tags(units, task.request.tags)))
        if at < task.to_offset:
            yield Missing(at, task.to_offset)

    def _steps(self, units: UnitArray) -> Iterator[RecordRun | Missing]:
        """Units file by file of the log."""
        first = 0
        while first < len(units):
            piece = self._store.log_file(int(units.places[first]))
            if piece is None:
                # Missing as far as the log's files do not reach: the older ones were deleted.
                behind = first + 1
                while behind < len(units) and self._store.log_file(int(units.places[behind])) is None:
                    behind += 1
                if not self._is_exact:
                    yield Missing(int(units.queue_offsets[first]), int(units.queue_offsets[behind - 1]) + 1)
            else:
                inside = (units.places[first:] >= piece.base) & (units.places[first:] < piece.base + len(piece.data))
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
            # What an index says is a promise: a record that is of another queue or range is none of ours.
            offsets = claimed_offsets(piece.data, starts, good)
            good &= (offsets >= task.from_offset) & (offsets < task.to_offset)
        else:
            self._tell(units, ~good, "the record is not the one of its unit")
        if not good.any():
            return None
        sizes = units.sizes[good]
        self._counters.rows_read += len(sizes)
        self._counters.bytes_read += int(sizes.sum())
        self._counters.hot_bytes_read += int(sizes.sum())
        delays_ms = self._store.delays_ms
        return RecordRun(queue, Side.HOT, piece.data, starts[good], sizes, piece.base, piece.name, delays_ms=delays_ms)

    def _tell(self, units: UnitArray, bad: Bools, why: str) -> None:
        for begin, end in units.runs(bad):
            self._lose(corrupt(self._task.queue, begin, end, why))
