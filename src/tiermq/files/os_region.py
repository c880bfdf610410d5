"""OsRegion: one mapped file of the real file system.

Two handles keep a file: the map, and a descriptor for the calls that take one. A store with ten thousand files needs
ten thousand maps but no descriptors: the map keeps none, syncing goes through the map when there is none, and whoever
owns the file gives its descriptor back as soon as it is rarely needed; a call that takes one then opens the path again.
The count of users makes sure that a descriptor number is never closed (and reused by the kernel for another file) while
another thread is inside a call with it.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tiermq.errors import ReadOnlyStore, StoreClosed, StoreDamaged, StoreError
from tiermq.files import system_calls
from tiermq.files.os_errors import translated

_ZEROS = bytes(1 << 20)
_NO_DESCRIPTOR = -1


class OsRegion:
    """See `file_access.Region`. `_lock` guards the descriptor and its count of users."""

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

    def __init__(self, path: str, descriptor: int, size: int, writable: bool) -> None:
        """Takes over `descriptor`, also when it raises."""
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
            self._identity = _identity_of(os.fstat(descriptor))
            # The compiled kernel accepts writable buffers only. A private map is one, and what is written to it by
            # mistake never reaches the file.
            self.buffer: mmap.mmap | None = system_calls.map_file(descriptor, size, shared=writable)
        except BaseException:
            os.close(descriptor)
            raise

    def reserve(self, start: int, length: int) -> None:
        self._check_range(start, length)
        if length == 0:
            return
        with self._descriptor_for("reserve disk blocks", writing=True) as descriptor:
            os.posix_fallocate(descriptor, start, length)

    def sync(self) -> None:
        if self._sync_failure is not None:
            raise StoreError(
                f"{self.path}: an earlier sync failed ({self._sync_failure}), so the kernel may have dropped bytes "
                "that it could not write. Nothing in this file can be promised; check the disk and reopen the store."
            ) from self._sync_failure
        if self._writable and self._descriptor == _NO_DESCRIPTOR:
            self._sync_through_map()
            return
        with self._descriptor_for("sync", writing=False) as descriptor:
            try:
                os.fdatasync(descriptor)
            except OSError as error:
                self._sync_failure = error
                raise

    def _sync_through_map(self) -> None:
        """The same without a descriptor, so that a store at the limit of its descriptors still keeps its promises."""
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

    def unlock_memory(self) -> bool:
        return system_calls.unlock_pages(self.buffer, self.size)

    def advise_will_need(self) -> bool:
        return system_calls.advise(self.buffer, 0, self.size, system_calls.MADV_WILLNEED)

    def release_pages(self, start: int, length: int) -> bool:
        self._check_range(start, length)
        if not self._writable:  # In a private map that would undo changes, if ever somebody made one.
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
                # Somebody still reads a view of the map. Unmapping under a reader would kill the process; we hold no
                # reference any more, so the map goes away together with that reader's view.
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
                "Somebody replaced it while the store was running; close the store and check the directory."
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
    """Write zeros over whatever lies in [start, end), leaving holes alone. For file systems that cannot punch."""
    for position, stop in _data_ranges(descriptor, start, end):
        while position < stop:
            position += os.pwrite(descriptor, _ZEROS[: stop - position], position)


def _data_ranges(descriptor: int, start: int, end: int) -> list[tuple[int, int]]:
    """What of [start, end) is no hole; all of it where the file system does not know."""
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
