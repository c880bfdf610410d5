"""OsFileAccess: the real file system (Linux), with every durability step spelled out."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TypeVar

from tiermq.errors import StoreDamaged
from tiermq.files import config_file, file_seal, system_calls
from tiermq.files.disk_space import UNKNOWN_RATIO, usage_ratio
from tiermq.files.file_access import FileInfo
from tiermq.files.os_errors import translated
from tiermq.files.os_region import OsRegion
from tiermq.files.store_lock import StoreLock

Decoded = TypeVar("Decoded")

_FILE_MODE = 0o644


class OsFileAccess:
    """See `file_access.FileAccess`. Has no state, so any number of threads may share one."""

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
            self.make_directories(directory)  # Which tells what is in the way.
        region = self._create(path, size, durable=False)
        # The first store to a new page would read ahead, megabytes of nothing: milliseconds for each of many files.
        system_calls.advise(region.buffer, 0, size, system_calls.MADV_RANDOM)
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
                    os.fsync(descriptor)  # The length first: a power cut may leave an empty file, never a short one.
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
            found = os.fstat(descriptor).st_size
            if found != size:
                os.close(descriptor)
                raise StoreDamaged(
                    f"{path}: expected a file of {size} bytes, found {found}. "
                    "Either the configured file size changed or the file is not ours."
                )
            try:
                _refuse_deadly_holes(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            return OsRegion(path, descriptor, size, writable)

    def list_files(self, directory: str) -> list[FileInfo]:
        with translated("list a directory", directory):
            try:
                names = sorted(os.listdir(directory))
            except FileNotFoundError:
                return []
        infos = (self.file_info(os.path.join(directory, name)) for name in names)
        return [info for info in infos if info is not None]

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
        return FileInfo(os.path.basename(path), status.st_size, status.st_mtime_ns // 1_000_000)

    def remove(self, path: str) -> None:
        with translated("remove a file", path):
            try:
                os.unlink(path)
            except FileNotFoundError:
                return  # Gone is what was asked for.

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
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

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
                    file_seal.seal(file.fileno(), data)
                    os.fsync(file.fileno())
                os.replace(temporary, path)
            except BaseException:
                self.remove(temporary)
                raise
            self.sync_directory(directory)

    def write_config(self, path: str, data: bytes) -> None:
        config_file.write_config(self, path, data)

    def read_config(self, path: str, decode: Callable[[bytes], Decoded]) -> Decoded | None:
        return config_file.read_config(self, path, decode, file_seal.is_broken)

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

    def touch_modified_ms(self, path: str, modified_ms: int) -> None:
        with translated("set the modification time", path):
            os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def lock(self, path: str) -> StoreLock:
        self.make_directories(_parent(path))
        return StoreLock(path)


def _refuse_deadly_holes(descriptor: int) -> None:
    """On a full tmpfs a read of a hole kills the process, and recovery reads behind the end of data: say it instead."""
    status = os.fstat(descriptor)
    holes = status.st_size - status.st_blocks * 512
    if holes > 0 and system_calls.is_tmpfs(descriptor):
        disk = os.fstatvfs(descriptor)
        if disk.f_bavail * disk.f_frsize < holes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _parent(path: str) -> str:
    return os.path.dirname(path) or "."
