"""The lock on a store directory: one process at a time, RocketMQ brokers included.

The file holds the four bytes `lock`; the lock is an exclusive POSIX record lock on byte range [0, 1), which is what
Java's `FileChannel.tryLock(0, 1, false)` takes. Two properties of POSIX locks need care:

* they do not exclude a second holder in the same process, so a table of this process's locks does;
* closing *any* descriptor of the file drops the lock, so a second attempt must not even open the file, and no
  other code in the process may read the lock file while the store is open.
"""

from __future__ import annotations

import fcntl
import os
import threading

from tiermq.errors import StoreLocked
from tiermq.files.os_errors import translated
from tiermq.files.system_calls import sync_file

LOCK_CONTENT = b"lock"
LOCKED_BYTES = 1

_table_lock = threading.Lock()
_held: dict[tuple[int, int], int] = {}  # (device, inode) -> process id; a forked child does not inherit locks.


class StoreLock:
    """A held lock. `release` may be called from any thread, any number of times."""

    __slots__ = ("_descriptor", "_identity", "path")

    def __init__(self, path: str) -> None:
        """Lock `path`, creating it when missing. Raises StoreLocked when this or another process holds it."""
        self.path = path
        with _table_lock, translated("lock the store", path):
            if _held.get(_identity_of_path(path)) == os.getpid():
                raise StoreLocked(
                    f"{path}: expected a free store, found that this process has it open already. "
                    "Close the other store object first, or share it."
                )
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                _lock_or_raise(descriptor, path)
                os.pwrite(descriptor, LOCK_CONTENT, 0)
                sync_file(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            status = os.fstat(descriptor)
            self._identity = (status.st_dev, status.st_ino)
            self._descriptor = descriptor
            _held[self._identity] = os.getpid()

    def release(self) -> None:
        with _table_lock:
            if self._descriptor < 0:
                return
            os.close(self._descriptor)  # Closing drops the lock.
            self._descriptor = -1
            _held.pop(self._identity, None)


def is_held_here(path: str) -> bool:
    """Whether this process holds the lock. Does not open the file."""
    with _table_lock:
        return _held.get(_identity_of_path(path)) == os.getpid()


def _identity_of_path(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return (-1, -1)
    return status.st_dev, status.st_ino


def _lock_or_raise(descriptor: int, path: str) -> None:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, LOCKED_BYTES, 0, os.SEEK_SET)
    except (BlockingIOError, PermissionError) as error:  # POSIX allows EAGAIN and EACCES for a held lock.
        raise StoreLocked(
            f"{path}: expected a free store, found its lock held by another process. "
            "Stop that broker or store, or choose another directory; the lock goes away with the process."
        ) from error
