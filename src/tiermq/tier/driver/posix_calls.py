"""PosixCalls: the system calls that make bytes durable, as a seam that tests replace with failing ones."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager


class PosixCalls:
    """The real ones."""

    def pwrite(self, descriptor: int, data: memoryview, position: int) -> int:
        return os.pwrite(descriptor, data, position)

    def pread(self, descriptor: int, buffer: memoryview, position: int) -> int:
        return os.preadv(descriptor, [buffer], position)

    def drop_cached(self, descriptor: int, position: int, length: int) -> None:
        """Forget what memory has of a range, so that the next read asks the disk. Pages that are not synced stay."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, position, length, os.POSIX_FADV_DONTNEED)

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def sync_data(self, descriptor: int) -> None:
        os.fdatasync(descriptor)

    def sync_directory(self, path: str) -> None:
        with opened(path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
            os.fsync(descriptor)


@contextmanager
def opened(path: str, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: str, flags: int, *, shared: bool = False) -> Iterator[int]:
    """An open file under its lock, which belongs to the open file: it holds between threads as between processes.

    Closing lets go of it, also when the process dies. A file that was unlinked while we waited is not the one
    that the path names any more, so the path is opened again.
    """
    while True:
        with opened(path, flags) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink == 0:
                continue
            yield descriptor
            return
