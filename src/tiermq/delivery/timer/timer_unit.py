"""Timer-log unit: one timer in the chain of its slot.

    0      4          12      16           24      28                36     40           44         52
    +------+----------+-------+------------+-------+-----------------+------+------------+----------+
    | 52   | previous | magic | write time | delay | physical offset | size | topic hash | 0        |   big-endian
    +------+----------+-------+------------+-------+-----------------+------+------------+----------+

    0            4     12           16 … end of the file
    +------------+-----+------------+
    | bytes left | 0   | 0xCBD43194 |   where no further unit fits
    +------------+-----+------------+

The slot is write time + delay; it is where the timer is looked for, which is before its deliver time when it rolls.
Invariants: `previous` is the position of the unit that was the slot's last before, or -1; positions only grow.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

UNIT = struct.Struct(
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
UNIT_BYTES = UNIT.size
BLANK = struct.Struct(">iqi")
BLANK_BYTES = BLANK.size
BLANK_MAGIC = 0xCBD43194 - (1 << 32)
MAGIC_DEFAULT = 1
MAGIC_ROLL = 2
MAGIC_DELETE = 4
MAGIC_COPY = 8
"""The chains were linked anew: what lies before a run of copies is obsolete. RocketMQ passes over the bit."""
MAGIC_MAX = 15
NO_POSITION = -1
assert UNIT_BYTES == 52
assert BLANK_BYTES == 16


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
        """Whether it cancels a timer of its slot; one that rolls is only on its way there."""
        return self.magic & (MAGIC_DELETE | MAGIC_ROLL) == MAGIC_DELETE

    @property
    def weight(self) -> int:
        """What it adds to the number of timers that wait in its slot."""
        return -1 if self.magic & MAGIC_DELETE else 1


def encode_unit(unit: TimerUnit) -> bytes:
    return UNIT.pack(UNIT_BYTES, *unit, 0)


def unit_sum(position: int, unit: TimerUnit) -> int:
    """What a unit adds to the sum over all that wait: their order does not count, every bit and every place does."""
    return zlib.crc32(encode_unit(unit), position & 0xFFFFFFFF)


def encode_blank(bytes_left: int) -> bytes:
    """What fills a file whose last `bytes_left` bytes have no room for a unit."""
    return BLANK.pack(bytes_left, 0, BLANK_MAGIC).ljust(bytes_left, b"\0")


def decode_unit(data: bytes | memoryview, position: int = 0) -> TimerUnit | None:
    """The unit at a position; None where there is none: zeros, the end of a file, or damage."""
    if position + UNIT_BYTES > len(data):
        return None
    size, previous, magic, write_time_ms, delay_ms, physical_offset, message_size, topic_hash, reserved = (
        UNIT.unpack_from(data, position)
    )
    is_sound = (
        size == UNIT_BYTES
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
    return position + BLANK_BYTES <= len(data) and BLANK.unpack_from(data, position)[2] == BLANK_MAGIC


def last_unit_position(file_bytes: int) -> int:
    """Where the last unit of a full file lies."""
    return file_bytes - (file_bytes - BLANK_BYTES) % UNIT_BYTES - BLANK_BYTES - UNIT_BYTES
