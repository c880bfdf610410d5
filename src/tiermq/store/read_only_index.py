"""ReadOnlyIndex: the key index of a store that another process writes.

Finds candidates: a hash may belong to another key, and an entry knows its second only. Whoever asks reads the records
and decides. How many slots a file has is a setting of its writer; `IndexView` finds it out from the file's entries.
Not safe to share between threads.
"""

from __future__ import annotations

from pathlib import Path

from tiermq.errors import StoreDamaged
from tiermq.index.index_file import ENTRY, ENTRY_BYTES, HEADER, HEADER_BYTES, SLOT, SLOT_BYTES
from tiermq.index.index_name import is_index_name
from tiermq.kernel.index_reader import TIME_TOLERANCE_MS
from tiermq.message.java_hash import key_hash
from tiermq.store.index_walk import IndexView
from tiermq.store.read_only_run import Listing
from tiermq.store.store_files import ReadOnlyMap

_FOREVER_MS = (1 << 63) - 1


class ReadOnlyIndex:
    """See the module."""

    def __init__(self, directory: Path) -> None:
        self._listing = Listing([directory])
        self._files: dict[str, _IndexBytes] = {}

    def refresh(self) -> None:
        """Notice files that came or went."""
        entries = self._listing.changed()
        if entries is None:
            return
        paths = {entry.name: Path(entry.path) for entry in entries if is_index_name(entry.name)}
        self._files = {name: self._files.get(name) or _IndexBytes(path) for name, path in sorted(paths.items())}

    @property
    def file_count(self) -> int:
        return len(self._files)

    def find(self, topic: str, key: str, begin_ms: int = 0, end_ms: int = _FOREVER_MS) -> list[int]:
        """Physical offsets of records of a topic that may have the key and be of that time, newest first."""
        return self.find_hash(key_hash(f"{topic}#{key}"), begin_ms, end_ms)

    def find_hash(self, value: int, begin_ms: int = 0, end_ms: int = _FOREVER_MS) -> list[int]:
        """The same by the hash of `topic#key`."""
        found: list[int] = []
        for file in reversed(self._files.values()):
            found.extend(file.find(value, begin_ms, end_ms))
        return found

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


class _IndexBytes:
    """One file, mapped when it is first asked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map: ReadOnlyMap | None = None
        self._slots = 0

    def find(self, value: int, begin_ms: int, end_ms: int) -> list[int]:
        view = self._view()
        if view is None:
            return []
        from_ms, to_ms, _, _, _, count = HEADER.unpack_from(view)
        if count <= 1 or from_ms > end_ms or to_ms + TIME_TOLERANCE_MS < begin_ms:
            return []
        if not self._slots:
            self._slots = IndexView(view).slot_count_max
        entries_at = HEADER_BYTES + self._slots * SLOT_BYTES
        number = int(SLOT.unpack_from(view, HEADER_BYTES + value % self._slots * SLOT_BYTES)[0])
        found = []
        # A put under way has set its slot and not yet the count: its entry is complete.
        most = min(count, (len(view) - entries_at) // ENTRY_BYTES - 1)
        while 0 < number <= most:
            entry_hash, physical, seconds, previous = ENTRY.unpack_from(view, entries_at + number * ENTRY_BYTES)
            stored_ms = from_ms + seconds * 1000
            if entry_hash == value and stored_ms <= end_ms and stored_ms + TIME_TOLERANCE_MS >= begin_ms:
                found.append(int(physical))
            most, number = number - 1, previous  # A sound chain only leads to older entries.
        return found

    def _view(self) -> memoryview | None:
        if self._map is None:
            try:
                self._map = ReadOnlyMap(self._path)
            except FileNotFoundError:
                return None  # Its time was over between the listing and now.
        if len(self._map.view) == 0:
            self.close()  # It is being made this moment.
            return None
        if len(self._map.view) < HEADER_BYTES:
            raise StoreDamaged(f"{self._path}: expected an index file, found {len(self._map.view)} bytes")
        return self._map.view

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None
