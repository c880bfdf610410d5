"""An index file as offline tools read it: all entries in order, and whether lookups will find them.

An index file does not say how many slots it has; that is a setting (`maxHashSlotNum`). It is taken from the caller, or
from the file's size when that has the usual proportion of four entries to a slot, or else found out: only the right
number makes the first and the last entry agree with the header and with their slots.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from tiermq.errors import StoreDamaged
from tiermq.index.index_file import ENTRY, ENTRY_BYTES, HEADER, HEADER_BYTES, SLOT, SLOT_BYTES, IndexHeader

_USUAL_ENTRIES_PER_SLOT = 4
_PROBLEMS_SHOWN_MAX = 100


class IndexEntry(NamedTuple):
    """One entry; `timestamp_ms` is the header's beginning plus the entry's whole seconds."""

    number: int
    key_hash: int
    physical_offset: int
    timestamp_ms: int
    previous: int


class IndexView:
    """A read-only look at the bytes of one index file."""

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
            "the number of slots of this index file cannot be told from its bytes; "
            "give it (maxHashSlotNum of the broker that wrote it)"
        )

    def _fits(self, slots: int) -> bool:
        """Whether the first and the newest entry are where they must be if there are so many slots."""
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
        return found[:_PROBLEMS_SHOWN_MAX]
