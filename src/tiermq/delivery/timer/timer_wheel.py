"""TimerWheel: which timers are due in which slot, in the file `timerwheel`.

    0            8           16          24      28      32
    +------------+-----------+-----------+-------+-------+
    | slot time  | first     | last      | timers| magic |   big-endian; slot time in units of the precision
    +------------+-----------+-----------+-------+-------+

Slot n of the file holds the times t with t % slots == n; a slot that holds another time than the requested one
is empty. `first` and `last` are positions in the timer log; from `last` the units of the slot are a chain. A slot that
was delivered stays as it is: the read time has passed it.

A wheel is mostly zeros. Pages with data are found when it is opened, and only those are read: reading all pages would
take 38 MB of memory.

Invariants: between flushes the file does not change. What changed since the last one is kept in memory, slot by slot,
and written together, so that a process that dies in between leaves the wheel of its last flush.
Threads: the timer service changes and flushes; any thread reads.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tiermq.delivery.timer.timer_log import NO_POSITION
from tiermq.errors import StoreDamaged
from tiermq.files.file_access import PAGE_BYTES, FileAccess, Region

FILE = "timerwheel"
SLOT = struct.Struct(
    ">"
    "q"  # time    in units of the precision
    "q"  # first   position of the slot's first unit
    "q"  # last    position of its last one
    "i"  # timers  how many wait
    "i"  # magic   0
)
SLOT_BYTES = SLOT.size
SLOTS_PER_PAGE = PAGE_BYTES // SLOT_BYTES
COUNT_MAX = 2**31 - 1
_TIMES = struct.Struct(">q24x")
_LOOK_BYTES = 256 * PAGE_BYTES
_ZEROS = bytes(_LOOK_BYTES)
assert SLOT_BYTES == 32
assert _TIMES.size == SLOT_BYTES


class Slot(NamedTuple):
    """One slot. `time_ms` is -1 for an empty one."""

    time_ms: int
    first: int = NO_POSITION
    last: int = NO_POSITION
    timers: int = 0
    """How many wait, cancellations taken off."""


EMPTY = Slot(-1)


class TimerWheel:
    """See the module."""

    def __init__(self, access: FileAccess, path: str, precision_ms: int, slots: int, *, writable: bool = True) -> None:
        """Raises StoreDamaged when the file has another size than a wheel of this number of slots."""
        self.precision_ms = precision_ms
        self.slots = slots
        self._dirty: dict[int, bytes] = {}
        self._dirty_pages: set[int] = set()
        self._reserved: set[int] = set()
        self._region = _open(access, path, slots * SLOT_BYTES, writable)
        # In order; replaced, never changed, since any thread reads it. Another process may fill a wheel that is opened
        # read-only.
        self._used_pages: Sequence[int] = (
            _pages_with_data(self._region) if writable else range(-(-slots // SLOTS_PER_PAGE))
        )

    # One slot

    def slot(self, time_ms: int) -> Slot:
        """The slot of a time; EMPTY when it holds nothing, or another time."""
        key = time_ms // self.precision_ms
        time, first, last, count, _ = SLOT.unpack(self._raw(key % self.slots))
        # Zeros are the slot of time 0, which no timer has.
        return Slot(key * self.precision_ms, first, last, count) if time == key and key > 0 else EMPTY

    def _raw(self, index: int) -> bytes:
        found = self._dirty.get(index)
        if found is not None:
            return found
        at = index * SLOT_BYTES
        return bytes(self._region.buffer[at : at + SLOT_BYTES])

    def put(self, slot: Slot) -> None:
        """Set a slot by its time, replacing its contents. Durable after the next flush."""
        key = slot.time_ms // self.precision_ms
        count = max(-COUNT_MAX, min(slot.timers, COUNT_MAX))
        self._set(key % self.slots, SLOT.pack(key, slot.first, slot.last, count, 0))

    def _set(self, index: int, data: bytes) -> None:
        page = index // SLOTS_PER_PAGE
        if page not in self._dirty_pages:
            self._dirty_pages.add(page)
            at = bisect_left(self._used_pages, page)
            if self._used_pages[at : at + 1] != [page]:
                self._used_pages = [*self._used_pages[:at], page, *self._used_pages[at:]]
        self._dirty[index] = data

    def drop(self, from_ms: int, until_ms: int) -> None:
        """Empty the slots of [from, until): they were delivered, and their time comes again."""
        for slot in list(self.slots_between(from_ms, until_ms)):
            self._set(slot.time_ms // self.precision_ms % self.slots, bytes(SLOT_BYTES))

    @property
    def dirty_count(self) -> int:
        """Slots that changed since the last flush."""
        return len(self._dirty)

    # Many slots

    def slots_between(self, from_ms: int, until_ms: int | None = None) -> Iterator[Slot]:
        """The slots that are not empty, from a time on, in the order of time; one rotation at most."""
        begin = from_ms // self.precision_ms
        end = begin + self.slots
        if until_ms is not None:
            end = min(end, -(-until_ms // self.precision_ms))
        turn = begin - begin % self.slots
        for first in (turn, turn + self.slots):  # The time of slot 0, in this rotation and in the next.
            pages = self._used_pages
            at = bisect_left(pages, (begin - first) // SLOTS_PER_PAGE)
            for page in pages[at : bisect_left(pages, -(-(end - first) // SLOTS_PER_PAGE))]:
                page_start = first + page * SLOTS_PER_PAGE
                key = max(begin, page_start)
                page_end = min(page_start + SLOTS_PER_PAGE, first + self.slots, end)
                if key < page_end:
                    yield from self._slots_of_page(page, key - first, page_end - key, key)

    def _slots_of_page(self, page: int, index: int, count: int, key: int) -> Iterator[Slot]:
        if page not in self._dirty_pages:
            data = bytes(self._region.buffer[index * SLOT_BYTES : (index + count) * SLOT_BYTES])
            if data == _ZEROS[: len(data)]:
                return
            wanted = [at for at, (time,) in enumerate(_TIMES.iter_unpack(data)) if time == key + at]
        else:
            wanted = list(range(count))
        for at in wanted:
            slot = self.slot((key + at) * self.precision_ms)
            if slot.time_ms >= 0:
                yield slot

    def waiting_count(self, from_ms: int) -> int:
        """How many timers wait from a time on, by the slots' counts."""
        return sum(slot.timers for slot in self.slots_between(from_ms))

    # Durability

    def flush(self) -> None:
        """Write what changed; it survives a power cut on return. Raises DiskFull, and can be called again."""
        if not self._dirty:
            return
        for page in self._dirty_pages - self._reserved:
            start = page * PAGE_BYTES
            self._region.reserve(start, min(PAGE_BYTES, self._region.size - start))
            self._reserved.add(page)
        buffer = self._region.buffer
        for index, data in self._dirty.items():
            at = index * SLOT_BYTES
            buffer[at : at + SLOT_BYTES] = data
        self._region.sync()
        self._dirty_pages = set()
        self._dirty = {}

    def close(self) -> None:
        """Close the file; what was not flushed is lost."""
        self._region.close()


def new_wheel(access: FileAccess, path: str, precision_ms: int, slots: int) -> TimerWheel:
    """An empty wheel under an unused name; an existing file is removed."""
    access.remove(path)
    return TimerWheel(access, path, precision_ms, slots)


def _pages_with_data(region: Region) -> list[int]:
    """The pages that are not all zeros; the pages read are released again."""
    found: list[int] = []
    for data_start, data_end in region.data_ranges():
        start = data_start - data_start % PAGE_BYTES
        end = min(region.size, -(-data_end // PAGE_BYTES) * PAGE_BYTES)
        for at in range(start, end, _LOOK_BYTES):
            data = bytes(region.buffer[at : min(at + _LOOK_BYTES, end)])
            if data != _ZEROS[: len(data)]:
                pieces = (data[place : place + PAGE_BYTES] for place in range(0, len(data), PAGE_BYTES))
                numbered = enumerate(pieces, at // PAGE_BYTES)
                found.extend(page for page, piece in numbered if piece != _ZEROS[: len(piece)])
        region.release_pages(start, end - start)
    return sorted(set(found))  # A page at the edge of a hole may have been seen twice.


def _open(access: FileAccess, path: str, size: int, writable: bool) -> Region:
    found = access.file_info(path)
    if found is not None and found.size == 0 and writable:
        access.remove(path)  # A process died between creating and sizing the file: it is empty.
        found = None
    if found is not None and found.size != size:
        raise StoreDamaged(
            f"{path}: expected a timer wheel of {size} bytes, found {found.size}. It was created with another number "
            "of slots, or was cut; move it away, and it is rebuilt from the timer log."
        )
    if found is None and writable:
        return access.create(path, size)
    return access.open(path, size, writable)
