"""Reading the units of a queue: scans, searches, and `QueueUnits` across files. Any thread; nothing here writes.

A view of a file's bytes keeps the map alive, so deleting old files does not affect a reader.

A scan (`scan_units`) continues while units are valid, ascend (records do not overlap, so each unit begins where the
one before it ended, or later) and stay below a given end of the commit log. It stops at the first unit that does not:
the empty rest of a file, a page that never reached the disk, or old bytes behind an earlier truncation.

A search (`first_not_below`) is binary, in a sequence that ascends by physical offset or store time but has holes:
pre-blank units, and units whose record is no longer readable.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tiermq import kernel
from tiermq.consumequeue.unit import PRE_BLANK_SIZE, UNIT, Unit, is_real
from tiermq.files.mapped_file import MappedFile
from tiermq.files.mapped_file_queue import MappedFileQueue
from tiermq.message.layout import UNIT_BYTES

Probe = Callable[[int, int], tuple[int, int] | None]
"""`probe(low, high)`: index and value of the first item of low..high-1 that has a value; None when all are holes."""


def first_not_below(low: int, high: int, target: int, probe: Probe) -> int:
    """The first index in low..high-1 whose value is >= target; `high` when there is none."""
    answer = high
    while low < high:
        middle = (low + high) // 2
        found = probe(middle, high)
        if found is None:
            high = middle
        elif found[1] >= target:
            answer = found[0]
            high = middle
        else:
            low = found[0] + 1
    return answer


PHYSICAL_END_MAX = (1 << 63) - 1
_ZEROS_BYTES = 1 << 16
RESERVE_BYTES = 1 << 16
"""Disk blocks are reserved in steps of this size: a store has thousands of queues, most of them small."""
RECOVER_FILES = 3
"""Newest files that are scanned at a start."""
_ZEROS = bytes(_ZEROS_BYTES)


class Scan(NamedTuple):
    """`valid_bytes` from the start are valid units; `physical_end` is where the record of the last real unit ends.

    `physical_end` is what the scan was given as `previous_end` when none of the units is real.
    """

    valid_bytes: int
    physical_end: int
    has_real: bool


def scan_units(data: memoryview, previous_end: int = 0, physical_end_max: int = PHYSICAL_END_MAX) -> Scan:
    """Scan the units of `data`, which begins at a unit."""
    return Scan(*kernel.scan_units(data, previous_end, physical_end_max))


def real_units(data: memoryview, first_queue_offset: int) -> Iterator[tuple[int, int, int, int]]:
    """(physical offset, size, tags code, queue offset) of each real unit; blank and damaged units are skipped."""
    for queue_offset, (physical_offset, size, tags_code) in enumerate(UNIT.iter_unpack(data), first_queue_offset):
        if physical_offset >= 0 and 0 < size < PRE_BLANK_SIZE:
            yield physical_offset, size, tags_code, queue_offset


def real_units_backwards(data: memoryview) -> Iterator[Unit]:
    """The real units of `data`, last one first."""
    for position in range(len(data) // UNIT_BYTES * UNIT_BYTES - UNIT_BYTES, -1, -UNIT_BYTES):
        unit = Unit._make(UNIT.unpack_from(data, position))
        if is_real(unit.physical_offset, unit.size):
            yield unit


def has_data(data: memoryview) -> bool:
    """Whether any byte is not zero."""
    for start in range(0, len(data), _ZEROS_BYTES):
        chunk = bytes(data[start : start + _ZEROS_BYTES])
        if chunk != _ZEROS[: len(chunk)]:
            return True
    return False


class Boundary(enum.Enum):
    """RocketMQ's BoundaryType."""

    LOWER = "lower"
    """The first message stored at the time or later."""

    UPPER = "upper"
    """The last message stored at the time or earlier."""


def readable(file: MappedFile, start: int = 0) -> memoryview:
    """The bytes of a file from `start` on that can be read; empty once the file is being deleted."""
    selected = file.select(start)
    if selected is None:
        return memoryview(b"")
    with selected:
        return selected.data[:]  # A separate view, which keeps the map but not the file's name.


def has_data_behind(file: MappedFile, start: int, length: int | None = None) -> bool:
    """Whether any byte from `start` on, or of `length` bytes from there, is not zero. Holes are not read."""
    end = file.size if length is None else min(file.size, start + length)
    for first, last in file.data_ranges():
        low, high = max(first, start), min(last, end)
        if low < high and has_data(readable(file, low)[: high - low]):
            return True
    return False


class QueueUnits:
    """The 20-byte units of a queue, by queue offset."""

    __slots__ = ("_files", "_units_per_file")

    def __init__(self, files: MappedFileQueue) -> None:
        self._files = files
        self._units_per_file = files.file_size // UNIT_BYTES

    def roll_next_file(self, offset: int) -> int:
        """The queue offset of the first unit in the file after the one that holds `offset`."""
        return offset - offset % self._units_per_file + self._units_per_file

    def from_offset(self, offset: int) -> memoryview | None:
        """The units from `offset` to the end of what is written in its file; None when nothing is."""
        place = offset * UNIT_BYTES
        file = self._files.find(place)
        if file is None:
            return None
        data = readable(file, place - file.from_offset)
        return data[: len(data) - len(data) % UNIT_BYTES] or None

    def at(self, offset: int) -> Unit | None:
        """The real unit at `offset`."""
        place = offset * UNIT_BYTES
        file = self._files.find(place)
        data = None if file is None else file.read(place - file.from_offset, UNIT_BYTES)
        if data is None:
            return None
        unit = Unit._make(UNIT.unpack(data))
        return unit if is_real(unit.physical_offset, unit.size) else None

    def next_real(self, low: int, high: int) -> tuple[int, Unit] | None:
        """The first real unit of low..high-1, with its queue offset."""
        while low < high:
            data = self.from_offset(low)
            found = None if data is None else next(real_units(data[: (high - low) * UNIT_BYTES], low), None)
            if found is not None:
                return found[3], Unit._make(found[:3])
            low = self.roll_next_file(low)
        return None

    def probe_physical(self, low: int, high: int) -> tuple[int, int] | None:
        """The same as a `Probe`, by physical offset."""
        found = self.next_real(low, high)
        return None if found is None else (found[0], found[1].physical_offset)

    def backwards(self) -> Iterator[Unit]:
        """All real units, newest first."""
        for file in reversed(self._files.files):
            yield from real_units_backwards(readable(file))


class AppendOutcome(enum.Enum):
    """Result of an append. In every case a message with queue offset k is found at k, or nowhere."""

    APPENDED = 0
    """The unit was written."""

    DUPLICATE = 1
    """The record has its unit already. Nothing was written."""

    GAP = 2
    """The unit was written, but queue offsets before it are missing: messages of this queue were lost.
    Their offsets have pre-blank units (simple queue) or are covered by no unit (batch queue)."""

    CONFLICT = 3
    """The queue offset belongs to another record. Nothing was written: the record cannot be consumed from this queue.
    The queue offset table was lost or the record was damaged."""

    TOO_FAR = 4
    """The queue offset is so far ahead of the queue that the record is more likely damaged than the queue incomplete.
    Nothing was written."""
