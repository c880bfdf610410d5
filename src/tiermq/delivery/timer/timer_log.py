"""TimerLog: the units of all timers in the order in which they were taken in, in `timerlog/`.

Invariants: a unit never crosses a file's end (a blank fills what is left); units below `flushed_where` survive a power
cut. Opening maps files only: they count as full until recovery says by `truncate` where the log ends.
Threads: the timer service appends, flushes, truncates and deletes; any thread reads.
"""

from __future__ import annotations

from collections.abc import Iterator

from tiermq.clock import Clock
from tiermq.delivery.timer.timer_unit import (
    BLANK_BYTES,
    UNIT_BYTES,
    TimerUnit,
    decode_unit,
    encode_blank,
    encode_unit,
    is_blank,
    last_unit_position,
)
from tiermq.errors import StoreError
from tiermq.files.file_access import FileAccess
from tiermq.files.mapped_file import MappedFile
from tiermq.files.mapped_file_queue import MappedFileQueue

DIRECTORY = "timerlog"
CHUNK_BYTES = UNIT_BYTES * 16_384
"""Units that a walk copies at once."""


class TimerLog:
    """See the module."""

    def __init__(
        self, access: FileAccess, directory: str, file_bytes: int, clock: Clock, *, writable: bool = True
    ) -> None:
        """Raises StoreDamaged for files of another size, or with a hole between them."""
        self._files = MappedFileQueue(access, directory, file_bytes, clock=clock, writable=writable)
        self._files.load()

    @property
    def begin(self) -> int:
        """Position of the oldest unit that is kept."""
        return max(0, self._files.min_offset)

    @property
    def end(self) -> int:
        """Where the next unit goes, unless the file has no room for it."""
        return self._files.max_offset

    @property
    def flushed_where(self) -> int:
        return self._files.flushed_where

    @property
    def file_bytes(self) -> int:
        return self._files.file_size

    def append(self, unit: TimerUnit) -> int:
        """Write one unit; its position. Raises DiskFull, with nothing written that a reader would see."""
        file = self._files.last_or_create()
        left = file.size - file.wrote_position
        if left < UNIT_BYTES + BLANK_BYTES:
            _written(file, encode_blank(left))
            file = self._files.create_next()
        position = file.from_offset + file.wrote_position
        _written(file, encode_unit(unit))
        return position

    def read(self, position: int) -> TimerUnit | None:
        """The unit at a position; None when there is none, or no longer."""
        data = self._files.segments.read(position, UNIT_BYTES)
        return None if data is None else decode_unit(data)

    def units(self, start: int = 0) -> Iterator[tuple[int, TimerUnit]]:
        """(position, unit) from the unit at `start` (or the oldest) on, up to the end or to the first damage."""
        for file in self._files.files:
            if file.from_offset + file.size <= start:
                continue
            at = max(0, start - file.from_offset)
            while data := file.view.read(at, min(CHUNK_BYTES, file.read_position - at)):
                position = 0
                while (unit := decode_unit(data, position)) is not None:
                    yield file.from_offset + at + position, unit
                    position += UNIT_BYTES
                at += position
                if position + UNIT_BYTES <= len(data) or position == 0:
                    break  # A blank, zeros or damage; or less than a unit is left.
            rest = file.view.read(at, min(BLANK_BYTES, max(0, file.read_position - at)))
            if rest is None or not is_blank(rest):
                return

    def flush(self) -> None:
        """Everything that was appended survives a power cut when it returns."""
        while not self._files.flush(0):
            pass

    def truncate(self, end: int) -> None:
        """Forget everything from `end` on, durably: bytes behind it are zeros, so that nobody takes them for units."""
        self._files.truncate_dirty(end)
        for file in self._files.files:
            if file.from_offset <= end < file.from_offset + file.size:
                file.zero_from(end - file.from_offset)
            else:
                file.sync_whole()
        self._files.flushed_where = min(end, self._files.max_offset)

    def delete_before(self, min_physical_offset: int) -> int:
        """Delete the leading files whose messages are gone from the commit log; how many went."""
        return self._files.delete_expired_by_offset(min_physical_offset, UNIT_BYTES, self._last_physical_offset)

    def _last_physical_offset(self, file: MappedFile) -> int:
        data = file.view.read(last_unit_position(file.size), UNIT_BYTES)
        unit = None if data is None else decode_unit(data)
        return -1 if unit is None else unit.physical_offset

    def close(self) -> None:
        self._files.close()


def _written(file: MappedFile, data: bytes) -> None:
    if not file.append(data):
        raise StoreError(f"{file.path}: expected room for {len(data)} bytes, found the file closed or full.")
