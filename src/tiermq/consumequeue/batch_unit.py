"""Batch unit: the commit log offset of one inner batch of a queue, and the queue offsets it covers.

    0                 8      12          20           28            36           38                 42        46
    +-----------------+------+-----------+------------+-------------+------------+------------------+----------+
    | physical offset | size | tags code | store time | base offset | batch size | compacted offset | reserved |
    +-----------------+------+-----------+------------+-------------+------------+------------------+----------+
      i64               i32    i64         i64          i64           i16          i32 (-1)           i32 (0)

All big-endian. Invariants: physical offsets, store times and base offsets of a queue never decrease; a unit covers the
queue offsets base_offset .. base_offset + batch_size - 1. Unlike a simple unit, its position does not determine
its queue offset.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tiermq.errors import CorruptRecord, IllegalMessage

BATCH_UNIT = struct.Struct(
    ">"
    "q"  # physical_offset     absolute byte position of the record in the commit log
    "i"  # size                bytes of the whole record
    "q"  # tags_code           Java hash of the tag
    "q"  # store_timestamp_ms  the record's store time
    "q"  # base_offset         queue offset of the batch's first message
    "h"  # batch_size          messages in the batch
    "i"  # compacted_offset    -1: not compacted
    "i"  # reserved            0
)
BATCH_UNIT_BYTES = BATCH_UNIT.size
NOT_COMPACTED = -1
assert BATCH_UNIT_BYTES == 46


class BatchUnit(NamedTuple):
    """One decoded batch unit."""

    physical_offset: int
    size: int
    tags_code: int
    store_timestamp_ms: int
    base_offset: int
    batch_size: int

    @property
    def end_offset(self) -> int:
        """The queue offset after the batch's last message."""
        return self.base_offset + self.batch_size

    @property
    def end_physical_offset(self) -> int:
        """The byte after the record in the commit log."""
        return self.physical_offset + self.size


def encode(unit: BatchUnit) -> bytes:
    """The 46 bytes of one batch unit. Raises IllegalMessage when a value does not fit or could not be read as valid."""
    if not is_valid(unit):
        raise IllegalMessage(f"a batch unit needs offsets >= 0, size > 0 and batch size > 0, found {unit}")
    try:
        return BATCH_UNIT.pack(*unit, NOT_COMPACTED, 0)
    except struct.error as error:
        raise IllegalMessage(f"a batch unit holds i64 i32 i64 i64 i64 i16, found {unit}: {error}") from error


def decode(data: bytes | bytearray | memoryview, position: int = 0) -> BatchUnit:
    """The batch unit at `position`. Raises CorruptRecord when 46 bytes are missing or invalid."""
    if position < 0 or position + BATCH_UNIT_BYTES > len(data):
        raise CorruptRecord(
            f"expected a {BATCH_UNIT_BYTES}-byte batch unit at byte {position}, found {len(data)} bytes in all"
        )
    unit = BatchUnit._make(BATCH_UNIT.unpack_from(data, position)[:6])
    if not is_valid(unit):
        raise CorruptRecord(
            f"expected a batch unit with offsets >= 0, size > 0 and batch size > 0 at byte {position}, found {unit}"
        )
    return unit


def is_valid(unit: BatchUnit) -> bool:
    """Whether a recovery scan continues past this unit."""
    return unit.physical_offset >= 0 and unit.size > 0 and unit.base_offset >= 0 and unit.batch_size > 0
