"""How far the bytes of a consume-queue file are units that belong to it.

A scan goes on while units are valid, do not run backwards (records do not overlap, so each unit begins where the one
before it ended, or later) and stay below a given end of the commit log. It stops at the first that does not:
the empty rest of the file, a page that a power cut kept from the disk, or the remains of an earlier truncation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tiermq import kernel
from tiermq.consumequeue.unit import PRE_BLANK_SIZE, UNIT, UNIT_BYTES, Unit, is_real

PHYSICAL_END_MAX = (1 << 63) - 1
_CHUNK_BYTES = 1 << 16
_ZEROS = bytes(_CHUNK_BYTES)


class Scan(NamedTuple):
    """`valid_bytes` from the start are valid units; `physical_end` is where the record of the last real one ends.

    `physical_end` is what the scan was given as `previous_end` when none of the units is real.
    """

    valid_bytes: int
    physical_end: int
    has_real: bool


def scan_units(data: memoryview, previous_end: int = 0, physical_end_max: int = PHYSICAL_END_MAX) -> Scan:
    """Scan the units of `data`, which begins at a unit."""
    return Scan(*kernel.scan_units(data, previous_end, physical_end_max))


def real_units(data: memoryview, first_queue_offset: int) -> Iterator[tuple[int, int, int, int]]:
    """(physical offset, size, tags code, queue offset) of each real unit; blank and damaged ones are passed over."""
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
    for start in range(0, len(data), _CHUNK_BYTES):
        chunk = bytes(data[start : start + _CHUNK_BYTES])
        if chunk != _ZEROS[: len(chunk)]:
            return True
    return False
