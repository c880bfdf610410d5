"""ReadOnlyStore: a store directory, read by another process than the one that writes it.

    with ReadOnlyStore.open("store") as store:
        for topic, queue_id in store.queues():
            units, log = store.units(topic, queue_id), store.log      # kernel.Segments
        store.refresh()                                               # see what was put since

Nothing is locked or written. What a look has seen stays as it is until the next `refresh`, except that files may be
deleted by their owner: records of maps that are still held stay readable.

* `refresh` costs a few `stat` calls; a queue is looked at when it is first asked for after it.
* `flush` makes every record that was seen durable, whoever wrote it: a file has one page cache, so syncing it here
  writes what the other process has put there.
* A store whose process died is not to be believed (see `store_state`): `require_recovered` says so.

Queues are listed as the directory has them; their writer makes a file with the first message. Not safe to share between
threads.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tiermq.errors import StoreDamaged
from tiermq.files.os_errors import translated
from tiermq.kernel import Collected, Segments, collect_for_tier, scan
from tiermq.message.record_head import HeadKind, read_head
from tiermq.store.read_only_index import ReadOnlyIndex
from tiermq.store.read_only_queue import ReadOnlyQueue
from tiermq.store.read_only_run import Listing, ReadOnlyRun
from tiermq.store.store_files import is_store, require_no_rocksdb
from tiermq.store.store_state import StoreState, require_recovered, store_state

QUEUE_MAPS_MAX = 16_384
"""So many queues keep their maps from one look to the next; a process may have 65,530 maps."""

_NO_UNITS = Segments((), 20)


class ReadOnlyStore:
    """See the module."""

    def __init__(self, root: Path, commit_log_paths: Sequence[Path] = ()) -> None:
        self.root = root
        self._log = ReadOnlyRun(tuple(commit_log_paths) or (root / "commitlog",))
        self.index = ReadOnlyIndex(root / "index")
        self._kinds = {False: _Queues(root / "consumequeue"), True: _Queues(root / "batchconsumequeue")}
        self._queues: dict[tuple[str, int], ReadOnlyQueue] = {}
        self._seen: dict[tuple[str, int], ReadOnlyQueue] = {}  # Looked at since the last refresh.
        self._life: tuple[int, ...] = ()
        self._seen_end = 0
        self._flushed_to = 0
        self._log_end = 0
        self.refresh()

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, commit_log_paths: Sequence[Path] = ()) -> Self:
        """Look at the store in `path`; `commit_log_paths` where its log lies elsewhere. Raises StoreDamaged."""
        root = Path(path).expanduser()
        if not is_store(root):
            raise StoreDamaged(
                f"{root}: expected a store directory (commitlog, consumequeue), found none; check the path"
            )
        require_no_rocksdb(str(root))
        return cls(root, commit_log_paths)

    # Life

    @property
    def state(self) -> StoreState:
        """What its owner does with it now."""
        return store_state(self.root)

    def require_recovered(self) -> StoreState:
        """The state, if the files can be believed. Raises StoreNotRecovered."""
        return require_recovered(self.root)

    def refresh(self) -> None:
        """Let everything that is asked from now on be answered from what is there now."""
        life = _life_of(self.root)
        if life != self._life:  # Opened again since: recovery may have made other files of the same names.
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
        """Let go of every map that nobody else holds. Calling it again does nothing."""
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

    def queues(self) -> list[tuple[str, int]]:
        """Topic and id of every queue with simple units."""
        return self._kinds[False].names()

    def batch_queues(self) -> list[tuple[str, int]]:
        """The queues of batch topics."""
        return self._kinds[True].names()

    def queue(self, topic: str, queue_id: int) -> ReadOnlyQueue | None:
        """The queue as it was when first asked for after the last refresh; None when there is none."""
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
        found = self.queue(topic, queue_id)
        return 0 if found is None else found.min_offset(self.min_physical_offset)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Behind the newest message that has a unit; 0 without a queue."""
        found = self.queue(topic, queue_id)
        return 0 if found is None else found.max_offset

    def units(self, topic: str, queue_id: int) -> Segments:
        """The queue's units as the kernel reads them, up to its end; without files when there is no such queue."""
        found = self.queue(topic, queue_id)
        return _NO_UNITS if found is None else found.units()

    def collect_for_tier(
        self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int, tier_offset: int
    ) -> Collected:
        """As `LocalStore.collect_for_tier`. Nothing is collected of a batch queue."""
        found = self.queue(topic, queue_id)
        units = _NO_UNITS if found is None or found.is_batch else found.units()
        return collect_for_tier(units, self.log, offset, max_count, max_bytes, tier_offset)

    def store_time_of(self, topic: str, queue_id: int, offset: int) -> int:
        """When the message at that place of a simple queue was stored; -1 when it cannot be read."""
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
        return self._log.segments()

    def read(self, physical_offset: int, size: int) -> bytes | None:
        """A copy of bytes of the log; None when they are not there (any more). A record is checked by its reader."""
        self._see_log_up_to(physical_offset + size)
        return self.log.read(physical_offset, size)

    def _see_log_up_to(self, end: int) -> None:
        """Units may be newer than the look at the log's files that was taken before them: then it is taken again."""
        if end > self._log.size_end:
            self._log.refresh()

    @property
    def min_physical_offset(self) -> int:
        return self._log.min_offset

    @property
    def max_physical_offset(self) -> int:
        """Behind the last whole record. Walks the heads of what was written since it was last asked."""
        end = max(self._log_end, self._seen_end, self._log.min_offset)
        log = self.log
        while (view := log.find(end)) is not None:
            position, _, records, _, _, blank = scan(view, end - view.base, view.size, 0)
            end = view.base + position + blank
            if not records and not blank:
                break
        self._log_end = end
        return end

    @property
    def seen_end(self) -> int:
        """Behind the newest record of all queues that were looked at."""
        return self._seen_end

    @property
    def flushed_where(self) -> int:
        """Records before that were made durable by `flush`."""
        return self._flushed_to

    def flush(self) -> None:
        """Make every record of the queues that were looked at durable. Raises DiskFull or StoreError."""
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

    def names(self) -> list[tuple[str, int]]:
        return [(topic, queue_id) for topic in sorted(self._ids) for queue_id in self._ids[topic]]

    def __contains__(self, name: tuple[str, int]) -> bool:
        return name[1] in self._ids.get(name[0], ())


def _is_queue(entry: os.DirEntry[str]) -> bool:
    return entry.name.isascii() and entry.name.isdigit() and entry.is_dir()


def _life_of(root: Path) -> tuple[int, ...]:
    """What changes when a store is opened anew."""
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
            return  # Deleted by its owner: then nothing of it is left to lose.
        try:
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
