"""ReadOnlyIndex: the key index of a store that another process may be writing; IndexView: one of its files.

A lookup returns candidates: a hash may belong to another key, and an entry has a time in whole seconds. The caller
checks the records. Not safe to share between threads.

An index file does not store its number of slots; that is a setting (`maxHashSlotNum`). It is given by the caller, or
derived from the file's size if it has the usual four entries for a slot, or else searched for: only the right
number makes the first and the last entry agree with the header and with their slots.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tiermq.errors import StoreDamaged
from tiermq.index.index_file import (
    ENTRY,
    ENTRY_BYTES,
    HEADER,
    HEADER_BYTES,
    SLOT,
    SLOT_BYTES,
    IndexHeader,
    is_index_name,
)
from tiermq.kernel.index_reader import TIME_TOLERANCE_MS
from tiermq.message.java_hash import key_hash
from tiermq.store.readonly.mapped_run import Listing, ReadOnlyMap

_USUAL_ENTRIES_PER_SLOT = 4
_INDEX_PROBLEMS_MAX = 100
_FOREVER_MS = (1 << 63) - 1


class IndexEntry(NamedTuple):
    """One entry; `timestamp_ms` is the header's beginning plus the entry's whole seconds."""

    number: int
    key_hash: int
    physical_offset: int
    timestamp_ms: int
    previous: int


class IndexView:
    """A read-only view of one index file."""

    def __init__(self, view: memoryview, slot_count_max: int | None = None) -> None:
        """Raises StoreDamaged when the bytes cannot be those of an index file."""
        if len(view) < HEADER_BYTES + SLOT_BYTES + 2 * ENTRY_BYTES:
            raise StoreDamaged(f"expected an index file of at least 84 bytes, found {len(view)}")
        self._view = view
        values = HEADER.unpack_from(view, 0)
        self.header = IndexHeader._make((*values[:5], values[5] or 1))
        self.slot_count_max = slot_count_max or self._find_slot_count()
        self._entries_at = HEADER_BYTES + self.slot_count_max * SLOT_BYTES
        self.entry_count_max = (len(view) - self._entries_at) // ENTRY_BYTES
        if not 1 <= self.header.entry_count <= self.entry_count_max:
            raise StoreDamaged(
                f"expected an entry count of 1 to {self.entry_count_max} in the index header, "
                f"found {self.header.entry_count}; give the number of slots if it is not {self.slot_count_max}"
            )

    def _find_slot_count(self) -> int:
        room = len(self._view) - HEADER_BYTES
        usual, rest = divmod(room, SLOT_BYTES + _USUAL_ENTRIES_PER_SLOT * ENTRY_BYTES)
        if rest == 0 and self._fits(usual):
            return usual
        # The entries fill the file to its end, so only every fifth number of slots is possible.
        first = (room // SLOT_BYTES) % (ENTRY_BYTES // SLOT_BYTES) or ENTRY_BYTES // SLOT_BYTES
        most = (room - self.header.entry_count * ENTRY_BYTES) // SLOT_BYTES
        for slots in range(first, most + 1, ENTRY_BYTES // SLOT_BYTES):
            if self._fits(slots):
                return slots
        raise StoreDamaged(
            "the number of slots of this index file cannot be derived from its bytes; "
            "give it (maxHashSlotNum of the broker that wrote it)"
        )

    def _fits(self, slots: int) -> bool:
        """Whether the first and the newest entry are where they must be with this number of slots."""
        newest = self.header.entry_count - 1
        entries_at = HEADER_BYTES + slots * SLOT_BYTES
        if newest < 1:
            return self.header.entry_count >= 1
        if entries_at + (newest + 1) * ENTRY_BYTES > len(self._view):
            return False
        first = ENTRY.unpack_from(self._view, entries_at + ENTRY_BYTES)
        last = ENTRY.unpack_from(self._view, entries_at + newest * ENTRY_BYTES)
        if first[1] != self.header.begin_physical_offset or last[1] != self.header.end_physical_offset or last[0] < 0:
            return False
        slot: int = SLOT.unpack_from(self._view, HEADER_BYTES + last[0] % slots * SLOT_BYTES)[0]
        return slot == newest

    def entries(self) -> Iterator[IndexEntry]:
        """All entries, oldest first."""
        begin_ms = self.header.begin_timestamp_ms
        for number in range(1, self.header.entry_count):
            at = self._entries_at + number * ENTRY_BYTES
            key_hash, physical_offset, time_diff_s, previous = ENTRY.unpack_from(self._view, at)
            yield IndexEntry(number, key_hash, physical_offset, begin_ms + time_diff_s * 1000, previous)

    def find(self, value: int, begin_ms: int, end_ms: int) -> list[int]:
        """Physical offsets of records that may have a key of this hash and be of that time, newest first."""
        from_ms, to_ms, _, _, _, count = HEADER.unpack_from(self._view)
        if count <= 1 or from_ms > end_ms or to_ms + TIME_TOLERANCE_MS < begin_ms:
            return []
        number = int(SLOT.unpack_from(self._view, HEADER_BYTES + value % self.slot_count_max * SLOT_BYTES)[0])
        found = []
        # A put under way has set its slot and not yet the count: its entry is complete.
        most = min(count, self.entry_count_max - 1)
        while 0 < number <= most:
            at = self._entries_at + number * ENTRY_BYTES
            entry_hash, physical, seconds, previous = ENTRY.unpack_from(self._view, at)
            stored_ms = from_ms + seconds * 1000
            if entry_hash == value and stored_ms <= end_ms and stored_ms + TIME_TOLERANCE_MS >= begin_ms:
                found.append(int(physical))
            most, number = number - 1, previous  # A valid chain only leads to older entries.
        return found

    def problems(self) -> list[str]:
        """What would keep a lookup from finding an entry: broken chains, wrong slots, offsets out of order."""
        found: list[str] = []
        newest_of_slot = array("i", bytes(SLOT_BYTES * self.slot_count_max))
        offset_before = -1
        for entry in self.entries():
            if entry.key_hash < 0:
                found.append(f"entry {entry.number}: a key hash is not negative, found {entry.key_hash}")
                continue
            slot = entry.key_hash % self.slot_count_max
            if entry.previous != newest_of_slot[slot]:
                found.append(
                    f"entry {entry.number}: expected {newest_of_slot[slot]} as the slot's entry before it, "
                    f"found {entry.previous}"
                )
            newest_of_slot[slot] = entry.number
            if entry.physical_offset < offset_before:
                found.append(f"entry {entry.number}: physical offset {entry.physical_offset} goes back")
            offset_before = entry.physical_offset
        for entry in self.entries():
            slot = max(entry.key_hash, 0) % self.slot_count_max
            if newest_of_slot[slot] == entry.number:
                stored = SLOT.unpack_from(self._view, HEADER_BYTES + slot * SLOT_BYTES)[0]
                # A writer sets the slot before it counts the entry, so one more is not wrong.
                if stored not in (entry.number, self.header.entry_count):
                    found.append(f"slot {slot}: expected its newest entry {entry.number}, found {stored}")
        return found[:_INDEX_PROBLEMS_MAX]


class ReadOnlyIndex:
    """See the module. Files are mapped on first use, and stay readable when their owner deletes them."""

    def __init__(self, directory: Path) -> None:
        self._listing = Listing([directory])
        self._paths: dict[str, Path] = {}
        self._maps: dict[str, ReadOnlyMap] = {}
        self._views: dict[str, IndexView] = {}

    def refresh(self) -> None:
        """Notice files that came or went."""
        entries = self._listing.changed()
        if entries is None:
            return
        self._paths = {e.name: Path(e.path) for e in sorted(entries, key=lambda e: e.name) if is_index_name(e.name)}
        self._maps = {name: opened for name, opened in self._maps.items() if name in self._paths}
        self._views = {name: view for name, view in self._views.items() if name in self._paths}

    @property
    def names(self) -> list[str]:
        """The names of the files, oldest first."""
        return list(self._paths)

    def find(self, topic: str, key: str, begin_ms: int = 0, end_ms: int = _FOREVER_MS) -> list[int]:
        """Physical offsets of records of a topic that may have the key and be of that time, newest first."""
        return self.find_hash(key_hash(f"{topic}#{key}"), begin_ms, end_ms)

    def find_hash(self, value: int, begin_ms: int = 0, end_ms: int = _FOREVER_MS) -> list[int]:
        """The same by the hash of `topic#key`. Raises StoreDamaged for a file that is no index file."""
        found: list[int] = []
        for name in reversed(self._paths):
            header = self.header(name)
            if header is None or header.entry_count <= 1 or header.begin_timestamp_ms > end_ms:
                continue
            if header.end_timestamp_ms + TIME_TOLERANCE_MS >= begin_ms:
                found.extend(self.view(name).find(value, begin_ms, end_ms))
        return found

    def header(self, name: str) -> IndexHeader | None:
        """The present header of a file; None when the file was deleted, or is being created. Raises StoreDamaged."""
        opened = self._map(name)
        if opened is None or len(opened.view) == 0:
            self._maps.pop(name, None)
            return None
        if len(opened.view) < HEADER_BYTES:
            raise StoreDamaged(f"{self._paths[name]}: expected an index file, found {len(opened.view)} bytes")
        return IndexHeader._make(HEADER.unpack_from(opened.view))

    def view(self, name: str, slot_count: int | None = None) -> IndexView:
        """A file with its entries; `slot_count` if it cannot be derived. Raises StoreDamaged, FileNotFoundError."""
        found = self._views.get(name)
        if found is None:
            opened = self._map(name)
            if opened is None:
                raise FileNotFoundError(self._paths[name])
            found = IndexView(opened.view, slot_count)
            if found.header.entry_count > 1:  # Without entries the number of slots is a guess.
                self._views[name] = found
        return found

    def physical_range(self) -> tuple[int, int, int]:
        """Physical offsets [begin, end) that the files cover, and how many files there are; (0, 0, 0) without entries.

        Keys are indexed in the order of the log, so everything from the oldest file's first record to before the newest
        file's last one is indexed; of the last one some keys may still be on their way.
        """
        headers = [header for name in self._paths if (header := self._sound_header(name)) is not None]
        if not headers:
            return 0, 0, 0
        begin = min(header.begin_physical_offset for header in headers)
        return begin, max(header.end_physical_offset for header in headers), len(headers)

    def _sound_header(self, name: str) -> IndexHeader | None:
        try:
            header = self.header(name)
        except StoreDamaged:
            return None
        return header if header is not None and header.entry_count > 1 else None

    def close(self) -> None:
        """Drop the maps."""
        self._paths.clear()
        self._views.clear()
        self._maps.clear()

    def _map(self, name: str) -> ReadOnlyMap | None:
        opened = self._maps.get(name)
        if opened is None:
            try:
                opened = self._maps[name] = ReadOnlyMap(self._paths[name])
            except FileNotFoundError:
                return None  # Deleted since the directory was listed.
        return opened
