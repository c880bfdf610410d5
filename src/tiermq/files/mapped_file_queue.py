"""MappedFileQueue: contiguous files of equal size that form one unbounded sequence of bytes.

    first.from_offset                                       last.from_offset + read_position
    |  00000000000000000000  |  00000000000000001024  |  00000000000000002048  ...|
    min_offset                                                          max_offset

Invariants: file n+1 begins where file n ends; only the last file is written; files are removed at the front (expiry) or
the back (truncation), each removal durable before the next one, so that a power cut never leaves a hole.

Threads: one writer creates files; the owner's cleaning thread deletes them; any thread reads `files` and `segments`,
which are immutable snapshots replaced under `_lock`; files that were loaded lazily are mapped by the first thread that
reads one of the two. `flushed_where` belongs to the flusher, `committed_where` to the committer.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack

from tiermq.clock import Clock
from tiermq.errors import BadConfig, IllegalTransition, ReadOnlyStore, StoreDamaged
from tiermq.files.allocator import FileAllocator
from tiermq.files.file_access import DirectorySync, FileAccess, FileInfo
from tiermq.files.mapped_file import RESERVE_BYTES, MappedFile, name_of_offset, offset_of_path
from tiermq.kernel import Segments

Sleep = Callable[[float], None]


def sleep_seconds(seconds: float) -> None:
    """The pause between two deletions, so that unlinking large files does not starve other disk I/O."""
    time.sleep(seconds)


def expired_by_time(
    files: Sequence[MappedFile],
    clock: Clock,
    expired_ms: int,
    immediately: bool,
    veto: Callable[[MappedFile], bool] | None,
) -> Iterator[MappedFile]:
    """The leading `files` that may be deleted now; decided one file at a time while the caller deletes.

    Oldest first, never the last file, while `now >= modified + reserved` or cleaning is immediate; the first file that
    must stay ends the iteration, also when later files look older. Age is the file's modification time, as in RocketMQ:
    copying a store makes its files young again, and a clock that jumps forward makes all of them old. A veto
    (for instance because the copy in the tier is not verified) ends the iteration at any age.
    """
    for file in files:
        old = clock.now_ms() >= file.last_modified_ms + expired_ms
        if not (old or immediately) or (veto is not None and veto(file)):
            return
        yield file


def expired_by_offset(
    files: Sequence[MappedFile],
    min_physical_offset: int,
    unit_size: int,
    last_unit_physical_offset: Callable[[MappedFile], int],
) -> Iterator[MappedFile]:
    """The leading `files` that have nothing at or above `min_physical_offset`, or are being deleted."""
    for file in files:
        if file.available:
            if file.size < unit_size or file.read_position < file.size:
                return
            newest = last_unit_physical_offset(file)
            if not 0 <= newest < min_physical_offset:
                return
        yield file


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
        names: DirectorySync | None = None,
        grows: bool = False,
    ) -> None:
        """With `names` the first file is durable in its directory when it is flushed, not at creation. `grows`: see
        `MappedFile`.
        """
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
        self._grows = grows
        self._lock = threading.RLock()
        self._files: tuple[MappedFile, ...] = ()
        self._unmapped: tuple[str, ...] = ()
        """Paths of files that are mapped when one of them is used."""
        self._unmapped_end = 0
        self._segments = Segments((), file_size)

    # Loading and placing files; the multi-path queue overrides these three methods.

    def _listed(self) -> list[tuple[str, FileInfo]]:
        """Every file of the queue as (directory, info)."""
        return [(self.directory, info) for info in self._access.list_files(self.directory)]

    def _path_of(self, offset: int) -> str:
        """The path of the file that begins at `offset`."""
        return os.path.join(self.directory, name_of_offset(offset))

    def _directories(self) -> Iterable[str]:
        return (self.directory,)

    def load(self, *, lazily: bool = False) -> None:
        """Map the files that exist. They count as full until recovery sets positions.

        `lazily`: check them, and map them when one is used. An empty last file, left by a power cut during creation, is
        deleted. Raises StoreDamaged for a foreign name, a wrong size, or a hole between files.
        """
        listed = sorted(self._listed(), key=lambda entry: entry[1].name)
        if listed and listed[-1][1].size == 0 and self._writable:
            directory, info = listed.pop()
            self._access.remove(os.path.join(directory, info.name))
            self._access.sync_directory(directory)
        paths = [os.path.join(directory, info.name) for directory, info in listed]
        self._check(paths, [info.size for _, info in listed])
        if lazily and paths:
            self._unmapped_end = offset_of_path(paths[-1]) + self.file_size
            self._unmapped = tuple(paths)
            return
        self._map_paths(paths)

    def resume_at(self, offset: int) -> bool:
        """End files that are not mapped yet at `offset`; False, and nothing changed, when there are none, or the last
        one would be empty."""
        with self._lock:
            if not self._unmapped or not 0 < offset - offset_of_path(self._unmapped[-1]) <= self.file_size:
                return False
            self._unmapped_end = self.flushed_where = self.committed_where = offset
        return True

    def _map(self) -> None:
        """Map what `load` left. Raises StoreDamaged when a file is gone meanwhile."""
        with self._lock:
            if not self._unmapped:
                return
            self._map_paths(self._unmapped)
            self._files[-1].set_positions(self._unmapped_end - self._files[-1].from_offset)
            self._unmapped = ()

    def _map_paths(self, paths: Sequence[str]) -> None:
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
            grows=self._grows,
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
        if self._unmapped:
            self._map()
        return self._files

    @property
    def segments(self) -> Segments:
        """Views of the files that are not being deleted."""
        if self._unmapped:
            self._map()
        return self._segments

    @property
    def file_count(self) -> int:
        """Also of files that are not mapped yet."""
        return len(self._unmapped) or len(self._files)

    @property
    def span(self) -> tuple[int, int] | None:
        """Where the first file begins and the last one ends; None for an empty queue. Maps nothing."""
        if unmapped := self._unmapped:
            return offset_of_path(unmapped[0]), offset_of_path(unmapped[-1]) + self.file_size
        files = self._files
        return (files[0].from_offset, files[-1].from_offset + files[-1].size) if files else None

    def _publish(self, files: Iterable[MappedFile]) -> None:
        """Replace both snapshots. The caller holds `_lock`."""
        self._files = tuple(files)
        self._segments = Segments([file.view for file in self._files if file.available], self.file_size)

    def _drop(self, gone: Iterable[MappedFile]) -> None:
        """Take files out of the snapshots, and refresh which remaining files are available."""
        names = set(map(id, gone))
        with self._lock:
            self._publish(file for file in self.files if id(file) not in names)

    def first(self) -> MappedFile | None:
        files = self.files
        return files[0] if files else None

    def last(self) -> MappedFile | None:
        files = self.files
        return files[-1] if files else None

    def find(self, offset: int, return_first: bool = False) -> MappedFile | None:
        """The file that covers `offset`; with `return_first` the first file when there is none."""
        files = self.files
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
        """The start of readable bytes, without files that are being deleted. -1 for an empty queue."""
        files = self.files
        for file in files:
            if file.available:
                return file.from_offset
        return files[-1].from_offset + self.file_size if files else -1

    @property
    def max_offset(self) -> int:
        """The end of readable bytes; 0 for an empty queue."""
        if self._unmapped:
            return self._unmapped_end
        files = self._files  # Without the properties on the way: a pop asks for the end of every queue of its topic.
        if not files:
            return 0
        last = files[-1]
        return last.from_offset + last.view.position

    @property
    def max_wrote_offset(self) -> int:
        """The end of written bytes, committed or not; 0 for an empty queue."""
        last = self.last()
        return 0 if last is None else last.from_offset + last.wrote_position

    @property
    def total_mapped_bytes(self) -> int:
        return sum(file.size for file in self.files if file.available)

    # Growing

    def create_next(self, start_offset: int = 0) -> MappedFile:
        """The file after the last one, which must be full; in an empty queue the one that covers `start_offset`.

        Durable in its directory on return, except the first one with `names`. Raises DiskFull, or StoreError when
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
            self._publish((*self.files, file))
        return file

    def make_next(self) -> MappedFile:
        """The file that will follow the last one, made but not yet part of the queue: `add` it once the last is full.

        For a writer that needs the next file before it ends the last one.
        """
        last = self.last()
        return self._make(0 if last is None else last.from_offset + self.file_size)

    def add(self, file: MappedFile) -> None:
        """Append a file from `make_next` to the queue."""
        with self._lock:
            self._publish((*self.files, file))

    def _make(self, offset: int) -> MappedFile:
        path = self._path_of(offset)
        if self._allocator is not None:
            return self._allocator.take(path, self._path_of(offset + self.file_size), self.file_size)
        last = self.last()
        if last is not None and last.name_is_due:
            last.sync_whole()  # Otherwise a power cut could lose it, and keep the file behind it.
        return MappedFile.create(
            self._access,
            path,
            self.file_size,
            clock=self._clock,
            reserve_bytes=self._reserve_bytes,
            keep_descriptor=self._keep_descriptors,
            names=self._names if last is None else None,
            grows=self._grows,
        )

    def doubt_names(self) -> None:
        """A killed process may have left the files without durable names: the next flush makes them durable."""
        for file in self.files:
            file.doubt_name()

    def last_or_create(self, start_offset: int = 0) -> MappedFile:
        """The file to write to: the last one, or a new one when that is full or missing."""
        last = self.last()
        return self.create_next(start_offset) if last is None or last.is_full else last

    # Flush and commit, one file per call

    def flush(self, least_pages: int) -> bool:
        """Flush the file that holds `flushed_where`; True when nothing moved. Bytes below it are durable."""
        if self._unmapped:
            return True  # Nothing was written.
        file = self._file_at(self.flushed_where)
        if file is None:
            return True
        timestamp_ms = file.store_timestamp_ms  # Before the flush: later messages may not be durable.
        where = file.from_offset + file.flush(least_pages)
        unmoved = where == self.flushed_where
        self.flushed_where = where
        if least_pages == 0:
            self.store_timestamp_ms = timestamp_ms
        return unmoved

    def note_synced(self) -> None:
        """The file system was synced as a whole, and nothing was written since: all bytes and names are durable."""
        for file in self.files:
            file.note_synced()
            self.store_timestamp_ms = file.store_timestamp_ms
        self.flushed_where = max(self.flushed_where, self.max_offset)

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
        """The file that covers `where`, or the first one when cleaning has passed it, to avoid a stuck position."""
        first = self.first()
        return self.find(where, return_first=first is not None and where < first.from_offset)

    # Shrinking at the back

    def truncate_dirty(self, offset: int) -> None:
        """Drop everything from `offset` on: positions are set in its file, later files are removed. No writer may run.

        Bytes beyond `offset` stay in that file; `MappedFile.zero_from` erases them.
        """
        self._remove_newest([file for file in self.files if file.from_offset > offset])
        file = self.find(offset)
        if file is not None:
            file.set_positions(offset - file.from_offset)
        self._clamp(offset)

    def delete_last(self) -> bool:
        """Remove the last file; False when there is none."""
        last = self.last()
        if last is None:
            return False
        self._remove_newest([last])
        self._clamp(last.from_offset)
        return True

    def _remove_newest(self, files: list[MappedFile]) -> None:
        """Remove files at the back, newest first: what a power cut leaves is contiguous."""
        if not files:
            return
        if self._allocator is not None:
            self._allocator.discard_unused()  # They follow the files that are removed.
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
        """Delete the leading files that are old enough (see `expired_by_time`); how many."""
        if batch_max < 1:
            raise ValueError(f"{self.directory}: expected to delete at least one file per run, found {batch_max}")
        candidates = expired_by_time(self.files[:-1], self._clock, expired_ms, immediately, veto)
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
        """Delete the leading files whose last unit points below `min_physical_offset`; how many.

        `last_unit_physical_offset` reads the last `unit_size` bytes of a file; negative when it is unknown.
        """
        count = 0
        for file in expired_by_offset(self.files[:-1], min_physical_offset, unit_size, last_unit_physical_offset):
            if not self._destroy_first(file, destroy_interval_ms):
                break
            count += 1
        return count

    def retry_delete_first(self, interval_ms: int) -> bool:
        """Destroy again the files at the front that an earlier round could not remove; True when one was removed.

        RocketMQ retries the first file only, so a second one waits for another round.
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

    # Closing

    def shutdown(self, interval_ms: int = 1000) -> None:
        """Refuse new readers and writers of every file; files on disk stay."""
        for file in self.files:
            file.shutdown(interval_ms)
        self._drop(())

    def close(self) -> None:
        """Unmap everything, delete nothing. No other thread may use the queue."""
        with self._lock:
            files, self._unmapped = self._files, ()
            self._publish(())
        with ExitStack() as let_go:  # Every file is closed, also when one cannot commit.
            for file in files:
                let_go.callback(file.close)

    def destroy(self) -> None:
        """Remove every file, and the directories when nothing else is in them."""
        self._remove_newest(list(self.files))
        self.flushed_where = self.committed_where = 0
        for directory in self._directories():
            self._access.remove_directory_if_empty(directory)


def _covers(file: MappedFile, offset: int) -> bool:
    return file.from_offset <= offset < file.from_offset + file.size


def _destroy_now(file: MappedFile) -> None:
    """Unlink without waiting for readers (they keep their bytes): the name may be needed again at once."""
    if not file.destroy(0):
        file.destroy(0)  # The first call never forces; the second one, 0 ms later, does.


def choose_path(
    paths: Collection[str], read_only_paths: Collection[str], full_paths: Collection[str], file_number: int
) -> str:
    """The directory of file `file_number`. Raises BadConfig when every path is read-only."""
    writable = set(paths) - set(read_only_paths)
    candidates = sorted(writable - set(full_paths)) or sorted(writable)
    if not candidates:
        raise BadConfig(
            f"expected a commit-log path that may be written, found paths {sorted(paths)} all read-only. "
            "Add a path that is not in readOnlyCommitLogStorePaths."
        )
    return candidates[file_number % len(candidates)]


class MultiPathMappedFileQueue(MappedFileQueue):
    """One queue whose files are spread over several directories, usually one per disk.

    File number i = offset / file_size goes to candidates[i % len(candidates)], where the candidates are the configured
    paths without the read-only and the full ones, sorted; when all are full, without the read-only ones only. Loading
    reads all paths. The sets may change while the store is open; each new file uses the current sets.

    `paths` and `read_only_paths` may be assigned at any time; `full_paths` is called at each creation.
    """

    def __init__(
        self,
        access: FileAccess,
        paths: Iterable[str],
        file_size: int,
        *,
        clock: Clock,
        read_only_paths: Iterable[str] = (),
        full_paths: Callable[[], Collection[str]] = tuple,
        allocator: FileAllocator | None = None,
        reserve_bytes: int = RESERVE_BYTES,
        writable: bool = True,
        sleep: Sleep = sleep_seconds,
        grows: bool = False,
    ) -> None:
        self.paths = tuple(paths)
        self.read_only_paths = tuple(read_only_paths)
        self.full_paths = full_paths
        if not self.paths:
            raise BadConfig("expected at least one commit-log path, found none.")
        super().__init__(
            access,
            self.paths[0],
            file_size,
            clock=clock,
            allocator=allocator,
            reserve_bytes=reserve_bytes,
            writable=writable,
            sleep=sleep,
            grows=grows,
        )

    def _directories(self) -> Iterable[str]:
        return sorted({*self.paths, *self.read_only_paths})

    def _listed(self) -> list[tuple[str, FileInfo]]:
        return [(path, info) for path in self._directories() for info in self._access.list_files(path)]

    def _path_of(self, offset: int) -> str:
        directory = choose_path(self.paths, self.read_only_paths, self.full_paths(), offset // self.file_size)
        return os.path.join(directory, name_of_offset(offset))

    def _load_file(self, path: str) -> MappedFile:
        try:
            return super()._load_file(path)
        except ReadOnlyStore:
            # "Read-only" in RocketMQ means no new files; the disk behind it may or may not be writable.
            if os.path.dirname(path) not in self.read_only_paths:
                raise
            return MappedFile.load(self._access, path, self.file_size, clock=self._clock, writable=False)
