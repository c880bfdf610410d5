"""WindowLoader: fetches windows with one read of units and one read of records; concurrent fetches are shared.

Single flight: while a range of a queue is being fetched, all threads that need an offset in it wait for that fetch.
An error is raised in all of them and not cached: the next get tries again. The thread that begins a fetch carries it
out, so there are no deadlocks.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.tier.fetch.window_cache import Kept, Window, WindowCache
from tiermq.tier.flat.flat_message_file import FlatMessageFile
from tiermq.tier.queue.records import CODA_BYTES, is_coda
from tiermq.tier.queue.units import Reach, careful_reach, quick_reach, unit_at

# BackendLatency: whether a fetch from the back end is waiting or work.
#
# A fetch from a network or a disk is mostly waiting: it is worth doing ahead of the reader, in another thread. A fetch
# from files that the page cache has is a copy, all work: handing it to another thread costs more than doing it, and the
# interpreter runs one of the two threads at a time anyway. The URL of the back end does not show which case it is (a
# directory may be a mounted network share), but the system does: it counts how often a thread gave up the processor
# because it had to wait. Being interrupted is counted apart, so a busy machine does not look like a slow back end.
#
# Each foreground fetch is a sample: it waited, or it did not. One sample can be chance (another thread had the
# interpreter), so it takes two in a row to change the state. A new back end counts as slow until its first sample.
#
# Fetches ahead are no samples: they wait for the interpreter because of the reader, not because of the back end.
# Threads: any; two samples at once may count as one.

VOTES_MAX = 3
VOTES_FOR_SLOW = 2
assert VOTES_FOR_SLOW - 1 > 0, "One vote does not change a settled opinion that it is quick ..."
assert VOTES_MAX - 1 >= VOTES_FOR_SLOW, "... nor one that it is slow."

_WHOSE = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)
"""Where waits are not counted per thread, every back end counts as slow."""


def waits_so_far() -> int:
    """How often this thread gave up the processor because it had to wait for something."""
    return resource.getrusage(_WHOSE).ru_nvcsw


class BackendLatency:
    """See the module. One of these for one back end; `is_slow`: fetches wait, so that reading ahead pays."""

    __slots__ = ("_votes", "_waits_so_far", "is_slow")

    def __init__(self, waits_so_far: Callable[[], int] = waits_so_far) -> None:
        self._waits_so_far = waits_so_far
        self._votes = VOTES_FOR_SLOW
        self.is_slow = True

    def begin(self) -> int:
        """Call before a fetch; pass the result to `end`, in the same thread."""
        return self._waits_so_far()

    def end(self, begun: int) -> None:
        """After a fetch that was answered."""
        vote = 1 if self._waits_so_far() > begun else -1
        self._votes = max(0, min(VOTES_MAX, self._votes + vote))
        self.is_slow = self._votes >= VOTES_FOR_SLOW


@dataclass(slots=True)
class Loaded:
    """A window, and its place in the cache unless it was not kept."""

    window: Window
    kept: Kept | None = None


@dataclass(slots=True)
class Flight:
    """A fetch of [first, end) that is under way."""

    first: int
    end: int
    landed: Future[Loaded] = field(default_factory=Future)


class WindowLoader:
    """See the module."""

    def __init__(
        self,
        cache: WindowCache,
        note_fetch: Callable[[FlatMessageFile, Window], None] = lambda _file, _window: None,
        pace: BackendLatency | None = None,
    ) -> None:
        self._cache = cache
        self._pace = pace or BackendLatency()
        self._note_fetch = note_fetch
        self._lock = threading.Lock()
        self._flights: dict[FlatMessageFile, list[Flight]] = {}

    def load(
        self, file: FlatMessageFile, offset: int, count: int, bytes_max: int, owner: str, *, read: bool = True
    ) -> Loaded:
        """The window that holds `offset`: kept, on its way, or fetched now. Raises what the fetch raises.

        A fetch takes at most `count` messages and `bytes_max` bytes of records, but at least one message. `read`:
        a reader waits for it; otherwise it is fetched ahead.
        """
        while True:
            with self._lock:
                flight = self._flight_at(file, offset)
                mine = flight is None
                if flight is None:
                    # It may have landed since the caller looked; a flight ends only after its window is kept.
                    window = self._cache.peek(file, offset)
                    if window is not None:
                        return Loaded(window, self._cache.find(file, offset) if read else None)
                    flight = Flight(offset, self._end_of(file, offset, count))
                    self._flights.setdefault(file, []).append(flight)
            if mine:
                return self._fly(file, flight, bytes_max, owner, read)
            loaded = flight.landed.result()
            if offset < loaded.window.end_offset:
                return loaded
            # It came back shorter than it set out (bytes ran out): this offset is fetched on its own.

    def load_ahead(self, file: FlatMessageFile, offset: int, units: bytes, bytes_max: int, owner: str) -> int:
        """Fetch the messages of `units`, which begin at `offset`, or the first of them; returns the next offset.

        What is kept or on its way is passed over, not waited for. Raises what the fetch raises.
        """
        with self._lock:
            flight = self._flight_at(file, offset)
            if flight is not None:
                return flight.end
            window = self._cache.peek(file, offset)
            if window is not None:
                return window.end_offset
            flight = Flight(offset, self._end_of(file, offset, len(units) // UNIT_BYTES))
            self._flights.setdefault(file, []).append(flight)
        return self._fly(file, flight, bytes_max, owner, False, units).window.end_offset

    def _fly(
        self,
        file: FlatMessageFile,
        flight: Flight,
        bytes_max: int,
        owner: str,
        read: bool,
        units: bytes | None = None,
    ) -> Loaded:
        try:
            begun = self._pace.begin()
            window = fetch_window(file, flight.first, flight.end - flight.first, bytes_max, units)
            if read:
                self._pace.end(begun)
            # What is damaged may be repaired: it is not kept.
            kept = None if window.corrupt_count else self._cache.put(file, window, owner, read=read)
            loaded = Loaded(window, kept)
        except BaseException as error:
            self._land(file, flight)
            flight.landed.set_exception(error)
            raise
        self._note_fetch(file, window)
        self._land(file, flight)
        flight.landed.set_result(loaded)
        return loaded

    def _flight_at(self, file: FlatMessageFile, offset: int) -> Flight | None:
        for flight in self._flights.get(file, ()):
            if flight.first <= offset < flight.end:
                return flight
        return None

    def _end_of(self, file: FlatMessageFile, offset: int, count: int) -> int:
        """Where a fetch from `offset` on should stop: at what is kept or under way, and at the committed end."""
        ends = [offset + max(1, count), file.commit_offset]
        ends += [flight.first for flight in self._flights.get(file, ()) if flight.first > offset]
        following = self._cache.next_start(file, offset)
        if following is not None:
            ends.append(following)
        return max(offset + 1, min(ends))

    def _land(self, file: FlatMessageFile, flight: Flight) -> None:
        with self._lock:
            flights = self._flights[file]
            flights.remove(flight)
            if not flights:
                del self._flights[file]


def fetch_window(
    file: FlatMessageFile, offset: int, count: int, bytes_max: int, known_units: bytes | None = None
) -> Window:
    """Two reads: the units of [offset, offset + count), unless they are known, and the records that they point to.

    Where units are damaged or records are behind end marks, a third one may be needed.
    """
    owner = file.queue.name
    units = file.units.read_units(offset, count) if known_units is None else _leading(known_units, count)
    log_min, log_end = file.log.min_offset, file.log.commit_offset
    quick = quick_reach(units, log_min, log_end, bytes_max)
    data: bytes | memoryview = b""
    if quick is not None:
        data = file.log.read(quick.start, quick.end - quick.start)
        window = Window(offset, _leading(units, quick.kept), data, quick.start, owner)
        if window.is_plain:
            return window
    reach = careful_reach(units, log_min, log_end, bytes_max)
    if reach.start < 0:
        return Window(offset, units, b"", 0, owner)
    if quick is None or (reach.start, reach.end) != (quick.start, quick.end):
        data = file.log.read(reach.start, reach.end - reach.start)
    data = _with_coda(file, units, reach, data, log_end)
    return Window(offset, _leading(units, reach.kept), data, reach.start, owner)


def _leading(units: bytes | memoryview, count: int) -> bytes | memoryview:
    """The first units. A copy where it is fewer than all: a view would keep the rest in memory."""
    return units if count * UNIT_BYTES == len(units) else bytes(units[: count * UNIT_BYTES])


def _with_coda(
    file: FlatMessageFile, units: bytes | memoryview, reach: Reach, data: bytes | memoryview, log_end: int
) -> bytes | memoryview:
    """The data, and the bytes that are missing when its last record is behind an end mark."""
    for index in range(reach.kept - 1, -1, -1):
        unit = unit_at(units, index)
        if unit.end == reach.end:
            if is_coda(data, unit.log_offset - reach.start) and reach.end + CODA_BYTES <= log_end:
                return b"".join((data, file.log.read(reach.end, CODA_BYTES)))
            break
    return data
