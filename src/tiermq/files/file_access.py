"""The seam between the store and the disk: everything that touches a file goes through these contracts.

`OsFileAccess` is the real one. Tests put a simulated one in its place, fill its disk, break its calls and cut its
power. Both pass the same conformance suite (`tests/files/test_file_access.py`).

What is durable when:

* `create`, `make_directories`, `write_bytes`, `write_config`: on return.
* what `create_unsynced` made: its length when a later `sync` of the region returns, its name when a later
  `sync_directory` of its directory does, and of every directory above that was not there before.
* bytes written to a region (through its buffer or by `write`): when a later `sync` returns.
* `remove`, `rename`: when a later `sync_directory` of the parent returns; until then a power cut may undo them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

Decoded = TypeVar("Decoded")

PAGE_BYTES = 4096  # RocketMQ counts pages of this size whatever the operating system's page is.


@dataclass(frozen=True, slots=True)
class FileInfo:
    """What a directory listing says about one file."""

    name: str
    size: int
    modified_ms: int


class Region(Protocol):
    """One open file of a fixed size, mapped into memory.

    `buffer` is a writable buffer; nobody writes to that of a file opened read-only. A store into the buffer where the
    file has no disk block kills the process when the disk is full, therefore `reserve` comes first. Any thread may
    call any method.
    """

    path: str
    size: int
    buffer: Any

    def reserve(self, start: int, length: int) -> None:
        """Give disk blocks to `length` bytes at `start`, without changing content or file length.

        Raises DiskFull when there is no room; content and length are unchanged then.
        """

    def sync(self) -> None:
        """Make durable every byte that was in the file or in its buffer when the call began.

        A failed sync is final: the kernel may have dropped the pages that it could not write, so every later sync of
        this region fails too, until the store is opened again and recovery has looked at what is really there.
        """

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data` at `position`, or raise. Visible in `buffer` on return, durable after `sync`."""

    def zero(self, start: int, length: int) -> None:
        """Make `length` bytes at `start` read as zero. Blocks may be gone afterwards: reserve again before writing."""

    def populate(self, start: int, length: int) -> bool:
        """Bring reserved pages into memory, writable. False, and nothing touched, when the kernel cannot."""

    def lock_memory(self) -> bool:
        """Keep the whole file in memory; False when the system refuses (it often has a limit)."""

    def unlock_memory(self) -> bool:
        """Undo `lock_memory`; False when the system refuses."""

    def advise_will_need(self) -> bool:
        """Tell the kernel to read the file ahead; False when it does not listen."""

    def release_pages(self, start: int, length: int) -> bool:
        """Let go of the whole pages within a range: they no longer count as this process' memory.

        Nothing is lost, flushed or not: the bytes are the kernel's as before, and come back when they are touched.
        False when the kernel keeps them, as it does with pages that are locked, or when the file is read-only.
        """

    def data_ranges(self) -> list[tuple[int, int]]:
        """[start, end) of what may hold other bytes than zeros, in order: all of the file, or less if it has holes."""

    def close_descriptor(self) -> None:
        """Give the file descriptor back while the map stays; a later call that needs one opens the path again."""

    def close(self) -> None:
        """Unmap, now or when the last reader lets go of its view of the buffer. Says nothing about durability."""


class FileLock(Protocol):
    """A held lock on a store directory."""

    path: str

    def release(self) -> None:
        """Let others have the store. Calling it again changes nothing."""


class FileAccess(Protocol):
    """One file system. Paths are strings; a path is never interpreted relative to anything but the process."""

    def create(self, path: str, size: int) -> Region:
        """A new sparse file of `size` bytes, its name and length durable; parents are made when missing.

        A file of that size that exists already is opened as it is; another size raises StoreDamaged.
        """

    def create_unsynced(self, path: str, size: int) -> Region:
        """The same without waiting for the disk: a power cut may leave no file, an empty one, or no directory."""

    def open(self, path: str, size: int, writable: bool = True) -> Region:
        """Map an existing file. Raises StoreDamaged when it is missing or has another size."""

    def list_files(self, directory: str) -> list[FileInfo]:
        """Everything in `directory` that is no directory, by name; [] when it does not exist."""

    def list_directories(self, directory: str) -> list[str]:
        """Names of the sub-directories, sorted; [] when `directory` does not exist."""

    def file_info(self, path: str) -> FileInfo | None:
        """The same facts about one file; None when it does not exist or is a directory."""

    def remove(self, path: str) -> None:
        """Unlink. A file that is gone already is no error."""

    def remove_directory_if_empty(self, path: str) -> bool:
        """True when the directory does not exist afterwards."""

    def rename(self, old: str, new: str) -> None:
        """Atomically give `old` the name `new`, replacing what was there."""

    def make_directories(self, path: str) -> None:
        """Make `path` and its missing parents."""

    def sync_directory(self, path: str) -> None:
        """Make durable every creation, removal and rename in `path`."""

    def exists(self, path: str) -> bool: ...

    def read_bytes(self, path: str) -> bytes:
        """The whole file. Raises FileNotFoundError when it does not exist."""

    def write_bytes(self, path: str, data: bytes) -> None:
        """Replace the whole file: after a power cut it holds the old bytes or the new ones, nothing in between."""

    def write_config(self, path: str, data: bytes) -> None:
        """Replace a configuration file and keep its predecessor as `<path>.bak` (see `config_file`)."""

    def read_config(self, path: str, decode: Callable[[bytes], Decoded]) -> Decoded | None:
        """Decode a configuration file, or its `.bak` when it is missing or damaged (see `config_file`)."""

    def disk_usage_ratio(self, path: str) -> float:
        """Used share of the file system, RocketMQ's rounding (see `disk_space`); -1.0 when `path` is missing."""

    def free_bytes(self, path: str) -> int:
        """Bytes this process may still allocate on the file system of `path`; -1 when `path` is missing."""

    def touch_modified_ms(self, path: str, modified_ms: int) -> None:
        """Set the modification time, by which files expire."""

    def lock(self, path: str) -> FileLock:
        """Create `path` holding the four bytes `lock` and lock its byte 0. Raises StoreLocked when someone has it."""
