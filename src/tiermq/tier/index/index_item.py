"""Tier index file: header, slots and items, in the open form (local disk) and the compacted form (tier).

    0        28                    28 + 8*S
    +--------+---------------------+---------------------------------- - -
    | header | S slots, 8 bytes    | items
    +--------+---------------------+---------------------------------- - -

    header     i32 magic | i64 begin timestamp | i64 end timestamp | i32 slots in use | i32 items
    open       slot  i32 number of the newest item, 0: none | i32 zero
               item  28 bytes as below | i32 number of the slot's next older item, 0: none          (32 bytes)
    compacted  slot  i32 position of the slot's first item in the file | i32 length in bytes
               item  i32 key hash | i32 topic id | i32 queue id | i64 tier offset | i32 size | i32 seconds  (28 bytes)

All big-endian. Invariants:

* Open: item n (from 1 on; number 0 is never used) is at 28 + 8*S + 32*n, so a file for N items is
  28 + 8*S + 32*N bytes long and holds N - 1 of them. Along a chain numbers decrease.
* Compacted: items are grouped by slot in slot order, newest first within a slot; an empty slot holds the position
  that has been reached and length 0. The whole is 28 + 8*S + 28*items bytes long; S follows from the first slot's
  position.
* Begin is the wall clock at the file's creation and its name. Seconds count from it, cut toward zero, and are negative
  for records stored before it: an item knows the time of its record to less than a second, on either side of zero.
  A file merged of others begins in the last millisecond of a minute, and its items know their time to three seconds.
* The magic is END once no further item fits, and in every compacted file.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tiermq.errors import CorruptRecord
from tiermq.kernel import key_hashes
from tiermq.kernel.index_reader import TIME_TOLERANCE_MS

HEADER = struct.Struct(
    ">"
    "i"  # magic
    "q"  # begin_ms    the file's name
    "q"  # end_ms      largest store time in the file, 0: none
    "i"  # slot_count  slots in use
    "i"  # item_count  number of the newest item
)
OPEN_SLOT = struct.Struct(">i4x")
COMPACTED_SLOT = struct.Struct(
    ">"
    "i"  # position  of the slot's first item, from the start of the file
    "i"  # length    in bytes
)
ITEM = struct.Struct(
    ">"
    "i"  # key_hash
    "i"  # topic_id     low 32 bits of the metadata's topic id
    "i"  # queue_id
    "q"  # tier_offset  of the record in its queue's tier commit log
    "i"  # size         bytes of the record
    "i"  # seconds      since the header's begin
)
OPEN_ITEM = struct.Struct(ITEM.format + "i")  # previous: number of the slot's next older item, 0: none
HEADER_BYTES = HEADER.size
SLOT_BYTES = COMPACTED_SLOT.size
ITEM_BYTES = ITEM.size
OPEN_ITEM_BYTES = OPEN_ITEM.size
assert (HEADER_BYTES, OPEN_SLOT.size, SLOT_BYTES, ITEM_BYTES, OPEN_ITEM_BYTES) == (28, 8, 8, 28, 32)

MAGIC_BEGIN = 0xBCC50289 - (1 << 32)
MAGIC_END = 0xBCC50285 - (1 << 32)
assert (MAGIC_BEGIN, MAGIC_END) == (-1127939447, -1127939451)

SLOTS_DEFAULT = 5_000_000
CAPACITY_DEFAULT = 20_000_000
POSITION_MAX = (1 << 31) - 1  # Slots of the compacted form hold positions as i32.
SECONDS_MAX = (1 << 31) - 1
SECONDS_MIN = -(1 << 31)
MINUTE_MS = 60_000
MERGED_TOLERANCE_MS = 2_997
"""Of items that were cut twice: to the second of the file that they come from, of which the first one lasts two, and
then to the merged file's. A file that is merged again loses nothing more: all merged files count the same seconds."""


class IndexHeader(NamedTuple):
    """The first 28 bytes of either form."""

    magic: int
    begin_ms: int
    end_ms: int
    slot_count: int
    item_count: int


class IndexItem(NamedTuple):
    """What both forms keep of one key of one message."""

    key_hash: int
    topic_id: int
    queue_id: int
    tier_offset: int
    size: int
    seconds: int

    def earliest_ms(self, begin_ms: int) -> int:
        """No record of this item was stored before."""
        return begin_ms + self.seconds * 1000 - (TIME_TOLERANCE_MS if self.seconds <= 0 else 0)

    def latest_ms(self, begin_ms: int) -> int:
        """No record of this item was stored after."""
        if is_merged(begin_ms):
            return begin_ms + self.seconds * 1000 + MERGED_TOLERANCE_MS
        return begin_ms + self.seconds * 1000 + (TIME_TOLERANCE_MS if self.seconds >= 0 else 0)


def open_file_bytes(slots: int, capacity: int) -> int:
    """The size of a local index file."""
    return HEADER_BYTES + SLOT_BYTES * slots + OPEN_ITEM_BYTES * capacity


def compacted_bytes(slots: int, item_count: int) -> int:
    """The size of a compacted index file; the file of no items has no bytes, and is never uploaded."""
    return HEADER_BYTES + SLOT_BYTES * slots + ITEM_BYTES * item_count if item_count else 0


def decode_header(data: Any) -> IndexHeader:
    """The header at the start of `data`. Raises CorruptRecord when it is invalid."""
    if len(data) < HEADER_BYTES:
        raise CorruptRecord(f"expected {HEADER_BYTES} bytes of an index header, found {len(data)}")
    header = IndexHeader._make(HEADER.unpack_from(data))
    if header.magic not in (MAGIC_BEGIN, MAGIC_END) or header.item_count < 0 or header.slot_count < 0:
        raise CorruptRecord(
            f"expected the header of a tier index file (magic {MAGIC_BEGIN} or {MAGIC_END}), found {header}"
        )
    return header


def decode_run(data: Any) -> Iterator[IndexItem]:
    """The items of a slot's run in a compacted file. Raises CorruptRecord when the run ends within an item."""
    if len(data) % ITEM_BYTES:
        raise CorruptRecord(f"expected a run of {ITEM_BYTES}-byte index items, found {len(data)} bytes")
    return map(IndexItem._make, ITEM.iter_unpack(data))


def index_hash(topic: str, key: str) -> int:
    """The hash of a key: never negative, also where Java's absolute value is (RocketMQ cannot index such a key)."""
    return int.from_bytes(key_hashes(topic, [key]), sys.byteorder, signed=True)


def seconds_between(begin_ms: int, store_ms: int) -> int:
    """Whole seconds from a file's beginning to a record, cut toward zero as Java divides."""
    difference_ms = store_ms - begin_ms
    seconds = difference_ms // 1000 if difference_ms >= 0 else -(-difference_ms // 1000)
    return max(SECONDS_MIN, min(SECONDS_MAX, seconds))


def is_merged(begin_ms: int) -> bool:
    """Whether a file of that beginning may be merged of others; one in 60,000 begins so by chance, and does no harm."""
    return begin_ms % MINUTE_MS == MINUTE_MS - 1


def merged_begin_ms(begin_ms: int) -> int:
    """The last time at or before `begin_ms` at which a merged file may begin."""
    return begin_ms - (begin_ms + 1) % MINUTE_MS


def low_32_bits(topic_id: int) -> int:
    """A topic id as an item keeps it: RocketMQ's id is a long, the item's field an int."""
    value = topic_id & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def distinct(keys: Iterable[str]) -> tuple[str, ...]:
    """The keys of a message without repetitions, in their order, and without empty ones, which cannot be queried."""
    return tuple(dict.fromkeys(key for key in keys if key))
