"""HotStore: a store directory as history reads it: bounds, units as bytes, records in their mapped files.

Nothing is locked or written, and a broker may run on the directory meanwhile. Maps of the log are handed out as they
are: they live as long as somebody holds a view of them, also after the broker has deleted the file. After a refresh
a deleted file is not found any more, and the tier has to answer for it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tiermq.consumequeue.unit import PRE_BLANK_SIZE, UNIT, UNIT_BYTES
from tiermq.index.index_file import HEADER, HEADER_BYTES
from tiermq.index.index_name import is_index_name
from tiermq.store.delay_offsets import stored_delays_ms
from tiermq.store.read_only_store import ReadOnlyStore
from tiermq.store.store_files import ReadOnlyMap, is_store
from tiermq.tier.tier_config import TierConfig

SAMPLES = 64
"""So many units tell how large a queue's records are, about."""


class UnitPiece(NamedTuple):
    """Units in a row, the first of which is that of queue offset `first_offset`."""

    first_offset: int
    data: bytes


class LogPiece(NamedTuple):
    """A mapped file of the commit log, which begins at physical offset `base`."""

    base: int
    data: memoryview
    name: str


class HotStore:
    """One directory. Any thread may ask.

    Beside a tier it may have the tier's metadata and no message yet, as `tiermq tier import` and `restore` make it.
    """

    def __init__(self, path: str, *, may_be_new: bool = False) -> None:
        self.path = path
        self._lock = threading.RLock()
        has_metadata = TierConfig(store_path_root_dir=path).metadata_path.is_file()
        is_new = may_be_new and has_metadata and not is_store(Path(path))
        self._store = ReadOnlyStore(Path(path)) if is_new else ReadOnlyStore.open(path)
        self._maps: dict[int, ReadOnlyMap] = {}
        self.delays_ms = stored_delays_ms(path)
        """The delay levels of its broker; empty where the directory does not have them."""

    def refresh(self) -> None:
        """See what was written and deleted since."""
        with self._lock:
            self._store.refresh()
            there = {view.base for view in self._store.log.views}
            # Whoever reads one of the others holds it himself.
            self._maps = {base: each for base, each in self._maps.items() if base in there}

    def require_recovered(self) -> None:
        """Raises StoreNotRecovered when the store's process died and nobody has opened the directory since."""
        with self._lock:
            self._store.require_recovered()

    def queues(self) -> list[tuple[str, int]]:
        """Topics and queue ids of simple queues."""
        with self._lock:
            return self._store.queues()

    def batch_queues(self) -> list[tuple[str, int]]:
        """Topics and queue ids of batch queues that have messages."""
        with self._lock:
            return [name for name in self._store.batch_queues() if self._store.max_offset(*name) > 0]

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """The messages [min, max) that can be read of a queue; (0, 0) of none."""
        with self._lock:
            low, high = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
            return min(low, high), high

    def units(self, topic: str, queue_id: int, from_offset: int, to_offset: int, at_once: int) -> Iterator[UnitPiece]:
        """The units of [from, to) that are there, so many at a time; what is missing is passed over."""
        with self._lock:
            segments = self._store.units(topic, queue_id)
        for view in segments.views:
            first = view.base // UNIT_BYTES
            begin, end = max(from_offset, first), min(to_offset, first + view.position // UNIT_BYTES)
            while begin < end:
                count = min(at_once, end - begin)
                data = view.read((begin - first) * UNIT_BYTES, count * UNIT_BYTES)
                if data is None:
                    break
                yield UnitPiece(begin, data)
                begin += count

    def store_ms_of(self, topic: str, queue_id: int, offset: int) -> int:
        """When a message was stored; -1 when it cannot be read."""
        with self._lock:
            return self._store.store_time_of(topic, queue_id, offset)

    def log_file(self, physical_offset: int) -> LogPiece | None:
        """The file that covers an offset of the log; None when it is not there.

        Units may be newer than the look at the log's files that was taken before them: then it is taken again.
        """
        with self._lock:
            view = self._store.log.find(physical_offset)
            if view is None and physical_offset >= self._store.min_physical_offset:
                self.refresh()
                view = self._store.log.find(physical_offset)
            if view is None:
                return None
            name = f"commitlog/{view.base:020d}"
            found = self._maps.get(view.base)
            if found is None:
                try:
                    found = ReadOnlyMap(Path(self.path).expanduser() / name)
                except FileNotFoundError:
                    self.refresh()  # Deleted by the broker since the last look.
                    return None
                self._maps[view.base] = found
            return LogPiece(view.base, found.view, name)

    def find_key(self, topic: str, key: str, begin_ms: int, end_ms: int) -> list[int]:
        """Physical offsets of records that may have the key, by the store's index files, newest first."""
        with self._lock:
            return self._store.index.find(topic, key, begin_ms, end_ms)

    def indexed_range(self) -> tuple[int, int, int]:
        """Physical offsets [begin, end) that the store's index files cover, and how many files there are.

        Keys are indexed in the order of the log, so everything from the oldest file's first record to before the newest
        file's last one is indexed; of the last one some keys may still be on their way. (0, 0, 0) without files.
        """
        begins, ends = [], []
        for path in sorted((Path(self.path).expanduser() / "index").glob("*")):
            if not is_index_name(path.name):
                continue
            try:
                with path.open("rb") as stream:
                    head = stream.read(HEADER_BYTES)
            except FileNotFoundError:
                continue  # Its time was over between the listing and now.
            if len(head) == HEADER_BYTES:
                _, _, begin, end, _, count = HEADER.unpack(head)
                if count > 1:
                    begins.append(begin)
                    ends.append(end)
        return (min(begins), max(ends), len(begins)) if begins else (0, 0, 0)

    def first_unit_from(self, topic: str, queue_id: int, physical_offset: int, low: int, high: int) -> int | None:
        """The first queue offset of [low, high) whose record lies at or behind a place; `high` when none does.

        None when a blank unit was met on the way: then places do not ascend, and halving proves nothing.
        """
        while low < high:
            middle = (low + high) // 2
            piece = next(self.units(topic, queue_id, middle, middle + 1, 1), None)
            if piece is None:
                low = middle + 1  # Deleted since: what is left is newer.
                continue
            place, size, _ = UNIT.unpack(piece.data)
            if size == PRE_BLANK_SIZE:
                return None
            low, high = (middle + 1, high) if place < physical_offset else (low, middle)
        return low

    def close(self) -> None:
        """Let go of everything. Views that somebody holds stay valid."""
        with self._lock:
            self._maps.clear()
            self._store.close()
