"""A commit log and its queues in memory, around either form of the kernel: what both twins must do alike.

`World(kernel)` takes the module (`tiermq.kernel.pure` or the compiled one). Its slow path binds queues and rolls files,
its dispatch makes queues; everything else is the kernel's.
"""

from __future__ import annotations

import importlib
import struct
import threading
from array import array
from types import ModuleType
from typing import Any

import pytest

from tiermq.kernel import pure
from tiermq.message.hosts import encode_host
from tiermq.message.java_hash import java_hash, key_hash
from tiermq.message.properties import decode_properties, index_keys
from tiermq.message.record_head import read_head
from tiermq.status import PutStatus

UNITS = 400
SLOTS = 50
ENTRIES = 300


def compiled_kernel() -> ModuleType | None:
    try:
        return importlib.import_module("tiermq.kernel.compiled")
    except ModuleNotFoundError:
        return None


COMPILED = compiled_kernel()
KERNELS = [
    pytest.param(pure, id="pure"),
    pytest.param(
        COMPILED, id="compiled", marks=pytest.mark.skipif(COMPILED is None, reason="the compiled kernel is not built")
    ),
]
needs_both = pytest.mark.skipif(COMPILED is None, reason="the compiled kernel is not built")


class World:
    """One log of files of `file_size` bytes, in memory."""

    def __init__(self, kernel: Any, *, file_size: int = 4096, host: str = "127.0.0.1:10911", **options: Any) -> None:
        self.kernel = kernel
        self.file_size = file_size
        self.now = 1_700_000_000_000
        self.buffers: list[bytearray] = []
        self.tails: list[Any] = []
        self.queues: dict[tuple[str, int], tuple[bytearray, Any]] = {}
        self.refusals: list[str] = []
        self.wakes = 0
        options.setdefault("max_body_bytes", 4_194_304)
        self.appender = kernel.Appender(
            encode_host(host),
            slow_path=self._slow,
            wake=self._wake,
            clock=self._clock,
            lock=threading.RLock(),
            **options,
        )
        self.appender.closed = False
        self.index_buffer = bytearray(40 + 4 * SLOTS + 20 * ENTRIES)
        self.index = kernel.IndexTail(self.index_buffer, SLOTS, ENTRIES)
        self.index.entry_limit = ENTRIES
        self.builder = kernel.Builder()
        self.builder.index = self.index

    def _clock(self) -> int:
        return self.now

    def _wake(self) -> None:
        self.wakes += 1

    def _slow(self, message: Any, refusal: Any) -> Any:
        self.refusals.append(refusal.name)
        if refusal.name == "UNBOUND":
            self.bind(message.topic, message.queue_id)
            return self.appender.put(message)
        if refusal.name == "ROOM" and self.appender.record_bytes(message) + 8 <= self.file_size:
            self.roll()
            return self.appender.put(message)
        return self.kernel.PutResult(PutStatus.MESSAGE_ILLEGAL)

    def bind(self, topic: str, queue_id: int) -> Any:
        handle = self.kernel.QueueHandle(self.appender, topic, queue_id)
        self.appender.bind(handle)
        return handle

    def roll(self) -> None:
        buffer = bytearray(self.file_size)
        tail = self.kernel.WriteCursor(buffer, len(self.tails) * self.file_size, self.file_size)
        tail.limit = self.file_size
        self.appender.roll(tail)
        self.buffers.append(buffer)
        self.tails.append(tail)

    def log(self) -> bytes:
        return b"".join(map(bytes, self.buffers))

    def segments(self) -> Any:
        return self.kernel.Segments(self.tails, self.file_size)

    def dispatch(self, crc_mode: int = 1) -> list[tuple[int, str]]:
        """Dispatch the whole log; where each step stopped, and why."""
        stops = []
        for tail in self.tails:
            position = 0
            while True:
                position, stop = self.builder.dispatch(tail, position, tail.position, crc_mode)
                stops.append((tail.base + position, stop.name))
                if stop.name != "SLOW":
                    break
                position = self._dispatch_slowly(tail, position)
        return stops

    def _dispatch_slowly(self, tail: Any, position: int) -> int:
        """Make the queue of a record that has none; pass over a record that is not for the fast path."""
        buffer = self.buffers[tail.base // self.file_size]
        head = read_head(buffer, position, tail.position - position)
        name = (bytes(head.topic).decode("latin-1"), head.queue_id)
        if name in self.queues:
            self._build(self.queues[name][1], buffer, position, head)
            return position + int(head.size)
        if not bytes(head.topic).isascii():
            return position + int(head.size)
        units = bytearray(20 * UNITS)
        queue = self.kernel.QueueTail(*name)
        queue.tail = self.kernel.WriteCursor(units, 0, len(units))
        queue.tail.limit = len(units)
        self.queues[name] = (units, queue)
        self.builder.add(queue)
        return position

    def _build(self, queue: Any, buffer: bytearray, position: int, head: Any) -> None:
        """What the store's slow path does for a record whose queue is known."""
        encoded = bytes(buffer[head.properties_position : head.properties_position + head.properties_length])
        properties = decode_properties(encoded, errors="replace")
        if head.sys_flag & 0x0C != 12:
            keys = index_keys(properties.get("UNIQ_KEY"), properties.get("KEYS"))
            hashes = array("i", [key_hash(f"{queue.topic}#{key}") for key in keys])
            self.index.put_many(
                hashes,
                array("q", [head.physical_offset] * len(keys)),
                array("q", [head.store_timestamp_ms] * len(keys)),
            )
        end = head.physical_offset + head.size
        in_place = head.queue_offset * 20 == queue.tail.position
        if head.sys_flag & 0x0C in (0, 8) and in_place and end > queue.max_physical_offset:
            code = java_hash(properties.get("TAGS", ""))
            queue.tail.append(struct.pack(">qiq", head.physical_offset, head.size, code))
            queue.max_physical_offset = end
            queue.last_store_timestamp_ms = head.store_timestamp_ms


def values_of(result: Any) -> tuple[Any, ...]:
    """Everything that a PutResult says."""
    return (
        result.status, result.ok, result.physical_offset, result.queue_offset, result.store_timestamp_ms, result.size,
        result.count, result.end_offset, result.message_id, repr(result),
    )  # fmt: skip


def message_in(kernel: Any, fields: dict[str, Any]) -> Any:
    """The same message in either kernel's own class."""
    return kernel.Message(**fields)
