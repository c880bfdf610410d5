"""Copies messages to a tier and verifies them there, in pure Python: see `kernel.pure` for the names.

`collect_tier_keys` hashes the keys of records; `put_collected_keys` puts them into a tier index file.
A collected key is 24 bytes, big-endian; all keys of a record are adjacent:

    i32 key hash | i64 tier offset of the record | i32 its size | i64 its store time in ms
"""

from __future__ import annotations

import struct
from typing import Any

from tiermq.errors import CorruptRecord
from tiermq.kernel.builder import body_holds
from tiermq.kernel.stop_reasons import Disagreement
from tiermq.kernel.write_cursor import Segments
from tiermq.message.java_hash import java_hash, key_hash
from tiermq.message.layout import I32, I64, PHYSICAL_OFFSET_AT, RECORD_BYTES_MIN, SYS_FLAG_AT, UNIT, UNIT_BYTES
from tiermq.message.properties import get_property
from tiermq.message.record_head import HeadKind, read_head

INDEX_HEADER_BYTES = 28
INDEX_MAGIC_BEGIN = 0xBCC50289
INDEX_MAGIC_END = 0xBCC50285
KEYS_MAX = 64
"""A record with more keys takes the slow path."""
TAG_UNKNOWN = -(1 << 31) - 1
"""In a unit: no 32-bit hash."""
_GROUP = struct.Struct(">ii")  # A slot of a compacted file: position and bytes of its items.
_INDEX_HEADER = struct.Struct(">Iqqii")
_INDEX_ITEM = struct.Struct(">iiiqiii")
_COMPACTED_ITEM = struct.Struct(">iiiqii")


class Collected:
    """A range of one queue's records, ready for its tier: rebased records, their units, and their bounds."""

    __slots__ = ("begin_ms", "count", "data", "end_ms", "has_ext_address", "next_offset", "units")

    def __init__(self, data: bytes, units: bytes, next_offset: int, begin_ms: int, end_ms: int) -> None:
        self.data = data
        self.units = units
        self.count = len(units) // UNIT_BYTES
        self.next_offset = next_offset
        self.begin_ms = begin_ms
        self.end_ms = end_ms
        # Whether a unit's tags code is an address in the local ext queue: anything below a 32-bit hash.
        self.has_ext_address = any(code < -(1 << 31) for _, _, code in UNIT.iter_unpack(units))


def _store_time(record: bytes | bytearray) -> int:
    """A record's store time; its position depends on the address family of the born host."""
    at = 68 if I32.unpack_from(record, SYS_FLAG_AT)[0] & 0x10 else 56
    return int(I64.unpack_from(record, at)[0])


def collect_for_tier(
    queue: Segments, log: Segments, offset: int, max_count: int, max_bytes: int, tier_offset: int
) -> Collected:
    """Copy records of one queue from `offset` on, with physical offsets rewritten to their offsets in the tier.

    At most `max_count` records and `max_bytes` bytes, but at least one record if there is one; stops before a unit
    whose record is missing (or is another).
    """
    data = bytearray()
    units = bytearray()
    times: list[int] = []
    while len(times) < max_count:
        unit = queue.read((offset + len(times)) * UNIT_BYTES, UNIT_BYTES)
        if unit is None:
            break
        physical, size, tags_code = UNIT.unpack(unit)
        record = log.read(physical, size) if size >= RECORD_BYTES_MIN else None
        if record is None or I32.unpack_from(record, 0)[0] != size:
            break
        if I64.unpack_from(record, PHYSICAL_OFFSET_AT)[0] != physical:
            break
        if times and len(data) + size > max_bytes:
            break
        place = tier_offset + len(data)
        units += UNIT.pack(place, size, tags_code)
        data += record
        I64.pack_into(data, len(data) - size + PHYSICAL_OFFSET_AT, place)
        times.append(_store_time(record))
    return Collected(bytes(data), bytes(units), offset + len(times), min(times, default=0), max(times, default=0))


def rebase_records(
    data: Any, queue_offset: int, max_count: int, max_bytes: int, tier_offset: int, topic: bytes, queue_id: int
) -> Collected:
    """Make consecutive records of one queue, as a broker sends them, ready for its tier: `collect_for_tier` of `data`.

    Stops before a record that is not whole, not of this queue, not the next one, or whose body is damaged. The unit of
    a tag beyond ASCII gets TAG_UNKNOWN, which counts as an ext address: the caller derives it.
    """
    copied, units = bytearray(), bytearray()
    times: list[int] = []
    while len(times) < max_count and len(copied) < len(data):
        at = len(copied)
        head = read_head(data, at, len(data) - at)
        if head.kind is not HeadKind.OK or head.queue_offset != queue_offset + len(times):
            break
        if head.queue_id != queue_id or head.topic != topic or not body_holds(data, at, head, 1):
            break
        if times and at + head.size > max_bytes:
            break
        properties = bytes(data[head.properties_position : head.properties_position + head.properties_length])
        tag = get_property(properties, b"TAGS") or b""
        code = (java_hash(tag.decode()) if tag else 0) if tag.isascii() else TAG_UNKNOWN
        units += UNIT.pack(tier_offset + at, head.size, code)
        copied += data[at : at + head.size]
        I64.pack_into(copied, at + PHYSICAL_OFFSET_AT, tier_offset + at)
        times.append(head.store_timestamp_ms)
    end = queue_offset + len(times)
    return Collected(bytes(copied), bytes(units), end, min(times, default=0), max(times, default=0))


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

    Each record must directly follow the previous one, with the size of its unit, its own tier offset and queue offset,
    and an intact body; and be of this topic and queue, where a topic is named. Anything else ends the count: the
    records behind must be checked one by one.
    """
    position = 0
    whole = len(units) // UNIT_BYTES
    for done in range(whole):
        place, size, _ = UNIT.unpack_from(units, done * UNIT_BYTES)
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
    """Compare contiguous records in `data`, which begins at `tier_offset`, with all fields of their units.

    The checks of `check_window`, and: each is of this topic and queue, and its unit has the code of its tag (or an
    address in an ext queue). Returns (records, bytes, least and largest store time, why it ended); the caller must
    check what follows those bytes.
    """
    position, times = 0, []
    for done in range(len(units) // UNIT_BYTES):
        place, size, code = UNIT.unpack_from(units, done * UNIT_BYTES)
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
    """Why a unit does not fit a record here; None when it does."""
    if place != here:
        return Disagreement.PLACE
    if size < RECORD_BYTES_MIN:
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
    Returns (records done, items put, least store time of the records that have items). Ends early, before a record that
    needs the slow path: no space for all of its keys, too many of them, keys or a topic beyond ASCII, not a record.
    """
    top = min(capacity, item_limit)
    if not topic.isascii() or slots < 1 or first < 0 or len(buffer) < INDEX_HEADER_BYTES:
        return 0, 0, 0
    if top > 0 and len(buffer) < INDEX_HEADER_BYTES + 8 * slots + 32 * top:
        raise ValueError("the buffer is smaller than the tier index file that it should hold")
    done = put = oldest_ms = 0
    while (first + done + 1) * UNIT_BYTES <= len(units):
        place, size, _ = UNIT.unpack_from(units, (first + done) * UNIT_BYTES)
        found = tier_keys(data, place - log_offset, size)
        if found is None:
            break
        store_ms, keys = found
        (count,) = I32.unpack_from(buffer, 24)
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
    """The store time of a record and its keys, each once; None when it needs the slow path."""
    if position < 0 or size < RECORD_BYTES_MIN or position > len(data) - size:
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
    """How many leading compacted index items point to a record in `data` with such a key, and the newest store time.

    The items are of one queue, in the order of their tier offsets; `data` holds its log from `log_offset` on. Ends
    before an item that the caller must check: a record outside of `data`, another one, another key, another time, or
    keys or a topic beyond ASCII.
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
        (previous,) = I32.unpack_from(buffer, slot_at)
        slot_count += previous == 0
        count += 1
        item_at = INDEX_HEADER_BYTES + 8 * slots + 32 * count
        _INDEX_ITEM.pack_into(buffer, item_at, value, *place, seconds, previous)
        I32.pack_into(buffer, slot_at, count)
    magic = INDEX_MAGIC_END if count + 1 >= capacity else INDEX_MAGIC_BEGIN
    _INDEX_HEADER.pack_into(buffer, 0, magic, begin_ms, max(end_ms, store_ms), slot_count, count)


def rearrange_index(buffer: Any, slots: int, items: int) -> bytes:
    """The compacted form of a whole open tier index file: slots of (position, length), items grouped by slot.

    A counting sort: items of a slot are newest first, in the order of its chain. b"" without items.
    """
    if len(buffer) < INDEX_HEADER_BYTES + 8 * slots + 32 * max(0, items):
        raise CorruptRecord("the index file is shorter than its slot and item counts say")
    (count,) = I32.unpack_from(buffer, 24)
    if count <= 0:
        return b""
    if count >= items:
        raise CorruptRecord(f"the index file counts {count} items, more than the {items} it has room for")
    first_item = INDEX_HEADER_BYTES + 8 * slots
    by_slot: dict[int, list[int]] = {}
    for number in range(count, 0, -1):
        (key_hash,) = I32.unpack_from(buffer, first_item + 32 * number)
        if key_hash < 0:
            raise CorruptRecord("an index item has a negative key hash")
        by_slot.setdefault(key_hash % slots, []).append(number)
    out = bytearray(first_item + 28 * count)
    out[:INDEX_HEADER_BYTES] = buffer[:INDEX_HEADER_BYTES]
    out[:4] = INDEX_MAGIC_END.to_bytes(4, "big")
    position = first_item
    for slot in range(slots):
        numbers = by_slot.get(slot, ())
        _GROUP.pack_into(out, INDEX_HEADER_BYTES + 8 * slot, position, 28 * len(numbers))
        for number in numbers:
            start = first_item + 32 * number
            out[position : position + 28] = buffer[start : start + 28]
            position += 28
    return bytes(out)


_COLLECTED = struct.Struct(
    ">"
    "i"  # key_hash
    "q"  # tier_offset
    "i"  # size
    "q"  # store_ms
)
COLLECTED_KEY_BYTES = _COLLECTED.size
assert COLLECTED_KEY_BYTES == 24


def collect_tier_keys(units: Any, data: Any, first: int, log_offset: int, topic: str) -> tuple[int, bytes]:
    """The keys of the records of `units`, from unit `first` on, as `put_tier_keys` would put them.

    `data` holds the records from tier offset `log_offset` on. Returns (records done, collected keys). Ends early,
    before a record that needs the slow path: too many keys, keys or a topic beyond ASCII, not a record.
    """
    if not topic.isascii() or first < 0:
        return 0, b""
    found = bytearray()
    done = 0
    while (first + done + 1) * UNIT_BYTES <= len(units):
        place, size, _ = UNIT.unpack_from(units, (first + done) * UNIT_BYTES)
        keys = tier_keys(data, place - log_offset, size)
        if keys is None:
            break
        store_ms, texts = keys
        for text in texts:
            found += _COLLECTED.pack(key_hash(f"{topic}#{text}"), place, size, store_ms)
        done += 1
    return done, bytes(found)


def put_collected_keys(
    buffer: Any, slots: int, capacity: int, item_limit: int, keys: Any, first: int, topic_id: int, queue_id: int
) -> tuple[int, int]:
    """Put collected keys, from key number `first` on, into an open tier index file.

    Returns (keys put, least store time of them). Ends early, before a record whose keys do not all fit below `capacity`
    and `item_limit`, or an invalid one (a negative hash, offset, size or time).
    """
    top = min(capacity, item_limit)
    count = len(keys) // COLLECTED_KEY_BYTES
    if slots < 1 or first < 0 or len(buffer) < INDEX_HEADER_BYTES or top < 1:
        return 0, 0
    if len(buffer) < INDEX_HEADER_BYTES + 8 * slots + 32 * top:
        raise ValueError("the buffer is smaller than the tier index file that it should hold")
    at, oldest_ms = first, 0
    while at < count:
        _, place, size, store_ms = _COLLECTED.unpack_from(keys, at * COLLECTED_KEY_BYTES)
        hashes: list[int] = []
        while at + len(hashes) < count:
            value, other, _, _ = _COLLECTED.unpack_from(keys, (at + len(hashes)) * COLLECTED_KEY_BYTES)
            if other != place:
                break
            hashes.append(value)
        (items,) = I32.unpack_from(buffer, 24)
        if items < 0 or items + len(hashes) >= top or min(place, size, store_ms, *hashes) < 0:
            break
        put_tier_items(buffer, slots, capacity, hashes, (topic_id, queue_id, place, size), store_ms)
        oldest_ms = store_ms if at == first else min(oldest_ms, store_ms)
        at += len(hashes)
    return at - first, oldest_ms
