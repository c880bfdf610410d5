"""ReadAhead: how many messages to fetch at once for a group that reads a queue, and how far ahead of it.

Additive increase, multiplicative decrease. A group that comes back exactly where it stopped gets a larger window, step
by step. When it had to wait although it read in order, four times as many windows are kept ahead of it: a start that
adapts to the back end's latency. Messages that were fetched and went unread halve both. A jump starts with a small
window.

    sequential read      window = min(window + step, max)
    sequential miss      depth  = min(depth * 4, DEPTH_MAX)
    unread               window = max(window // 2, min)     depth = max(depth // 2, DEPTH_MIN)
    jump                 window = min                       depth = DEPTH_MIN

A pure state machine: no clock, no I/O. One instance belongs to one (group, queue). Threads: its reader changes it; an
unread window may be reported by any thread, and the worst that a race does is a window of the wrong size.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import pairwise

from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.errors import TierError
from tiermq.message.layout import ReadableBuffer
from tiermq.tier.fetch.window_cache import Kept
from tiermq.tier.fetch.window_loader import WindowLoader
from tiermq.tier.flat.flat_message_file import FlatMessageFile
from tiermq.tier.flat.flat_segment import FlatSegment
from tiermq.tier.queue.units import first_behind, log_offset_at

WINDOW_MIN = 64
WINDOW_STEP = 4_096  # RocketMQ's read-ahead for every reader.
SINGLE_WINDOW = 32  # For a get of one message, which is a look-up more often than a reader.
DEPTH_MIN = 2
DEPTH_MAX = 16
DEPTH_FACTOR = 4


@dataclass(frozen=True, slots=True)
class Asked:
    """Messages [begin, end) that are requested and whose fetches have not begun, and the size of their windows."""

    begin: int
    end: int
    window_count: int
    mean_bytes: int


@dataclass(slots=True)
class ReadAhead:
    """`window` is what the next fetch may take; `depth` how many windows are ready; `next_offset` the expected offset.

    `planned_end` is the end of requested fetches; `plan_at` the offset whose read requests more; `asked` belongs to
    those who fetch (`run_ahead`).
    """

    max_window: int
    window: int = WINDOW_MIN
    depth: int = DEPTH_MIN
    next_offset: int = -1
    is_sequential: bool = False
    planned_end: int = -1
    plan_at: int = -1
    asked: Asked | None = None

    def on_read(self, offset: int, next_offset: int) -> None:
        """The group read [offset, next_offset)."""
        if offset == self.next_offset:
            self.is_sequential = True
            if self.window < self.max_window:
                self.window = min(self.window + WINDOW_STEP, self.max_window)
        elif self.next_offset >= 0:
            self._restart()
        self.next_offset = next_offset

    def on_miss(self, offset: int) -> None:
        """The messages at `offset` were not there yet. Only one who reads in order deserves more ahead."""
        if offset == self.next_offset and self.is_sequential:
            self.depth = min(self.depth * DEPTH_FACTOR, DEPTH_MAX)
            self.plan_at = -1

    def on_unread(self) -> None:
        """Messages fetched for the group went unread."""
        self.window = max(self.window // 2, WINDOW_MIN)
        self.depth = max(self.depth // 2, DEPTH_MIN)

    def on_failure(self, offset: int) -> None:
        """The fetch from `offset` on failed: it may be requested again."""
        self.planned_end = min(self.planned_end, offset)
        self.plan_at = -1
        self.asked = None

    def size_for(self, wanted: int) -> int:
        """How many messages to fetch when `wanted` were requested."""
        if wanted <= 1:
            return min(SINGLE_WINDOW, self.max_window)
        return min(max(self.window, wanted), self.max_window)

    def _restart(self) -> None:
        self.is_sequential = False
        self.window = WINDOW_MIN
        self.depth = DEPTH_MIN
        self.planned_end = -1
        self.plan_at = -1
        self.asked = None


# QueueReader: one group that reads one queue of the tier: its read-ahead, the window it reads, what it was served.
#
# Threads: changed by the threads that get for the group; a race only loses a count.


class QueueReader:
    """See the module. `kept` is the window of the last get, as long as the cache keeps it."""

    __slots__ = (
        "_log_segments", "_low", "_unit_segments",
        "ahead", "file", "group", "hit_count", "kept", "miss_count", "served_bytes", "served_count",
    )  # fmt: skip

    def __init__(self, group: str, file: FlatMessageFile, max_window: int) -> None:
        self.group = group
        self.file = file
        self.ahead = ReadAhead(max_window)
        self.kept: Kept | None = None
        self.hit_count = 0
        self.miss_count = 0
        self.served_count = 0
        self.served_bytes = 0
        self._low = 0
        self._unit_segments: tuple[FlatSegment, ...] | None = None
        self._log_segments: tuple[FlatSegment, ...] | None = None

    def bounds(self) -> tuple[int, int]:
        """Readable queue offsets [low, high) of the queue; (0, 0) before anything is committed.

        Used by every get: the beginning moves only when segments are deleted, so it is cached until then.
        """
        file = self.file
        units, log = file.units.segments, file.log.segments
        if units is self._unit_segments and log is self._log_segments:
            return self._low, units[-1].commit_offset // UNIT_BYTES
        low, high = max(0, file.min_offset), max(0, file.commit_offset)
        if low < high:
            self._low, self._unit_segments, self._log_segments = low, units, log
        return low, high

    def is_before(self, offset: int) -> bool:
        """Whether the group has still to come to the messages before `offset`."""
        return 0 <= self.ahead.next_offset < offset


# Runs are fetched ahead of a reader: one read of units, then a window for each range of the log that they point to.
#
#     log of a segment   |  8 MiB           |  8 MiB           |  8 MiB           |     lines: multiples of the grid
#     windows            |------ w0 --------|------ w1 --------|------ w2 --------|     each from the first record
#                                                                                       behind a line
#
# Object stores keep large objects in chunks (S3 the parts of an upload, ours are 8 MiB; others chunks of their own),
# and a range within one chunk costs them much less than one that touches two. So windows end at chunk boundaries, to
# the record, wherever the reader began. One read of units for a run, not one for each window, halves the requests.
#
#     ask ─► units of a run ─┬─► window, window, window ...    separate tasks, in the order of the log
#                            └─► units of the next run ...     until everything requested is scheduled
#
# Memory: a run's units (RUN_UNITS_MAX at most) wait until its windows are fetched, beside the cache. Requests
# are counted in messages, of the size of those before; where they are much larger, less is fetched.
# Threads: everything runs on the pool of read-ahead. A task there never waits for another one: ranges that
# are being fetched are skipped.

_log = logging.getLogger(__name__)

GRID_BYTES_MAX = 8 * 1024 * 1024
"""The largest distance between lines: the parts in which sealed segments are uploaded."""

RUN_UNITS_MAX = 131_072
SHORT_PART = 8  # A range of less than this part of the grid is not worth a separate request.
SURPRISE_FACTOR = 2  # How many times more bytes than expected a run may have.


def grid_for(wanted_bytes: int, bytes_max: int) -> int:
    """The power of two that comes nearest to windows of `wanted_bytes`; half of `bytes_max` or less, so that a window
    with a short range before it, or with a record across a boundary, is fetched with one read.
    """
    most = max(1, min(wanted_bytes + wanted_bytes // 3, bytes_max // 2, GRID_BYTES_MAX))
    return 1 << (most.bit_length() - 1)


def next_line(bases: Sequence[int], log_offset: int, grid_bytes: int) -> int:
    """Where a window that begins at `log_offset` should end: at the next line worth it, or at the next segment.

    `bases` are the segments' beginnings, in order.
    """
    number = max(0, bisect_right(bases, log_offset) - 1)
    base = bases[number]
    line = base + ((log_offset - base + grid_bytes // SHORT_PART) // grid_bytes + 1) * grid_bytes
    return min(line, bases[number + 1]) if number + 1 < len(bases) else line


def split_run(units: ReadableBuffer, bases: Sequence[int], grid_bytes: int) -> list[int]:
    """Where the windows of a run end, as numbers of units, in order; the last one is the end of the run.

    Damaged units make windows of odd sizes, and nothing worse.
    """
    count = len(units) // UNIT_BYTES
    ends: list[int] = []
    begin = 0
    while begin < count:
        log_offset = log_offset_at(units, begin)
        begin = first_behind(units, next_line(bases, log_offset, grid_bytes), begin + 1)
        ends.append(begin)
    return ends


class RunAhead:
    """See the module. `bytes_max` returns the current limit of one fetch. The lock guards the requested ranges."""

    def __init__(self, loader: WindowLoader, pool: Executor, bytes_max: Callable[[], int]) -> None:
        self._loader = loader
        self._pool = pool
        self._bytes_max = bytes_max
        self._lock = threading.Lock()

    def ask(self, reader: QueueReader, begin: int, end: int, window_count: int, mean_bytes: int) -> None:
        """Schedule a fetch of messages [begin, end), in windows; sizes are estimates.

        Later ones are requested later: a reader's windows are fetched in order.
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
        except RuntimeError:  # The pool is shut down: the store closes.
            _log.debug("no read-ahead of %s: the store closes", reader.file.queue.logical_path)

    def _fetch_runs(self, reader: QueueReader, begin: int) -> None:
        """Read units, run after run, until everything requested is scheduled as windows.

        Errors are dropped here: a get of these messages raises its own.
        """
        rest = b""  # Units behind the last line of the run before.
        while True:
            asked = reader.ahead.asked
            if asked is None or asked.begin != begin:
                return  # The reader jumped.
            known_end = begin + len(rest) // UNIT_BYTES
            try:
                found = reader.file.units.read_units(known_end, min(asked.end - known_end, RUN_UNITS_MAX))
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
        affordable = first_behind(units, log_offset_at(units, 0) + bytes_max, 1)
        grid_bytes = grid_for(asked.window_count * asked.mean_bytes, self._bytes_max())
        bases = [segment.base for segment in reader.file.log.segments]
        ends = split_run(units[: affordable * UNIT_BYTES], bases, grid_bytes)
        if len(ends) > 1 and asked.begin + ends[-1] < reader.file.commit_offset:
            ends.pop()  # It would end between two lines: the next run begins at the line, with a whole window.
        return ends, affordable < count

    def _settle(self, reader: QueueReader, begin: int, stop: int, known_end: int, is_surprise: bool) -> bool:
        """The run that begins at `begin` ends at `stop`; whether another follows at once.

        More may have been requested meanwhile. What is behind `stop` is requested the next time.
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
