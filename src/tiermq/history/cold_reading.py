"""The cold side of a task: units and records through the driver, the next bytes on their way while these are used.

    units of 65,536 messages ─► wanted ones ─► ranges of the log: one segment, up to 4 MiB, small gaps read along

Blank units stand for nothing and are passed over; recorded gaps were told by the plan already.
Blocks whose checksum the tier's manifest knows are read whole and compared, for a record's own CRC covers its body
alone: every record of a bad one is a damaged row for whoever decodes it (`RecordRun.damage`, with the block in words),
whatever its own CRC; units of a bad one are lost. Not where bodies are left out of large records: there the heads and
tails are read without the blocks that they lie in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.history.bodiless import read_around_bodies
from tiermq.history.losses import corrupt
from tiermq.history.open_history import OpenHistory
from tiermq.history.scan_values import Loss, RecordRun, ScanCounters, ScanTask, SegmentSpan, Side
from tiermq.history.unit_array import (
    CODA_BYTES,
    Bools,
    Int64s,
    UnitArray,
    claimed_offsets,
    decode_units,
    locate,
    units_of_places,
)
from tiermq.history.wanted_units import wanted_by_tags
from tiermq.tier.block_sums import bad_block_words
from tiermq.tier.names import SegmentKey, SegmentType

UNITS_AT_ONCE = 65_536
RUN_BYTES = 4 << 20
GAP_BYTES = 64 << 10
"""Unwanted bytes between two records that are read along, because one request costs more than they do."""

LARGE_BYTES = 256 << 10
"""Records of this size and more are not read whole when nobody wants their bodies."""


_Read = tuple[memoryview, list[tuple[int, int]]]
"""Bytes, and the bad blocks that they touch, by begin and end in their segment."""


@dataclass(slots=True)
class _Range:
    """Bytes of one segment, and the units whose records lie in them."""

    span: SegmentSpan
    begin: int
    end: int
    units: UnitArray


class ColdReader:
    """Reads one task once. `next_offset` is where to go on when it was interrupted, `next_place` among exact places."""

    def __init__(
        self,
        history: OpenHistory,
        task: ScanTask,
        counters: ScanCounters,
        lose: Callable[[Loss], None],
        unit_spans: Sequence[SegmentSpan],
        log_spans: Sequence[SegmentSpan],
    ) -> None:
        self._history = history
        self._task = task
        self._counters = counters
        self._lose = lose
        self._unit_spans = sorted(unit_spans, key=lambda span: span.base)
        self._log_spans = sorted(log_spans, key=lambda span: span.base)
        self._log_bases = [span.base for span in self._log_spans]
        self._counting = threading.Lock()  # The thread that reads ahead counts too.
        self.next_offset = task.from_offset
        self.next_place = 0

    def runs(self, begin: int, end: int) -> Iterator[RecordRun]:
        """The records of [begin, end), or of the task's exact places."""
        self.next_offset = begin
        places = [place for place in self._task.places or () if place.log_offset >= self.next_place]
        is_exact = self._task.places is not None
        ranges = self._joined(units_of_places(places)) if is_exact else self._ranges(begin, end)
        for one, (data, bad) in self._read_ahead(ranges):
            run = self._run(one, data, bad)
            if run is not None:
                run.has_bodies = not self._skips_bodies(one)
            self.next_place = int(one.units.places[-1]) + 1
            if not is_exact:
                self.next_offset = int(one.units.queue_offsets[-1]) + 1
            if run is not None:
                self._counters.rows_read += len(run.starts)
                yield run

    # Which bytes

    def _ranges(self, begin: int, end: int) -> Iterator[_Range]:
        for span in self._unit_spans:
            at, stop = max(begin, span.base // UNIT_BYTES), min(end, span.end // UNIT_BYTES)
            while at < stop:
                count = min(UNITS_AT_ONCE, stop - at)
                key = self._task.queue.segment(SegmentType.CONSUME_QUEUE, span.base)
                data, bad = self._read_checked(key, span, at * UNIT_BYTES - span.base, count * UNIT_BYTES)
                units = decode_units(data, at)
                places = units.queue_offsets * UNIT_BYTES - span.base
                damaged = _touching(places, UNIT_BYTES, bad)
                sound = units.is_sound
                left = damaged.copy()  # A unit in two bad blocks is lost once.
                for block in bad:
                    told = left & _touching(places, UNIT_BYTES, [block])
                    left &= ~told
                    self._tell(units, told, f"of its unit {bad_block_words(*block)}")
                self._tell(units, ~sound & ~units.is_blank & ~damaged, "the unit points at no record")
                units = units.choose(sound & ~damaged)
                yield from self._joined(units.choose(wanted_by_tags(units, self._task.request.tags)))
                at += count

    def _joined(self, units: UnitArray) -> Iterator[_Range]:
        """Neighbouring records as ranges to read."""
        units, numbers = self._in_segments(units)
        if not len(units):
            return
        gaps = units.places[1:] - units.ends[:-1]
        # A record that does not lie behind the one before it is of a damaged unit, or that one is: they go apart.
        cuts: Int64s = np.flatnonzero((numbers[1:] != numbers[:-1]) | (gaps > GAP_BYTES) | (gaps < 0)) + 1
        for first, behind in pairwise([0, *cuts.tolist(), len(units)]):
            yield from self._pieces(units.choose(slice(first, behind)), int(numbers[first]))

    def _in_segments(self, units: UnitArray) -> tuple[UnitArray, Int64s]:
        """The units whose records lie within a segment, and the numbers of those segments; the others are damaged."""
        span_ends = np.array([span.end for span in self._log_spans] or [0], dtype=np.int64)
        numbers: Int64s = np.searchsorted(np.array(self._log_bases, dtype=np.int64), units.places, side="right") - 1
        outside = (numbers < 0) | (units.ends > span_ends[np.maximum(numbers, 0)])
        self._tell(units, outside, "the unit points out of the log's segments")
        # A size of gigabytes is not tried out when the next unit says that it is wrong.
        huge: Bools = np.zeros(len(units), dtype=bool)
        huge[:-1] = ~outside[:-1] & (units.sizes[:-1] > RUN_BYTES) & (units.ends[:-1] > units.places[1:])
        self._tell(units, huge, "the unit reaches into the next record")
        keep = ~outside & ~huge
        return units.choose(keep), numbers[keep]

    def _pieces(self, units: UnitArray, number: int) -> Iterator[_Range]:
        """A range cut to pieces of at most RUN_BYTES, but a record at least."""
        span = self._log_spans[number]
        ends = units.ends
        first = 0
        while first < len(units):
            begin = int(units.places[first])
            behind = max(first + 1, int(np.searchsorted(ends, begin + RUN_BYTES, side="right")))
            # A last record behind an end mark reaches a little farther than its unit says.
            end = min(int(ends[behind - 1]) + CODA_BYTES, span.end)
            yield _Range(span, begin, end, units.choose(slice(first, behind)))
            first = behind

    # Bytes

    def _read_checked(
        self, key: SegmentKey, span: SegmentSpan, position: int, length: int
    ) -> tuple[memoryview, list[tuple[int, int]]]:
        """Bytes of a segment, and the blocks of it, by begin and end in the segment, that are not what was written."""
        sums = span.sums
        if sums is None or position >= sums.size:
            return self._read(key, position, length), []
        low, high = sums.part(position, position + length)
        data = self._read(key, low, high - low)
        bad = sums.bad_blocks(data, low)
        if bad:  # Not from a cache: what is stored may be right.
            data = self._read(key, low, high - low, again=True)
            bad = sums.bad_blocks(data, low)
        return data[position - low : position - low + length], bad

    def _read(self, key: SegmentKey, position: int, length: int, *, again: bool = False) -> memoryview:
        tier = self._history.tier
        data = tier.reread(key, position, length) if again else tier.read(key, position, length)
        with self._counting:
            self._counters.requests += 1
            self._counters.bytes_read += length
            self._counters.cold_bytes_read += length
        return data

    def _skips_bodies(self, one: _Range) -> bool:
        """Whether what lies around the bodies is read alone: two small reads of each record instead of a long one."""
        return not self._task.request.include_body and one.end - one.begin >= LARGE_BYTES * len(one.units)

    def _read_range(self, one: _Range) -> _Read:
        key = self._task.queue.segment(SegmentType.COMMIT_LOG, one.span.base)
        if self._skips_bodies(one):
            read = partial(self._read, key)
            return read_around_bodies(read, one.units, one.begin, one.end, one.span.base), []
        return self._read_checked(key, one.span, one.begin - one.span.base, one.end - one.begin)

    def _read_ahead(self, ranges: Iterator[_Range]) -> Iterator[tuple[_Range, _Read]]:
        if not self._history.reads_ahead:
            for one in ranges:
                yield one, self._read_range(one)
            return
        pending: tuple[_Range, Future[_Read]] | None = None
        try:
            for one in ranges:
                following = (one, self._history.pool.submit(self._read_range, one))
                if pending is not None:
                    current, pending = pending, following
                    yield current[0], current[1].result()
                pending = following
            if pending is not None:
                current, pending = pending, None
                yield current[0], current[1].result()
        finally:
            if pending is not None:
                pending[1].cancel()

    # Records

    def _run(self, one: _Range, data: memoryview, bad: list[tuple[int, int]]) -> RecordRun | None:
        task, queue = self._task, self._task.queue
        is_exact = task.places is not None
        starts, good = locate(one.units, data, one.begin, queue.queue_id, trust_offsets=is_exact)
        damaged = _touching(one.units.places - one.span.base, one.units.sizes, bad)
        if is_exact:
            # What an index says is a promise: a record that is not there, or out of the range, is none of ours.
            offsets = claimed_offsets(data, starts, good)
            good &= (offsets >= task.from_offset) & (offsets < task.to_offset)
            if damaged.any():  # Which messages they are, and whether they have the keys, only their bytes would say.
                count = int(damaged.sum())
                self._lose(corrupt(queue, task.from_offset, task.from_offset + count, bad_block_words(*bad[0])))
                good &= ~damaged
        else:
            self._tell(one.units, ~good, "the record is not the one of its unit")
        if not good.any():
            return None
        segment = queue.segment(SegmentType.COMMIT_LOG, one.span.base)
        run = RecordRun(queue, Side.COLD, data, starts[good], one.units.sizes[good], one.begin, segment.path)
        for block in bad:
            touched = good & _touching(one.units.places - one.span.base, one.units.sizes, [block])
            for start in starts[touched].tolist():
                run.damage.setdefault(start, bad_block_words(*block))
        return run

    def _tell(self, units: UnitArray, bad: Bools, why: str) -> None:
        if self._task.places is None:
            for begin, end in units.runs(bad):
                self._lose(corrupt(self._task.queue, begin, end, why))


def _touching(starts: Int64s, sizes: Int64s | int, bad: list[tuple[int, int]]) -> Bools:
    """Which of these ranges of a segment have a byte in a bad block."""
    found: Bools = np.zeros(len(starts), dtype=bool)
    for low, high in bad:
        found |= (starts < high) & (starts + sizes > low)
    return found
