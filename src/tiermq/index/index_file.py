"""Index file: a hash table on disk, from key hash to offsets of records in the commit log.

    0                                40                        40 + 4*slots
    +--------------------------------+-------------------------+---------------------------- - -
    | header                         | slots, i32 each         | entries, 20 bytes each
    +--------------------------------+-------------------------+---------------------------- - -

    header  i64 begin timestamp | i64 end timestamp | i64 begin physical | i64 end physical | i32 slots used | i32 count
    entry   i32 key hash | i64 physical offset | i32 seconds since begin timestamp | i32 previous entry of the slot

All big-endian. Invariants:

* The map is the only state. The kernel's fast path writes the same bytes, so the header is read at each use.
* `count` is the number of the next entry. It starts at 1 (0 on disk means 1), entry 0 is never used, so a file holds
  entry_count_max - 1 entries.
* A slot holds the number of its newest entry; each entry holds the number of an *older* one. Numbers therefore only
  fall along a chain, so that every lookup ends, however damaged the file is.
* Physical offsets of entries never decrease and are between the header's begin and end.
* An entry is written first, its slot second, the header last. A process killed in between leaves a slot that points at
  entry number `count`; opening the file undoes that, because otherwise the next entry, of another slot, would be
  written there and cut off the slot's older entries.
* Entry numbers below `entry_limit` have disk blocks, as have the header and all slots once `entry_limit` is not 0.

The name of a file is the local time of its creation, yyyyMMddHHmmssSSS, in 17 ASCII digits. Files are read in the order
of their names, so a new name must be greater than all before it, also when two files are made within one millisecond
or the local clock was set back (it is, every autumn).
"""

from __future__ import annotations

import os
import re
import threading
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from tiermq.errors import IllegalMessage, StoreDamaged, TierMQError
from tiermq.files.file_access import FileAccess, Region
from tiermq.kernel import IndexReader
from tiermq.kernel.index_reader import ENTRY as ENTRY
from tiermq.kernel.index_reader import HEADER as HEADER
from tiermq.kernel.index_reader import SLOT as SLOT

_NAME = re.compile(r"[0-9]{17}")
HEADER_BYTES = HEADER.size
SLOT_BYTES = SLOT.size
ENTRY_BYTES = ENTRY.size
assert (HEADER_BYTES, SLOT_BYTES, ENTRY_BYTES) == (40, 4, 20)

TIME_DIFF_S_MAX = 0x7FFFFFFF
KEY_HASH_MAX = 0x7FFFFFFF

UNFINISHED_SUFFIX = ".new"  # Not an index name; RocketMQ ignores such files.
RESERVE_ENTRIES = 1 << 16
"""How many entries get disk blocks at a time (1.25 MiB)."""


GROWING_ENTRIES = 128
"""How many entries of a file that grows get blocks one by one. Then it gets all of its slots: 20 MB by default."""


class IndexHeader(NamedTuple):
    """The current header; `entry_count` is the number of the next entry, at least 1."""

    begin_timestamp_ms: int
    end_timestamp_ms: int
    begin_physical_offset: int
    end_physical_offset: int
    slot_count: int
    entry_count: int


def index_file_bytes(slot_count_max: int, entry_count_max: int) -> int:
    """The size of an index file."""
    return HEADER_BYTES + slot_count_max * SLOT_BYTES + entry_count_max * ENTRY_BYTES


class IndexFile:
    """One index file. Only the dispatching thread puts entries; any thread may select.

    `destroy` and `close` wait for a running `select` or `sync` and make later ones do nothing.
    """

    __slots__ = (
        "_access", "_entries_at", "_grows", "_lock", "_region", "_sync_lock",
        "buffer", "entry_count_max", "entry_limit", "path", "reader", "slot_count_max",
    )  # fmt: skip

    def __init__(
        self,
        access: FileAccess,
        path: str,
        region: Region,
        slot_count_max: int,
        entry_count_max: int,
        *,
        grows: bool = False,
    ) -> None:
        """`grows`: blocks of the first entries and of their slots come page by page, instead of all at once."""
        self._access = access
        self._grows = grows
        self._region = region
        self._lock = threading.Lock()
        self._sync_lock = threading.Lock()  # A second lock, since a sync takes long and must not block selects.
        self._entries_at = HEADER_BYTES + slot_count_max * SLOT_BYTES
        self.path = path
        self.buffer: memoryview | None = memoryview(region.buffer)
        self.slot_count_max = slot_count_max
        self.entry_count_max = entry_count_max
        self.entry_limit = 0
        self.reader = IndexReader(self.buffer, slot_count_max, entry_count_max, self._lock)

    @classmethod
    def create(
        cls,
        access: FileAccess,
        path: str,
        slot_count_max: int,
        entry_count_max: int,
        previous: IndexHeader | None,
        *,
        grows: bool = False,
    ) -> IndexFile:
        """A new file with disk blocks for its header and, unless it grows, for all slots and the first entries.

        It begins and ends where `previous` ends, so that "already indexed" is known before its first entry.
        It gets its name only after its header: a RocketMQ broker that found an empty header would index the whole log
        again. Raises DiskFull, and leaves no file, when the disk is full.
        """
        unfinished = path + UNFINISHED_SUFFIX
        region = access.create(unfinished, index_file_bytes(slot_count_max, entry_count_max))
        file = cls(access, unfinished, region, slot_count_max, entry_count_max, grows=grows)
        try:
            if grows:
                region.reserve(0, HEADER_BYTES)
            else:
                file._reserve(1)
            end_ms, end_offset = (previous.end_timestamp_ms, previous.end_physical_offset) if previous else (0, 0)
            HEADER.pack_into(file._map(), 0, end_ms, end_ms, end_offset, end_offset, 0, 1)
            region.sync()
            access.rename(unfinished, path)
            access.sync_directory(os.path.dirname(path))
        except TierMQError:
            file.destroy()
            raise
        file.path = region.path = path
        return file

    @classmethod
    def open(
        cls, access: FileAccess, path: str, slot_count_max: int, entry_count_max: int, *, grows: bool = False
    ) -> IndexFile:
        """An existing file. Raises StoreDamaged when its size or header is invalid."""
        region = access.open(path, index_file_bytes(slot_count_max, entry_count_max))
        file = cls(access, path, region, slot_count_max, entry_count_max, grows=grows)
        try:
            file._check_header()
            file._take_back_torn_entry()
        except TierMQError:
            file.close()
            raise
        return file

    @property
    def header(self) -> IndexHeader:
        """The current header, from the map."""
        values = HEADER.unpack_from(self._map(), 0)
        return IndexHeader._make((*values[:5], max(1, values[5])))

    def snapshot(self) -> IndexHeader | None:
        """The header, for threads that do not own the file; None once it was closed."""
        with self._lock:
            return None if self.buffer is None else self.header

    @property
    def name(self) -> str:
        """The file's name without its directory."""
        return os.path.basename(self.path)

    @property
    def is_full(self) -> bool:
        return self.header.entry_count >= self.entry_count_max

    @property
    def is_closed(self) -> bool:
        return self.buffer is None

    def put_key(self, key_hash: int, physical_offset: int, store_timestamp_ms: int) -> bool:
        """Add one entry; False, and nothing written, when the file is full. Durable only after `sync`.

        Raises DiskFull, with nothing written, when the file system has no space for the entry.
        """
        if not 0 <= key_hash <= KEY_HASH_MAX or physical_offset < 0:
            raise IllegalMessage(
                f"an index entry needs a key hash in 0..{KEY_HASH_MAX} and a physical offset >= 0, "
                f"found {key_hash} and {physical_offset}; hash keys with key_hash()"
            )
        header = self.header
        number = header.entry_count
        if number >= self.entry_count_max:
            return False
        slot_at = HEADER_BYTES + (key_hash % self.slot_count_max) * SLOT_BYTES
        if number >= self.entry_limit:
            if self._grows and self.entry_limit == 0 and number < GROWING_ENTRIES:
                self._region.reserve(slot_at, SLOT_BYTES)
                self._region.reserve(self._entries_at + number * ENTRY_BYTES, ENTRY_BYTES)
            else:
                self._reserve(number)
        buffer = self._map()
        previous = SLOT.unpack_from(buffer, slot_at)[0]
        if not 0 < previous < number:
            previous = 0
        if number <= 1:
            # RocketMQ overwrites begin at the first entry, yet computes that entry's seconds from the begin it
            # overwrites (the end of the previous file). Read back, the entry would be in the future: ours is 0.
            begin_ms, begin_offset, time_diff_s = store_timestamp_ms, physical_offset, 0
        else:
            begin_ms, begin_offset = header.begin_timestamp_ms, header.begin_physical_offset
            time_diff_s = _time_diff_s(begin_ms, store_timestamp_ms)
        entry_at = self._entries_at + number * ENTRY_BYTES
        ENTRY.pack_into(buffer, entry_at, key_hash, physical_offset, time_diff_s, previous)
        SLOT.pack_into(buffer, slot_at, number)
        slot_count = header.slot_count + (1 if previous == 0 else 0)
        HEADER.pack_into(buffer, 0, begin_ms, store_timestamp_ms, begin_offset, physical_offset, slot_count, number + 1)
        return True

    def select(self, key_hash: int, max_count: int, begin_ms: int, end_ms: int) -> list[int]:
        """Physical offsets put for `key_hash` in the time range, newest first, at most `max_count`.

        An entry has its time in seconds: records up to a second outside the range are included, none inside is missed.
        Hash collisions are included too. The caller reads the records and drops both.
        """
        return self.reader.select(key_hash, max_count, begin_ms, end_ms)

    def trailing_entries(self, physical_offset: int) -> int:
        """How many of the newest entries belong to the record at `physical_offset`."""
        buffer = self._map()
        newest = min(self.header.entry_count, self.entry_count_max) - 1
        number = newest
        while number > 0 and ENTRY.unpack_from(buffer, self._entries_at + number * ENTRY_BYTES)[1] == physical_offset:
            number -= 1
        return newest - number

    def sync(self) -> None:
        """Make everything put so far durable. Does nothing on a closed file."""
        with self._sync_lock:
            if self.buffer is not None:
                self._region.sync()
                if self.is_full:
                    self._region.close_descriptor()  # A full file is only read, through its map.

    def close(self) -> None:
        """Unmap the file. Later selects find nothing."""
        with self._sync_lock, self._lock:
            if self.buffer is not None:
                self.entry_limit = 0
                self.reader.detach()
                self.buffer.release()
                self.buffer = None
                self._region.close()

    def destroy(self) -> None:
        """Close the file and remove it from the disk."""
        self.close()
        self._access.remove(self.path)

    def _map(self) -> memoryview:
        if self.buffer is None:
            raise StoreDamaged(f"expected an open index file, found {self.path} closed; open the store again")
        return self.buffer

    def _reserve(self, number: int) -> None:
        """Give blocks to the header and slots (once) and to entries from `number` on, then move `entry_limit`."""
        limit = min(self.entry_count_max, max(number, self.entry_limit) + RESERVE_ENTRIES)
        start = 0 if self.entry_limit == 0 else self._entries_at + self.entry_limit * ENTRY_BYTES
        self._region.reserve(start, self._entries_at + limit * ENTRY_BYTES - start)
        self.entry_limit = limit

    def _check_header(self) -> None:
        header = self.header
        sound = (
            header.entry_count <= self.entry_count_max
            and header.slot_count >= 0
            and header.begin_timestamp_ms >= 0
            and header.end_timestamp_ms >= 0
            and 0 <= header.begin_physical_offset <= header.end_physical_offset
        )
        if not sound:
            raise StoreDamaged(
                f"expected the header of an index file with at most {self.entry_count_max} entries, found {header} "
                f"in {self.path}; move the file away and rebuild the index"
            )

    def _take_back_torn_entry(self) -> None:
        """Undo the slot of an entry whose header was never written (see the invariants)."""
        buffer = self._map()
        number = self.header.entry_count
        if number >= self.entry_count_max or buffer.readonly:
            return
        key_hash, _, _, previous = ENTRY.unpack_from(buffer, self._entries_at + number * ENTRY_BYTES)
        slot_at = HEADER_BYTES + (max(0, key_hash) % self.slot_count_max) * SLOT_BYTES
        if SLOT.unpack_from(buffer, slot_at)[0] == number:
            SLOT.pack_into(buffer, slot_at, previous if 0 < previous < number else 0)


def _time_diff_s(begin_ms: int, store_timestamp_ms: int) -> int:
    """Whole seconds from the file's beginning to a record; 0 when the clock went back or the beginning is unknown."""
    if begin_ms <= 0 or store_timestamp_ms <= begin_ms:
        return 0
    return min((store_timestamp_ms - begin_ms) // 1000, TIME_DIFF_S_MAX)


def is_index_name(name: str) -> bool:
    """Whether a file of the index directory is an index file."""
    return _NAME.fullmatch(name) is not None


def index_name(now_ms: int) -> str:
    """The name for a file made at `now_ms`, in the machine's time zone."""
    return _format(datetime.fromtimestamp(now_ms // 1000, tz=UTC).astimezone(), now_ms % 1000)


def next_index_name(now_ms: int, last_name: str | None) -> str:
    """The name for a file made at `now_ms` after the file `last_name`: one ms after it if the clock is behind."""
    name = index_name(now_ms)
    if last_name is None or name > last_name:
        return name
    try:
        # The zone does not matter: this only adds one millisecond.
        last = datetime.strptime(last_name[:14] + "+0000", "%Y%m%d%H%M%S%z")
        later = last + timedelta(milliseconds=int(last_name[14:]) + 1)
        return _format(later, later.microsecond // 1000)
    except (ValueError, OverflowError):  # Digits, but not a date: a foreign name.
        return f"{int(last_name) + 1:017d}"


def _format(moment: datetime, milliseconds: int) -> str:
    return (
        f"{moment.year:04d}{moment.month:02d}{moment.day:02d}"
        f"{moment.hour:02d}{moment.minute:02d}{moment.second:02d}{milliseconds:03d}"
    )
