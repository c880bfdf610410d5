"""RecycledMemory: room for large reads, used again as soon as nobody looks at it any more.

Memory that is fresh from the system is cleared page by page when it is first touched, which costs several times as much
as filling it from the page cache. A reader who goes through a queue needs as much as he has just let go of, so what he
let go of is kept for him.

    block    anonymous memory, a multiple of BLOCK_BYTES long; belongs to the pool or to one lease
    lease    what the views of one read are views of; its end gives the block back

Invariants: a block is leased to one read at a time, until the last view of it is gone, however it was sliced and
whoever holds it: the interpreter's own count of references decides, not the good will of readers. What lies idle never
exceeds `idle_bytes_max`. A leased block is at most a quarter, or BLOCK_BYTES, longer than what was asked for.
Threads: any. A block comes back in whichever thread drops the last view, also in the middle of a lease of that thread;
so nobody waits for the lock in order to give back: who does not get it at once frees the block.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import weakref
from collections import deque

BLOCK_BYTES = 64 * 1024
"""Blocks are multiples of this. Less is left to the interpreter, whose allocator keeps small memory warm by itself."""

IDLE_BYTES_MAX = 16 * 1024 * 1024


class RecycledMemory:
    """See the module."""

    def __init__(self, idle_bytes_max: int = IDLE_BYTES_MAX) -> None:
        self._idle_bytes_max = idle_bytes_max
        self._lock = threading.Lock()
        self._idle: deque[mmap.mmap] = deque()  # The one that came back last is the warmest, and stands last.
        self._idle_bytes = 0

    @property
    def idle_bytes(self) -> int:
        """What is kept for the next read."""
        return self._idle_bytes

    def lease(self, length: int) -> memoryview:
        """Writable memory of exactly `length` bytes, whatever is in it. It comes back by itself."""
        if length < BLOCK_BYTES:
            return memoryview(bytearray(length))
        size = -(-length // BLOCK_BYTES) * BLOCK_BYTES
        block = self._take_idle(size) or mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # An object of its own between views and block: its end is the end of the last view, and leaves the block alive.
        lease = (ctypes.c_ubyte * len(block)).from_buffer(block)
        weakref.finalize(lease, self._give_back, block).atexit = False
        return memoryview(lease).cast("B")[:length]

    def _take_idle(self, size: int) -> mmap.mmap | None:
        """The warmest block that is long enough and not much longer."""
        longest = max(size + size // 4, size + BLOCK_BYTES)
        with self._lock:
            for block in reversed(self._idle):
                if size <= len(block) <= longest:
                    self._idle.remove(block)
                    self._idle_bytes -= len(block)
                    return block
        return None

    def _give_back(self, block: mmap.mmap) -> None:
        if len(block) > self._idle_bytes_max or not self._lock.acquire(blocking=False):
            return
        try:
            self._idle.append(block)
            self._idle_bytes += len(block)
            while self._idle_bytes > self._idle_bytes_max:
                self._idle_bytes -= len(self._idle.popleft())
        finally:
            self._lock.release()
