"""TransientPool: memory that new commit-log files are first written to, instead of their maps.

Appends then never wait for the page cache's write-back; the price is that bytes which were not committed yet are lost
with the process. Buffers are as large as a file, allocated once, and locked in memory when the system lets us.
"""

from __future__ import annotations

import mmap
import threading
from collections import deque

from tiermq.files import system_calls


class TransientPool:
    """A fixed number of buffers. Any thread may borrow and give back."""

    __slots__ = ("_closed", "_free", "_lock", "count", "locked_count", "size")

    def __init__(self, count: int, size: int, *, lock_memory: bool = True) -> None:
        self.count = count
        self.size = size
        self._lock = threading.Lock()
        self._closed = False
        self._free: deque[mmap.mmap] = deque(mmap.mmap(-1, size) for _ in range(count))
        self.locked_count = sum(system_calls.lock_pages(buffer, size) for buffer in self._free) if lock_memory else 0

    @property
    def available(self) -> int:
        """How many buffers can be borrowed now."""
        return len(self._free)

    def borrow(self) -> mmap.mmap | None:
        """A buffer, its old content still in it; None when all are lent."""
        with self._lock:
            return self._free.popleft() if self._free else None

    def give_back(self, buffer: mmap.mmap) -> None:
        """Return a borrowed buffer. Nobody may have a view of it any more."""
        with self._lock:
            if not self._closed:
                self._free.append(buffer)
                return
        buffer.close()

    def close(self) -> None:
        """Free the memory; buffers that are still lent are freed when they come back."""
        with self._lock:
            self._closed = True
            free, self._free = self._free, deque()
        for buffer in free:
            buffer.close()
