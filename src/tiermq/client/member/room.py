"""Room: back-pressure of a producer, by the number and the bytes of the messages on their way.

Any thread may take room, and a loop's task may wait for it. A message larger than all room goes alone. Who has to wait
for the number is woken when a quarter of it is free (64 messages at most), so that one wake serves many messages.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable

from tiermq.errors import BadConfig
from tiermq.remoting.loop_thread import LOOK_S

WOKEN_FOR = 64


class Room:
    """See the module. Guarded by its lock."""

    __slots__ = ("_bytes", "_bytes_max", "_count", "_count_max", "_lock", "_waiting", "_woken_at")

    def __init__(self, count_max: int, bytes_max: int) -> None:
        if count_max <= 0 or bytes_max <= 0:
            raise BadConfig(f"expected room for messages, found max_in_flight {count_max} and {bytes_max} bytes")
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._woken_at = count_max - max(1, min(count_max // 4, WOKEN_FOR))
        self._count = self._bytes = 0
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def try_take(self, size: int, when_granted: Callable[[], None]) -> bool:
        """True: there is room, and it is taken. Else `when_granted` is called once it is, by any thread."""
        with self._lock:
            if not self._waiting and self._fits(size):
                self._count += 1
                self._bytes += size
                return True
            self._waiting.append((size, when_granted))
            return False

    def release(self, size: int) -> None:
        granted = []
        with self._lock:
            self._count -= 1
            self._bytes -= size
            if self._waiting and self._count <= self._woken_at:
                while self._waiting and self._fits(self._waiting[0][0]):
                    size, when_granted = self._waiting.popleft()
                    self._count += 1
                    self._bytes += size
                    granted.append(when_granted)
        for each in granted:
            each()

    def _fits(self, size: int) -> bool:
        return self._count == 0 or (self._count < self._count_max and self._bytes + size <= self._bytes_max)

    def _withdraw(self, size: int, when_granted: Callable[[], None]) -> None:
        """Of a wait that is given up."""
        with self._lock:
            try:
                self._waiting.remove((size, when_granted))
                return
            except ValueError:
                pass  # It was granted meanwhile.
        self.release(size)

    async def take(self, size: int) -> None:
        """Wait for room, on a loop."""
        loop = asyncio.get_running_loop()
        granted: asyncio.Future[None] = loop.create_future()

        def grant() -> None:
            loop.call_soon_threadsafe(_resolve, granted)

        if not self.try_take(size, grant):
            try:
                await granted
            except BaseException:
                self._withdraw(size, grant)
                raise

    def take_blocking(self, size: int) -> None:
        """Wait for room, in a thread."""
        granted = threading.Event()
        grant = granted.set
        if not self.try_take(size, grant):
            try:
                while not granted.wait(LOOK_S):
                    pass
            except BaseException:
                self._withdraw(size, grant)
                raise


def _resolve(granted: asyncio.Future[None]) -> None:
    if not granted.done():
        granted.set_result(None)
