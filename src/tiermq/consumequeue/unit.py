"""Consume-queue unit: where one message of a queue is stored in the commit log.

    0                 8        12                20
    +-----------------+--------+------------------+
    | physical offset | size   | tags code        |   big-endian, i64 i32 i64
    +-----------------+--------+------------------+

Invariants: unit k of a queue is at byte k * UNIT_BYTES of that queue; the physical offsets of real units never
decrease. A real unit has physical offset >= 0 and 0 < size < PRE_BLANK_SIZE.

A *pre-blank* unit (physical offset 0, size 0x7FFFFFFF, tags code 0) fills an offset without a message:
before the first message of a queue that does not start at a file's beginning, and in a gap of the numbering.
It is valid when a queue is recovered, and is never a message: no record is 2 GiB long.

The tags code is the Java hash of the tag (a sign-extended i32) or the delivery time of a delayed message. A value below
-2**31 can be neither: it is an *ext address*, the offset of an ext unit (`ext_unit.py`) minus 2**63.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tiermq.errors import CorruptRecord, IllegalMessage
from tiermq.message.layout import PRE_BLANK_SIZE as PRE_BLANK_SIZE
from tiermq.message.layout import UNIT as UNIT
from tiermq.message.layout import UNIT_BYTES as UNIT_BYTES

PRE_BLANK = UNIT.pack(0, PRE_BLANK_SIZE, 0)

EXT_ADDRESS_BASE = -(1 << 63)
EXT_ADDRESS_MAX = -(1 << 31) - 1
EXT_OFFSET_MAX = (1 << 63) - (1 << 31) - 1
assert EXT_ADDRESS_BASE + EXT_OFFSET_MAX == EXT_ADDRESS_MAX


class Unit(NamedTuple):
    """One decoded unit."""

    physical_offset: int
    size: int
    tags_code: int


def encode(physical_offset: int, size: int, tags_code: int) -> bytes:
    """The 20 bytes of one unit. Raises IllegalMessage when a value does not fit or could not be read as real."""
    if physical_offset < 0 or not 0 < size < PRE_BLANK_SIZE:
        raise IllegalMessage(
            f"a consume-queue unit needs an offset >= 0 and a size in 1..{PRE_BLANK_SIZE - 1}, "
            f"found offset {physical_offset} and size {size}; the record was decoded wrongly"
        )
    try:
        return UNIT.pack(physical_offset, size, tags_code)
    except struct.error as error:
        raise IllegalMessage(
            f"a consume-queue unit holds i64 i32 i64, found ({physical_offset}, {size}, {tags_code}): {error}"
        ) from error


def decode(data: bytes | bytearray | memoryview, position: int = 0) -> Unit:
    """The unit at `position`. Raises CorruptRecord when 20 bytes are missing or invalid."""
    if position < 0 or position + UNIT_BYTES > len(data):
        raise CorruptRecord(f"expected a {UNIT_BYTES}-byte unit at byte {position}, found {len(data)} bytes in all")
    unit = Unit._make(UNIT.unpack_from(data, position))
    if not is_valid(unit.physical_offset, unit.size):
        raise CorruptRecord(
            f"expected a unit with offset >= 0 and size > 0 at byte {position}, "
            f"found offset {unit.physical_offset} and size {unit.size}; recover the queue"
        )
    return unit


def is_valid(physical_offset: int, size: int) -> bool:
    """Whether a recovery scan continues past this unit: real units and pre-blank ones."""
    return physical_offset >= 0 and size > 0


def is_real(physical_offset: int, size: int) -> bool:
    """Whether the unit is a message's."""
    return physical_offset >= 0 and 0 < size < PRE_BLANK_SIZE


def is_ext_address(tags_code: int) -> bool:
    """Whether a tags code is the address of an ext unit."""
    return tags_code <= EXT_ADDRESS_MAX


def ext_address(offset: int) -> int:
    """The tags code that stands for the ext unit at `offset` of the ext queue."""
    if not 0 <= offset <= EXT_OFFSET_MAX:
        raise IllegalMessage(f"an ext offset is in 0..{EXT_OFFSET_MAX}, found {offset}")
    return offset + EXT_ADDRESS_BASE


def ext_offset(address: int) -> int:
    """The offset in the ext queue that an ext address stands for."""
    if not EXT_ADDRESS_BASE <= address <= EXT_ADDRESS_MAX:
        raise CorruptRecord(f"expected an ext address (<= {EXT_ADDRESS_MAX}), found tags code {address}")
    return address - EXT_ADDRESS_BASE


def whole_units_bytes(file_size: int) -> int:
    """`file_size` rounded up to whole units, as RocketMQ does with `mappedFileSizeConsumeQueue`."""
    return -(-file_size // UNIT_BYTES) * UNIT_BYTES
