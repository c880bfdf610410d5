"""WindowLoader: one read of units, one read of records, and nobody fetches the same bytes twice at the same time.

Single flight: while a range of a queue is being fetched, everyone who needs an offset in it waits for that fetch.
An error reaches all of them and is not kept: the next get tries again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from tiermq.consumequeue.unit import PRE_BLANK_SIZE, UNIT, UNIT_BYTES
from tiermq.tier.fetch.window import Window
from tiermq.tier.fetch.window_cache import QueueName, WindowCache
from tiermq.tier.flat.flat_message_file import FlatMessageFile


@dataclass(slots=True)
class Flight:
    """A fetch of [first, end) that is under way."""

    first: int
    end: int
    landed: Future[Window] = field(default_factory=Future)


class WindowLoader:
    """See the module. `size_bytes_max` bounds the records of one fetch, but one message always comes."""

    def __init__(
        self, cache: WindowCache, size_bytes_max: int, note_fetch: Callable[[Window], None] = lambda _window: None
    ) -> None:
        self._cache = cache
        self._size_bytes_max = size_bytes_max
        self._note_fetch = note_fetch
        self._lock = threading.Lock()
        self._flights: dict[QueueName, list[Flight]] = {}

    def load(self, file: FlatMessageFile, offset: int, count: int, owner: str) -> Window:
        """The window that holds `offset`, fetched now or by whoever is fetching it. Raises what the fetch raises."""
        queue = (file.queue.topic, file.queue.queue_id)
        with self._lock:
            flights = self._flights.setdefault(queue, [])
            flight = next((f for f in flights if f.first <= offset < f.end), None)
            mine = flight is None
            if flight is None:
                flight = Flight(offset, self._end_of(queue, file, offset, count, flights))
                flights.append(flight)
        if not mine:
            window = flight.landed.result()
            # A fetch may come back shorter than it set out (bytes ran out): then this offset is fetched on its own.
            return window if offset < window.end_offset else self.load(file, offset, count, owner)
        try:
            window = fetch_window(file, flight.first, flight.end - flight.first, self._size_bytes_max)
        except BaseException as error:
            self._land(queue, flight)
            flight.landed.set_exception(error)
            raise
        self._cache.put(queue, window, owner)
        self._note_fetch(window)
        self._land(queue, flight)
        flight.landed.set_result(window)
        return window

    def is_under_way(self, queue: QueueName, offset: int) -> bool:
        with self._lock:
            return any(flight.first <= offset < flight.end for flight in self._flights.get(queue, ()))

    def _end_of(self, queue: QueueName, file: FlatMessageFile, offset: int, count: int, flights: list[Flight]) -> int:
        """Where a fetch from `offset` on should stop: at what is kept or under way, and at the committed end."""
        ends = [offset + max(1, count), file.commit_offset]
        ends += [flight.first for flight in flights if flight.first > offset]
        following = self._cache.next_start(queue, offset)
        if following is not None:
            ends.append(following)
        return max(offset + 1, min(ends))

    def _land(self, queue: QueueName, flight: Flight) -> None:
        with self._lock:
            flights = self._flights[queue]
            flights.remove(flight)
            if not flights:
                del self._flights[queue]


def fetch_window(file: FlatMessageFile, offset: int, count: int, size_bytes_max: int) -> Window:
    """Two reads: the units of [offset, offset + count), and the records that they point to."""
    units = bytes(file.read_units(offset, count))
    kept, start, end = record_range(units, file.log.min_offset, file.log.commit_offset, size_bytes_max)
    units = units[: kept * UNIT_BYTES]
    data = bytes(file.read_records(start, end - start)) if end > start else b""
    return Window(offset, units, data, start)


def record_range(units: bytes, log_min: int, log_end: int, size_bytes_max: int) -> tuple[int, int, int]:
    """(units to keep, first byte, end) of the records behind leading units: at most so many bytes, at least one record.

    Units that point outside of the log, or backwards, are damaged: they are kept in the count and add nothing to the
    range, so that the window finds them without a record.
    """
    start = end = -1
    kept = 0
    for log_offset, size, _ in UNIT.iter_unpack(units):
        blank = size == PRE_BLANK_SIZE and log_offset == 0
        damaged = size <= 0 or log_offset < max(log_min, end) or log_offset + size > log_end
        if not blank and not damaged:
            if start >= 0 and log_offset + size - start > size_bytes_max:
                break
            start = log_offset if start < 0 else start
            end = log_offset + size
        kept += 1
    return kept, max(0, start), max(0, end)
