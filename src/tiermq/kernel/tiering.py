"""collect_for_tier, check_window and rearrange_index in pure Python: what moves messages to a tier and back."""

from __future__ import annotations

import struct
from typing import Any

from tiermq.errors import CorruptRecord
from tiermq.kernel.building import body_holds
from tiermq.kernel.tails import Segments
from tiermq.message.record_head import HeadKind, read_head

UNIT_BYTES = 20
FIXED_BYTES = 91
PHYSICAL_OFFSET_AT = 28
SYS_FLAG_AT = 36
INDEX_HEADER_BYTES = 28
INDEX_MAGIC_END = 0xBCC50285
_UNIT = struct.Struct(">qiq")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_SLOT = struct.Struct(">ii")


class Collected:
    """A run of one queue's records, ready for its tier: rebased records, their units, and what they span."""

    __slots__ = ("begin_ms", "count", "data", "end_ms", "next_offset", "units")

    def __init__(self, data: bytes, units: bytes, next_offset: int, begin_ms: int, end_ms: int) -> None:
        self.data = data
        self.units = units
        self.count = len(units) // UNIT_BYTES
        self.next_offset = next_offset
        self.begin_ms = begin_ms
        self.end_ms = end_ms


def _store_time(record: bytes | bytearray) -> int:
    """A record's store time; where it stands depends on the shape of the born host."""
    at = 68 if _I32.unpack_from(record, SYS_FLAG_AT)[0] & 0x10 else 56
    return int(_I64.unpack_from(record, at)[0])


def collect_for_tier(
    queue: Segments, log: Segments, offset: int, max_count: int, max_bytes: int, tier_offset: int
) -> Collected:
    """Copy records of one queue from `offset` on, their physical offsets rewritten to where they will lie in the tier.

    At most `max_count` records and `max_bytes` bytes, but at least one record if there is one; stops before a unit
    whose record is not there (or is another).
    """
    data = bytearray()
    units = bytearray()
    times: list[int] = []
    while len(times) < max_count:
        unit = queue.read((offset + len(times)) * UNIT_BYTES, UNIT_BYTES)
        if unit is None:
            break
        physical, size, tags_code = _UNIT.unpack(unit)
        record = log.read(physical, size) if size >= FIXED_BYTES else None
        if record is None or _I32.unpack_from(record, 0)[0] != size:
            break
        if _I64.unpack_from(record, PHYSICAL_OFFSET_AT)[0] != physical:
            break
        if times and len(data) + size > max_bytes:
            break
        place = tier_offset + len(data)
        units += _UNIT.pack(place, size, tags_code)
        data += record
        _I64.pack_into(data, len(data) - size + PHYSICAL_OFFSET_AT, place)
        times.append(_store_time(record))
    return Collected(bytes(data), bytes(units), offset + len(times), min(times, default=0), max(times, default=0))


def check_window(units: Any, data: Any, tier_offset: int, queue_offset: int, check_crc: bool = True) -> int:
    """How many leading units are followed by exactly their records in `data`, which begins at `tier_offset`.

    Each record must lie right behind the one before, with the size of its unit, its own tier offset and queue offset,
    and an intact body. Anything less ends the count: what is behind it must be looked at one by one.
    """
    position = 0
    whole = len(units) // UNIT_BYTES
    for done in range(whole):
        place, size, _ = _UNIT.unpack_from(units, done * UNIT_BYTES)
        head = read_head(data, position, len(data) - position)
        in_place = head.kind is HeadKind.OK and head.physical_offset == place == tier_offset + position
        if not in_place or head.size != size or head.queue_offset != queue_offset + done:
            return done
        if check_crc and not body_holds(data, position, head, 1):
            return done
        position += size
    return whole


def rearrange_index(buffer: Any, slots: int, items: int) -> bytes:
    """The compacted form of a whole open tier index file: slots of (position, length), items grouped by slot.

    A counting sort: items of a slot stand newest first, as a walk along its chain would give them. b"" without items.
    """
    if len(buffer) < INDEX_HEADER_BYTES + 8 * slots + 32 * max(0, items):
        raise CorruptRecord("the index file is shorter than its slot and item counts say")
    (count,) = _I32.unpack_from(buffer, 24)
    if count <= 0:
        return b""
    if count >= items:
        raise CorruptRecord(f"the index file counts {count} items, more than the {items} it has room for")
    first_item = INDEX_HEADER_BYTES + 8 * slots
    by_slot: dict[int, list[int]] = {}
    for number in range(count, 0, -1):
        (key_hash,) = _I32.unpack_from(buffer, first_item + 32 * number)
        if key_hash < 0:
            raise CorruptRecord("an index item has a negative key hash")
        by_slot.setdefault(key_hash % slots, []).append(number)
    out = bytearray(first_item + 28 * count)
    out[:INDEX_HEADER_BYTES] = buffer[:INDEX_HEADER_BYTES]
    out[:4] = INDEX_MAGIC_END.to_bytes(4, "big")
    position = first_item
    for slot in range(slots):
        numbers = by_slot.get(slot, ())
        _SLOT.pack_into(out, INDEX_HEADER_BYTES + 8 * slot, position, 28 * len(numbers))
        for number in numbers:
            start = first_item + 32 * number
            out[position : position + 28] = buffer[start : start + 28]
            position += 28
    return bytes(out)
