"""PosixDriver: RocketMQ's own tier layout in a directory; each segment is one file, appended in place.

    <root>/<path of the segment>             the bytes, exactly
    <root>/<path of the segment>.sealed      empty; its presence means that no write is accepted any more
    <root>/<path of the segment>.damaged-N   what a repair has replaced; for operators only
    <root>/<name>.tiermq.json                a small object; replaced by rename
    <root>/<directory>/.tiermq.lock          held while small objects of that directory are replaced

Durability: a write is a `pwrite` at its position under the file's lock, then `fdatasync`; on any failure the file is
truncated to its old size. New directory entries are fsynced before a write is acknowledged. A repeated write syncs the
bytes that are already there too, because their writer may have died before it did; for the same reason `size` syncs the
bytes that it counts. A crash in the middle of a write leaves a torn tail, which `size` includes: the caller knows where
records end, and calls `trim`.
Reads are `pread` loops on separate descriptors: no shared seek position, no short reads, no file created by reading.
They copy and never map the file: a disk or network error under a map kills the process, and a copy into recycled memory
(`RecycledMemory`) costs no more than the page-table entries of a map.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
import stat
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from tiermq.errors import (
    BadTierName,
    BadTierUrl,
    IllegalRange,
    ManifestConflict,
    SegmentConflict,
    SegmentMissing,
    TierCredentials,
    TierError,
    TierUnavailable,
)
from tiermq.files import system_calls
from tiermq.files.os_errors import limit_reached
from tiermq.tier.driver import contract
from tiermq.tier.driver.contract import (
    ANY,
    Buffer,
    Expected,
    NoBundles,
    SegmentInfo,
    SegmentWrite,
    StoredObject,
    check_aside,
    check_read,
    joined,
    no_bytes,
    past_the_end,
)
from tiermq.tier.names import (
    INDEX_TOPIC,
    OBJECT_SUFFIXES,
    SegmentKey,
    SegmentType,
    check_object_name,
    may_begin_a_name,
    segment_at,
)

BLOCK_BYTES = 64 * 1024
"""Blocks are multiples of this. Smaller reads use the interpreter's allocator, which reuses small memory anyway."""

IDLE_BYTES_MAX = 16 * 1024 * 1024


class RecycledMemory:
    """Buffers for large reads, reused when the last view of them is gone.

    The system clears new memory page by page when it is first touched, which costs several times as much as filling it
    from the page cache. A sequential reader of a queue needs the same amount again and again, so freed blocks are kept.

        block    anonymous memory, a multiple of BLOCK_BYTES long; belongs to the pool or to one lease
        lease    the object that all views of one read refer to; when it is collected the block returns to the pool

    Invariants: a block is leased to one read at a time, until the interpreter's reference count of the lease is zero.
    Idle blocks never exceed `idle_bytes_max`. A leased block is at most a quarter, or BLOCK_BYTES, longer than
    requested. Threads: any. A block returns in the thread that drops the last view, possibly inside a lease of that
    thread; so returning never waits for the lock: if the lock is taken, the block is freed.
    """

    def __init__(self, idle_bytes_max: int = IDLE_BYTES_MAX) -> None:
        self._idle_bytes_max = idle_bytes_max
        self._lock = threading.Lock()
        self._idle: deque[mmap.mmap] = deque()  # The most recently returned block is last.
        self.idle_bytes = 0  # Kept for the next reads.

    def lease(self, length: int) -> memoryview:
        """Writable, uninitialized memory of exactly `length` bytes. It returns to the pool when it is collected."""
        if length < BLOCK_BYTES:
            return memoryview(bytearray(length))
        size = -(-length // BLOCK_BYTES) * BLOCK_BYTES
        block = self._take_idle(size) or mmap.mmap(-1, size, mmap.MAP_PRIVATE)
        # An object between views and block: it is collected with the last view, and the block survives it.
        lease = (ctypes.c_ubyte * len(block)).from_buffer(block)
        weakref.finalize(lease, self._give_back, block).atexit = False
        return memoryview(lease).cast("B")[:length]

    def _take_idle(self, size: int) -> mmap.mmap | None:
        """The most recently used block that is long enough and not much longer."""
        longest = max(size + size // 4, size + BLOCK_BYTES)
        with self._lock:
            for block in reversed(self._idle):
                if size <= len(block) <= longest:
                    self._idle.remove(block)
                    self.idle_bytes -= len(block)
                    return block
        return None

    def _give_back(self, block: mmap.mmap) -> None:
        if len(block) > self._idle_bytes_max or not self._lock.acquire(blocking=False):
            return
        try:
            self._idle.append(block)
            self.idle_bytes += len(block)
            while self.idle_bytes > self._idle_bytes_max:
                self.idle_bytes -= len(self._idle.popleft())
        finally:
            self._lock.release()


# The system calls that make bytes durable; tests replace them with failing ones.


class PosixCalls:
    """The calls of the operating system."""

    def pwrite(self, descriptor: int, data: memoryview, position: int) -> int:
        return os.pwrite(descriptor, data, position)

    def pread(self, descriptor: int, buffer: memoryview, position: int) -> int:
        return system_calls.read_into(descriptor, buffer, position)

    def drop_cached(self, descriptor: int, position: int, length: int) -> None:
        """Drop a range from the page cache, so that the next read goes to the disk. Dirty pages stay."""
        if hasattr(os, "posix_fadvise") and hasattr(os, "POSIX_FADV_DONTNEED"):
            os.posix_fadvise(descriptor, position, length, os.POSIX_FADV_DONTNEED)

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def sync_data(self, descriptor: int) -> None:
        system_calls.sync_data(descriptor)

    def sync_directory(self, path: str) -> None:
        with opened(path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
            system_calls.sync_file(descriptor)


@contextmanager
def opened(path: str, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: str, flags: int, *, shared: bool = False) -> Iterator[int]:
    """An open file with its lock, which belongs to the open file: it excludes threads as well as processes.

    Closing releases it, also when the process dies. If the file was unlinked while this call waited, the path is
    opened again.
    """
    while True:
        with opened(path, flags) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink == 0:
                continue
            yield descriptor
            return


SEALED_SUFFIX = ".sealed"
PART_SUFFIX = ".part"
LOCK_NAME = ".tiermq.lock"
PATHS_MAX = 4_096  # Segments whose paths are cached.
DURABLE_MAX = 32_768  # Files, and directories, that are known to be synced; 200 bytes each.
OBJECT_READ_BYTES = 256 * 1024  # Most small objects need one call.
QUEUE_OBJECT_PARTS = 5  # Cluster, broker, topic, queue, object: the depth of an object beside a queue's segments.
_NO_PERMISSION = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_IMPOSSIBLE_NAME = frozenset({errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL, errno.ENOTDIR, errno.EISDIR})
_NO_DIRECTORY = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EEXIST})
_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})


class PosixDriver(NoBundles):
    """A directory. Used from any thread and any number of processes; file locks serialize writers."""

    def __init__(self, root: str | Path, *, calls: PosixCalls | None = None) -> None:
        self._root = os.path.abspath(root)
        self._calls = calls or PosixCalls()
        self.url = Path(self._root).as_uri()
        # Sizes known to be synced, and directories whose entries are. They only save syncs, so they may be forgotten:
        # a job's driver has 600,000 of them for 100,000 queues.
        self._durable: dict[str, int] = {}
        self._durable_directories: set[str] = set()
        self._memory = RecycledMemory()

    def write(self, key: SegmentKey, position: int, data: Sequence[Buffer]) -> bool:
        body = joined(data)
        if not body:
            return False
        path = self._path(key)
        with self._translated("write", path):
            if position == 0:
                self._make_directories(os.path.dirname(path))
            try:
                # Only a write at position 0 may create the file: a refused one leaves no empty file.
                with locked(path, os.O_RDWR | (os.O_CREAT if position == 0 else 0)) as descriptor:
                    self._write_locked(descriptor, path, key, position, body)
            except FileNotFoundError:
                contract.missing_suffix(key, position, body, 0, _nothing)  # Raises: the end is 0.
                raise
        return False

    def _write_locked(self, descriptor: int, path: str, key: SegmentKey, position: int, body: bytes) -> None:
        if os.path.exists(path + SEALED_SUFFIX):
            raise contract.sealed(key)
        end = os.fstat(descriptor).st_size
        missing = contract.missing_suffix(
            key, position, body, end, lambda at, length: self._read_all(descriptor, at, length)
        )
        try:
            self._write_all(descriptor, missing, end)
            self._calls.sync_data(descriptor)
            if end == 0 or path not in self._durable:
                self._calls.sync_directory(os.path.dirname(path))
        except BaseException:
            # On any error, also an interrupt: no reader may see half of a write.
            self._calls.truncate(descriptor, end)
            raise
        self._note_durable(path, end + len(missing))

    def _write_all(self, descriptor: int, data: memoryview, position: int) -> None:
        while data:
            written = self._calls.pwrite(descriptor, data, position)
            data = data[written:]
            position += written

    def write_bundle(self, writes: Sequence[SegmentWrite]) -> list[bool]:
        return [self.write(write.key, write.position, write.data) for write in writes]

    def read(self, key: SegmentKey, position: int, length: int) -> memoryview:
        return self._read(key, position, length, from_disk=False)

    def reread(self, key: SegmentKey, position: int, length: int) -> memoryview:
        return self._read(key, position, length, from_disk=True)

    def _read(self, key: SegmentKey, position: int, length: int, *, from_disk: bool) -> memoryview:
        check_read(key, position, length)
        path = self._path(key)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if from_disk:
                    self._calls.drop_cached(descriptor, position, length)
                data = self._read_all(descriptor, position, length)
                if len(data) < length:
                    raise past_the_end(key, position, length, os.fstat(descriptor).st_size)
            finally:
                os.close(descriptor)
        except FileNotFoundError as error:
            raise SegmentMissing(f"{path}: expected a segment, found no file") from error
        except OSError as error:
            raise _translation("read", path, error) from error
        return data.toreadonly()

    def _read_all(self, descriptor: int, position: int, length: int) -> memoryview:
        """Up to `length` bytes, fewer only at the end of the file. Checks a large length first."""
        available = length
        if length >= BLOCK_BYTES:
            available = max(0, min(length, os.fstat(descriptor).st_size - position))
        data = self._memory.lease(available)
        filled = 0
        while filled < available:
            count = self._calls.pread(descriptor, data[filled:], position + filled)
            if count == 0:
                break  # Truncated by its writer meanwhile.
            filled += count
        return data[:filled]

    def rewrite(self, key: SegmentKey, position: int, data: Buffer) -> None:
        check_read(key, position, len(data))
        path = self._path(key)
        with self._translated("rewrite", path):
            try:
                with locked(path, os.O_RDWR) as descriptor:
                    size = os.fstat(descriptor).st_size
                    if position + len(data) > size:
                        raise past_the_end(key, position, len(data), size)
                    self._write_all(descriptor, memoryview(data), position)
                    self._calls.sync_data(descriptor)
            except FileNotFoundError as error:
                raise SegmentMissing(f"{path}: expected a segment, found no file") from error

    def size(self, key: SegmentKey) -> int:
        path = self._path(key)
        with self._translated("ask for the size", path):
            try:
                with locked(path, os.O_RDONLY, shared=True) as descriptor:
                    size = os.fstat(descriptor).st_size
                    if self._durable.get(path) != size:
                        self._make_directories(os.path.dirname(path))
                        self._calls.sync_data(descriptor)
                        self._calls.sync_directory(os.path.dirname(path))
                        self._note_durable(path, size)
                    return size
            except FileNotFoundError:
                return 0

    def trim(self, key: SegmentKey, size: int) -> None:
        path = self._path(key)
        with self._translated("trim", path):
            try:
                with locked(path, os.O_RDWR) as descriptor:
                    if os.path.exists(path + SEALED_SUFFIX):
                        raise contract.sealed(key)
                    _check_trim(key, size, os.fstat(descriptor).st_size)
                    self._calls.truncate(descriptor, size)
                    self._calls.sync_data(descriptor)
                    self._note_durable(path, size)
            except FileNotFoundError:
                _check_trim(key, size, 0)

    def seal(self, key: SegmentKey, *, crc32: int | None = None) -> None:  # noqa: ARG002 - nothing is copied
        path = self._path(key)
        with self._translated("seal", path):
            try:
                with locked(path, os.O_RDWR) as descriptor:
                    if os.fstat(descriptor).st_size == 0:
                        raise SegmentMissing(f"{path}: expected bytes to seal, found an empty file")
                    self._calls.sync_data(descriptor)
                    with opened(path + SEALED_SUFFIX, os.O_WRONLY | os.O_CREAT):
                        pass
                    self._calls.sync_directory(os.path.dirname(path))
            except FileNotFoundError as error:
                raise SegmentMissing(f"{path}: expected bytes to seal, found no file") from error

    def merge(self, key: SegmentKey) -> int:  # noqa: ARG002 - a segment has no parts here
        return 0

    def is_sealed(self, key: SegmentKey) -> bool:
        path = self._path(key)
        with self._translated("look at", path):
            return os.path.exists(path + SEALED_SUFFIX) and os.path.exists(path)

    def delete(self, key: SegmentKey) -> None:
        path = self._path(key)
        with self._translated("delete", path):
            self._durable.pop(path, None)
            try:
                with locked(path, os.O_RDWR):
                    # The mark is deleted first: left behind it would seal the next segment of the same name.
                    _unlink(path + SEALED_SUFFIX)
                    _unlink(path)
            except FileNotFoundError:
                _unlink(path + SEALED_SUFFIX)
            if os.path.isdir(os.path.dirname(path)):
                self._calls.sync_directory(os.path.dirname(path))

    def replace(
        self, key: SegmentKey, pieces: Iterable[Buffer], aside: str, *, old_size: int | None = None
    ) -> str | None:
        kept = f"{key.path}.{check_aside(aside)}"
        path, target = self._path(key), f"{self._root}/{kept}"
        with self._translated("replace", path):
            self._make_directories(os.path.dirname(path))
            size = self._stage(path + PART_SUFFIX, key, pieces)
            try:
                with locked(path, os.O_RDWR) as descriptor:
                    _require_size(key, os.fstat(descriptor).st_size, old_size, path + PART_SUFFIX)
                    # A second link to the old bytes, then the new ones over the first: a crash loses neither.
                    if not os.path.exists(target):
                        os.link(path, target)
                    os.replace(path + PART_SUFFIX, path)
            except FileNotFoundError:
                _require_size(key, 0, old_size, path + PART_SUFFIX)
                os.replace(path + PART_SUFFIX, path)
                kept = ""
            self._calls.sync_directory(os.path.dirname(path))
            self._note_durable(path, size)
        return kept or None

    def _stage(self, path: str, key: SegmentKey, pieces: Iterable[Buffer]) -> int:
        """Write all pieces to a staging file, synced; returns its size."""
        size = 0
        with opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
            for piece in pieces:
                self._write_all(descriptor, memoryview(piece), size)
                size += len(piece)
            if size == 0:
                _unlink(path)
                raise no_bytes(key)
            self._calls.sync_data(descriptor)
        return size

    def list_segments(self, prefix: str = "") -> Iterator[SegmentInfo]:
        with self._translated("list", self._root):
            found, names = [], set(self._files(prefix))
            for name in names:
                key = segment_at(name)
                if key is None:
                    continue
                path = f"{self._root}/{name}"
                try:
                    status = os.stat(path)
                except FileNotFoundError:
                    continue  # Deleted since the directory was read.
                if stat.S_ISREG(status.st_mode):
                    sealed = name + SEALED_SUFFIX in names
                    found.append((name, SegmentInfo(key, status.st_size, sealed, 0, status.st_mtime_ns // 1_000_000)))
        return iter([info for _, info in sorted(found, key=lambda row: row[0])])

    def get_object(self, name: str) -> StoredObject | None:
        path = f"{self._root}/{check_object_name(name)}"
        with self._translated("read", path):
            return _stored(path)

    def put_object(self, name: str, data: bytes, *, expected: Expected = ANY) -> str:
        path = f"{self._root}/{check_object_name(name)}"
        directory = os.path.dirname(path)
        with self._translated("write", path):
            self._make_directories(directory)
            below = self._make_segment_directories(name, directory)
            with locked(os.path.join(directory, LOCK_NAME), os.O_RDWR | os.O_CREAT):
                current = _stored(path)
                if expected is not ANY and expected != (current.version if current else None):
                    if current is not None and current.data == data:
                        return current.version
                    raise ManifestConflict(
                        f"{path}: expected version {expected}, found {current.version if current else None}. "
                        "Read it again and retry."
                    )
                self._replace(path, data)
            self._note_directories(below)
        return _version(data)

    def _replace(self, path: str, data: bytes) -> None:
        """Called with the directory's lock held, so one temporary name suffices."""
        with opened(path + PART_SUFFIX, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
            self._write_all(descriptor, memoryview(data), 0)
            self._calls.sync_data(descriptor)
        os.replace(path + PART_SUFFIX, path)
        self._calls.sync_directory(os.path.dirname(path))

    def delete_object(self, name: str) -> None:
        path = f"{self._root}/{check_object_name(name)}"
        with self._translated("delete", path):
            if _unlink(path):
                self._calls.sync_directory(os.path.dirname(path))

    def list_objects(self, prefix: str = "") -> list[str]:
        with self._translated("list", self._root):
            return sorted(name for name in self._files(prefix) if name.endswith(OBJECT_SUFFIXES))

    def close(self) -> None:
        """Nothing stays open between calls."""

    def _path(self, key: SegmentKey) -> str:
        return f"{self._root}/{_path_of(key)}"

    def _files(self, prefix: str) -> Iterator[str]:
        """Names below the root that begin with `prefix`; only directories that can hold such names are entered."""
        if not may_begin_a_name(prefix):
            return
        directories = [prefix.rpartition("/")[0]]
        while directories:  # Without os.walk, which asks for the status of each directory.
            below = directories.pop()
            try:
                with os.scandir(f"{self._root}/{below}" if below else self._root) as entries:
                    for entry in entries:
                        name = f"{below}/{entry.name}" if below else entry.name
                        if entry.is_dir(follow_symlinks=False):
                            directories.append(name)
                        elif name.startswith(prefix):
                            yield name
            except OSError as error:
                _unless_gone(error)

    def _make_directories(self, path: str) -> None:
        """Create the path, and sync each entry once per driver: its creator may have died before its sync."""
        if path in self._durable_directories or path == "/":
            return
        parent = os.path.dirname(path)
        self._make_directories(parent)
        try:
            os.mkdir(path)
        except FileExistsError:
            if not os.path.isdir(path):
                raise
        if os.access(parent, os.R_OK):
            self._calls.sync_directory(parent)
        self._note_directories([path])

    def _note_durable(self, path: str, size: int) -> None:
        if len(self._durable) >= DURABLE_MAX:
            self._durable.clear()
        self._durable[path] = size

    def _note_directories(self, paths: list[str]) -> None:
        if len(self._durable_directories) >= DURABLE_MAX:
            self._durable_directories.clear()
        self._durable_directories.update(paths)

    def _make_segment_directories(self, name: str, directory: str) -> list[str]:
        """Create those of a queue when its manifest is put the first time: the manifest's sync covers them too, which
        saves the queue's first commit a sync for each.
        """
        parts = name.split("/")
        if len(parts) != QUEUE_OBJECT_PARTS or parts[-3] == INDEX_TOPIC or not parts[-2].isdigit():
            return []
        below = [f"{directory}/{kind.name}" for kind in (SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE)]
        for path in below:
            if path not in self._durable_directories and not os.path.isdir(path):
                os.makedirs(path, exist_ok=True)
        return below

    @contextmanager
    def _translated(self, action: str, path: str) -> Iterator[None]:
        try:
            yield
        except TierError:
            raise
        except OSError as error:
            if error.errno in _NO_DIRECTORY and not os.path.isdir(self._root):
                raise BadTierUrl(
                    f"{self.url}: expected a directory that can be created, found none: {error.strerror}. "
                    "Correct the tier's URL, or mount the file system."
                ) from error
            raise _translation(action, path, error) from error


def _translation(action: str, path: str, error: OSError) -> TierError:
    """The error for a failed system call of `action`."""
    text = f"{path}: could not {action}: {error.strerror}"
    if error.errno in _NO_PERMISSION:
        return TierCredentials(f"{text}. Run as a user who may, or mount the file system writable.")
    if error.errno in _NO_DIRECTORY and (file := _file_in_the_way(path)):
        return BadTierName(f"{text}. Expected a directory, found the file {file} in the way: move it away.")
    if error.errno in _IMPOSSIBLE_NAME:
        return BadTierName(f"{text}. The name cannot be a file of this file system.")
    if error.errno in _NO_DESCRIPTOR:
        limit = limit_reached(error.errno)
        return TierUnavailable(f"{path}: could not {action}: expected {limit} Then try again.")
    return TierUnavailable(f"{text}. Check space and health of the file system, then try again.")


def _file_in_the_way(path: str) -> str:
    """What is no directory above the path; empty when there is none such."""
    parent = os.path.dirname(path)
    while not os.path.lexists(parent):
        parent = os.path.dirname(parent)
    return "" if os.path.isdir(parent) else parent


@lru_cache(maxsize=PATHS_MAX)
def _path_of(key: SegmentKey) -> str:
    """Cached: a path takes two digests, and every call needs it."""
    return key.path


def _check_trim(key: SegmentKey, size: int, end: int) -> None:
    if not 0 <= size <= end:
        raise IllegalRange(f"{key}: expected a size of 0 to {end} to trim to, found {size}")


def _unless_gone(error: OSError) -> None:
    """A directory that cannot be read is an error: a listing without it would look like a tier without its history."""
    if error.errno not in (errno.ENOENT, errno.ENOTDIR):
        raise error


def _nothing(_position: int, _length: int) -> bytes:
    return b""


def _stored(path: str) -> StoredObject | None:
    try:
        with opened(path, os.O_RDONLY) as descriptor:
            pieces = iter(lambda: os.read(descriptor, OBJECT_READ_BYTES), b"")
            data = b"".join(pieces)
    except FileNotFoundError:
        return None
    return StoredObject(data, _version(data))


def _version(data: bytes) -> str:
    """A digest of the content: same bytes, same version."""
    return hashlib.sha256(data).hexdigest()


def _require_size(key: SegmentKey, found: int, expected: int | None, staged: str) -> None:
    try:
        contract.require_size(key, found, expected)
    except SegmentConflict:
        _unlink(staged)
        raise


def _unlink(path: str) -> bool:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True
