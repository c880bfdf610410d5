"""SimulatedFileAccess: a file system in memory that obeys `tiermq.files.file_access`, and can lose its power.

Every file has its current bytes and the bytes of its last sync. A power cut leaves, for each 512-byte page on its own,
one of the two; that is everything a disk may do, so whatever survives all choices survives a real one. Removals,
renames and unsynced creations that no `sync_directory` followed are kept in order, each as one atomic step that the cut
may undo; a file that was created so and never synced may also be empty. Directories stay, which is more than a disk
promises: one without files is all that such a cut leaves here of a queue, and reads as none.

It also catches what would kill a real process: bytes stored into the map where no block was reserved are found at the
next sync or crash, and raise.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TypeVar

from simulation.manual_clock import ManualClock
from tiermq.clock import Clock
from tiermq.errors import DiskFull, ReadOnlyStore, StoreClosed, StoreDamaged, StoreError, StoreLocked
from tiermq.files import config_file
from tiermq.files.file_access import FileInfo
from tiermq.files.os_file_access import UNKNOWN_RATIO, usage_ratio

Decoded = TypeVar("Decoded")

BLOCK_BYTES = 4096  # What `reserve` allocates.
CRASH_PAGE_BYTES = 512  # What a disk writes or does not write.
LENGTH = -2  # The page number by which `crash` asks about the length of a file that was never synced.
ENTRY = -1  # The page number by which `crash` asks about a directory entry.

ChoosePage = Callable[[str, int], bool]
Fault = Callable[[str, str], None]


@dataclass
class SimulatedFile:
    """The bytes of one file, whatever its name is."""

    current: bytearray
    synced: bytearray
    modified_ms: int
    blocks: set[int] = field(default_factory=set)
    has_length: bool = True  # Whether its length is durable.
    checked: bool = True  # Mapped files must reserve before they write; small whole files are written by calls.


@dataclass(frozen=True)
class EntryStep:
    """A removal (`new` is None), a rename, or the creation of `made` that is not durable yet."""

    old: str
    new: str | None
    made: SimulatedFile | None = None


class SimulatedRegion:
    """See `file_access.Region`. Every region of one file shares its bytes."""

    def __init__(self, access: SimulatedFileAccess, path: str, file: SimulatedFile, writable: bool) -> None:
        self.path = path
        self.size = len(file.current)
        self.buffer: bytearray | None = file.current
        self._access = access
        self._file = file
        self._writable = writable
        self._sync_failed = False

    def reserve(self, start: int, length: int) -> None:
        self._begin("reserve", start, length)
        if length:
            self._access.allocate(self._file, self.path, start, length)

    def sync(self) -> None:
        if self._sync_failed:
            raise StoreError(f"{self.path}: an earlier sync failed")
        try:
            self._begin("sync", writing=False)
        except OSError:
            self._sync_failed = True
            raise
        self._access.check_blocks(self.path, self._file)
        self._file.has_length = True
        if self._file.current != self._file.synced:
            self._file.modified_ms = self._access.clock.now_ms()
            self._file.synced[:] = self._file.current

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        payload = bytes(data)
        self._begin("write", position, len(payload))
        if payload:
            self._access.allocate(self._file, self.path, position, len(payload))
            self._file.current[position : position + len(payload)] = payload
            self._file.modified_ms = self._access.clock.now_ms()

    def zero(self, start: int, length: int) -> None:
        self._begin("zero", start, length)
        self._file.current[start : start + length] = bytes(length)
        end = start + length
        last = -(-end // BLOCK_BYTES) if end == self.size else end // BLOCK_BYTES
        self._file.blocks -= set(range(-(-start // BLOCK_BYTES), last))

    def populate(self, start: int, length: int) -> bool:
        self._begin("populate", start, length, writing=False)
        return self._writable

    def lock_memory(self) -> bool:
        return False

    def advise_random(self) -> bool:
        return True

    def advise_will_need(self) -> bool:
        return True

    def release_pages(self, start: int, length: int) -> bool:
        if start < 0 or length < 0 or start + length > self.size:
            raise ValueError(f"{self.path}: expected a range within {self.size} bytes, found {length} at {start}")
        return self._writable

    def data_ranges(self) -> list[tuple[int, int]]:
        self._begin("data_ranges", writing=False)
        return [(0, self.size)] if self.size else []

    def close_descriptor(self) -> None:
        pass

    def close(self) -> None:
        self.buffer = None

    def _begin(self, operation: str, start: int = 0, length: int = 0, *, writing: bool = True) -> None:
        if start < 0 or length < 0 or start + length > self.size:
            raise ValueError(f"{self.path}: expected a range within {self.size} bytes, found {length} at {start}")
        if writing and not self._writable:
            raise ReadOnlyStore(f"{self.path}: opened read-only")
        if self.buffer is None:
            raise StoreClosed(f"{self.path}: closed")
        self._access.fault(operation, self.path)


class SimulatedLock:
    def __init__(self, path: str, locked: set[str]) -> None:
        self.path = path
        self._locked = locked
        if path in locked:
            raise StoreLocked(f"{path}: expected a free store, found that this process has it open already")
        locked.add(path)

    def release(self) -> None:
        self._locked.discard(self.path)


class SimulatedFileAccess:
    """See `file_access.FileAccess`. `capacity_bytes` limits the disk; `on_call(operation, path)` may raise."""

    def __init__(
        self, *, capacity_bytes: int | None = None, clock: Clock | None = None, on_call: Fault | None = None
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.clock: Clock = clock if clock is not None else ManualClock()
        self.on_call = on_call
        self._lock = threading.RLock()
        self._entries: dict[str, SimulatedFile] = {}
        self._durable: dict[str, SimulatedFile] = {}
        self._steps: list[EntryStep] = []
        self._directories: set[str] = {"/"}
        self._locked: set[str] = set()

    # The disk

    @property
    def used_bytes(self) -> int:
        return sum(len(file.blocks) for file in self._entries.values()) * BLOCK_BYTES

    def allocate(self, file: SimulatedFile, path: str, start: int, length: int) -> None:
        """Give blocks to a range, all of them or, with DiskFull, none."""
        with self._lock:
            wanted = set(range(start // BLOCK_BYTES, (start + length - 1) // BLOCK_BYTES + 1)) - file.blocks
            if self.capacity_bytes is not None and self.used_bytes + len(wanted) * BLOCK_BYTES > self.capacity_bytes:
                raise DiskFull(f"{path}: expected room for {len(wanted)} blocks, found a full disk")
            file.blocks |= wanted

    def check_blocks(self, path: str, file: SimulatedFile) -> None:
        """Raise when mapped bytes changed where the file has no block: a full disk would have killed the process."""
        if not file.checked or file.current == file.synced:
            return
        for block in range(-(-len(file.current) // BLOCK_BYTES)):
            part = slice(block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES)
            if block not in file.blocks and file.current[part] != file.synced[part] and any(file.current[part]):
                raise AssertionError(f"{path}: bytes were stored in block {block}, which was never reserved")

    def fault(self, operation: str, path: str) -> None:
        if self.on_call is not None:
            self.on_call(operation, path)

    def crash(self, choose_page: ChoosePage) -> SimulatedFileAccess:
        """The file system after a power cut now; this one stays as it was.

        `choose_page(path, page)` says for each unsynced 512-byte page whether the current bytes made it to the disk,
        and, with page ENTRY, whether an unsynced removal or rename (asked by its old path) did.
        """
        with self._lock:
            after = SimulatedFileAccess(capacity_bytes=self.capacity_bytes, clock=self.clock)
            after._directories = set(self._directories)
            entries = dict(self._durable)
            for step in self._steps:
                if (step.made is not None or step.old in entries) and choose_page(step.old, ENTRY):
                    _apply(entries, step)
            for path, file in entries.items():
                self.check_blocks(path, file)
                if not file.has_length and not choose_page(path, LENGTH):
                    after._entries[path] = after._durable[path] = SimulatedFile(
                        bytearray(), bytearray(), file.modified_ms
                    )
                    continue
                survived = _survivor(path, file, choose_page)
                after._entries[path] = after._durable[path] = survived
            return after

    # Regions

    def create(self, path: str, size: int) -> SimulatedRegion:
        path = _clean(path)
        self.fault("create", path)
        self.make_directories(os.path.dirname(path))
        with self._lock:
            if path in self._entries:
                return self.open(path, size)
            self.sync_directory(os.path.dirname(path))
            file = SimulatedFile(bytearray(size), bytearray(size), self.clock.now_ms())
            self._entries[path] = self._durable[path] = file
            return SimulatedRegion(self, path, file, writable=True)

    def create_unsynced(self, path: str, size: int) -> SimulatedRegion:
        path = _clean(path)
        self.fault("create_unsynced", path)
        self.make_directories(os.path.dirname(path))
        with self._lock:
            if path in self._entries:
                return self.open(path, size)
            file = SimulatedFile(bytearray(size), bytearray(size), self.clock.now_ms(), has_length=False)
            self._entries[path] = file
            self._steps.append(EntryStep(path, path, file))
            return SimulatedRegion(self, path, file, writable=True)

    def open(self, path: str, size: int, writable: bool = True) -> SimulatedRegion:
        path = _clean(path)
        self.fault("open", path)
        file = self._entries.get(path)
        if file is None:
            raise StoreDamaged(f"{path}: expected a file of {size} bytes, found none.")
        if len(file.current) != size:
            raise StoreDamaged(f"{path}: expected a file of {size} bytes, found {len(file.current)}.")
        return SimulatedRegion(self, path, file, writable)

    # Names

    def list_files(self, directory: str) -> list[FileInfo]:
        parent = _clean(directory)
        with self._lock:
            paths = sorted(path for path in self._entries if os.path.dirname(path) == parent)
        infos = map(self.file_info, paths)
        return [info for info in infos if info is not None]

    def list_directories(self, directory: str) -> list[str]:
        parent = _clean(directory)
        return sorted(os.path.basename(path) for path in self._directories if os.path.dirname(path) == parent != path)

    def file_info(self, path: str) -> FileInfo | None:
        file = self._entries.get(_clean(path))
        return None if file is None else FileInfo(os.path.basename(path), len(file.current), file.modified_ms)

    def remove(self, path: str) -> None:
        self._step(EntryStep(_clean(path), None), "remove")

    def rename(self, old: str, new: str) -> None:
        if _clean(old) not in self._entries:
            raise FileNotFoundError(old)
        self._step(EntryStep(_clean(old), _clean(new)), "rename")

    def _step(self, step: EntryStep, operation: str) -> None:
        self.fault(operation, step.old)
        with self._lock:
            if step.old in self._entries:
                _apply(self._entries, step)
                self._steps.append(step)

    def remove_directory_if_empty(self, path: str) -> bool:
        path = _clean(path)
        if self.list_files(path) or self.list_directories(path):
            return False
        self.sync_directory(path)
        self._directories.discard(path)
        return True

    def make_directories(self, path: str) -> None:
        path = _clean(path)
        if path in self._entries:
            raise StoreDamaged(f"{path}: expected a directory or nothing, found a file")
        self.fault("make_directories", path)
        while path not in self._directories:
            self._directories.add(path)
            path = os.path.dirname(path)

    def sync_directory(self, path: str) -> None:
        path = _clean(path)
        self.fault("sync_directory", path)
        with self._lock:
            rest: list[EntryStep] = []
            for step in self._steps:
                if path in (os.path.dirname(step.old), os.path.dirname(step.new or step.old)):
                    _apply(self._durable, step)
                else:
                    rest.append(step)
            self._steps = rest

    def sync_all(self, paths: Collection[str]) -> bool:
        assert paths, "expected paths of the file systems to sync"
        self.fault("sync_all", "/")
        with self._lock:
            for step in self._steps:
                _apply(self._durable, step)
            self._steps = []
            for path in self._entries:
                SimulatedRegion(self, path, self._entries[path], writable=False).sync()
        return True

    def exists(self, path: str) -> bool:
        return _clean(path) in self._entries or _clean(path) in self._directories

    # Whole files

    def read_bytes(self, path: str) -> bytes:
        self.fault("read_bytes", _clean(path))
        file = self._entries.get(_clean(path))
        if file is None:
            raise FileNotFoundError(path)
        return bytes(file.current)

    def write_bytes(self, path: str, data: bytes) -> None:
        path = _clean(path)
        self.fault("write_bytes", path)
        self.make_directories(os.path.dirname(path))
        with self._lock:
            file = SimulatedFile(bytearray(data), bytearray(data), self.clock.now_ms(), checked=False)
            if data:
                self.allocate(file, path, 0, len(data))
            self.sync_directory(os.path.dirname(path))
            self._entries[path] = self._durable[path] = file

    def write_config(self, path: str, data: bytes) -> None:
        config_file.write_config(self, path, data)

    def read_config(self, path: str, decode: Callable[[bytes], Decoded]) -> Decoded | None:
        return config_file.read_config(self, path, decode)

    # Facts

    def disk_usage_ratio(self, path: str) -> float:
        if not self.exists(path):
            return UNKNOWN_RATIO
        free = self.free_bytes(path)
        return usage_ratio(self.used_bytes + free, free, free)

    def free_bytes(self, path: str) -> int:
        if not self.exists(path):
            return -1
        return 1 << 50 if self.capacity_bytes is None else max(0, self.capacity_bytes - self.used_bytes)

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        """Set the modification time, by which files expire."""
        self._entries[_clean(path)].modified_ms = modified_ms

    def lock(self, path: str) -> SimulatedLock:
        path = _clean(path)
        held = SimulatedLock(path, self._locked)
        self.write_bytes(path, b"lock")
        return held


def _clean(path: str) -> str:
    return os.path.normpath(os.path.join("/", path))


def _apply(entries: dict[str, SimulatedFile], step: EntryStep) -> None:
    file = entries.pop(step.old, None) if step.made is None else step.made
    if file is not None and step.new is not None:
        entries[step.new] = file


def _survivor(path: str, file: SimulatedFile, choose_page: ChoosePage) -> SimulatedFile:
    data = bytearray(file.synced)
    if file.current != file.synced:
        for page in range(-(-len(data) // CRASH_PAGE_BYTES)):
            part = slice(page * CRASH_PAGE_BYTES, (page + 1) * CRASH_PAGE_BYTES)
            if file.current[part] != file.synced[part] and choose_page(path, page):
                data[part] = file.current[part]
    return SimulatedFile(data, bytearray(data), file.modified_ms, set(file.blocks), checked=file.checked)


def by_chance(chance: random.Random, share: float, path: str, page: int) -> bool:
    """Whether an unsynced page reached the disk: about this share of them, for `crash`."""
    return chance.random() < share


def set_modified_ms(access: object, path: str, modified_ms: int) -> None:
    """Set the modification time of a file, of this file system or of the machine's."""
    if isinstance(access, SimulatedFileAccess):
        access.set_modified_ms(path, modified_ms)
    else:
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))
