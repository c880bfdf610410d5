"""Keys of records, hashed in one place and put into a tier index file in another: see `kernel.pure` for the names.

A collected key is 24 bytes, big-endian; all keys of a record stand together:

    i32 key hash | i64 tier offset of the record | i32 its size | i64 its store time in ms
"""

from __future__ import annotations

import struct
from typing import Any

from tiermq.kernel.tiering import INDEX_HEADER_BYTES, UNIT_BYTES, put_tier_items, tier_keys
from tiermq.message.java_hash import key_hash

COLLECTED_KEY_BYTES = 24
_COLLECTED = struct.Struct(
    ">"
    "i"  # key_hash
    "q"  # tier_offset
    "i"  # size
    "q"  # store_ms
)
assert _COLLECTED.size == COLLECTED_KEY_BYTES
_UNIT = struct.Struct(">qiq")
_I32 = struct.Struct(">i")


def collect_tier_keys(units: Any, data: Any, first: int, log_offset: int, topic: str) -> tuple[int, bytes]:
    """The keys of the records of `units`, from unit `first` on, as `put_tier_keys` would put them.

    `data` holds the records from tier offset `log_offset` on. Gives (records done, collected keys). Ends early, before
    a record that needs the slow path: too many keys, keys or a topic beyond ASCII, not a record.
    """
    if not topic.isascii() or first < 0:
        return 0, b""
    found = bytearray()
    done = 0
    while (first + done + 1) * UNIT_BYTES <= len(units):
        place, size, _ = _UNIT.unpack_from(units, (first + done) * UNIT_BYTES)
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

    Gives (keys put, least store time of them). Ends early, before a record whose keys do not all fit below `capacity`
    and `item_limit`, or one that no record can be (a negative hash, offset, size or time).
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
        (items,) = _I32.unpack_from(buffer, 24)
        if items < 0 or items + len(hashes) >= top or min(place, size, store_ms, *hashes) < 0:
            break
        put_tier_items(buffer, slots, capacity, hashes, (topic_id, queue_id, place, size), store_ms)
        oldest_ms = store_ms if at == first else min(oldest_ms, store_ms)
        at += len(hashes)
    return at - first, oldest_ms
