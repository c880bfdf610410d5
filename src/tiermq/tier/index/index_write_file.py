"""IndexWriteFile: the local, mapped index file that takes items, and answers queries until its copy is in the tier.

The layout is the open form of `index_item`. Invariants:

* The items of a message are put together or not at all: an item before its slot, the header last, which may wait for
  the items of some messages more.
* Items up to the header's count never change. A slot leads to an item that is complete, because the slot is written
  after it; so a query needs no lock, and a walk along a chain ends because numbers decrease.
* The durable count is recorded elsewhere (`index_coverage`): after a crash the file is opened with the count that was
  synced, and everything behind it is dropped (see `cut_to`).
* Item numbers below `_item_limit` have disk blocks, as have the header and all slots once it is not 0.
* The map stays while a reader uses it: `close` only drops the reference.
"""

from __future__ import annotations

import os
import sys
import threading
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tiermq.errors import CorruptRecord, StoreClosed, StoreDamaged, TierMQError
from tiermq.files.file_access import FileAccess, Region
from tiermq.kernel import put_collected_keys, put_tier_keys, rearrange_index
from tiermq.kernel.index_reader import TIME_TOLERANCE_MS
from tiermq.kernel.tier_records import COLLECTED_KEY_BYTES
from tiermq.tier.driver.contract import Buffer
from tiermq.tier.index.index_item import (
    HEADER,
    HEADER_BYTES,
    MAGIC_BEGIN,
    MAGIC_END,
    OPEN_ITEM,
    OPEN_ITEM_BYTES,
    OPEN_SLOT,
    POSITION_MAX,
    SLOT_BYTES,
    IndexHeader,
    IndexItem,
    compacted_bytes,
    decode_header,
    low_32_bits,
    open_file_bytes,
    seconds_between,
)

# Taking back what a crash left half-written in a local index file.
#
# Two cases, by what is known:
#
# `cut_to`  We know how many items were synced, and with them the slots that led to them. Those items are sound. Any
#           slot may have been written since, so it may lead behind the cut, and the items there may never have
#           reached the disk: their chains cannot be followed. Such slots get their newest item below the cut, found
#           by looking at all items from the newest on.
# `relink`  RocketMQ left the file and never synced it. Every item is checked; torn ones are dropped, the rest move
#           up, and all chains are rebuilt. Nothing is written when all items are valid.


@dataclass(frozen=True, slots=True)
class Relinked:
    """What a file holds after `relink`; the exact times are between oldest and newest, at most two seconds inside."""

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
    """Drop torn items among the first `item_count`, close the gaps they leave, and rebuild the chains."""
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


RESERVE_ITEMS = 1 << 16
"""How many items get disk blocks at a time (2 MiB)."""
GROWING_ITEMS = 128
"""Items of a new file that get blocks one by one."""


class Selected(NamedTuple):
    """Items of a file, newest first; `has_more`: older ones may match too."""

    items: list[IndexItem]
    has_more: bool


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What one moment of a local index file amounts to; what a sync makes durable."""

    begin_ms: int
    slots: int
    capacity: int
    item_count: int
    slot_count: int
    oldest_ms: int  # The smallest and the largest store time in the file; of an empty file both are 0.
    newest_ms: int
    topic_ids: frozenset[int] = field(default_factory=frozenset)


class IndexWriteFile:
    """One local index file. Any thread may put (puts wait for each other), select, sync and close."""

    __slots__ = (
        "_access", "_buffer", "_first_item", "_item_limit", "_lock", "_oldest_ms", "_region",
        "_sync_lock", "_topic_ids", "begin_ms", "capacity", "path", "slots", "synced_count",
    )  # fmt: skip

    def __init__(self, access: FileAccess, path: str, region: Region, slots: int, capacity: int) -> None:
        self._access = access
        self._region = region
        self._lock = threading.Lock()  # Held by the one that puts.
        self._sync_lock = threading.Lock()  # Apart from the other: a sync takes long and must not stop puts.
        self._buffer: Any = memoryview(region.buffer)
        self._first_item = HEADER_BYTES + SLOT_BYTES * slots
        self._item_limit = 0
        self._oldest_ms = 0
        self._topic_ids: set[int] = set()
        self.path = path
        self.slots = slots
        self.capacity = capacity
        self.begin_ms = 0
        self.synced_count = 0

    @classmethod
    def create(cls, access: FileAccess, directory: str, begin_ms: int, slots: int, capacity: int) -> IndexWriteFile:
        """A new file, named by `begin_ms`, with disk blocks for its header. Most files stay small: the first items get
        blocks one by one, then come those of all slots, 40 MB by default.

        Raises DiskFull, and leaves no file, when the disk is full.
        """
        check_shape(slots, capacity)
        path = os.path.join(directory, str(begin_ms))
        file = cls(access, path, access.create(path, open_file_bytes(slots, capacity)), slots, capacity)
        try:
            file._region.reserve(0, HEADER_BYTES)
        except TierMQError:
            file.destroy()
            raise
        file.begin_ms = begin_ms
        HEADER.pack_into(file._buffer, 0, MAGIC_BEGIN, begin_ms, 0, 0, 0)
        return file

    @classmethod
    def open(cls, access: FileAccess, directory: str, facts: FileFacts) -> IndexWriteFile:
        """A file as it was when `facts` were made durable: what came behind them is dropped.

        Raises StoreDamaged when the file is missing, of another size, or lacks an item that it must have.
        """
        path = os.path.join(directory, str(facts.begin_ms))
        region = access.open(path, open_file_bytes(facts.slots, facts.capacity))
        file = cls(access, path, region, facts.slots, facts.capacity)
        try:
            if facts.item_count >= GROWING_ITEMS:
                file._reserve(facts.item_count + 1)
            cut_to(file._buffer, facts.slots, facts.item_count)
        except CorruptRecord as error:
            file.close()
            raise StoreDamaged(f"{path}: {error}") from error
        except TierMQError:
            file.close()
            raise
        file.begin_ms = facts.begin_ms
        file._oldest_ms = facts.oldest_ms
        file._topic_ids = set(facts.topic_ids)
        file._write_header(facts.newest_ms, facts.slot_count, facts.item_count)
        return file

    @classmethod
    def view(cls, access: FileAccess, directory: str, facts: FileFacts) -> IndexWriteFile:
        """A file that another process writes, read-only. Raises StoreDamaged when no file has that size."""
        path = os.path.join(directory, str(facts.begin_ms))
        region = access.open(path, open_file_bytes(facts.slots, facts.capacity), writable=False)
        file = cls(access, path, region, facts.slots, facts.capacity)
        file.begin_ms = facts.begin_ms  # Its oldest message stays unknown: the writer may put an older one any time.
        return file

    @classmethod
    def adopt(cls, access: FileAccess, directory: str, name: str, slots: int, capacity: int) -> IndexWriteFile:
        """A file that RocketMQ left, whose durable part is unknown: each item is checked, torn ones are dropped.

        Raises StoreDamaged for a file of another size or without a header.
        """
        path = os.path.join(directory, name)
        file = cls(access, path, access.open(path, open_file_bytes(slots, capacity)), slots, capacity)
        try:
            header = decode_header(file._buffer)
            if str(header.begin_ms) != name:
                raise CorruptRecord(f"expected the file's name as its begin time, found {header.begin_ms}")
            count = min(header.item_count, capacity - 1)
            file._reserve(count + 1)
            found = relink(file._buffer, slots, count, header.begin_ms)
        except CorruptRecord as error:
            file.close()
            raise StoreDamaged(f"{path}: {error}. Move the file away; its keys can be indexed again.") from error
        except TierMQError:
            file.close()
            raise
        file.begin_ms = header.begin_ms
        file._oldest_ms = found.oldest_ms
        file._topic_ids = set(found.topic_ids)
        # The header's end is exact where the items agree with it; it may be of another moment than they are.
        is_exact = 0 <= found.newest_ms - header.end_ms <= 2 * TIME_TOLERANCE_MS
        file._write_header(header.end_ms if is_exact else found.newest_ms, found.slot_count, found.item_count)
        return file

    @property
    def is_closed(self) -> bool:
        return self._buffer is None

    @property
    def header(self) -> IndexHeader:
        """The header as the map has it now. Raises StoreClosed on a closed file."""
        return IndexHeader._make(HEADER.unpack_from(self._map(), 0))

    def facts(self) -> FileFacts:
        """This moment of the file. Raises StoreClosed on a closed file."""
        with self._lock:
            header = self.header
            return FileFacts(
                self.begin_ms, self.slots, self.capacity, header.item_count, header.slot_count,
                self._oldest_ms, header.end_ms, frozenset(self._topic_ids),
            )  # fmt: skip

    def put(
        self, hashes: Sequence[int], topic_id: int, queue_id: int, tier_offset: int, size: int, store_ms: int
    ) -> bool:
        """Add the items of one message, all of them; False, and nothing written, when they do not fit.

        Durable only after `sync`. Raises DiskFull, with nothing written, when the file system is full.
        """
        with self._lock:
            buffer = self._map()
            _, _, end_ms, slot_count, count = HEADER.unpack_from(buffer, 0)
            last = count + len(hashes)
            if last >= self.capacity:
                return False
            if last >= self._item_limit:
                self._reserve_for(hashes, last)
            topic_id = low_32_bits(topic_id)
            seconds = seconds_between(self.begin_ms, store_ms)
            heads: dict[int, int] = {}
            for number, key_hash in enumerate(hashes, start=count + 1):
                slot_at = HEADER_BYTES + SLOT_BYTES * (key_hash % self.slots)
                previous = heads.get(slot_at)
                if previous is None:
                    previous = OPEN_SLOT.unpack_from(buffer, slot_at)[0]
                    slot_count += previous == 0
                item_at = self._first_item + OPEN_ITEM_BYTES * number
                OPEN_ITEM.pack_into(buffer, item_at, key_hash, topic_id, queue_id, tier_offset, size, seconds, previous)
                heads[slot_at] = number
            for slot_at, number in heads.items():
                OPEN_SLOT.pack_into(buffer, slot_at, number)
            self._oldest_ms = store_ms if count == 0 else min(self._oldest_ms, store_ms)
            self._topic_ids.add(topic_id)
            self._write_header(max(end_ms, store_ms), slot_count, last)
            return True

    def put_records(
        self,
        units: Buffer,
        data: Buffer,
        first: int,
        log_offset: int,
        topic: str,
        topic_id: int,
        queue_id: int,
    ) -> int:
        """Add the items of whole records, from unit `first` on, as `put` would; how many records that were.

        Ends early, before a record that does not fit, or that only `put` can deal with; nothing of that one is written.
        The map is written without the interpreter lock: queries continue meanwhile.
        """
        with self._lock:
            buffer = self._map()
            topic_id = low_32_bits(topic_id)
            before = self.header.item_count
            done, put_count, oldest_ms = put_tier_keys(
                buffer, self.slots, self.capacity, self._item_limit,
                units, data, first, log_offset, topic, topic_id, queue_id,
            )  # fmt: skip
            if put_count:
                self._oldest_ms = oldest_ms if before == 0 else min(self._oldest_ms, oldest_ms)
                self._topic_ids.add(topic_id)
            return done

    def put_collected(self, keys: Buffer, first: int, topic_id: int, queue_id: int) -> int:
        """Add the items of keys that were collected elsewhere, from key `first` on; how many of them.

        Ends early, where disk blocks must be taken again; 0 when the keys of the next record do not fit any more.
        Raises DiskFull, with nothing written.
        """
        with self._lock:
            buffer = self._map()
            topic_id = low_32_bits(topic_id)
            before = self.header.item_count
            wanted = before + min(len(keys) // COLLECTED_KEY_BYTES - first, RESERVE_ITEMS)
            if wanted >= self._item_limit and self._item_limit < self.capacity:
                self._reserve(wanted)
            while True:
                count, oldest_ms = put_collected_keys(
                    buffer, self.slots, self.capacity, self._item_limit, keys, first, topic_id, queue_id
                )
                if count:
                    self._oldest_ms = oldest_ms if before == 0 else min(self._oldest_ms, oldest_ms)
                    self._topic_ids.add(topic_id)
                    return count
                if self._item_limit >= self.capacity:
                    return 0
                self._reserve(self._item_limit)  # For one record with a great many keys.

    def select(self, key_hash: int, max_count: int, begin_ms: int, end_ms: int) -> Selected | None:
        """Items of a hash whose records may be in the time range, newest first; None once the file is closed."""
        buffer = self._buffer
        if buffer is None:
            return None
        found: list[IndexItem] = []
        number = OPEN_SLOT.unpack_from(buffer, HEADER_BYTES + SLOT_BYTES * (key_hash % self.slots))[0]
        while 0 < number < self.capacity:
            *values, previous = OPEN_ITEM.unpack_from(buffer, self._first_item + OPEN_ITEM_BYTES * number)
            item = IndexItem._make(values)
            if item.key_hash == key_hash and is_in_time(item, self.begin_ms, begin_ms, end_ms):
                if len(found) >= max_count:
                    return Selected(found, has_more=True)
                found.append(item)
            if previous >= number:
                break  # A sound chain only leads to older items; this one is damaged.
            number = previous
        return Selected(found, has_more=False)

    def sync(self) -> None:
        """Make everything put so far durable. Raises StoreClosed on a closed file."""
        with self._sync_lock:
            count = self.header.item_count
            self._region.sync()
            self.synced_count = max(self.synced_count, count)

    def compact(self) -> bytes:
        """The compacted form; b"" without items. Raises CorruptRecord when the file does not hold what it counts."""
        data = rearrange_index(self._map(), self.slots, self.capacity)
        expected = compacted_bytes(self.slots, self.header.item_count)
        if len(data) != expected:
            raise CorruptRecord(f"{self.path}: expected {expected} bytes of compacted index, found {len(data)}")
        return data

    def close(self) -> None:
        """Let go of the map. Later selects answer None; those that run finish on it."""
        with self._sync_lock, self._lock:
            if self._buffer is not None:
                self._item_limit = 0
                self._buffer = None
                self._region.close()

    def destroy(self) -> None:
        """Close the file and remove it from the disk."""
        self.close()
        self._access.remove(self.path)

    def _map(self) -> Any:
        if self._buffer is None:
            raise StoreClosed(f"expected an open index file, found {self.path} closed; open the index again")
        return self._buffer

    def _write_header(self, end_ms: int, slot_count: int, item_count: int) -> None:
        magic = MAGIC_END if item_count + 1 >= self.capacity else MAGIC_BEGIN
        HEADER.pack_into(self._buffer, 0, magic, self.begin_ms, end_ms, slot_count, item_count)

    def _reserve_for(self, hashes: Sequence[int], last: int) -> None:
        """Give blocks to the slots of hashes and to the items up to `last`, or to everything that comes next."""
        if self._item_limit or last >= GROWING_ITEMS:
            self._reserve(last)
            return
        for key_hash in hashes:
            self._region.reserve(HEADER_BYTES + SLOT_BYTES * (key_hash % self.slots), SLOT_BYTES)
        first = last - len(hashes) + 1
        self._region.reserve(self._first_item + OPEN_ITEM_BYTES * first, OPEN_ITEM_BYTES * len(hashes))

    def _reserve(self, number: int) -> None:
        """Give blocks to the header and slots (once) and to items up to `number` and some more."""
        limit = min(self.capacity, max(number, self._item_limit) + RESERVE_ITEMS)
        start = 0 if self._item_limit == 0 else self._first_item + OPEN_ITEM_BYTES * self._item_limit
        self._region.reserve(start, self._first_item + OPEN_ITEM_BYTES * limit - start)
        self._item_limit = limit


def is_in_time(item: IndexItem, file_begin_ms: int, begin_ms: int, end_ms: int) -> bool:
    """Whether the record of an item can be in the time range; an item has its time to a second only."""
    return item.earliest_ms(file_begin_ms) <= end_ms and item.latest_ms(file_begin_ms) >= begin_ms


def check_shape(slots: int, capacity: int) -> None:
    """Raise StoreDamaged for a shape whose compacted form would have positions that its slots cannot hold."""
    if slots < 1 or capacity < 2 or HEADER_BYTES + SLOT_BYTES * slots + 28 * capacity > POSITION_MAX:
        raise StoreDamaged(
            f"expected index files of at least 1 slot and 2 items and at most {POSITION_MAX} compacted bytes, "
            f"found {slots} slots and {capacity} items; change tieredStoreIndexFileMaxHashSlotNum or "
            "tieredStoreIndexFileMaxIndexNum"
        )
