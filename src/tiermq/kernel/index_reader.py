"""IndexReader in pure Python: follows an index file's chains, to find the records of a key.

The layout is drawn in `tiermq.index.index_file`. A chain leads from its slot to older entries only, so that
every lookup ends, however damaged the file is.

A reader may be detached during another thread's lookup: the compiled twin looks up under the interpreter lock, this one
under `guard`, which the caller of `detach` holds too.
"""

from __future__ import annotations

import struct
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from tiermq.message.java_hash import key_hash

TIME_TOLERANCE_MS = 999
"""An entry's time is truncated to whole seconds, so its record is up to this much newer than the entry."""
BEGIN_MAX_MS = 1 << 62  # A damaged header's begin must not overflow when seconds are added.

HEADER = struct.Struct(
    ">"
    "q"  # begin_timestamp_ms     store time of the first entry
    "q"  # end_timestamp_ms       store time of the newest entry
    "q"  # begin_physical_offset  record of the first entry
    "q"  # end_physical_offset    record of the newest entry
    "i"  # slot_count             slots that are in use
    "i"  # entry_count            number of the next entry; 0 means 1
)
SLOT = struct.Struct(">i")
ENTRY = struct.Struct(
    ">"
    "i"  # key_hash
    "q"  # physical_offset
    "i"  # time_diff_s       whole seconds since the header's begin timestamp
    "i"  # previous          number of the slot's next older entry, 0: none
)
assert (HEADER.size, ENTRY.size) == (40, 20)


@dataclass(frozen=True, slots=True)
class QueryOffsets:
    """Candidates for a key, newest first, and the end of the index.

    The offsets include hash collisions and records up to a second outside the time range.
    """

    offsets: list[int]
    last_update_timestamp_ms: int
    last_update_physical_offset: int


class IndexReader:
    """Read-only view of one index file. All state is in the file."""

    __slots__ = ("_buffer", "_entries", "_guard", "_slots")

    def __init__(self, buffer: Any, slots: int, entries: int, guard: AbstractContextManager[Any] | None = None) -> None:
        if len(buffer) < 40 + 4 * slots + 20 * entries:
            raise ValueError("the buffer is smaller than the index file that it should hold")
        self._buffer: memoryview | None = memoryview(buffer)
        self._slots = slots
        self._entries = entries
        self._guard = guard or nullcontext()

    def detach(self) -> None:
        """Release the buffer; later lookups find nothing. The caller holds the guard."""
        if self._buffer is not None:
            self._buffer.release()
            self._buffer = None

    def select(self, hash_: int, max_count: int, begin_ms: int, end_ms: int) -> list[int]:
        """Physical offsets put for a key's hash in the time range, newest first, at most `max_count`.

        An entry has its time in seconds: records up to a second outside the range are included, none inside is missed.
        Hash collisions are included too. The caller reads the records and drops both.
        """
        with self._guard:
            found: list[int] = []
            if self._buffer is not None and hash_ >= 0:
                self._walk(self._buffer, found, hash_, max_count, begin_ms, end_ms)
            return found

    def _walk(
        self, buffer: memoryview, found: list[int], hash_: int, max_count: int, begin_ms: int, end_ms: int
    ) -> None:
        file_begin_ms, _, begin_offset, end_offset, _, count = HEADER.unpack_from(buffer, 0)
        file_begin_ms = min(file_begin_ms, BEGIN_MAX_MS)
        (number,) = SLOT.unpack_from(buffer, 40 + 4 * (hash_ % self._slots))
        # A concurrent put has set its slot and not yet the count: its entry is complete and may be read.
        if number > max(1, count):
            return
        entries_at = 40 + 4 * self._slots
        while 0 < number < self._entries and len(found) < max_count:
            entry_hash, offset, seconds, previous = ENTRY.unpack_from(buffer, entries_at + 20 * number)
            entry_ms = file_begin_ms + seconds * 1000
            if seconds < 0 or entry_ms + TIME_TOLERANCE_MS < begin_ms:
                return
            if entry_hash == hash_ and entry_ms <= end_ms and begin_offset <= offset <= end_offset:
                found.append(offset)
            if previous >= number:
                return  # A valid chain only leads to older entries; this one is damaged.
            number = previous

    def ask(self, asked: _Asked) -> bool:
        """Add this file's candidates to a query; whether older files may have more."""
        with self._guard:
            buffer = self._buffer
            if buffer is None:
                return True  # Removed since the files were listed.
            file_begin_ms, file_end_ms, _, end_offset, _, count = HEADER.unpack_from(buffer, 0)
            if asked.last_update is None:
                asked.last_update = file_end_ms, end_offset
            if len(asked.found) >= asked.max_count:
                return False
            # The end is the newest entry's time; it is before the beginning when the clock was set back in between.
            oldest_ms, newest_ms = min(file_begin_ms, file_end_ms), max(file_begin_ms, file_end_ms)
            if count > 1 and asked.begin_ms <= newest_ms and asked.end_ms >= oldest_ms:
                self._walk(buffer, asked.found, asked.hash, asked.max_count, asked.begin_ms, asked.end_ms)
            return bool(file_begin_ms >= asked.begin_ms)


class _Asked:
    """A query in progress over the files."""

    __slots__ = ("begin_ms", "end_ms", "found", "hash", "last_update", "max_count")

    def __init__(self, hash_: int, max_count: int, begin_ms: int, end_ms: int) -> None:
        self.hash, self.max_count, self.begin_ms, self.end_ms = hash_, max_count, begin_ms, end_ms
        self.found: list[int] = []
        self.last_update: tuple[int, int] | None = None


def query_index(
    newest_first: tuple[IndexReader, ...], topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
) -> QueryOffsets:
    """Candidates for `topic#key` in all files of an index."""
    asked = _Asked(key_hash(f"{topic}#{key}"), max_count, begin_ms, end_ms)
    for reader in newest_first:
        if not reader.ask(asked):
            break
    return QueryOffsets(asked.found, *(asked.last_update or (0, 0)))
