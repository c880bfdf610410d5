"""Runs: what is fetched ahead of a reader. One read of units, then a window for each stretch of the log they point to.

    log of a segment   |  8 MiB           |  8 MiB           |  8 MiB           |     lines: multiples of the grid
    windows            |------ w0 --------|------ w1 --------|------ w2 --------|     each from the first record behind
                                                                                      a line

Object stores keep large objects in pieces (S3 the parts of an upload, ours are 8 MiB; others chunks of their own), and
a range that lies in one piece costs them much less than one that touches two. So windows end at lines, to the record,
wherever the reader began. One read of units for a run, not one for each window, halves the requests.

    ask ─► units of a run ─┬─► window, window, window ...    tasks of their own, in the order of the log
                           └─► units of the next run ...     until everything that is asked for is on its way

Memory: a run's units (RUN_UNITS_MAX at most) wait until its windows are fetched, beside the cache. What is asked for is
counted in messages, of the size that those before had; where they turn out to be much larger, less is fetched.
Threads: everything runs on the pool of read-ahead. A task there never waits for another one: what somebody else
fetches is passed over.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from itertools import pairwise

from tiermq.consumequeue.unit import UNIT, UNIT_BYTES
from tiermq.errors import TierError
from tiermq.message.layout import ReadableBuffer
from tiermq.tier.fetch.queue_reader import QueueReader
from tiermq.tier.fetch.read_ahead import Asked
from tiermq.tier.fetch.window_loader import WindowLoader

_log = logging.getLogger(__name__)

GRID_BYTES_MAX = 8 * 1024 * 1024
"""The largest distance between lines: the parts in which sealed segments are uploaded."""

RUN_UNITS_MAX = 131_072
SHORT_PART = 8  # A stretch of less than this part of the grid is not worth a request of its own.
SURPRISE_FACTOR = 2  # How many times more bytes than expected a run may have.


def grid_for(wanted_bytes: int, bytes_max: int) -> int:
    """The power of two that comes nearest to windows of `wanted_bytes`; half of `bytes_max` or less, so that a window
    with a short stretch before it, or with a record that lies across a line, is fetched in one piece.
    """
    most = max(1, min(wanted_bytes + wanted_bytes // 3, bytes_max // 2, GRID_BYTES_MAX))
    return 1 << (most.bit_length() - 1)


def next_line(bases: Sequence[int], place: int, grid_bytes: int) -> int:
    """Where a window that begins at `place` should end: at the next line worth it, or where the next segment begins.

    `bases` are the segments' beginnings, in order.
    """
    number = max(0, bisect_right(bases, place) - 1)
    base = bases[number]
    line = base + ((place - base + grid_bytes // SHORT_PART) // grid_bytes + 1) * grid_bytes
    return min(line, bases[number + 1]) if number + 1 < len(bases) else line


def split_run(units: ReadableBuffer, bases: Sequence[int], grid_bytes: int) -> list[int]:
    """Where the windows of a run end, as numbers of units, in order; the last one is the end of the run.

    Damaged units make windows of odd sizes, and nothing worse.
    """
    count = len(units) // UNIT_BYTES
    ends: list[int] = []
    begin = 0
    while begin < count:
        place = UNIT.unpack_from(units, begin * UNIT_BYTES)[0]
        begin = first_at(units, next_line(bases, place, grid_bytes), begin + 1)
        ends.append(begin)
    return ends


def first_at(units: ReadableBuffer, line: int, low: int = 0) -> int:
    """The first unit from `low` on that points to `line` or behind it; their count when there is none."""
    high = len(units) // UNIT_BYTES
    while low < high:
        middle = (low + high) // 2
        if UNIT.unpack_from(units, middle * UNIT_BYTES)[0] < line:
            low = middle + 1
        else:
            high = middle
    return low


class RunAhead:
    """See the module. `bytes_max` tells how long one fetch may be now. The lock guards what everybody has asked for."""

    def __init__(self, loader: WindowLoader, pool: Executor, bytes_max: Callable[[], int]) -> None:
        self._loader = loader
        self._pool = pool
        self._bytes_max = bytes_max
        self._lock = threading.Lock()

    def ask(self, reader: QueueReader, begin: int, end: int, window_count: int, mean_bytes: int) -> None:
        """Fetch messages [begin, end), of about so many bytes each, in windows of about so many, some time soon.

        Those behind what is being asked for are asked for when it is their turn: a reader's windows come in order.
        """
        with self._lock:
            ahead = reader.ahead
            asked = ahead.asked
            is_more = asked is not None and asked.end == begin
            ahead.asked = Asked(asked.begin if asked and is_more else begin, end, window_count, mean_bytes)
            ahead.planned_end = end
        if not is_more:
            self._submit(reader, self._fetch_runs, begin)

    def _submit(self, reader: QueueReader, work: Callable[..., None], *values: object) -> None:
        try:
            self._pool.submit(work, reader, *values)
        except RuntimeError:  # The pool is shut down: the store closes, and nobody will read what lies ahead.
            _log.debug("no read-ahead of %s: the store closes", reader.file.queue.logical_path)

    def _fetch_runs(self, reader: QueueReader, begin: int) -> None:
        """Read units, run after run, until those of everything that is asked for are on their way as windows.

        The background's edge: whoever really needs the messages will meet the error himself.
        """
        rest = b""  # Units behind the last line of the run before.
        while True:
            asked = reader.ahead.asked
            if asked is None or asked.begin != begin:
                return  # The reader jumped.
            known_end = begin + len(rest) // UNIT_BYTES
            try:
                found = reader.file.read_units(known_end, min(asked.end - known_end, RUN_UNITS_MAX))
            except TierError as error:
                self._failed(reader, begin, error)
                return
            units = memoryview(b"".join((rest, found)))
            ends, is_surprise = self._window_ends(reader, asked, units)
            goes_on = self._settle(reader, begin, begin + ends[-1], begin + len(units) // UNIT_BYTES, is_surprise)
            for first, behind in pairwise((0, *ends)):
                # Copies, so that no window keeps the whole run in memory.
                own_units = bytes(units[first * UNIT_BYTES : behind * UNIT_BYTES])
                self._submit(reader, self._fetch_window, begin + first, own_units)
            if not goes_on:
                return
            begin, rest = begin + ends[-1], bytes(units[ends[-1] * UNIT_BYTES :])

    def _window_ends(self, reader: QueueReader, asked: Asked, units: memoryview) -> tuple[list[int], bool]:
        """Where the windows of a run end, and whether that is early because messages are larger than expected."""
        count = len(units) // UNIT_BYTES
        bytes_max = SURPRISE_FACTOR * count * asked.mean_bytes
        affordable = first_at(units, UNIT.unpack_from(units, 0)[0] + bytes_max, 1)
        grid_bytes = grid_for(asked.window_count * asked.mean_bytes, self._bytes_max())
        bases = [segment.base for segment in reader.file.log.segments]
        ends = split_run(units[: affordable * UNIT_BYTES], bases, grid_bytes)
        if len(ends) > 1 and asked.begin + ends[-1] < reader.file.commit_offset:
            ends.pop()  # It would end between two lines: the next run begins at the line, with a whole window.
        return ends, affordable < count

    def _settle(self, reader: QueueReader, begin: int, stop: int, known_end: int, is_surprise: bool) -> bool:
        """The run that begins at `begin` ends at `stop`; whether another follows at once.

        More may have been asked for meanwhile. What lies behind `stop` when none follows is asked for the next time.
        """
        with self._lock:
            ahead = reader.ahead
            asked = ahead.asked
            if asked is None or asked.begin != begin:
                return False
            goes_on = known_end < asked.end and not is_surprise
            ahead.asked = replace(asked, begin=stop) if goes_on else None
            if not goes_on:
                ahead.planned_end = stop
            return goes_on

    def _fetch_window(self, reader: QueueReader, first: int, units: bytes) -> None:
        offset, end = first, first + len(units) // UNIT_BYTES
        try:
            while offset < end:
                rest = units if offset == first else units[(offset - first) * UNIT_BYTES :]
                offset = self._loader.load_ahead(reader.file, offset, rest, self._bytes_max(), reader.group)
        except TierError as error:
            self._failed(reader, offset, error)

    def _failed(self, reader: QueueReader, offset: int, error: TierError) -> None:
        reader.ahead.on_failure(offset)
        _log.info("read-ahead of %s at %d failed: %s", reader.file.queue.logical_path, offset, error)
