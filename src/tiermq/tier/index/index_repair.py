"""Taking back what a crash left half-written in a local index file.

Two cases, by what is known:

`cut_to`  We know how many items were synced, and with them the slots that led to them. Those items are sound. Any slot
          may have been written since, so it may lead behind the cut, and the items there may never have reached the
          disk: their chains cannot be followed. Such slots get their newest item below the cut, found by looking at
          all items from the newest on.
`relink`  RocketMQ left the file and never synced it. Every item is checked; torn ones are dropped, the others move up,
          and all chains are made anew. Nothing is written when nothing is wrong.
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass
from typing import Any

from tiermq.errors import CorruptRecord
from tiermq.tier.index.index_item import (
    HEADER_BYTES,
    OPEN_ITEM,
    OPEN_ITEM_BYTES,
    OPEN_SLOT,
    SLOT_BYTES,
    IndexItem,
)


@dataclass(frozen=True, slots=True)
class Relinked:
    """What a file holds after `relink`; the true times lie between oldest and newest, at most two seconds inside."""

    item_count: int
    slot_count: int
    oldest_ms: int
    newest_ms: int
    topic_ids: frozenset[int]


def cut_to(buffer: Any, slots: int, item_count: int) -> int:
    """Make every slot lead to items up to `item_count` only. Returns how many slots had led further.

    Raises CorruptRecord when an item below the cut is not what a put writes.
    """
    heads = _slot_heads(buffer, slots)
    if min(heads) >= 0 and max(heads) <= item_count:
        return 0
    wrong = {slot for slot, number in enumerate(heads) if not 0 <= number <= item_count}
    repaired = len(wrong)
    first_item = HEADER_BYTES + SLOT_BYTES * slots
    for number in range(item_count, 0, -1):
        key_hash, _, _, _, size, _, previous = OPEN_ITEM.unpack_from(buffer, first_item + OPEN_ITEM_BYTES * number)
        if not _is_sound(key_hash, size, previous, number):
            raise CorruptRecord(
                f"expected item {number} of {item_count} to be whole, since it was synced, found it torn"
            )
        slot = key_hash % slots
        if slot in wrong:
            OPEN_SLOT.pack_into(buffer, HEADER_BYTES + SLOT_BYTES * slot, number)
            wrong.remove(slot)
            if not wrong:
                return repaired
    for slot in wrong:  # Their first item came after the cut.
        OPEN_SLOT.pack_into(buffer, HEADER_BYTES + SLOT_BYTES * slot, 0)
    return repaired


def relink(buffer: Any, slots: int, item_count: int, begin_ms: int) -> Relinked:
    """Drop torn items among the first `item_count`, close the gaps they leave, and chain the rest anew."""
    first_item = HEADER_BYTES + SLOT_BYTES * slots
    heads = array("i", bytes(4 * slots))
    kept = 0
    oldest = newest = 0
    topic_ids: set[int] = set()
    for number in range(1, item_count + 1):
        *values, previous = OPEN_ITEM.unpack_from(buffer, first_item + OPEN_ITEM_BYTES * number)
        item = IndexItem._make(values)
        if not _is_sound(item.key_hash, item.size, previous, number):
            continue
        kept += 1
        slot = item.key_hash % slots
        if kept != number or previous != heads[slot]:
            OPEN_ITEM.pack_into(buffer, first_item + OPEN_ITEM_BYTES * kept, *item, heads[slot])
        heads[slot] = kept
        topic_ids.add(item.topic_id)
        earliest_ms, latest_ms = item.earliest_ms(begin_ms), item.latest_ms(begin_ms)
        oldest = earliest_ms if kept == 1 else min(oldest, earliest_ms)
        newest = latest_ms if kept == 1 else max(newest, latest_ms)
    if _slot_heads(buffer, slots) != heads:
        for slot, head in enumerate(heads):
            OPEN_SLOT.pack_into(buffer, HEADER_BYTES + SLOT_BYTES * slot, head)
    return Relinked(kept, sum(map(bool, heads)), oldest, newest, frozenset(topic_ids))


def _is_sound(key_hash: int, size: int, previous: int, number: int) -> bool:
    return key_hash >= 0 and size > 0 and 0 <= previous < number


def _slot_heads(buffer: Any, slots: int) -> array[int]:
    """The first half of every slot, as native ints."""
    words = array("i", bytes(buffer[HEADER_BYTES : HEADER_BYTES + SLOT_BYTES * slots]))
    if sys.byteorder == "little":
        words.byteswap()
    return words[::2]
