"""IndexService: all index files of a store: putting keys, rolling, querying, loading and cleaning.

Records that are already indexed. Records arrive in the order of the commit log, and after a crash some arrive again.

* A record before the newest indexed one is skipped.
* The newest indexed record may be incomplete: a record has several keys, and a crash (or a full disk) can come
  between them. Its entries are the newest ones in the file, in the order of its keys, so they are counted, and only
  the remaining keys are put. No entry is duplicated or lost. (RocketMQ puts all keys of that record again.)

After an unclean stop a file is trusted only if it was made durable as a whole: it is full, and its newest entry is not
younger than the time in the checkpoint. A file that was not full may have got entries since it was synced, and one
behind the checkpoint's file may have entries of the same millisecond, or of an earlier one when the clock was set back.
Files that are not trusted are removed, and `load` returns from where on the commit log must be indexed again. (RocketMQ
uses the time alone, and by default loses those entries.)

Threads: `put`, `put_keys_batch` and `current` belong to the dispatching thread. Any thread may call the rest.
"""

from __future__ import annotations

import logging
import os
import threading
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from tiermq.clock import Clock
from tiermq.errors import StoreClosed, StoreDamaged
from tiermq.files.file_access import FileAccess
from tiermq.index.index_file import UNFINISHED_SUFFIX, IndexFile, is_index_name, next_index_name
from tiermq.kernel import IndexReader, IndexTail, QueryOffsets, key_hashes, query_index
from tiermq.message.java_hash import key_hash

log = logging.getLogger(__name__)

QUERY_COUNT_MAX = 64
"""RocketMQ's maxMsgsNumBatch."""

Task = Callable[[], None]


class IndexService:
    """The index of one store.

    `checkpoint(end_timestamp_ms)` is called when everything up to that store time is durable.
    `background(task)` runs the flushing of a full file; by default each gets a thread that `close` waits for.
    """

    def __init__(
        self,
        access: FileAccess,
        directory: str,
        slot_count_max: int,
        entry_count_max: int,
        clock: Clock,
        checkpoint: Callable[[int], None],
        *,
        background: Callable[[Task], None] | None = None,
        query_count_max: int = QUERY_COUNT_MAX,
        grows: bool = False,
    ) -> None:
        self._access = access
        self._directory = directory
        self._slot_count_max = slot_count_max
        self._entry_count_max = entry_count_max
        self._clock = clock
        self._checkpoint = checkpoint
        self._background = background or self._in_thread
        self._query_count_max = query_count_max
        self._grows = grows
        self._lock = threading.Lock()  # Guards replacing `_files`; the tuple is immutable.
        self._files: tuple[IndexFile, ...] = ()
        self._newest_first: tuple[IndexReader, ...] = ()
        self._sync_lock = threading.Lock()  # Held while files are synced and the checkpoint is updated.
        self._synced_name = ""  # Files up to this name are full and durable.
        self._flushing: list[threading.Thread] = []
        self._closed = False

    @property
    def files(self) -> tuple[IndexFile, ...]:
        """The files, oldest first."""
        return self._files

    def _keep(self, files: tuple[IndexFile, ...]) -> None:
        """Replace the files. The caller holds the lock."""
        self._files = files
        self._newest_first = tuple(file.reader for file in reversed(files))

    def load(self, last_exit_ok: bool, index_safe_timestamp_ms: int) -> int | None:
        """Open the files of the directory. Returns the physical offset from which records must be indexed again.

        None: nothing is missing. Raises StoreDamaged for a file that is foreign or damaged; after an unclean stop the
        newest file is removed instead, since it is rebuilt anyway.
        """
        listed = [info.name for info in self._access.list_files(self._directory)]
        for unfinished in (name for name in listed if name.endswith(UNFINISHED_SUFFIX)):
            self._access.remove(os.path.join(self._directory, unfinished))
        names = sorted(filter(is_index_name, listed))
        kept: list[IndexFile] = []
        try:
            for at, name in enumerate(names):
                file = self._open_if_durable(name, last_exit_ok, name == names[-1], index_safe_timestamp_ms)
                if file is None:
                    self._remove(names[at:])
                    break
                kept.append(file)
                if not last_exit_ok and file.header.end_timestamp_ms == index_safe_timestamp_ms:
                    self._remove(names[at + 1 :])  # The checkpoint covers this file, hence no later one.
                    break
        except StoreDamaged:
            for file in kept:
                file.close()
            raise
        with self._lock:
            self._keep(tuple(kept))
        if last_exit_ok:
            return None
        return kept[-1].header.end_physical_offset if kept else 0

    def _open_if_durable(
        self, name: str, last_exit_ok: bool, is_newest: bool, safe_timestamp_ms: int
    ) -> IndexFile | None:
        """The opened file; None when it and every newer file must be rebuilt."""
        path = os.path.join(self._directory, name)
        try:
            file = IndexFile.open(self._access, path, self._slot_count_max, self._entry_count_max, grows=self._grows)
        except StoreDamaged as error:
            if last_exit_ok or not is_newest:
                raise
            log.warning("the newest index file was cut short by a crash: %s", error)
            return None
        header = file.header
        if last_exit_ok or (header.end_timestamp_ms <= safe_timestamp_ms and file.is_full):
            return file
        file.close()
        return None

    def _remove(self, names: list[str]) -> None:
        for name in names:
            log.info("index file %s in %s was not durable at the crash; it is rebuilt", name, self._directory)
            self._access.remove(os.path.join(self._directory, name))
        # Durably: a file that reappears after the next crash would look like an older, durable one.
        self._access.sync_directory(self._directory)

    def put(self, topic: str, keys: Sequence[str], physical_offset: int, store_timestamp_ms: int) -> int:
        """Index one record. Returns how many entries were added: 0 when it was indexed before or has no keys.

        `keys` come from `index_keys`, always in the same order: a record that is put again continues where a crash
        stopped it, which is known by counting. Raises DiskFull, after which the same record can be put again.
        """
        return self._put_record([key_hash(f"{topic}#{key}") for key in keys], physical_offset, store_timestamp_ms)

    def put_keys_batch(self, hashes: Sequence[int], offsets: Sequence[int], timestamps_ms: Sequence[int]) -> int:
        """Index many records, one key each row; rows of one record are neighbours, offsets ascend.

        Returns how many were added. Raises DiskFull, after which the same rows can be put again.
        """
        if not len(hashes) == len(offsets) == len(timestamps_ms):
            raise ValueError("hashes, offsets and timestamps must be equally long")
        columns = array("i", hashes), array("q", offsets), array("q", timestamps_ms)
        added = at = 0
        while at < len(columns[0]):
            run = self._put_run(*(memoryview(column)[at:] for column in columns))
            added, at = added + run, at + run
            if at < len(columns[0]):
                # A full file, no reserved entry, or a record that was indexed before: the slow path for one record.
                end = at + 1
                while end < len(columns[0]) and columns[1][end] == columns[1][at]:
                    end += 1
                begin = at
                while begin > 0 and columns[1][begin - 1] == columns[1][at]:
                    begin -= 1
                added += self._put_record(list(columns[0][begin:end]), columns[1][at], columns[2][at])
                at = end
        return added

    def put_keys(self, topic: str, keys: list[str], offsets: Sequence[int], timestamps_ms: Sequence[int]) -> int:
        """The same for keys of one topic."""
        return self.put_keys_batch(array("i", key_hashes(topic, keys)), offsets, timestamps_ms)

    def _put_run(self, hashes: Any, offsets: Any, timestamps_ms: Any) -> int:
        """Put leading rows in bulk, as many as the current file has entries for; 0 when they need the slow path."""
        if not self._files:
            return 0
        file = self.current()
        if file.entry_limit == 0 or offsets[0] <= file.header.end_physical_offset:
            return 0
        tail = IndexTail(file.buffer, file.slot_count_max, file.entry_count_max)
        try:
            tail.entry_limit = file.entry_limit
            return tail.put_many(hashes, offsets, timestamps_ms)
        finally:
            tail.detach()

    def _put_record(self, hashes: list[int], physical_offset: int, store_timestamp_ms: int) -> int:
        if not hashes:
            return 0
        rest = hashes[self._already_put(physical_offset, len(hashes)) :]
        for hash_ in rest:
            while not self.current().put_key(hash_, physical_offset, store_timestamp_ms):
                continue  # Full: current() returns the next file.
        return len(rest)

    def _already_put(self, physical_offset: int, key_count: int) -> int:
        """How many of a record's keys have entries; a record's entries may be on both sides of a roll."""
        if not self._files:
            return 0
        if physical_offset < self._files[-1].header.end_physical_offset:
            return key_count
        total = 0
        for file in reversed(self._files):
            count = file.trailing_entries(physical_offset)
            total += count
            if count < file.header.entry_count - 1:
                break
        return total

    def current(self) -> IndexFile:
        """The file that takes the next entry; made now if there is none or the newest is full. Raises DiskFull."""
        if self._closed:
            raise StoreClosed(f"expected an open index, found {self._directory} closed; open the store again")
        last = self._files[-1] if self._files else None
        if last is not None and not last.is_full:
            return last
        name = next_index_name(self._clock.now_ms(), last.name if last else None)
        file = IndexFile.create(
            self._access,
            os.path.join(self._directory, name),
            self._slot_count_max,
            self._entry_count_max,
            last.header if last else None,
            grows=self._grows,
        )
        with self._lock:
            self._keep((*self._files, file))
        if last is not None:
            self.flush_full_file(last)
        return file

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> QueryOffsets:
        """Candidates for a key, newest first. The caller compares keys and times with the records."""
        most = self._query_count_max
        return query_index(self._newest_first, topic, key, max_count if max_count < most else most, begin_ms, end_ms)

    def drop_from(self, physical_offset: int) -> int | None:
        """Remove the files that have records at or behind `physical_offset`, because the commit log ends there now.

        New records would get the same offsets, and be taken for indexed. Returns the physical offset from which on
        records must be indexed again; None when nothing was removed.
        """
        with self._lock:
            kept = 0
            for file in self._files:
                if file.header.entry_count > 1 and file.header.end_physical_offset >= physical_offset:
                    break
                kept += 1
            gone = self._files[kept:]
            self._keep(self._files[:kept])
        if not gone:
            return None
        self._synced_name = min(self._synced_name, self._files[-1].name if self._files else "")
        for file in reversed(gone):
            file.destroy()
        return self._files[-1].header.end_physical_offset if self._files else 0

    def delete_expired(self, min_physical_offset: int) -> int:
        """Remove leading files whose records are all deleted from the log, never the newest. Returns how many."""
        with self._lock:
            expired = 0
            for file in self._files[:-1]:
                header = file.snapshot()
                if header is not None and header.end_physical_offset >= min_physical_offset:
                    break
                expired += 1
            gone = self._files[:expired]
            self._keep(self._files[expired:])
        for file in gone:
            file.destroy()
        return len(gone)

    def flush_full_file(self, file: IndexFile) -> None:
        """Make a full file durable, in the background, and then update the checkpoint."""
        self._background(lambda: self._flush_and_checkpoint(file))

    def _flush_and_checkpoint(self, file: IndexFile) -> None:
        try:
            self._sync_through(file)
        except Exception:
            # The outermost edge of a thread. The file stays correct in memory, and without a checkpoint it is rebuilt
            # after a crash; close() syncs it again and raises the error.
            log.exception("flushing the full index file %s failed", file.path)

    def _sync_through(self, last: IndexFile) -> None:
        """Sync the files up to `last`, then update the checkpoint if it is full.

        In this order, one at a time: the checkpoint's time covers *all* older files.
        """
        with self._sync_lock:
            header = last.snapshot()
            for file in self._files:
                if file.name > self._synced_name:
                    file.sync()
                if file is last:
                    break
            if header is not None and header.entry_count >= self._entry_count_max:
                # Not for a file that can still get entries: they might be of the same millisecond.
                self._synced_name = max(self._synced_name, last.name)
                self._checkpoint(header.end_timestamp_ms)

    def _in_thread(self, task: Task) -> None:
        self._flushing = [thread for thread in self._flushing if thread.is_alive()]
        thread = threading.Thread(target=task, name="flush-index")
        self._flushing.append(thread)
        thread.start()

    def flush(self) -> None:
        """Make every entry durable."""
        if self._files:
            self._sync_through(self._files[-1])

    def close(self) -> None:
        """Wait for background flushes, make everything durable, unmap. Idempotent."""
        if self._closed:
            return
        self._join_flushes()
        try:
            self.flush()
        finally:
            self._closed = True
            for file in self._files:
                file.close()

    def destroy(self) -> None:
        """Remove every index file."""
        self._join_flushes()
        with self._lock:
            gone = self._files
            self._keep(())
        for file in gone:
            file.destroy()

    def _join_flushes(self) -> None:
        for thread in self._flushing:
            thread.join()
        self._flushing.clear()
