"""SimulatedLog: the log of one replica, as replication sees a store, over a disk that loses what was not flushed."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from simulation.simulated_threads import Process, World
from tiermq.config import BrokerRole, FlushDiskType
from tiermq.files.mapped_file import SelectedBuffer

RECORD = struct.Struct(">iq")
"""The bytes of a record, and its message: a number. Whatever fills it follows, so that frames end in the middle of it,
and some records are longer than several frames.
"""
FILE_BYTES = 4096


def record_of(message: int, filler_bytes: int = 0) -> bytes:
    return RECORD.pack(RECORD.size + filler_bytes, message) + bytes(filler_bytes)


def records_from(data: bytes | bytearray, offset: int) -> Iterator[tuple[int, int]]:
    """End and message of each whole record from a record's beginning on."""
    while offset + RECORD.size <= len(data):
        size, message = RECORD.unpack_from(data, offset)
        assert size >= RECORD.size, f"no record begins at {offset}: bytes of two masters are mixed"
        offset += size
        if offset > len(data):
            return
        yield offset, message


@dataclass
class Disk:
    """One machine's: what was written, and up to where it was flushed. Files of settings are durable at once."""

    data: bytearray = field(default_factory=bytearray)
    flushed: int = 0
    files: dict[str, bytes] = field(default_factory=dict)

    def lose_power(self, kept: int) -> None:
        """Of what was not flushed, so many bytes are there."""
        del self.data[min(len(self.data), self.flushed + kept) :]

    def recover(self) -> None:
        """Cut an unfinished record."""
        del self.data[self.whole_end() :]
        self.flushed = len(self.data)

    def whole_end(self, offset: int = 0) -> int:
        """Where the last whole record ends; from where a record begins."""
        for end, _ in records_from(self.data, offset):
            offset = end
        return offset

    # `FileAccess`, as far as elections and epochs need it.

    def read_config(self, path: str, decode: Callable[[bytes], Any]) -> Any:
        return decode(self.files[path]) if path in self.files else None

    def write_config(self, path: str, data: bytes) -> None:
        self.files[path] = data

    def remove(self, path: str) -> None:
        self.files.pop(path, None)

    def make_directories(self, path: str) -> None:
        """There is none to make."""

    def sync_directory(self, path: str) -> None:
        """It always is."""


class SimulatedLog:
    """A store of SYNC_FLUSH with one queue, as far as replication sees it. The names are `LocalStore`'s."""

    min_physical_offset = 0

    def __init__(self, world: World, process: Process, disk: Disk, role: BrokerRole) -> None:
        disk.recover()
        self.running = True
        self.config = SimpleNamespace(
            broker_role=role, flush_disk_type=FlushDiskType.SYNC_FLUSH, mapped_file_size_commit_log=FILE_BYTES
        )
        self._ends = [end for end, _ in records_from(disk.data, 0)]
        """Of the records that are dispatched."""
        self.few_replicas = self.draining = ""
        self._world, self._process, self._disk = world, process, disk
        self._replicated_where: Callable[[], int] | None = None
        self._growth: list[Callable[[], None]] = []
        self._dispatches = False

    @property
    def dispatched_where(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def max_physical_offset(self) -> int:
        return len(self._disk.data)

    @property
    def why_not_dispatched(self) -> str:
        return ""

    @property
    def flushed_where(self) -> int:
        return self._disk.flushed

    @property
    def confirm_offset(self) -> int:
        end = self._disk.flushed
        return end if self._replicated_where is None else min(end, self._replicated_where())

    def topics(self) -> dict[str, list[int]]:
        """It has a queue of no name, of which no loss is reported."""
        return {}

    def require_replicas(self, replicated_where: Callable[[], int]) -> None:
        self._replicated_where = replicated_where

    def replicas_moved(self) -> None:
        if not self._dispatches:
            self._dispatches = True
            self._world.later(self._world.chance.uniform(0, 0.02), self._dispatch_soon, self._process)

    def _dispatch_soon(self) -> None:
        self._dispatches = False
        self.dispatch()

    def dispatch(self) -> None:
        """What reput does: whole records that are committed, in order."""
        if self.running:
            confirmed = self.confirm_offset
            for end, _ in records_from(self._disk.data, self.dispatched_where):
                if end > confirmed:
                    return
                self._ends.append(end)

    def set_few_replicas(self, detail: str) -> None:
        self.few_replicas = detail

    def set_draining(self, detail: str) -> None:
        self.draining = detail

    def add_growth_listener(self, listener: Callable[[], None]) -> None:
        self._growth.append(listener)

    def put(self, message: int, filler_bytes: int) -> int:
        """Where its record ends."""
        self._disk.data += record_of(message, filler_bytes)
        self._world.later(self._world.chance.uniform(0.001, 0.03), self._flush_soon, self._process)
        return len(self._disk.data)

    def _flush_soon(self) -> None:
        """The thread of group commits."""
        if self.running:
            self._disk.flushed = len(self._disk.data)
            for listener in self._growth:
                listener()
            self.replicas_moved()

    def append_data(self, offset: int, data: memoryview) -> None:
        assert offset == len(self._disk.data), f"bytes of {offset} are appended at {len(self._disk.data)}"
        self._disk.data += data

    def flush(self) -> None:
        end = len(self._disk.data)
        self._world.sleep(self._world.chance.uniform(0.0005, 0.02))
        self._disk.flushed = max(self._disk.flushed, end)
        self.replicas_moved()

    def log_bytes(self, offset: int, length_max: int) -> SelectedBuffer | None:
        end = min(len(self._disk.data), offset + length_max, offset - offset % FILE_BYTES + FILE_BYTES)
        if end <= offset:
            return None
        return SelectedBuffer(offset, memoryview(bytes(self._disk.data[offset:end])), lambda: None)

    def visible(self, first: int = 0) -> list[int]:
        """What a pull shows that is held until all that is committed is dispatched."""
        self.dispatch()
        begin = self._ends[first - 1] if 0 < first <= len(self._ends) else 0
        found = records_from(self._disk.data[: self.dispatched_where], begin) if first <= len(self._ends) else ()
        return [message for _, message in found]

    def place_of(self, end: int) -> int:
        """The queue offset of the dispatched record that ends there."""
        place = bisect_left(self._ends, end)
        assert self._ends[place] == end, f"no record ends at {end}"
        return place

    def close(self) -> None:
        self.running = False
        self._disk.flushed = len(self._disk.data)
