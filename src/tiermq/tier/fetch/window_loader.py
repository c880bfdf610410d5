"""WindowLoader: one read of units, one read of records, and nobody fetches the same bytes twice at the same time.

Single flight: while a range of a queue is being fetched, everyone who needs an offset in it waits for that fetch.
An error reaches all of them and is not kept: the next get tries again. Whoever begins a fetch carries it out himself,
so nobody waits for a thread that waits for him.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from tiermq.consumequeue.unit import UNIT, UNIT_BYTES
from tiermq.tier.fetch.back_end_pace import BackEndPace
from tiermq.tier.fetch.record_split import CODA_BYTES, Reach, careful_reach, points_to_coda, quick_reach
from tiermq.tier.fetch.window import Window
from tiermq.tier.fetch.window_cache import Kept, WindowCache
from tiermq.tier.flat.flat_message_file import FlatMessageFile


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
        pace: BackEndPace | None = None,
    ) -> None:
        self._cache = cache
        self._pace = pace or BackEndPace()
        self._note_fetch = note_fetch
        self._lock = threading.Lock()
        self._flights: dict[FlatMessageFile, list[Flight]] = {}

    def load(
        self, file: FlatMessageFile, offset: int, count: int, bytes_max: int, owner: str, *, read: bool = True
    ) -> Loaded:
        """The window that holds `offset`: kept, on its way, or fetched now. Raises what the fetch raises.

        A fetch takes at most `count` messages and `bytes_max` bytes of records, but one message in any case. `read`
        says whether somebody is about to read it, or it is fetched ahead of him.
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
        """Fetch the messages of `units`, which begin at `offset`, or the first of them; where to go on.

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

    Where units are damaged or records lie behind end marks, a third one may be needed.
    """
    owner = file.queue.topic, file.queue.queue_id
    units = file.read_units(offset, count) if known_units is None else _leading(known_units, count)
    log_min, log_end = file.log.min_offset, file.log.commit_offset
    quick = quick_reach(units, log_min, log_end, bytes_max)
    data: bytes | memoryview = b""
    if quick is not None:
        data = file.read_records(quick.start, quick.end - quick.start)
        window = Window(offset, _leading(units, quick.kept), data, quick.start, owner)
        if window.is_plain:
            return window
    reach = careful_reach(units, log_min, log_end, bytes_max)
    if reach.start < 0:
        return Window(offset, units, b"", 0, owner)
    if quick is None or (reach.start, reach.end) != (quick.start, quick.end):
        data = file.read_records(reach.start, reach.end - reach.start)
    data = _with_coda(file, units, reach, data, log_end)
    return Window(offset, _leading(units, reach.kept), data, reach.start, owner)


def _leading(units: bytes | memoryview, count: int) -> bytes | memoryview:
    """The first units. A copy where it is fewer than all: a view would keep the rest in memory."""
    return units if count * UNIT_BYTES == len(units) else bytes(units[: count * UNIT_BYTES])


def _with_coda(
    file: FlatMessageFile, units: bytes | memoryview, reach: Reach, data: bytes | memoryview, log_end: int
) -> bytes | memoryview:
    """The data, and the bytes that are missing when its last record lies behind an end mark."""
    for index in range(reach.kept - 1, -1, -1):
        place, size, _ = UNIT.unpack_from(units, index * UNIT_BYTES)
        if place + size == reach.end:
            if points_to_coda(data, place - reach.start) and reach.end + CODA_BYTES <= log_end:
                return b"".join((data, file.read_records(reach.end, CODA_BYTES)))
            break
    return data
