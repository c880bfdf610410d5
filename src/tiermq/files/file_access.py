"""FileAccess: the interface between the store and the disk. All file access goes through it, also DirectorySync's.

`OsFileAccess` is the real implementation. Tests use a simulated one, to simulate full disks, failing calls and power
cuts. Both pass the same conformance suite (`tests/files/test_file_access.py`).

What is durable when:

* `create`, `make_directories`, `write_bytes`, `write_config`: on return.
* what `create_unsynced` made: its length when a later `sync` of the region returns, its name when a later
  `sync_directory` of its directory returns, and of every new directory above.
* bytes written to a region (through its buffer or by `write`): when a later `sync` returns.
* `remove`, `rename`: when a later `sync_directory` of the parent returns; until then a power cut may undo them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

Decoded = TypeVar("Decoded")

PAGE_BYTES = 4096  # RocketMQ counts pages of this size on every operating system.


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file's entry in a directory listing."""

    name: str
    size: int
    modified_ms: int


class Region(Protocol):
    """One open file of a fixed size, mapped into memory.

    `buffer` is a writable buffer; do not write to that of a file opened read-only. A store into the buffer where the
    file has no disk block kills the process when the disk is full: call `reserve` first. Any thread may
    call any method.
    """

    path: str
    size: int
    buffer: Any

    def reserve(self, start: int, length: int) -> None:
        """Reserve disk blocks for `length` bytes at `start`, without changing content or file length.

        Raises DiskFull; content and length are unchanged then.
        """

    def sync(self) -> None:
        """Make durable every byte that was in the file or in its buffer when the call began.

        A failed sync is final: the kernel may have dropped the pages that it could not write, so every later sync of
        this region fails too, until the store is opened again and recovery has checked the file.
        """

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data` at `position`, or raise. Visible in `buffer` on return, durable after `sync`."""

    def zero(self, start: int, length: int) -> None:
        """Make `length` bytes at `start` read as zero. Blocks may be freed: reserve again before writing."""

    def populate(self, start: int, length: int) -> bool:
        """Bring reserved pages into memory, writable. False, and nothing touched, when the kernel cannot."""

    def lock_memory(self) -> bool:
        """Keep the whole file in memory until it is unmapped; False when the system refuses (it often has a limit)."""

    def advise_random(self) -> bool:
        """Advise the kernel to read single pages, and nothing ahead; False when it refuses."""

    def advise_will_need(self) -> bool:
        """Advise the kernel to read the file ahead; False when it refuses."""

    def release_pages(self, start: int, length: int) -> bool:
        """Release the whole pages within a range: they no longer count as this process' memory.

        Nothing is lost, flushed or not: the bytes stay in the page cache, and are mapped again when they are touched.
        False when the kernel keeps them, as it does with pages that are locked, or when the file is read-only.
        """

    def data_ranges(self) -> list[tuple[int, int]]:
        """[start, end) of the ranges that may be non-zero, in order: the whole file, or less if it has holes."""

    def close_descriptor(self) -> None:
        """Close the file descriptor and keep the map; a later call that needs one opens the path again."""

    def close(self) -> None:
        """Unmap, now or when the last reader releases its view of the buffer. Does not make anything durable."""


class FileLock(Protocol):
    """A held lock on a store directory."""

    path: str

    def release(self) -> None:
        """Unlock the store. Idempotent."""


class FileAccess(Protocol):
    """One file system. Paths are strings; relative paths are relative to the working directory."""

    def create(self, path: str, size: int) -> Region:
        """A new sparse file of `size` bytes, its name and length durable; parents are made when missing.

        A file of that size that exists already is opened as it is; another size raises StoreDamaged.
        """

    def create_unsynced(self, path: str, size: int) -> Region:
        """The same without waiting for the disk: a power cut may leave no file, an empty one, or no directory."""

    def open(self, path: str, size: int, writable: bool = True) -> Region:
        """Map an existing file. Raises StoreDamaged when it is missing or has another size."""

    def list_files(self, directory: str) -> list[FileInfo]:
        """Everything in `directory` that is not a directory, by name; [] when it does not exist."""

    def list_directories(self, directory: str) -> list[str]:
        """Names of the sub-directories, sorted; [] when `directory` does not exist."""

    def file_info(self, path: str) -> FileInfo | None:
        """The same facts about one file; None when it does not exist or is a directory."""

    def remove(self, path: str) -> None:
        """Unlink. A missing file is not an error."""

    def remove_directory_if_empty(self, path: str) -> bool:
        """True when the directory does not exist afterwards."""

    def rename(self, old: str, new: str) -> None:
        """Atomically give `old` the name `new`, replacing what was there."""

    def make_directories(self, path: str) -> None:
        """Make `path` and its missing parents."""

    def sync_directory(self, path: str) -> None:
        """Make durable every creation, removal and rename in `path`."""

    def sync_all(self, paths: Collection[str]) -> bool:
        """Make durable everything on the file systems that hold `paths`, names included: one call for many files.

        False, and nothing promised, where the system cannot, or would not report errors: sync each file then.
        """

    def exists(self, path: str) -> bool: ...

    def read_bytes(self, path: str) -> bytes:
        """The whole file. Raises FileNotFoundError when it does not exist."""

    def write_bytes(self, path: str, data: bytes) -> None:
        """Replace the whole file: after a power cut it has either the old bytes or the new ones."""

    def write_config(self, path: str, data: bytes) -> None:
        """Replace a configuration file and keep its predecessor as `<path>.bak` (see `config_file`)."""

    def read_config(self, path: str, decode: Callable[[bytes], Decoded]) -> Decoded | None:
        """Decode a configuration file, or its `.bak` when it is missing or damaged (see `config_file`)."""

    def disk_usage_ratio(self, path: str) -> float:
        """Used share of the file system, rounded as RocketMQ does (`usage_ratio`); -1.0 when `path` is missing."""

    def free_bytes(self, path: str) -> int:
        """Bytes this process may still allocate on the file system of `path`; -1 when `path` is missing."""

    def lock(self, path: str) -> FileLock:
        """Create `path` holding the four bytes `lock` and lock its byte 0. Raises StoreLocked when it is held."""


_SYNC_LOCKS = 64


class DirectorySync:
    """Syncs the names of new files later, in batches, instead of one by one at creation.

    A store may get a thousand queues at once. Each is a file in its own directory: syncing each name at creation
    would cost three waits for the disk, on the dispatching thread. This is safe, since no byte of a file counts as
    durable before `sync` made its name durable.

    Invariant: when `sync(path)` returns, every directory entry from `root` down to the file is durable.
    Threads: any.

    `root` exists, and its own name is durable.
    """

    def __init__(self, access: FileAccess, root: str) -> None:
        self._access = access
        self._prefix = f"{os.path.abspath(root).rstrip('/')}/"
        self._changed: set[str] = set()
        self._lock = threading.Lock()
        self._sync_locks = [threading.Lock() for _ in range(_SYNC_LOCKS)]  # A directory has one of them.

    @property
    def changed(self) -> frozenset[str]:
        """Directories with names that may not be durable."""
        with self._lock:
            return frozenset(self._changed)

    def create(self, path: str, size: int) -> Region:
        """A new file below `root`; see `FileAccess.create_unsynced`."""
        region = self._access.create_unsynced(path, size)
        self.doubt(path)
        return region

    def doubt(self, path: str) -> None:
        """The name of a file may not be durable: the next `sync` of it makes it so."""
        with self._lock:
            self._changed.update(self._directories(path))

    def synced(self, directories: Collection[str]) -> None:
        """The file system was synced as a whole after these, and no others, were `changed`."""
        with self._lock:
            self._changed.difference_update(directories)

    def sync(self, path: str) -> None:
        """Make the name of a file durable. Its region must sync bytes and length before."""
        for directory in self._directories(path):
            # A caller that finds a directory unchanged relies on a finished sync.
            with self._sync_locks[hash(directory) % _SYNC_LOCKS]:
                with self._lock:
                    if directory not in self._changed:
                        continue
                    self._changed.discard(directory)  # Before the sync: later changes are not covered.
                try:
                    self._access.sync_directory(directory)
                except FileNotFoundError:
                    continue  # It was removed with its names.
                except BaseException:
                    with self._lock:
                        self._changed.add(directory)
                    raise

    def _directories(self, path: str) -> Iterator[str]:
        whole = path if path.startswith(self._prefix) else os.path.abspath(path)
        if not whole.startswith(self._prefix):
            return
        at = whole.rfind("/")
        while at >= len(self._prefix) - 1:  # Not `dirname`: a recovery asks this of every queue.
            yield whole[:at] or "/"
            at = whole.rfind("/", 0, at)
