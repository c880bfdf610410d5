"""ColdReader: the cold side of a task: units and records through the driver, with read-ahead.

    units of 65,536 messages ─► wanted ones ─► ranges of the log: one segment, up to 4 MiB, small gaps read along

Blank units are skipped; recorded gaps are reported by the plan.
Blocks with a checksum in the manifest are read whole and verified, since a record's own CRC covers its body
only: every record of a bad block is a damaged row for the decoder (`RecordRun.damage`, with the block as text),
whatever its own CRC; units of a bad block are lost. Not if bodies are left out of large records: then heads and
tails are read without their blocks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.history.open_history import OpenHistory
from tiermq.history.scan_values import Loss, RecordRun, ScanCounters, ScanTask, SegmentSpan, Side, corrupt
from tiermq.tier.block_sums import bad_block_words
from tiermq.tier.names import SegmentKey, SegmentType
from tiermq.tier.queue.records import CODA_BYTES, PEEK_BYTES, behind_body
from tiermq.tier.queue.unit_array import (
    Bools,
    Int64s,
    UnitArray,
    claimed_offsets,
    decode_units,
    locate,
    segments_of,
    units_of_locations,
    wanted_by_tags,
)
from tiermq.tier.queue.units import chunks_of

Read = Callable[[int, int], memoryview]
"""(position in the segment, length) -> bytes."""


def read_around_bodies(read: Read, units: UnitArray, begin: int, end: int, base: int) -> memoryview:
    """Read the log range [begin, end) of a segment that begins at `base`, without the bodies of its records.

        | fixed part | body, left out | topic, properties |

    Each part is at its offset in a buffer of zeros, so a decoder finds all other fields, and a scan without bodies
    moves a few hundred bytes of each large record. Untouched zero pages take no memory. Of an invalid record only the
    head is read: the check against its unit reports it.
    """
    buffer: Any = np.zeros(end - begin, dtype=np.uint8)
    view = memoryview(buffer.data).cast("B")
    for log_offset, size in zip(units.log_offsets.tolist(), units.sizes.tolist(), strict=True):
        length = min(PEEK_BYTES, end - log_offset)
        head = read(log_offset - base, length)
        view[log_offset - begin : log_offset - begin + length] = head
        behind = behind_body(head, size)
        if behind is not None:
            tail_at, tail_end = log_offset + behind[0], log_offset + behind[1]
            if tail_at < tail_end <= end:
                view[tail_at - begin : tail_end - begin] = read(tail_at - base, tail_end - tail_at)
    return view.toreadonly()


SCAN_RUN_BYTES = 4 << 20
GAP_BYTES = 64 << 10
"""Unwanted bytes between two records that are read along, because one request costs more than they do."""

LARGE_BYTES = 256 << 10
"""Records of this size and more are not read whole when bodies are not wanted."""


def reads_of(task: ScanTask) -> int:
    """How many reads of the tier a task makes at most, where its records are not cut by tags, keys or damage."""
    if task.side is not Side.COLD:
        return 0
    # Each chunk of units is read, and begins a range of its own in the log; so does each further segment.
    chunks = sum(
        1 for span in task.unit_spans for _ in chunks_of(span.base, span.end, task.from_offset, task.to_offset)
    )
    # Two neighbouring pieces of a range have more than SCAN_RUN_BYTES.
    pieces = 2 * task.log_bytes // SCAN_RUN_BYTES + chunks + len(task.log_spans)
    return chunks + pieces


_Read = tuple[memoryview, list[tuple[int, int]]]
"""Bytes, and the bad blocks that they touch, by begin and end in their segment."""


@dataclass(slots=True)
class _Range:
    """Bytes of one segment, and the units of their records."""

    span: SegmentSpan
    begin: int
    end: int
    units: UnitArray


class ColdReader:
    """Reads one task once. Continue after an interruption at `next_offset`, with exact offsets at `next_log_offset`."""

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
        self._log_ends = [span.end for span in self._log_spans]
        self._counting = threading.Lock()  # The thread that reads ahead counts too.
        self.next_offset = task.from_offset
        self.next_log_offset = 0

    def runs(self, begin: int, end: int) -> Iterator[RecordRun]:
        """The records of [begin, end), or of the task's exact offsets."""
        self.next_offset = begin
        wanted = [each for each in self._task.places or () if each.log_offset >= self.next_log_offset]
        is_exact = self._task.places is not None
        ranges = self._joined(units_of_locations(wanted)) if is_exact else self._ranges(begin, end)
        for one, (data, bad) in self._read_ahead(ranges):
            run = self._run(one, data, bad)
            if run is not None:
                run.has_bodies = not self._skips_bodies(one)
            self.next_log_offset = int(one.units.log_offsets[-1]) + 1
            if not is_exact:
                self.next_offset = int(one.units.queue_offsets[-1]) + 1
            if run is not None:
                self._counters.rows_read += len(run.starts)
                yield run

    # Which bytes

    def _ranges(self, begin: int, end: int) -> Iterator[_Range]:
        for span in self._unit_spans:
            key = self._task.queue.segment(SegmentType.CONSUME_QUEUE, span.base)
            for at, count in chunks_of(span.base, span.end, begin, end):
                data, bad = self._read_checked(key, span, at * UNIT_BYTES - span.base, count * UNIT_BYTES)
                units = decode_units(data, at)
                positions = units.queue_offsets * UNIT_BYTES - span.base
                damaged = _touching(positions, UNIT_BYTES, bad)
                sound = units.is_sound
                left = damaged.copy()  # A unit in two bad blocks is lost once.
                for block in bad:
                    lost = left & _touching(positions, UNIT_BYTES, [block])
                    left &= ~lost
                    self._lose_units(units, lost, f"of its unit {bad_block_words(*block)}")
                self._lose_units(units, ~sound & ~units.is_blank & ~damaged, "the unit points at no record")
                units = units.choose(sound & ~damaged)
                yield from self._joined(units.choose(wanted_by_tags(units, self._task.request.tags)))

    def _joined(self, units: UnitArray) -> Iterator[_Range]:
        """Neighbouring records as ranges to read."""
        units, numbers = self._in_segments(units)
        if not len(units):
            return
        gaps = units.log_offsets[1:] - units.ends[:-1]
        # A record that does not follow the previous one means a damaged unit: split the run there.
        cuts: Int64s = np.flatnonzero((numbers[1:] != numbers[:-1]) | (gaps > GAP_BYTES) | (gaps < 0)) + 1
        for first, behind in pairwise([0, *cuts.tolist(), len(units)]):
            yield from self._pieces(units.choose(slice(first, behind)), int(numbers[first]))

    def _in_segments(self, units: UnitArray) -> tuple[UnitArray, Int64s]:
        """The units whose records are within a segment, and the numbers of those segments; the rest is damaged."""
        numbers, inside = segments_of(units, self._log_bases, self._log_ends)
        self._lose_units(units, ~inside, "the unit points out of the log's segments")
        # A size of gigabytes is not read when the next unit shows that it is wrong.
        huge: Bools = np.zeros(len(units), dtype=bool)
        huge[:-1] = inside[:-1] & (units.sizes[:-1] > SCAN_RUN_BYTES) & (units.ends[:-1] > units.log_offsets[1:])
        self._lose_units(units, huge, "the unit reaches into the next record")
        keep = inside & ~huge
        return units.choose(keep), numbers[keep]

    def _pieces(self, units: UnitArray, number: int) -> Iterator[_Range]:
        """A range split into chunks of at most SCAN_RUN_BYTES, but at least one record."""
        span = self._log_spans[number]
        ends = units.ends
        first = 0
        while first < len(units):
            begin = int(units.log_offsets[first])
            behind = max(first + 1, int(np.searchsorted(ends, begin + SCAN_RUN_BYTES, side="right")))
            # A last record behind an end mark extends beyond the size in its unit.
            end = min(int(ends[behind - 1]) + CODA_BYTES, span.end)
            yield _Range(span, begin, end, units.choose(slice(first, behind)))
            first = behind

    # Bytes

    def _read_checked(
        self, key: SegmentKey, span: SegmentSpan, position: int, length: int
    ) -> tuple[memoryview, list[tuple[int, int]]]:
        """Bytes of a segment, and the blocks of it, by begin and end in the segment, that are not what was written."""
        if span.sums is None:
            return self._read(key, position, length), []
        low, count = span.sums.range_to_read(position, length)
        data, bad = span.sums.verified(self._read(key, low, count), low, position, length)
        if bad:  # Not from a cache: what is stored may be right.
            data, bad = span.sums.verified(self._read(key, low, count, again=True), low, position, length)
        return data, bad

    def _read(self, key: SegmentKey, position: int, length: int, *, again: bool = False) -> memoryview:
        tier = self._history.tier
        data = tier.reread(key, position, length) if again else tier.read(key, position, length)
        with self._counting:
            self._counters.requests += 1
            self._counters.bytes_read += length
            self._counters.cold_bytes_read += length
        return data

    def _skips_bodies(self, one: _Range) -> bool:
        """Whether to read only what surrounds the bodies: two small reads of each record instead of a long one."""
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
        damaged = _touching(one.units.log_offsets - one.span.base, one.units.sizes, bad)
        if is_exact:
            # An index gives candidates: a missing record, or one out of range, is not part of the task.
            offsets = claimed_offsets(data, starts, good)
            good &= (offsets >= task.from_offset) & (offsets < task.to_offset)
            if damaged.any():  # Their offsets and keys are only in the damaged bytes.
                count = int(damaged.sum())
                self._lose(corrupt(queue, task.from_offset, task.from_offset + count, bad_block_words(*bad[0])))
                good &= ~damaged
        else:
            self._lose_units(one.units, ~good, "the record is not the one of its unit")
        if not good.any():
            return None
        segment = queue.segment(SegmentType.COMMIT_LOG, one.span.base)
        run = RecordRun(queue, Side.COLD, data, starts[good], one.units.sizes[good], one.begin, segment.path)
        for block in bad:
            touched = good & _touching(one.units.log_offsets - one.span.base, one.units.sizes, [block])
            for start in starts[touched].tolist():
                run.damage.setdefault(start, bad_block_words(*block))
        return run

    def _lose_units(self, units: UnitArray, bad: Bools, why: str) -> None:
        if self._task.places is None:
            for begin, end in units.runs(bad):
                self._lose(corrupt(self._task.queue, begin, end, why))


def _touching(starts: Int64s, sizes: Int64s | int, bad: list[tuple[int, int]]) -> Bools:
    """Which of these ranges of a segment have a byte in a bad block."""
    found: Bools = np.zeros(len(starts), dtype=bool)
    for low, high in bad:
        found |= (starts < high) & (starts + sizes > low)
    return found
