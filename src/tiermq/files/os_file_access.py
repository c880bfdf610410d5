"""OsFileAccess and OsRegion: the real file system, with explicit durability steps; seals of small files.

    user.tiermq.seal    CRC-32 of a file's bytes as 8 hex digits, a space, its modification time in nanoseconds

A seal is an extended attribute with the checksum of a small file. RocketMQ's configuration files are JSON without a
checksum: a bad bit in the name of a group makes it another group. A file whose bytes do not match its seal, and whose
time is the same, was not edited: it is corrupt. An edit changes the time, and a copy by most programs drops the
attribute; then there is nothing to compare, and the file is trusted. So is every file where Python has no such
attributes (macOS). The attribute stays with the file when it is renamed, and is durable when the file is synced.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import TypeVar

from tiermq.errors import ReadOnlyStore, StoreClosed, StoreDamaged, StoreError
from tiermq.files import config_file, system_calls
from tiermq.files.file_access import FileInfo
from tiermq.files.os_errors import translated
from tiermq.files.store_lock import StoreLock

SEAL_ATTRIBUTE = "user.tiermq.seal"


def seal_file(descriptor: int, data: bytes) -> bool:
    """Seal an open file that holds `data`; sync it afterwards. False where the file system keeps no such attributes."""
    text = f"{zlib.crc32(data):08x} {os.fstat(descriptor).st_mtime_ns}"
    if not hasattr(os, "setxattr"):
        return False
    try:
        os.setxattr(descriptor, SEAL_ATTRIBUTE, text.encode())
    except OSError:  # Not supported, not permitted, or no space for it: a file without a seal is trusted.
        return False
    return True


def is_seal_broken(path: str, data: bytes) -> bool:
    """Whether `data`, just read from the file, is not what was sealed, though the file was not written since."""
    if not hasattr(os, "getxattr"):
        return False
    try:
        crc, modified_ns = os.getxattr(path, SEAL_ATTRIBUTE).decode().split(" ")
        return int(modified_ns) == os.stat(path).st_mtime_ns and int(crc, 16) != zlib.crc32(data)
    except (OSError, ValueError):  # No seal, or a foreign one.
        return False


_ZEROS = bytes(1 << 20)
_NO_DESCRIPTOR = -1


class OsRegion:
    """One mapped file of the real file system.

    A file has two handles: the map, and a descriptor for the calls that need one. A store with ten thousand files
    needs ten thousand maps but no descriptors: the map keeps none, a sync without a descriptor uses the map, and
    the owner closes the descriptor when it is rarely needed; a call that needs one then opens the path again. The
    user count ensures that a descriptor is never closed (and its number reused by the kernel for another file)
    while another thread uses it.

    See `file_access.Region`. `_lock` guards the descriptor and its count of users.
    """

    __slots__ = (
        "_closed",
        "_descriptor",
        "_descriptor_unwanted",
        "_identity",
        "_lock",
        "_sync_failure",
        "_users",
        "_writable",
        "buffer",
        "path",
        "size",
    )

    def __init__(
        self, path: str, descriptor: int, size: int, writable: bool, status: os.stat_result | None = None
    ) -> None:
        """Takes ownership of `descriptor`, also when it raises. `status`: of the file, if known."""
        self.path = path
        self.size = size
        self._writable = writable
        self._descriptor = descriptor
        self._descriptor_unwanted = False
        self._users = 0
        self._closed = False
        self._lock = threading.Lock()
        self._sync_failure: OSError | None = None
        try:
            self._identity = _identity_of(os.fstat(descriptor) if status is None else status)
            # The compiled kernel accepts writable buffers only. A private map is one, and accidental writes to it never
            # reach the file.
            self.buffer: mmap.mmap | None = system_calls.map_file(descriptor, size, shared=writable)
        except BaseException:
            os.close(descriptor)
            raise

    def reserve(self, start: int, length: int) -> None:
        self._check_range(start, length)
        if length == 0:
            return
        with self._descriptor_for("reserve disk blocks", writing=True) as descriptor:
            system_calls.reserve_blocks(descriptor, start, length)

    def sync(self) -> None:
        if self._sync_failure is not None:
            raise StoreError(
                f"{self.path}: an earlier sync failed ({self._sync_failure}), so the kernel may have dropped bytes "
                "that it could not write. Nothing in this file can be promised; check the disk and reopen the store."
            ) from self._sync_failure
        if self._writable and self._descriptor == _NO_DESCRIPTOR and system_calls.ON_LINUX:
            self._sync_through_map()
            return
        with self._descriptor_for("sync", writing=False) as descriptor:
            try:
                system_calls.sync_data(descriptor)
            except OSError as error:
                self._sync_failure = error
                raise

    def _sync_through_map(self) -> None:
        """The same without a descriptor, so that a store at its descriptor limit can still sync."""
        with translated("sync", self.path):
            buffer = self.buffer
            if buffer is None:
                raise StoreClosed(f"{self.path}: expected an open file to sync, found it closed.")
            self._check_identity(os.stat(self.path))
            try:
                system_calls.sync_pages(buffer, self.size)
            except ValueError as error:
                raise StoreClosed(f"{self.path}: expected an open file to sync, found it closed.") from error
            except OSError as error:
                self._sync_failure = error
                raise

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        with memoryview(data) as whole, whole.cast("B") as left:
            self._check_range(position, len(left))
            with self._descriptor_for("write", writing=True) as descriptor:
                done = 0
                while done < len(left):
                    with left[done:] as rest:
                        done += os.pwrite(descriptor, rest, position + done)

    def zero(self, start: int, length: int) -> None:
        self._check_range(start, length)
        if length == 0:
            return
        with self._descriptor_for("zero", writing=True) as descriptor:
            if not system_calls.punch_hole(descriptor, start, length):
                _overwrite_data(descriptor, start, start + length)

    def populate(self, start: int, length: int) -> bool:
        self._check_range(start, length)
        if not self._writable:  # Write-populating a private map would copy the whole file.
            return False
        return length == 0 or system_calls.advise(self.buffer, start, length, system_calls.MADV_POPULATE_WRITE)

    def lock_memory(self) -> bool:
        return self._writable and system_calls.lock_pages(self.buffer, self.size)

    def advise_random(self) -> bool:
        return system_calls.advise(self.buffer, 0, self.size, system_calls.MADV_RANDOM)

    def advise_will_need(self) -> bool:
        return system_calls.advise(self.buffer, 0, self.size, system_calls.MADV_WILLNEED)

    def release_pages(self, start: int, length: int) -> bool:
        self._check_range(start, length)
        if not self._writable:  # In a private map that would discard changes.
            return False
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        end = start + length
        if end < self.size:
            end -= end % mmap.PAGESIZE
        return first >= end or system_calls.advise(self.buffer, first, end - first, system_calls.MADV_DONTNEED)

    def data_ranges(self) -> list[tuple[int, int]]:
        with self._descriptor_for("look for data", writing=False) as descriptor:
            return _data_ranges(descriptor, 0, self.size)

    def close_descriptor(self) -> None:
        with self._lock:
            self._descriptor_unwanted = True
            self._close_descriptor_when_idle()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._descriptor_unwanted = True
            self._close_descriptor_when_idle()
            buffer, self.buffer = self.buffer, None
        if buffer is not None:
            try:
                buffer.close()
            except BufferError:
                # A reader still has a view of the map. Unmapping would kill the process; the map is freed with that
                # reader's view.
                return

    @contextmanager
    def _descriptor_for(self, action: str, writing: bool) -> Iterator[int]:
        if writing and not self._writable:
            raise ReadOnlyStore(f"{self.path}: expected a file opened for writing to {action}, found it read-only.")
        with translated(action, self.path):
            with self._lock:
                if self._closed:
                    raise StoreClosed(f"{self.path}: expected an open file to {action}, found it closed.")
                if self._descriptor == _NO_DESCRIPTOR:
                    self._descriptor = self._reopen()
                self._descriptor_unwanted = False
                self._users += 1
                descriptor = self._descriptor
            try:
                yield descriptor
            finally:
                with self._lock:
                    self._users -= 1
                    self._close_descriptor_when_idle()

    def _reopen(self) -> int:
        descriptor = os.open(self.path, (os.O_RDWR if self._writable else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            self._check_identity(os.fstat(descriptor))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _check_identity(self, found: os.stat_result) -> None:
        if _identity_of(found) != self._identity:
            raise StoreDamaged(
                f"{self.path}: expected the file that this process has mapped, found another one under its name. "
                "It was replaced while the store was running; close the store and check the directory."
            )

    def _close_descriptor_when_idle(self) -> None:
        if self._descriptor_unwanted and self._users == 0 and self._descriptor != _NO_DESCRIPTOR:
            os.close(self._descriptor)
            self._descriptor = _NO_DESCRIPTOR

    def _check_range(self, start: int, length: int) -> None:
        if start < 0 or length < 0 or start + length > self.size:
            raise ValueError(
                f"{self.path}: expected a range within {self.size} bytes, found {length} bytes at {start}."
            )


def _identity_of(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _overwrite_data(descriptor: int, start: int, end: int) -> None:
    """Overwrite the data in [start, end) with zeros, without filling holes. For file systems that cannot punch."""
    for position, stop in _data_ranges(descriptor, start, end):
        while position < stop:
            position += os.pwrite(descriptor, _ZEROS[: stop - position], position)


def _data_ranges(descriptor: int, start: int, end: int) -> list[tuple[int, int]]:
    """The ranges of [start, end) that are not holes; all of it where the file system does not report holes."""
    found: list[tuple[int, int]] = []
    position = start
    while position < end:
        try:
            position = max(position, os.lseek(descriptor, position, os.SEEK_DATA))
        except OSError as error:
            if error.errno == errno.ENXIO:  # No data from here to the end of the file.
                return found
            return [*found, (position, end)]
        stop = min(end, os.lseek(descriptor, position, os.SEEK_HOLE))
        if position < stop:
            found.append((position, stop))
        position = stop
    return found


UNKNOWN_RATIO = -1.0


def usage_ratio(total_bytes: int, free_bytes: int, usable_bytes: int) -> float:
    """How full a disk is, by RocketMQ's arithmetic; UNKNOWN_RATIO for a file system without a size.

    ceil(100 * used / (used + usable)) / 100, where usable excludes blocks reserved for root.
    """
    used_bytes = total_bytes - free_bytes
    entire_bytes = used_bytes + usable_bytes
    if total_bytes <= 0 or entire_bytes <= 0:
        return UNKNOWN_RATIO
    return -(-100 * used_bytes // entire_bytes) / 100


Decoded = TypeVar("Decoded")

_FILE_MODE = 0o644


class OsFileAccess:
    """See `file_access.FileAccess`. Stateless: threads may share one."""

    __slots__ = ()

    def create(self, path: str, size: int) -> OsRegion:
        self.make_directories(_parent(path))
        return self._create(path, size, durable=True)

    def create_unsynced(self, path: str, size: int) -> OsRegion:
        directory = _parent(path)
        try:
            with translated("make a directory", directory):
                os.makedirs(directory, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            self.make_directories(directory)  # Raises the cause.
        region = self._create(path, size, durable=False)
        # Else the first store to a new page would read megabytes of zeros ahead: milliseconds for each file.
        region.advise_random()
        return region

    def _create(self, path: str, size: int, durable: bool) -> OsRegion:
        with translated("create a file", path):
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE)
            except FileExistsError:
                return self.open(path, size)
            try:
                os.ftruncate(descriptor, size)
                if durable:
                    system_calls.sync_file(
                        descriptor
                    )  # The length first: a power cut may leave an empty file, never a short one.
                    self.sync_directory(_parent(path))
            except BaseException:
                os.close(descriptor)
                os.unlink(path)
                raise
            return OsRegion(path, descriptor, size, writable=True)

    def open(self, path: str, size: int, writable: bool = True) -> OsRegion:
        with translated("open a file", path):
            try:
                descriptor = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
            except FileNotFoundError as error:
                raise StoreDamaged(f"{path}: expected a file of {size} bytes, found none.") from error
            status = os.fstat(descriptor)
            if status.st_size != size:
                os.close(descriptor)
                raise StoreDamaged(
                    f"{path}: expected a file of {size} bytes, found {status.st_size}. "
                    "Either the configured file size changed or the file is not ours."
                )
            try:
                _refuse_deadly_holes(descriptor, status)
            except BaseException:
                os.close(descriptor)
                raise
            return OsRegion(path, descriptor, size, writable, status)

    def list_files(self, directory: str) -> list[FileInfo]:
        with translated("list a directory", directory):
            try:
                with os.scandir(directory) as entries:
                    infos = [_info_of(entry.name, entry.stat()) for entry in entries if not entry.is_dir()]
            except FileNotFoundError:  # The directory, or a file that was removed meanwhile: look at each then.
                infos = self._list_one_by_one(directory)
        return infos if len(infos) < 2 else sorted(infos, key=_name_of)

    def _list_one_by_one(self, directory: str) -> list[FileInfo]:
        try:
            names = os.listdir(directory)
        except FileNotFoundError:
            return []
        found = (self.file_info(os.path.join(directory, name)) for name in names)
        return [info for info in found if info is not None]

    def list_directories(self, directory: str) -> list[str]:
        with translated("list a directory", directory):
            try:
                with os.scandir(directory) as entries:
                    return sorted(entry.name for entry in entries if entry.is_dir())
            except FileNotFoundError:
                return []

    def file_info(self, path: str) -> FileInfo | None:
        if os.path.isdir(path):
            return None
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return None
        return _info_of(os.path.basename(path), status)

    def remove(self, path: str) -> None:
        with translated("remove a file", path):
            try:
                os.unlink(path)
            except FileNotFoundError:
                return  # Already removed.

    def remove_directory_if_empty(self, path: str) -> bool:
        with translated("remove a directory", path):
            try:
                os.rmdir(path)
            except FileNotFoundError:
                return True
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    return False
                raise
            self.sync_directory(_parent(path))
            return True

    def rename(self, old: str, new: str) -> None:
        with translated("rename a file", old):
            os.replace(old, new)

    def make_directories(self, path: str) -> None:
        if os.path.isdir(path):
            return
        if os.path.lexists(path):
            raise StoreDamaged(f"{path}: expected a directory or nothing, found a file. Move it out of the way.")
        parent = _parent(path)
        self.make_directories(parent)
        with translated("make a directory", path):
            try:
                os.mkdir(path)
            except FileExistsError:
                self.make_directories(path)  # Another thread was faster; check that it made a directory.
        self.sync_directory(parent)

    def sync_directory(self, path: str) -> None:
        with translated("sync a directory", path):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                system_calls.sync_file(descriptor)
            finally:
                os.close(descriptor)

    def sync_all(self, paths: Collection[str]) -> bool:
        of_devices = {os.stat(path).st_dev: path for path in paths}
        for path in of_devices.values():
            with translated("sync a file system", path):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    if not system_calls.sync_file_system(descriptor):
                        return False
                finally:
                    os.close(descriptor)
        return True

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def read_bytes(self, path: str) -> bytes:
        with translated("read a file", path), open(path, "rb") as file:
            return file.read()

    def write_bytes(self, path: str, data: bytes) -> None:
        directory = _parent(path)
        self.make_directories(directory)
        temporary = path + ".part"
        with translated("write a file", path):
            try:
                with open(temporary, "wb") as file:
                    file.write(data)
                    file.flush()
                    seal_file(file.fileno(), data)
                    system_calls.sync_file(file.fileno())
                os.replace(temporary, path)
            except BaseException:
                self.remove(temporary)
                raise
            self.sync_directory(directory)

    def write_config(self, path: str, data: bytes) -> None:
        config_file.write_config(self, path, data)

    def read_config(self, path: str, decode: Callable[[bytes], Decoded]) -> Decoded | None:
        return config_file.read_config(self, path, decode, is_seal_broken)

    def disk_usage_ratio(self, path: str) -> float:
        try:
            status = os.statvfs(path)
        except FileNotFoundError:
            return UNKNOWN_RATIO
        return usage_ratio(status.f_blocks, status.f_bfree, status.f_bavail)

    def free_bytes(self, path: str) -> int:
        try:
            status = os.statvfs(path)
        except FileNotFoundError:
            return -1
        return status.f_bavail * status.f_frsize

    def lock(self, path: str) -> StoreLock:
        self.make_directories(_parent(path))
        return StoreLock(path)


def _info_of(name: str, status: os.stat_result) -> FileInfo:
    return FileInfo(name, status.st_size, status.st_mtime_ns // 1_000_000)


_name_of = attrgetter("name")


def _refuse_deadly_holes(descriptor: int, status: os.stat_result) -> None:
    """On a full tmpfs a read of a hole kills the process, and recovery reads behind the end of data: raise instead."""
    holes = status.st_size - status.st_blocks * 512
    if holes > 0 and system_calls.is_tmpfs(descriptor, status.st_dev):
        disk = os.fstatvfs(descriptor)
        if disk.f_bavail * disk.f_frsize < holes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _parent(path: str) -> str:
    return os.path.dirname(path) or "."
