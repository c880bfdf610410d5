"""What the machine itself can do with the same bytes: memcpy into a warm map, raw pwrite + fdatasync."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.report import Round

PAGE_BYTES = 4096


class Memcpy:
    """Copies one hot source block to consecutive places of a warm mapped file, as a batch put would at best."""

    def __init__(self, path: Path, size: int, block: bytes, messages_per_block: int) -> None:
        self._messages_per_block = messages_per_block
        self._block = block
        self._size = size
        with path.open("w+b") as file:
            file.truncate(size)
            self._map = mmap.mmap(file.fileno(), size)
        for at in range(0, size, PAGE_BYTES):
            self._map[at] = 0
        self._pin = ctypes.c_char.from_buffer(self._map)

    def round(self, blocks: int) -> Round:
        """Copy `blocks` blocks, starting again at the front of the file when it is full."""
        address, length = ctypes.addressof(self._pin), len(self._block)
        last = self._size - length
        copy, source = ctypes.memmove, self._block
        at = 0
        cpu_before, before = time.process_time(), time.perf_counter()
        for _ in range(blocks):
            if at > last:
                at = 0
            copy(address + at, source, length)
            at += length
        seconds, cpu_seconds = time.perf_counter() - before, time.process_time() - cpu_before
        return Round(blocks * self._messages_per_block, blocks * length, seconds, cpu_seconds)

    def close(self) -> None:
        """Unmap."""
        del self._pin
        self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class RawFlush:
    """pwrite + fdatasync of one block after the other into a file whose blocks were all written before."""

    def __init__(self, path: Path, size: int, block: bytes, messages_per_block: int) -> None:
        self._block = block
        self._messages_per_block = messages_per_block
        self._size = size
        self._at = 0
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        zeros = bytes(1 << 20)
        for at in range(0, size, len(zeros)):
            os.pwrite(self._fd, zeros[: size - at], at)
        os.fsync(self._fd)

    def round(self, flushes: int) -> Round:
        """Write and flush `flushes` blocks."""
        cpu_before, before = time.process_time(), time.perf_counter()
        for _ in range(flushes):
            if self._at + len(self._block) > self._size:
                self._at = 0
            os.pwrite(self._fd, self._block, self._at)
            os.fdatasync(self._fd)
            self._at += len(self._block)
        seconds, cpu_seconds = time.perf_counter() - before, time.process_time() - cpu_before
        return Round(flushes * self._messages_per_block, flushes * len(self._block), seconds, cpu_seconds)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
