"""Ext unit: fields that do not fit a consume-queue unit (filter bit map, store time).

    0      2           10               18             20
    +------+-----------+----------------+--------------+---------- - -
    | size | tags code | store time, ms | bit map size | bit map
    +------+-----------+----------------+--------------+---------- - -
      i16    i64         i64              i16            bytes            big-endian

Invariants: size = EXT_UNIT_BYTES_MIN + bit map size, at most 32767. A size of -1 (END_OF_FILE) means that the rest of
the file is empty and the next unit is at the beginning of the next file; a size of 0 is the end of the data. At least
END_BYTES stay free at a file's end, so that END_OF_FILE always fits.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tiermq.errors import CorruptRecord, IllegalMessage

EXT_HEAD = struct.Struct(
    ">"
    "h"  # size                bytes of the whole ext unit
    "q"  # tags_code           the real tags code; the consume-queue unit holds this unit's address instead
    "q"  # store_timestamp_ms  the record's store time
    "h"  # bit_map_size        bytes of the bit map
)
EXT_UNIT_BYTES_MIN = EXT_HEAD.size
EXT_UNIT_BYTES_MAX = 0x7FFF
assert EXT_UNIT_BYTES_MIN == 20

EXT_SIZE = struct.Struct(">h")
END_OF_FILE = EXT_SIZE.pack(-1)
END_BYTES = 4
assert len(END_OF_FILE) <= END_BYTES


class ExtUnit(NamedTuple):
    """One decoded ext unit."""

    tags_code: int
    store_timestamp_ms: int
    bit_map: bytes = b""

    @property
    def size(self) -> int:
        """Bytes of the encoded unit."""
        return EXT_UNIT_BYTES_MIN + len(self.bit_map)


def fits(unit: ExtUnit) -> bool:
    """Whether the unit can be encoded at all: its size is an i16."""
    return unit.size <= EXT_UNIT_BYTES_MAX


def encode(unit: ExtUnit) -> bytes:
    """The bytes of one ext unit. Raises IllegalMessage when the bit map is too long or a number too large."""
    if not fits(unit):
        raise IllegalMessage(
            f"an ext unit has at most {EXT_UNIT_BYTES_MAX} bytes, found {unit.size}; shorten the filter bit map"
        )
    try:
        head = EXT_HEAD.pack(unit.size, unit.tags_code, unit.store_timestamp_ms, len(unit.bit_map))
    except struct.error as error:
        raise IllegalMessage(
            f"an ext unit holds i64 tags code and i64 store time, found {unit[:2]}: {error}"
        ) from error
    return head + unit.bit_map


def size_at(data: bytes | bytearray | memoryview, position: int) -> int:
    """The size field at `position`: > 0 a unit, 0 the end of the data, -1 the end of the file.

    Raises CorruptRecord for any other value, and for a unit that is inconsistent or passes the end of `data`.
    """
    if position < 0 or position + EXT_SIZE.size > len(data):
        raise CorruptRecord(f"expected an ext unit at byte {position}, found {len(data)} bytes in all")
    size: int = EXT_SIZE.unpack_from(data, position)[0]
    if size in (0, -1):
        return size
    if size < EXT_UNIT_BYTES_MIN or position + size > len(data):
        raise CorruptRecord(
            f"expected an ext unit of {EXT_UNIT_BYTES_MIN}..{len(data) - position} bytes at byte {position}, "
            f"found size {size}"
        )
    bit_map_size: int = EXT_HEAD.unpack_from(data, position)[3]
    if bit_map_size != size - EXT_UNIT_BYTES_MIN:
        raise CorruptRecord(
            f"expected a bit map of {size - EXT_UNIT_BYTES_MIN} bytes in the ext unit at byte {position}, "
            f"found {bit_map_size}"
        )
    return size


def decode(data: bytes | bytearray | memoryview, position: int = 0) -> ExtUnit:
    """The ext unit at `position`. Raises CorruptRecord when there is none."""
    size = size_at(data, position)
    if size <= 0:
        raise CorruptRecord(f"expected an ext unit at byte {position}, found the end of the data (size {size})")
    _, tags_code, store_timestamp_ms, _ = EXT_HEAD.unpack_from(data, position)
    return ExtUnit(tags_code, store_timestamp_ms, bytes(data[position + EXT_UNIT_BYTES_MIN : position + size]))
