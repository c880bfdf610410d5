"""SimulatedLog: the log of one replica, as replication sees a store, over a disk that loses what was not flushed."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from simulation.simulated_threads import Process, World
from tiermq.config import BrokerRole, FlushDiskType
from tiermq.files.mapped_file import SelectedBuffer

RECORD = struct.Struct(">q")
"""A message is its number: records of eight bytes, so that frames end in the middle of them."""
FILE_BYTES = 4096


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
        del self.data[len(self.data) - len(self.data) % RECORD.size :]
        self.flushed = len(self.data)

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
        self.dispatched_where = len(disk.data)
        self.few_replicas = self.draining = ""
        self._world, self._process, self._disk = world, process, disk
        self._replicated_where: Callable[[], int] | None = None
        self._growth: list[Callable[[], None]] = []
        self._dispatches = False

    @property
    def max_physical_offset(self) -> int:
        return len(self._disk.data)

    @property
    def flushed_where(self) -> int:
        return self._disk.flushed

    @property
    def confirm_offset(self) -> int:
        end = self._disk.flushed
        return end if self._replicated_where is None else min(end, self._replicated_where())

    def require_replicas(self, replicated_where: Callable[[], int]) -> None:
        self._replicated_where = replicated_where

    def replicas_moved(self) -> None:
        if not self._dispatches:
            self._dispatches = True
            self._world.later(self._world.chance.uniform(0, 0.02), self._dispatch, self._process)

    def _dispatch(self) -> None:
        self._dispatches = False
        if self.running:
            end = self.confirm_offset
            self.dispatched_where = max(self.dispatched_where, end - end % RECORD.size)

    def set_few_replicas(self, detail: str) -> None:
        self.few_replicas = detail

    def set_draining(self, detail: str) -> None:
        self.draining = detail

    def add_growth_listener(self, listener: Callable[[], None]) -> None:
        self._growth.append(listener)

    def put(self, message: int) -> int:
        """Where its record ends."""
        self._disk.data += RECORD.pack(message)
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
        self._dispatch()
        data = bytes(self._disk.data[first * RECORD.size : self.dispatched_where])
        return [each for (each,) in RECORD.iter_unpack(data)]

    def close(self) -> None:
        self.running = False
        self._disk.flushed = len(self._disk.data)
