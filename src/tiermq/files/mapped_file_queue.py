"""MappedFileQueue: equally sized files, end to end, that together are one endless run of bytes.

    first.from_offset                                       last.from_offset + read_position
    |  00000000000000000000  |  00000000000000001024  |  00000000000000002048  ...|
    min_offset                                                          max_offset

Invariants: file n+1 begins where file n ends; only the last file is written; files leave at the front (expiry) or at
the back (truncation), each removal durable before the next one, so that a power cut never leaves a hole.

Threads: one writer creates files; the owner's cleaning thread deletes them; any thread reads `files` and `segments`,
which are immutable snapshots replaced under `_lock`. `flushed_where` belongs to the flusher, `committed_where` to the
committer.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack

from tiermq.clock import Clock
from tiermq.errors import IllegalTransition, StoreDamaged
from tiermq.files.allocator import FileAllocator
from tiermq.files.expiry import Sleep, expired_by_offset, expired_by_time, sleep_seconds
from tiermq.files.file_access import FileAccess, FileInfo
from tiermq.files.file_names import name_of_offset, offset_of_path
from tiermq.files.mapped_file import RESERVE_BYTES, MappedFile
from tiermq.files.new_names import NewNames
from tiermq.kernel import Segments

RESET_BACK_FILES_MAX = 2  # RocketMQ refuses to throw away more than this many files of data by a reset.


class MappedFileQueue:
    """See the module. `store_timestamp_ms` is the newest message time known to be flushed by a flush(0)."""

    def __init__(
        self,
        access: FileAccess,
        directory: str,
        file_size: int,
        *,
        clock: Clock,
        allocator: FileAllocator | None = None,
        reserve_bytes: int = RESERVE_BYTES,
        keep_descriptors: bool = True,
        writable: bool = True,
        sleep: Sleep = sleep_seconds,
        names: NewNames | None = None,
    ) -> None:
        """With `names` the first file is durable in its directory when it is flushed, not when it is made."""
        if file_size <= 0:
            raise ValueError(f"{directory}: expected a positive file size, found {file_size}")
        self.directory = directory
        self.file_size = file_size
        self.flushed_where = 0
        self.committed_where = 0
        self.store_timestamp_ms = 0
        self._access = access
        self._clock = clock
        self._allocator = allocator
        self._reserve_bytes = reserve_bytes
        self._keep_descriptors = keep_descriptors
        self._writable = writable
        self._sleep = sleep
        self._names = names
        self._lock = threading.RLock()
        self._files: tuple[MappedFile, ...] = ()
        self._segments = Segments((), file_size)

    # Loading and placing files; the multi-path queue has its own answers to these three questions.

    def _listed(self) -> list[tuple[str, FileInfo]]:
        """Every file of the queue as (directory, info)."""
        return [(self.directory, info) for info in self._access.list_files(self.directory)]

    def _path_of(self, offset: int) -> str:
        """Where the file that begins at `offset` is created."""
        return os.path.join(self.directory, name_of_offset(offset))

    def _directories(self) -> Iterable[str]:
        return (self.directory,)

    def load(self) -> None:
        """Map the files that exist. They count as full until recovery sets positions.

        An empty last file, left by a power cut during creation, is deleted. Raises StoreDamaged for a foreign name, a
        wrong size, or a hole between files.
        """
        listed = sorted(self._listed(), key=lambda entry: entry[1].name)
        if listed and listed[-1][1].size == 0 and self._writable:
            directory, info = listed.pop()
            self._access.remove(os.path.join(directory, info.name))
            self._access.sync_directory(directory)
        paths = [os.path.join(directory, info.name) for directory, info in listed]
        self._check(paths, [info.size for _, info in listed])
        loaded: list[MappedFile] = []
        try:
            loaded.extend(map(self._load_file, paths))
        except BaseException:
            for file in loaded:
                file.close()
            raise
        with self._lock:
            self._publish(loaded)

    def _load_file(self, path: str) -> MappedFile:
        return MappedFile.load(
            self._access,
            path,
            self.file_size,
            clock=self._clock,
            reserve_bytes=self._reserve_bytes,
            keep_descriptor=self._keep_descriptors,
            writable=self._writable,
            names=self._names,
        )

    def _check(self, paths: list[str], sizes: list[int]) -> None:
        expected: int | None = None
        for path, size in zip(paths, sizes, strict=True):
            offset = offset_of_path(path)
            if size != self.file_size:
                raise StoreDamaged(
                    f"{path}: expected a file of {self.file_size} bytes, found {size}. Either the configured file size "
                    "changed, or the file was cut or copied in part; restore the setting or the file."
                )
            if expected is not None and offset != expected:
                raise StoreDamaged(
                    f"{path}: expected the next file to begin at offset {expected}, found {offset}. "
                    "A file of the queue is missing or exists twice; restore it, or move the files behind it away."
                )
            expected = offset + self.file_size

    # Snapshots

    @property
    def files(self) -> tuple[MappedFile, ...]:
        return self._files

    @property
    def segments(self) -> Segments:
        """Views of the files that are not on their way out."""
        return self._segments

    def _publish(self, files: Iterable[MappedFile]) -> None:
        """Replace both snapshots. The caller holds `_lock`."""
        self._files = tuple(files)
        self._segments = Segments([file.view for file in self._files if file.available], self.file_size)

    def _drop(self, gone: Iterable[MappedFile]) -> None:
        """Take files out of the snapshots, and refresh which of the others are available."""
        names = set(map(id, gone))
        with self._lock:
            self._publish(file for file in self._files if id(file) not in names)

    def first(self) -> MappedFile | None:
        files = self._files
        return files[0] if files else None

    def last(self) -> MappedFile | None:
        files = self._files
        return files[-1] if files else None

    def find(self, offset: int, return_first: bool = False) -> MappedFile | None:
        """The file that covers `offset`; the first file instead when there is none and `return_first` says so."""
        files = self._files
        if not files:
            return None
        at = (offset - files[0].from_offset) // self.file_size
        if 0 <= at < len(files) and _covers(files[at], offset):
            return files[at]
        covering = next((file for file in files if _covers(file, offset)), None)
        return files[0] if covering is None and return_first else covering

    # Bounds

    @property
    def min_offset(self) -> int:
        """Where readable bytes begin: a file that is on its way out no longer counts. -1 for an empty queue."""
        files = self._files
        for file in files:
            if file.available:
                return file.from_offset
        return files[-1].from_offset + self.file_size if files else -1

    @property
    def max_offset(self) -> int:
        """Where readable bytes end; 0 for an empty queue."""
        last = self.last()
        return 0 if last is None else last.from_offset + last.read_position

    @property
    def max_wrote_offset(self) -> int:
        """Where written bytes end, committed or not; 0 for an empty queue."""
        last = self.last()
        return 0 if last is None else last.from_offset + last.wrote_position

    @property
    def total_mapped_bytes(self) -> int:
        return sum(file.size for file in self._files if file.available)

    # Growing

    def create_next(self, start_offset: int = 0) -> MappedFile:
        """The file after the last one, which must be full; in an empty queue the one that covers `start_offset`.

        Durable in its directory on return, but for the first one with `names`. Raises DiskFull, or StoreError when
        the allocator takes too long.
        """
        last = self.last()
        if last is None:
            offset = start_offset - start_offset % self.file_size
        elif last.is_full:
            offset = last.from_offset + self.file_size
        else:
            raise IllegalTransition(
                f"{last.path}: expected a full file before the next one is created, found {last.wrote_position} of "
                f"{last.size} bytes written."
            )
        file = self._make(offset)
        with self._lock:
            self._publish((*self._files, file))
        return file

    def make_next(self) -> MappedFile:
        """The file that will follow the last one, made but not yet part of the queue: `add` it once the last is full.

        For a writer that must know that it has room before it ends the last file.
        """
        last = self.last()
        return self._make(0 if last is None else last.from_offset + self.file_size)

    def add(self, file: MappedFile) -> None:
        """Let a file from `make_next` be the last of the queue."""
        with self._lock:
            self._publish((*self._files, file))

    def _make(self, offset: int) -> MappedFile:
        path = self._path_of(offset)
        if self._allocator is not None:
            return self._allocator.take(path, self._path_of(offset + self.file_size), self.file_size)
        last = self.last()
        if last is not None and last.name_is_due:
            last.sync_whole()  # Or a power cut could take it, and leave the one behind it.
        return MappedFile.create(
            self._access,
            path,
            self.file_size,
            clock=self._clock,
            reserve_bytes=self._reserve_bytes,
            keep_descriptor=self._keep_descriptors,
            names=self._names if last is None else None,
        )

    def doubt_names(self) -> None:
        """A process that died may have left the files without durable names: the next flush makes them so."""
        for file in self._files:
            file.doubt_name()

    def last_or_create(self, start_offset: int = 0) -> MappedFile:
        """The file to write to: the last one, or a new one when that is full or missing."""
        last = self.last()
        return self.create_next(start_offset) if last is None or last.is_full else last

    # Flush and commit, one file per call

    def flush(self, least_pages: int) -> bool:
        """Flush the file that holds `flushed_where`; True when nothing moved. Bytes below it are durable."""
        file = self._file_at(self.flushed_where)
        if file is None:
            return True
        timestamp_ms = file.store_timestamp_ms  # Before the flush: a message that arrives during it may not be durable.
        where = file.from_offset + file.flush(least_pages)
        unmoved = where == self.flushed_where
        self.flushed_where = where
        if least_pages == 0:
            self.store_timestamp_ms = timestamp_ms
        return unmoved

    def commit(self, least_pages: int) -> bool:
        """Commit the file that holds `committed_where`; True when nothing moved."""
        file = self._file_at(self.committed_where)
        if file is None:
            return True
        where = file.from_offset + file.commit(least_pages)
        unmoved = where == self.committed_where
        self.committed_where = where
        return unmoved

    def _file_at(self, where: int) -> MappedFile | None:
        """The file to work on. When cleaning overtook us, the first one, or we would never move again."""
        first = self.first()
        return self.find(where, return_first=first is not None and where < first.from_offset)

    # Shrinking at the back

    def truncate_dirty(self, offset: int) -> None:
        """Forget everything from `offset` on: positions are set in its file, later files are removed. No writer runs.

        Bytes beyond `offset` stay in that file; `MappedFile.zero_from` erases them.
        """
        self._remove_newest([file for file in self._files if file.from_offset > offset])
        file = self.find(offset)
        if file is not None:
            file.set_positions(offset - file.from_offset)
        self._clamp(offset)

    def reset_offset(self, offset: int) -> bool:
        """Like `truncate_dirty`, but refuses, and changes nothing, beyond the last file or more than two files back."""
        last = self.last()
        if last is None:
            return True
        back = last.from_offset + last.wrote_position - offset
        if back > self.file_size * RESET_BACK_FILES_MAX or offset > last.from_offset + last.size:
            return False
        self.truncate_dirty(offset)
        if offset == last.from_offset + last.size:
            last.set_positions(last.size)
        return True

    def delete_last(self) -> bool:
        """Remove the last file; False when there is none."""
        last = self.last()
        if last is None:
            return False
        self._remove_newest([last])
        self._clamp(last.from_offset)
        return True

    def _remove_newest(self, files: list[MappedFile]) -> None:
        """Remove files at the back, newest first: whatever a power cut leaves is contiguous."""
        if not files:
            return
        if self._allocator is not None:
            self._allocator.discard_unused()  # They lie behind the files that go.
        for file in reversed(files):
            _destroy_now(file)
            self._drop((file,))

    def _clamp(self, offset: int) -> None:
        self.flushed_where = min(self.flushed_where, offset)
        self.committed_where = min(self.committed_where, offset)

    # Shrinking at the front

    def delete_expired_by_time(
        self,
        expired_ms: int,
        interval_ms: int,
        destroy_interval_ms: int,
        immediately: bool,
        batch_max: int,
        veto: Callable[[MappedFile], bool] | None = None,
    ) -> int:
        """Delete the leading files that are old enough (see `expiry.expired_by_time`); how many went."""
        if batch_max < 1:
            raise ValueError(f"{self.directory}: expected to delete at least one file per run, found {batch_max}")
        candidates = expired_by_time(self._files[:-1], self._clock, expired_ms, immediately, veto)
        count = 0
        for file in candidates:
            if count > 0 and interval_ms > 0:
                self._sleep(interval_ms / 1000)
            if not self._destroy_first(file, destroy_interval_ms):
                break
            count += 1
            if count >= batch_max:
                break
        return count

    def delete_expired_by_offset(
        self,
        min_physical_offset: int,
        unit_size: int,
        last_unit_physical_offset: Callable[[MappedFile], int],
        destroy_interval_ms: int = 60_000,
    ) -> int:
        """Delete the leading files whose last unit points below `min_physical_offset`; how many went.

        `last_unit_physical_offset` reads the last `unit_size` bytes of a file; negative means that it cannot tell.
        """
        count = 0
        for file in expired_by_offset(self._files[:-1], min_physical_offset, unit_size, last_unit_physical_offset):
            if not self._destroy_first(file, destroy_interval_ms):
                break
            count += 1
        return count

    def retry_delete_first(self, interval_ms: int) -> bool:
        """Destroy again the files at the front that an earlier run could not remove; True when one went.

        RocketMQ looks at the very first file only, so a second hanging one waits for another round.
        """
        removed = False
        while (first := self.first()) is not None and not first.available:
            if not self._destroy_first(first, interval_ms):
                break
            removed = True
        return removed

    def _destroy_first(self, file: MappedFile, interval_ms: int) -> bool:
        gone = file.destroy(interval_ms)
        self._drop((file,) if gone else ())
        return gone

    # The end

    def shutdown(self, interval_ms: int = 1000) -> None:
        """Refuse new readers and writers of every file; files on disk stay."""
        for file in self._files:
            file.shutdown(interval_ms)
        self._drop(())

    def close(self) -> None:
        """Unmap everything, delete nothing. Call it when every thread that uses the queue has stopped."""
        with self._lock:
            files = self._files
            self._publish(())
        with ExitStack() as let_go:  # Every file is let go, also when one cannot commit.
            for file in files:
                let_go.callback(file.close)

    def destroy(self) -> None:
        """Remove every file, and the directories when nothing else is in them."""
        self._remove_newest(list(self._files))
        self.flushed_where = self.committed_where = 0
        for directory in self._directories():
            self._access.remove_directory_if_empty(directory)


def _covers(file: MappedFile, offset: int) -> bool:
    return file.from_offset <= offset < file.from_offset + file.size


def _destroy_now(file: MappedFile) -> None:
    """Unlink without waiting for readers (they keep their bytes): the name may be needed again at once."""
    if not file.destroy(0):
        file.destroy(0)  # The first call never forces; the second one, 0 ms later, does.
