"""TimerLog: the units of all timers in the order in which they were enqueued, in `timerlog/`.

Invariants: a unit never crosses a file's end (a blank fills what is left); units below `flushed_where` survive a power
cut. Opening maps files only: they count as full until recovery sets the end of the log with `truncate`.
Threads: the timer service appends, flushes, truncates and deletes; any thread reads.

Timer-log unit: one timer in the chain of its slot.

    0      4          12      16           24      28                36     40           44         52
    +------+----------+-------+------------+-------+-----------------+------+------------+----------+
    | 52   | previous | magic | write time | delay | physical offset | size | topic hash | 0        |   big-endian
    +------+----------+-------+------------+-------+-----------------+------+------------+----------+

    0            4     12           16 … end of the file
    +------------+-----+------------+
    | bytes left | 0   | 0xCBD43194 |   where no further unit fits
    +------------+-----+------------+

The slot is write time + delay; it is before the deliver time when the timer rolls.
Invariants: `previous` is the position of the unit that was the slot's last before, or -1; positions only grow.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from tiermq.clock import Clock
from tiermq.errors import StoreError
from tiermq.files.file_access import FileAccess
from tiermq.files.mapped_file import MappedFile
from tiermq.files.mapped_file_queue import MappedFileQueue
from tiermq.message.layout import MAGIC_BLANK

TIMER_UNIT = struct.Struct(
    ">"
    "i"  # size             always 52
    "q"  # previous         position of the slot's unit before this one, -1 for the first
    "i"  # magic            1, plus 2 when it rolls, 4 when it cancels another, 8 when it is a copy (ours)
    "q"  # write_time_ms    beginning of the slot in which it was written
    "i"  # delay_ms         slot time - write time
    "q"  # physical_offset  of the message in the commit log
    "i"  # message_size     bytes of the record
    "i"  # topic_hash       Java hash of the real topic
    "q"  # reserved         0
)
TIMER_UNIT_BYTES = TIMER_UNIT.size
BLANK = struct.Struct(">iqi")
BLANK_BYTES = BLANK.size
MAGIC_DEFAULT = 1
MAGIC_ROLL = 2
MAGIC_DELETE = 4
MAGIC_COPY = 8
"""The chains were linked again: units before a run of copies are obsolete. RocketMQ ignores the bit."""
MAGIC_MAX = 15
NO_POSITION = -1
assert TIMER_UNIT_BYTES == 52
assert BLANK_BYTES == 16
DIRECTORY = "timerlog"
TIMER_READ_BYTES = TIMER_UNIT_BYTES * 16_384
"""Units that a walk copies at once."""


class TimerUnit(NamedTuple):
    """One unit, without the fields that are always the same."""

    previous: int
    magic: int
    write_time_ms: int
    delay_ms: int
    physical_offset: int
    message_size: int
    topic_hash: int

    @property
    def slot_ms(self) -> int:
        return self.write_time_ms + self.delay_ms

    @property
    def rolls(self) -> bool:
        return self.magic & MAGIC_ROLL != 0

    @property
    def cancels(self) -> bool:
        """Whether it cancels a timer of its slot; a cancellation that rolls does not yet."""
        return self.magic & (MAGIC_DELETE | MAGIC_ROLL) == MAGIC_DELETE

    @property
    def weight(self) -> int:
        """What it adds to the number of timers that wait in its slot."""
        return -1 if self.magic & MAGIC_DELETE else 1


def encode_unit(unit: TimerUnit) -> bytes:
    return TIMER_UNIT.pack(TIMER_UNIT_BYTES, *unit, 0)


def unit_sum(position: int, encoded: bytes) -> int:
    """The part of an encoded unit in the checkpoint's sum over waiting units, which is independent of their order."""
    return zlib.crc32(encoded, position & 0xFFFFFFFF)


def encode_blank(bytes_left: int) -> bytes:
    """What fills a file whose last `bytes_left` bytes have no space for a unit."""
    return BLANK.pack(bytes_left, 0, MAGIC_BLANK).ljust(bytes_left, b"\0")


def decode_unit(data: bytes | memoryview, position: int = 0) -> TimerUnit | None:
    """The unit at a position; None without a unit: zeros, the end of a file, or damage."""
    if position + TIMER_UNIT_BYTES > len(data):
        return None
    size, previous, magic, write_time_ms, delay_ms, physical_offset, message_size, topic_hash, reserved = (
        TIMER_UNIT.unpack_from(data, position)
    )
    is_sound = (
        size == TIMER_UNIT_BYTES
        and reserved == 0
        and magic & MAGIC_DEFAULT
        and 0 < magic <= MAGIC_MAX
        and write_time_ms > 0
        and delay_ms >= 0
        and physical_offset >= 0
        and message_size > 0
        and previous >= NO_POSITION
    )
    if not is_sound:
        return None
    return TimerUnit(previous, magic, write_time_ms, delay_ms, physical_offset, message_size, topic_hash)


def is_blank(data: bytes | memoryview, position: int = 0) -> bool:
    """Whether a file ends here, and the next unit is in the next one."""
    return position + BLANK_BYTES <= len(data) and BLANK.unpack_from(data, position)[2] == MAGIC_BLANK


def last_unit_position(file_bytes: int) -> int:
    """The position of the last unit of a full file."""
    return file_bytes - (file_bytes - BLANK_BYTES) % TIMER_UNIT_BYTES - BLANK_BYTES - TIMER_UNIT_BYTES


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
        """The position of the next unit, if the file has space for it."""
        return self._files.max_offset

    @property
    def flushed_where(self) -> int:
        return self._files.flushed_where

    @property
    def file_bytes(self) -> int:
        return self._files.file_size

    def append(self, unit: TimerUnit) -> int:
        """Write one unit; its position. Raises DiskFull, with nothing written that a reader would see."""
        return self.append_encoded(encode_unit(unit))

    def append_encoded(self, encoded: bytes) -> int:
        file = self._files.last_or_create()
        left = file.size - file.wrote_position
        if left < TIMER_UNIT_BYTES + BLANK_BYTES:
            _written(file, encode_blank(left))
            file = self._files.create_next()
        position = file.from_offset + file.wrote_position
        _written(file, encoded)
        return position

    def read(self, position: int) -> TimerUnit | None:
        """The unit at a position; None if there is no unit, or no longer."""
        data = self.read_encoded(position)
        return None if data is None else decode_unit(data)

    def read_encoded(self, position: int) -> bytes | None:
        """The bytes of a unit, unchecked; None beyond the log."""
        return self._files.segments.read(position, TIMER_UNIT_BYTES)

    def units(self, start: int = 0) -> Iterator[tuple[int, TimerUnit]]:
        """(position, unit) from the unit at `start` (or the oldest) on, up to the end or to the first damage."""
        for file in self._files.files:
            if file.from_offset + file.size <= start:
                continue
            at = max(0, start - file.from_offset)
            while data := file.view.read(at, min(TIMER_READ_BYTES, file.read_position - at)):
                position = 0
                while (unit := decode_unit(data, position)) is not None:
                    yield file.from_offset + at + position, unit
                    position += TIMER_UNIT_BYTES
                at += position
                if position + TIMER_UNIT_BYTES <= len(data) or position == 0:
                    break  # A blank, zeros or damage; or less than a unit is left.
            rest = file.view.read(at, min(BLANK_BYTES, max(0, file.read_position - at)))
            if rest is None or not is_blank(rest):
                return

    def flush(self) -> None:
        """Everything that was appended survives a power cut when it returns."""
        while not self._files.flush(0):
            pass

    def truncate(self, end: int) -> None:
        """Cut everything from `end` on, durably: bytes after it become zeros, so that they are never read as units."""
        self._files.truncate_dirty(end)
        for file in self._files.files:
            if file.from_offset <= end < file.from_offset + file.size:
                file.zero_from(end - file.from_offset)
            else:
                file.sync_whole()
        self._files.flushed_where = min(end, self._files.max_offset)

    def delete_before(self, min_physical_offset: int) -> int:
        """Delete the leading files whose messages are deleted from the commit log; returns their number."""
        return self._files.delete_expired_by_offset(min_physical_offset, TIMER_UNIT_BYTES, self._last_physical_offset)

    def _last_physical_offset(self, file: MappedFile) -> int:
        data = file.view.read(last_unit_position(file.size), TIMER_UNIT_BYTES)
        unit = None if data is None else decode_unit(data)
        return -1 if unit is None else unit.physical_offset

    def close(self) -> None:
        self._files.close()


def _written(file: MappedFile, data: bytes) -> None:
    if not file.append(data):
        raise StoreError(f"{file.path}: expected space for {len(data)} bytes, found the file closed or full.")
