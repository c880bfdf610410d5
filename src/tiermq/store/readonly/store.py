"""ReadOnlyStore: a store directory that another process may be writing.

    with ReadOnlyStore.open("store") as store:
        for topic, queue_id in store.queues():
            units, log = store.units(topic, queue_id), store.log      # kernel.Segments
        store.refresh()                                               # see what was put since

Nothing is locked or written. The view stays the same until the next `refresh`, except that the owner may delete files:
records of maps that are still held stay readable.

* `refresh` costs a few `stat` calls; a queue is refreshed on its first use after that.
* `flush` makes every record that was seen durable, also those of the other process: a file has one page cache, so a
  sync here writes all of it.
* The files of a store whose process died cannot be trusted (see `directory`): `require_recovered` raises then.

Queues are listed as the directory has them; their writer makes a file with the first message. Any thread may call the
methods of the store, which take its lock; a `ReadOnlyQueue`, the log and the index belong to one thread at a time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.errors import StoreDamaged
from tiermq.files.os_errors import translated
from tiermq.files.system_calls import sync_data
from tiermq.kernel import Collected, Segments, collect_for_tier
from tiermq.message.record_head import HeadKind, read_head
from tiermq.message.topic_name import QueueName
from tiermq.store.delay_offsets import stored_delays_ms
from tiermq.store.readonly.directory import StoreState, is_store, require_no_rocksdb, require_recovered, store_state
from tiermq.store.readonly.index import ReadOnlyIndex
from tiermq.store.readonly.log import ReadOnlyLog
from tiermq.store.readonly.mapped_run import Listing, MappedRun
from tiermq.store.readonly.queue import ReadOnlyQueue, UnitPiece, unit_pieces


class LogPiece(NamedTuple):
    """A mapped file of the commit log, which begins at physical offset `base`."""

    base: int
    data: memoryview
    name: str


QUEUE_MAPS_MAX = 16_384
"""Maximum queues that keep their maps across a refresh; a process may have 65,530 maps."""

_NO_UNITS = Segments((), UNIT_BYTES)


class ReadOnlyStore:
    """See the module."""

    def __init__(self, root: Path, commit_log_paths: Sequence[Path] = ()) -> None:
        self.root = root
        self._lock = threading.RLock()
        self._log = ReadOnlyLog(tuple(dict.fromkeys((root / "commitlog", *commit_log_paths))))
        self.index = ReadOnlyIndex(root / "index")
        self._kinds = {False: _Queues(root / "consumequeue"), True: _Queues(root / "batchconsumequeue")}
        self._queues: dict[QueueName, ReadOnlyQueue] = {}
        self._seen: dict[QueueName, ReadOnlyQueue] = {}  # Used since the last refresh.
        self._life: tuple[int, ...] = ()
        self._seen_end = 0
        self._flushed_to = 0
        self._log_end = 0
        self.refresh()

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, commit_log_paths: Sequence[Path] = (), may_be_new: bool = False
    ) -> Self:
        """Open the store in `path` for reading. Raises StoreDamaged.

        `commit_log_paths`: where else files of its log are. `may_be_new`: a directory without any file of a store is
        one without messages.
        """
        root = Path(path).expanduser()
        if not is_store(root) and not may_be_new:
            raise StoreDamaged(
                f"{root}: expected a store directory (commitlog/, consumequeue/ or checkpoint), found none; "
                "check the path"
            )
        require_no_rocksdb(str(root))
        return cls(root, commit_log_paths)

    # Life

    @property
    def state(self) -> StoreState:
        """What its owner is doing with it now."""
        return store_state(self.root)

    @property
    def ended_cleanly(self) -> bool:
        """Whether the store was closed in order; a running one was not."""
        return not (self.root / "abort").exists()

    def require_recovered(self) -> StoreState:
        """The state, if the files can be trusted. Raises StoreNotRecovered."""
        return require_recovered(self.root)

    @cached_property
    def delays_ms(self) -> tuple[int, ...]:
        """The delay levels of its broker; empty where the directory does not have them. Raises StoreDamaged."""
        return stored_delays_ms(self.root)

    def refresh(self) -> None:
        """See the present state of the directory."""
        with self._lock:
            life = _life_of(self.root)
            if life != self._life:  # Opened again since: recovery may have created other files with the same names.
                self._life = life
                self._queues.clear()
                self._log.forget_maps()
                self._seen_end = self._flushed_to = self._log_end = 0
            self._log.refresh()
            self.index.refresh()
            for kind in self._kinds.values():
                kind.refresh()
            self._seen.clear()

    def close(self) -> None:
        """Drop every map. Views that readers still hold stay valid. Calling it again does nothing."""
        with self._lock:
            self._seen.clear()
            self._queues.clear()
            self._log.forget_maps()
            self.index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Queues

    def queues(self) -> list[QueueName]:
        """Topic and id of every queue with simple units."""
        with self._lock:
            return self._kinds[False].names()

    def batch_queues(self) -> list[QueueName]:
        """The queues of batch topics."""
        with self._lock:
            return self._kinds[True].names()

    def queue(self, topic: str, queue_id: int) -> ReadOnlyQueue | None:
        """The queue as it was at its first use after the last refresh; None when there is none."""
        with self._lock:
            name = (topic, queue_id)
            found = self._seen.get(name)
            if found is None:
                is_batch = next((batch for batch, kind in self._kinds.items() if name in kind), None)
                if is_batch is None:
                    return None
                found = self._queues.pop(name, None)
                if found is None:
                    directory = self._kinds[is_batch].directory / topic / str(queue_id)
                    found = ReadOnlyQueue(directory, topic, queue_id, is_batch=is_batch, read_record=self.read)
                found.refresh()
                self._see_log_up_to(found.max_physical_offset)
                self._seen[name] = self._queues[name] = found
                self._seen_end = max(self._seen_end, found.max_physical_offset)
                if len(self._queues) > QUEUE_MAPS_MAX:
                    self._queues.pop(next(iter(self._queues))).forget_maps()
            return found

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The oldest message whose record is still there; 0 without a queue."""
        with self._lock:
            found = self.queue(topic, queue_id)
            return 0 if found is None else found.min_offset(self.min_physical_offset)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Behind the newest message that has a unit; 0 without a queue."""
        with self._lock:
            found = self.queue(topic, queue_id)
            return 0 if found is None else found.max_offset

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """The messages [min, max) of a queue that can be read; (0, 0) without a queue."""
        with self._lock:
            low, high = self.min_offset(topic, queue_id), self.max_offset(topic, queue_id)
            return min(low, high), high

    def units(self, topic: str, queue_id: int) -> Segments:
        """The queue's units as the kernel reads them, up to its end; without files when there is no such queue."""
        with self._lock:
            found = self.queue(topic, queue_id)
            return _NO_UNITS if found is None else found.units()

    def unit_pieces(
        self, topic: str, queue_id: int, from_offset: int, to_offset: int, at_once: int
    ) -> Iterator[UnitPiece]:
        """The existing units of [from, to), in chunks; missing ones are skipped."""
        return unit_pieces(self.units(topic, queue_id), from_offset, to_offset, at_once)

    def first_unit_from(self, topic: str, queue_id: int, physical_offset: int, low: int, high: int) -> int:
        """The first queue offset of [low, high) whose record is stored at or behind an offset of the log; `high` when
        there is none. Offsets without a message do not count."""
        with self._lock:
            found = self.queue(topic, queue_id)
            return high if found is None else found.first_from(physical_offset, low, high)

    def ext_queue(self, topic: str, queue_id: int) -> MappedRun:
        """The ext units of a queue; without files when it has none."""
        run = MappedRun([self.root / "consumequeue_ext" / topic / str(queue_id)])
        run.refresh()
        return run

    def collect_for_tier(
        self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int, tier_offset: int
    ) -> Collected:
        """As `LocalStore.collect_for_tier`. Nothing is collected of a batch queue."""
        with self._lock:
            found = self.queue(topic, queue_id)
            units = _NO_UNITS if found is None or found.is_batch else found.units()
            log = self.log
        return collect_for_tier(units, log, offset, max_count, max_bytes, tier_offset)

    def store_time_of(self, topic: str, queue_id: int, offset: int) -> int:
        """When the message at that offset of a simple queue was stored; -1 when it cannot be read."""
        with self._lock:
            found = self.queue(topic, queue_id)
            unit = None if found is None else found.unit_at(offset)
            record = None if unit is None else self.read(unit.physical_offset, unit.size)
        if record is None or unit is None:
            return -1
        head = read_head(record, 0, len(record))
        sound = head.kind is HeadKind.OK and head.physical_offset == unit.physical_offset
        return head.store_timestamp_ms if sound else -1

    # The log

    @property
    def log(self) -> Segments:
        """The commit log as the kernel reads it. Behind the last record its files are full of zeros."""
        with self._lock:
            return self._log.segments()

    @property
    def log_files(self) -> ReadOnlyLog:
        """The commit log file by file, for one thread."""
        return self._log

    def log_file(self, physical_offset: int) -> LogPiece | None:
        """The file that covers an offset of the log; None when it is missing.

        Lists the log's files again if units are newer than the last listing.
        """
        with self._lock:
            view = self.log.find(physical_offset)
            if view is None and physical_offset >= self.min_physical_offset:
                self.refresh()
                view = self.log.find(physical_offset)
            if view is None:
                return None
            found = self._log.find(physical_offset)
            assert found is not None, "a file in the segments is mapped"
            return LogPiece(view.base, found[0][: view.size], f"commitlog/{view.base:020d}")

    def read(self, physical_offset: int, size: int) -> bytes | None:
        """A copy of bytes of the log; None when they are missing or deleted. A record is checked by its reader."""
        with self._lock:
            self._see_log_up_to(physical_offset + size)
            return self.log.read(physical_offset, size)

    def _see_log_up_to(self, end: int) -> None:
        """List the log's files again if units are newer than the last listing."""
        if end > self._log.size_end:
            self._log.refresh()

    def find_key(self, topic: str, key: str, begin_ms: int, end_ms: int) -> list[int]:
        """Physical offsets of records that may have the key, by the store's index files, newest first."""
        with self._lock:
            return self.index.find(topic, key, begin_ms, end_ms)

    def indexed_range(self) -> tuple[int, int, int]:
        """Physical offsets [begin, end) that the index covers now, and the number of its files."""
        with self._lock:
            self.index.refresh()
            return self.index.physical_range()

    @property
    def min_physical_offset(self) -> int:
        return self._log.min_offset

    @property
    def max_physical_offset(self) -> int:
        """Behind the last whole record. Reads the heads of records that were written since the last call."""
        with self._lock:
            self._log_end = self._log.end_offset(max(self._log_end, self._seen_end))
            return self._log_end

    @property
    def seen_end(self) -> int:
        """Behind the newest record of all queues that were used."""
        return self._seen_end

    @property
    def flushed_where(self) -> int:
        """Records before that were made durable by `flush`."""
        return self._flushed_to

    def flush(self) -> None:
        """Make every record of the queues that were used durable. Raises DiskFull or StoreError."""
        with self._lock:
            end = self._seen_end
            for file in self._log.files:
                if self._flushed_to < end and file.base + file.size > self._flushed_to and file.base < end:
                    _sync(file.path)
            self._flushed_to = max(self._flushed_to, end)


class _Queues:
    """The queues of one kind, as directories `<topic>/<queue id>`. Listed again only when directories changed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._topics = Listing([directory])
        self._listings: dict[str, Listing] = {}
        self._ids: dict[str, list[int]] = {}

    def refresh(self) -> None:
        entries = self._topics.changed()
        if entries is not None:
            topics = {entry.name for entry in entries if entry.is_dir()}
            self._listings = {topic: self._listings.get(topic) or Listing([self.directory / topic]) for topic in topics}
            self._ids = {topic: ids for topic, ids in self._ids.items() if topic in topics}
        for topic, listing in self._listings.items():
            found = listing.changed()
            if found is not None:
                self._ids[topic] = sorted(int(entry.name) for entry in found if _is_queue(entry))

    def names(self) -> list[QueueName]:
        return [(topic, queue_id) for topic in sorted(self._ids) for queue_id in self._ids[topic]]

    def __contains__(self, name: QueueName) -> bool:
        return name[1] in self._ids.get(name[0], ())


def _is_queue(entry: os.DirEntry[str]) -> bool:
    return entry.name.isascii() and entry.name.isdigit() and entry.is_dir()


def _life_of(root: Path) -> tuple[int, ...]:
    """Changes each time a store is opened."""
    try:
        found = os.stat(root / "abort")
    except FileNotFoundError:
        return ()
    return found.st_ino, found.st_mtime_ns


def _sync(path: Path) -> None:
    with translated("sync", str(path)):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # Deleted by its owner: there is nothing left to lose.
        try:
            sync_data(descriptor)
        finally:
            os.close(descriptor)
