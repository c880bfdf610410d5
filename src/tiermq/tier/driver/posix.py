"""PosixDriver: RocketMQ's own tier layout in a directory; each segment is one file, appended in place.

    <root>/<path of the segment>             the bytes, exactly
    <root>/<path of the segment>.sealed      empty; its presence means that no write is accepted any more
    <root>/<path of the segment>.damaged-N   what a repair has replaced; nobody but people looks at it
    <root>/<name>.tiermq.json                a small object; replaced by rename
    <root>/<directory>/.tiermq.lock          held while small objects of that directory are replaced

How the promises are kept. A write goes to its position by `pwrite` under the file's lock, then `fdatasync`; on any
failure the file is cut back to where it ended. New directory entries are fsynced before a write is acknowledged.
Bytes that are already there when a write is repeated are synced too, because whoever wrote them may have died before
doing so; for the same reason `size` syncs what it counts. A crash in the middle of a write leaves a torn tail, which
`size` counts as it is: where records end is known above, and `trim` cuts.
Reads are `pread` loops on descriptors of their own: no shared seek position, no short answers, no file made by reading.
They copy into memory of ours and never map the file: a disk or a network that fails under a map kills the process, and
a copy into memory that was used before (`recycled_memory`) costs no more than the entries of a map.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from tiermq.errors import (
    BadTierName,
    IllegalRange,
    ManifestConflict,
    SegmentMissing,
    TierCredentials,
    TierError,
    TierUnavailable,
)
from tiermq.files.os_errors import limit_reached
from tiermq.tier.driver import append_rule
from tiermq.tier.driver.contract import (
    ANY,
    Buffer,
    Expected,
    SegmentInfo,
    StoredObject,
    check_aside,
    check_read,
    joined,
    no_bytes,
    past_the_end,
)
from tiermq.tier.driver.posix_calls import PosixCalls, locked, opened
from tiermq.tier.driver.recycled_memory import BLOCK_BYTES, RecycledMemory
from tiermq.tier.names import (
    INDEX_TOPIC,
    OBJECT_SUFFIXES,
    SegmentKey,
    SegmentType,
    check_object_name,
    may_begin_a_name,
    segment_at,
)

SEALED_SUFFIX = ".sealed"
PART_SUFFIX = ".part"
LOCK_NAME = ".tiermq.lock"
PATHS_MAX = 4_096  # Segments whose paths are remembered.
OBJECT_READ_BYTES = 256 * 1024  # Small objects mostly come with one call.
QUEUE_OBJECT_PARTS = 5  # Cluster, broker, topic, queue and the object: what is kept beside a queue's segments.
_NO_PERMISSION = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_IMPOSSIBLE_NAME = frozenset({errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL, errno.ENOTDIR, errno.EISDIR})
_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})


class PosixDriver:
    """A directory. Used from any thread and any number of processes; file locks settle who is first."""

    def __init__(self, root: str | Path, *, calls: PosixCalls | None = None) -> None:
        self._root = os.path.abspath(root)
        self._calls = calls or PosixCalls()
        self.url = Path(self._root).as_uri()
        # Sizes known to be on the disk and directories whose entries are; only ever a shortcut past another sync.
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
                # Only a write at the very beginning may make the file: a refused one leaves no empty file behind.
                with locked(path, os.O_RDWR | (os.O_CREAT if position == 0 else 0)) as descriptor:
                    self._write_locked(descriptor, path, key, position, body)
            except FileNotFoundError:
                append_rule.missing_suffix(key, position, body, 0, _nothing)  # Says why: the end is 0.
                raise
        return False

    def _write_locked(self, descriptor: int, path: str, key: SegmentKey, position: int, body: bytes) -> None:
        if os.path.exists(path + SEALED_SUFFIX):
            raise append_rule.sealed(key)
        end = os.fstat(descriptor).st_size
        missing = append_rule.missing_suffix(
            key, position, body, end, lambda at, length: self._read_all(descriptor, at, length)
        )
        try:
            self._write_all(descriptor, missing, end)
            self._calls.sync_data(descriptor)
            if end == 0 or path not in self._durable:
                self._calls.sync_directory(os.path.dirname(path))
        except BaseException:
            # Whatever went wrong, also an interrupt: nobody may find half of a write that was never acknowledged.
            self._calls.truncate(descriptor, end)
            raise
        self._durable[path] = end + len(missing)

    def _write_all(self, descriptor: int, data: memoryview, position: int) -> None:
        while data:
            written = self._calls.pwrite(descriptor, data, position)
            data = data[written:]
            position += written

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
        """Up to `length` bytes: fewer only where the file ends. A large length is checked first: it may be nonsense."""
        available = length
        if length >= BLOCK_BYTES:
            available = max(0, min(length, os.fstat(descriptor).st_size - position))
        data = self._memory.lease(available)
        filled = 0
        while filled < available:
            count = self._calls.pread(descriptor, data[filled:], position + filled)
            if count == 0:
                break  # Cut by its writer since we looked.
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
                        self._durable[path] = size
                    return size
            except FileNotFoundError:
                return 0

    def trim(self, key: SegmentKey, size: int) -> None:
        path = self._path(key)
        with self._translated("trim", path):
            try:
                with locked(path, os.O_RDWR) as descriptor:
                    if os.path.exists(path + SEALED_SUFFIX):
                        raise append_rule.sealed(key)
                    _check_trim(key, size, os.fstat(descriptor).st_size)
                    self._calls.truncate(descriptor, size)
                    self._calls.sync_data(descriptor)
                    self._durable[path] = size
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
                    # The mark goes first: left alone it would seal the next segment of the same name.
                    _unlink(path + SEALED_SUFFIX)
                    _unlink(path)
            except FileNotFoundError:
                _unlink(path + SEALED_SUFFIX)
            if os.path.isdir(os.path.dirname(path)):
                self._calls.sync_directory(os.path.dirname(path))

    def replace(self, key: SegmentKey, pieces: Iterable[Buffer], aside: str) -> str | None:
        kept = f"{key.path}.{check_aside(aside)}"
        path, target = self._path(key), f"{self._root}/{kept}"
        with self._translated("replace", path):
            self._make_directories(os.path.dirname(path))
            size = self._stage(path + PART_SUFFIX, key, pieces)
            try:
                with locked(path, os.O_RDWR):
                    # A second name for the old bytes, then the old name for the new ones: a crash loses neither.
                    if not os.path.exists(target):
                        os.link(path, target)
                    os.replace(path + PART_SUFFIX, path)
            except FileNotFoundError:
                os.replace(path + PART_SUFFIX, path)
                kept = ""
            self._calls.sync_directory(os.path.dirname(path))
            self._durable[path] = size
        return kept or None

    def _stage(self, path: str, key: SegmentKey, pieces: Iterable[Buffer]) -> int:
        """All pieces in a file of their own, synced; its size."""
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
            found = []
            for name in self._files(prefix):
                key = segment_at(name)
                if key is None:
                    continue
                path = f"{self._root}/{name}"
                try:
                    status = os.stat(path)
                except FileNotFoundError:
                    continue  # Deleted since the directory was read.
                if stat.S_ISREG(status.st_mode):
                    sealed = os.path.exists(path + SEALED_SUFFIX)
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
                        "Read it again and decide anew."
                    )
                self._replace(path, data)
            self._durable_directories.update(below)
        return _version(data)

    def _replace(self, path: str, data: bytes) -> None:
        """Under the directory's lock, so one name for the new file is enough and a crash leaves at most that one."""
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
        """Nothing is held open between calls."""

    def _path(self, key: SegmentKey) -> str:
        return f"{self._root}/{_path_of(key)}"

    def _files(self, prefix: str) -> Iterator[str]:
        """Names below the root that begin with `prefix`; only directories that can hold such names are entered."""
        if not may_begin_a_name(prefix):
            return
        start = prefix.rpartition("/")[0]
        for directory, _, files in os.walk(f"{self._root}/{start}" if start else self._root, onerror=_unless_gone):
            below = directory[len(self._root) :].strip("/")
            for file in files:
                name = f"{below}/{file}" if below else file
                if name.startswith(prefix):
                    yield name

    def _make_directories(self, path: str) -> None:
        """The whole chain, each entry synced once per driver: one who died may have made it and not synced it."""
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
        self._durable_directories.add(path)

    def _make_segment_directories(self, name: str, directory: str) -> list[str]:
        """Those of a queue whose manifest is put the first time: the sync that makes the manifest durable is for them
        as well, and the queue's first commit need not make and sync them one by one.
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
            raise _translation(action, path, error) from error


def _translation(action: str, path: str, error: OSError) -> TierError:
    """What a failed call means to whoever asked for `action`."""
    text = f"{path}: could not {action}: {error.strerror}"
    if error.errno in _NO_PERMISSION:
        return TierCredentials(f"{text}. Run as a user who may, or mount the file system writable.")
    if error.errno in _IMPOSSIBLE_NAME:
        return BadTierName(f"{text}. The name cannot be a file of this file system.")
    if error.errno in _NO_DESCRIPTOR:
        limit = limit_reached(error.errno)
        return TierUnavailable(f"{path}: could not {action}: expected {limit} Then try again.")
    return TierUnavailable(f"{text}. Check space and health of the file system, then try again.")


@lru_cache(maxsize=PATHS_MAX)
def _path_of(key: SegmentKey) -> str:
    """Remembered: a path takes two digests, and is needed at every call."""
    return key.path


def _check_trim(key: SegmentKey, size: int, end: int) -> None:
    if not 0 <= size <= end:
        raise IllegalRange(f"{key}: expected a size of 0 to {end} to trim to, found {size}")


def _unless_gone(error: OSError) -> None:
    """A directory that cannot be read is an error: a listing without it would pass for a tier without its history."""
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
    """The content is the version: whoever finds the same bytes has found the same state."""
    return hashlib.sha256(data).hexdigest()


def _unlink(path: str) -> bool:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True
