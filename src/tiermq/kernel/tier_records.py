"""What moves messages to a tier, and what verifies them there, in pure Python: see `kernel.pure` for the names."""

from __future__ import annotations

import struct
from typing import Any

from tiermq.errors import CorruptRecord
from tiermq.kernel.building import body_holds
from tiermq.kernel.reasons import Disagreement
from tiermq.kernel.tails import Segments
from tiermq.message.java_hash import java_hash, key_hash
from tiermq.message.properties import get_property
from tiermq.message.record_head import HeadKind, read_head

UNIT_BYTES = 20
FIXED_BYTES = 91
PHYSICAL_OFFSET_AT = 28
SYS_FLAG_AT = 36
INDEX_HEADER_BYTES = 28
INDEX_MAGIC_BEGIN = 0xBCC50289
INDEX_MAGIC_END = 0xBCC50285
KEYS_MAX = 64
"""A record with more keys than that takes the slow path."""
_UNIT = struct.Struct(">qiq")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_SLOT = struct.Struct(">ii")
_INDEX_HEADER = struct.Struct(">Iqqii")
_INDEX_ITEM = struct.Struct(">iiiqiii")
_COMPACTED_ITEM = struct.Struct(">iiiqii")


class Collected:
    """A run of one queue's records, ready for its tier: rebased records, their units, and what they span."""

    __slots__ = ("begin_ms", "count", "data", "end_ms", "has_ext_address", "next_offset", "units")

    def __init__(self, data: bytes, units: bytes, next_offset: int, begin_ms: int, end_ms: int) -> None:
        self.data = data
        self.units = units
        self.count = len(units) // UNIT_BYTES
        self.next_offset = next_offset
        self.begin_ms = begin_ms
        self.end_ms = end_ms
        # Whether a unit's tags code is an address in the local ext queue: anything below a 32-bit hash.
        self.has_ext_address = any(code < -(1 << 31) for _, _, code in _UNIT.iter_unpack(units))


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


def check_window(
    units: Any,
    data: Any,
    tier_offset: int,
    queue_offset: int,
    check_crc: bool = True,
    topic: bytes = b"",
    queue_id: int = 0,
) -> int:
    """How many leading units are followed by exactly their records in `data`, which begins at `tier_offset`.

    Each record must lie right behind the one before, with the size of its unit, its own tier offset and queue offset,
    and an intact body; and be of this topic and queue, where a topic is named. Anything less ends the count: what is
    behind it must be looked at one by one.
    """
    position = 0
    whole = len(units) // UNIT_BYTES
    for done in range(whole):
        place, size, _ = _UNIT.unpack_from(units, done * UNIT_BYTES)
        head = read_head(data, position, len(data) - position)
        in_place = head.kind is HeadKind.OK and head.physical_offset == place == tier_offset + position
        if not in_place or head.size != size or head.queue_offset != queue_offset + done:
            return done
        if topic and (head.queue_id != queue_id or head.topic != topic):
            return done
        if check_crc and not body_holds(data, position, head, 1):
            return done
        position += size
    return whole


def check_records(
    units: Any, data: Any, tier_offset: int, queue_offset: int, topic: bytes, queue_id: int
) -> tuple[int, int, int, int, Disagreement]:
    """Compare records that lie end to end in `data`, which begins at `tier_offset`, with their units: all of it.

    What `check_window` asks of them, and: each is of this topic and queue, and its unit has the code of its tag (or an
    address in an ext queue). Gives (records, bytes, least and largest store time, why it ended); the place that has to
    be looked at by others is behind those bytes.
    """
    position, times = 0, []
    for done in range(len(units) // UNIT_BYTES):
        place, size, code = _UNIT.unpack_from(units, done * UNIT_BYTES)
        ended = _disagreement(data, position, tier_offset + position, place, size)
        if ended is not None:
            break
        head = read_head(data, position, len(data) - position)
        in_place = head.kind is HeadKind.OK and head.physical_offset == place
        if not in_place or not body_holds(data, position, head, 1):
            ended = Disagreement.RECORD
        elif head.size != size or head.queue_offset != queue_offset + done:
            ended = Disagreement.UNIT
        elif head.queue_id != queue_id or head.topic != topic:
            ended = Disagreement.OWNER
        elif not _has_tag(data[head.properties_position : head.properties_position + head.properties_length], code):
            ended = Disagreement.TAG
        if ended is not None:
            break
        position += size
        times.append(head.store_timestamp_ms)
    else:
        ended = Disagreement.END
    return len(times), position, min(times, default=0), max(times, default=0), ended


def _disagreement(data: Any, position: int, here: int, place: int, size: int) -> Disagreement | None:
    """What the unit alone says against a record here; None when nothing does."""
    if place != here:
        return Disagreement.PLACE
    if size < FIXED_BYTES:
        return Disagreement.UNIT
    return Disagreement.ROOM if size > len(data) - position else None


def _has_tag(properties: Any, code: int) -> bool:
    tag = get_property(bytes(properties), b"TAGS") or b""
    return tag.isascii() and (code < -(1 << 31) or code == (java_hash(tag.decode()) if tag else 0))


def put_tier_keys(
    buffer: Any,
    slots: int,
    capacity: int,
    item_limit: int,
    units: Any,
    data: Any,
    first: int,
    log_offset: int,
    topic: str,
    topic_id: int,
    queue_id: int,
) -> tuple[int, int, int]:
    """Put the keys of the records of `units`, from unit `first` on, into an open tier index file.

    `data` holds the records from tier offset `log_offset` on. Item numbers stay below `capacity` and `item_limit`.
    Gives (records done, items put, least store time of the records that have items). Ends early, before a record that
    needs the slow path: no room for all of its keys, too many of them, keys or a topic beyond ASCII, not a record.
    """
    top = min(capacity, item_limit)
    if not topic.isascii() or slots < 1 or first < 0 or len(buffer) < INDEX_HEADER_BYTES:
        return 0, 0, 0
    if top > 0 and len(buffer) < INDEX_HEADER_BYTES + 8 * slots + 32 * top:
        raise ValueError("the buffer is smaller than the tier index file that it should hold")
    done = put = oldest_ms = 0
    while (first + done + 1) * UNIT_BYTES <= len(units):
        place, size, _ = _UNIT.unpack_from(units, (first + done) * UNIT_BYTES)
        found = tier_keys(data, place - log_offset, size)
        if found is None:
            break
        store_ms, keys = found
        (count,) = _I32.unpack_from(buffer, 24)
        if keys:
            if count < 0 or count + len(keys) >= top:
                break
            hashes = [key_hash(f"{topic}#{key}") for key in keys]
            put_tier_items(buffer, slots, capacity, hashes, (topic_id, queue_id, place, size), store_ms)
            oldest_ms = store_ms if put == 0 else min(oldest_ms, store_ms)
            put += len(keys)
        done += 1
    return done, put, oldest_ms


def tier_keys(data: Any, position: int, size: int) -> tuple[int, list[str]] | None:
    """The store time of a record and its keys, each once; None when the slow path must look at it."""
    if position < 0 or size < FIXED_BYTES or position > len(data) - size:
        return None
    head = read_head(data, position, size)
    if head.kind is not HeadKind.OK or head.size != size or head.store_timestamp_ms < 0:
        return None
    encoded = bytes(data[head.properties_position : head.properties_position + head.properties_length])
    unique, keys = get_property(encoded, b"UNIQ_KEY") or b"", get_property(encoded, b"KEYS") or b""
    if not unique.isascii() or not keys.isascii():
        return None
    pieces = dict.fromkeys(piece for piece in (unique, *keys.split(b" ")) if piece)
    return None if len(pieces) > KEYS_MAX else (head.store_timestamp_ms, [piece.decode() for piece in pieces])


def check_index_items(
    items: Any, data: Any, log_offset: int, topic: str, queue_id: int, begin_ms: int
) -> tuple[int, int]:
    """How many leading compacted index items lead to a record in `data` that has such a key, and its newest store time.

    The items are of one queue, in the order of their tier offsets; `data` holds its log from `log_offset` on. Ends
    before an item that others must look at: a record outside of `data`, another one, another key, another time, or keys
    or a topic beyond ASCII.
    """
    done = newest_ms = 0
    if not topic.isascii():
        return 0, 0
    for value, _, _, place, size, seconds in _COMPACTED_ITEM.iter_unpack(items[: len(items) // 28 * 28]):
        found = tier_keys(data, place - log_offset, size)
        if found is None:
            break
        store_ms, keys = found
        head = read_head(data, place - log_offset, size)
        if head.physical_offset != place or (head.queue_id, head.topic) != (queue_id, topic.encode()):
            break
        if all(key_hash(f"{topic}#{key}") != value for key in keys):
            break
        middle_ms = begin_ms + seconds * 1000
        earliest_ms, latest_ms = middle_ms - (999 if seconds <= 0 else 0), middle_ms + (999 if seconds >= 0 else 0)
        if not earliest_ms <= store_ms <= latest_ms:
            break
        newest_ms = max(newest_ms, store_ms)
        done += 1
    return done, newest_ms


def put_tier_items(
    buffer: Any, slots: int, capacity: int, hashes: list[int], place: tuple[int, int, int, int], store_ms: int
) -> None:
    """Add the items of one record: each item before its slot, the header last."""
    _, begin_ms, end_ms, slot_count, count = _INDEX_HEADER.unpack_from(buffer, 0)
    seconds = abs(store_ms - begin_ms) // 1000 * (1 if store_ms >= begin_ms else -1)
    seconds = max(-(1 << 31), min((1 << 31) - 1, seconds))
    for value in hashes:
        slot_at = INDEX_HEADER_BYTES + 8 * (value % slots)
        (previous,) = _I32.unpack_from(buffer, slot_at)
        slot_count += previous == 0
        count += 1
        item_at = INDEX_HEADER_BYTES + 8 * slots + 32 * count
        _INDEX_ITEM.pack_into(buffer, item_at, value, *place, seconds, previous)
        _I32.pack_into(buffer, slot_at, count)
    magic = INDEX_MAGIC_END if count + 1 >= capacity else INDEX_MAGIC_BEGIN
    _INDEX_HEADER.pack_into(buffer, 0, magic, begin_ms, max(end_ms, store_ms), slot_count, count)


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
