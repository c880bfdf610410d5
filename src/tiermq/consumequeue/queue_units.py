"""Reading the units of a queue across its files. Any thread; nothing here changes anything.

A view of a file's bytes keeps the map alive, so a reader is never surprised by the cleaning of old files.
"""

from __future__ import annotations

from collections.abc import Iterator

from tiermq.consumequeue.unit import UNIT, UNIT_BYTES, Unit, is_real
from tiermq.consumequeue.unit_scan import has_data, real_units, real_units_backwards
from tiermq.files.mapped_file import MappedFile
from tiermq.files.mapped_file_queue import MappedFileQueue


def readable(file: MappedFile, start: int = 0) -> memoryview:
    """The bytes of a file from `start` on that can be read; none once the file is on its way out."""
    selected = file.select(start)
    if selected is None:
        return memoryview(b"")
    with selected:
        return selected.data[:]  # A view of its own, which keeps the map but not the file's name.


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
        """The same as a probe of `hole_search`, by physical offset."""
        found = self.next_real(low, high)
        return None if found is None else (found[0], found[1].physical_offset)

    def between(self, low: int, high: int) -> Iterator[Unit]:
        """The real units of low..high-1."""
        while low < high:
            data = self.from_offset(low)
            if data is not None:
                for found in real_units(data[: (high - low) * UNIT_BYTES], low):
                    yield Unit._make(found[:3])
            low = self.roll_next_file(low)

    def backwards(self) -> Iterator[Unit]:
        """All real units, newest first."""
        for file in reversed(self._files.files):
            yield from real_units_backwards(readable(file))
