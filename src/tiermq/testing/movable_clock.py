"""MovableClock: the machine's clock, and as far ahead of it as a test has moved it.

It goes on by itself, since clients measure real time: a long poll that never ended would make them reconnect.
Invariants: it never goes back; wall time and monotonic time are moved together.
"""

from __future__ import annotations

import threading
from datetime import timedelta

from tiermq.clock import Clock, SystemClock


class MovableClock:
    """A `tiermq.clock.Clock`. Any thread may read it and move it."""

    __slots__ = ("_ahead_ms", "_base", "_lock")

    def __init__(self, base: Clock | None = None) -> None:
        self._base = base or SystemClock()
        self._ahead_ms = 0
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        return self._base.now_ms() + self._ahead_ms

    def monotonic(self) -> float:
        return self._base.monotonic() + self._ahead_ms / 1000

    @property
    def ahead(self) -> timedelta:
        """How far it was moved."""
        return timedelta(milliseconds=self._ahead_ms)

    def advance(self, by: timedelta | float) -> None:
        """Move it ahead, by so many seconds if a number is given. Raises ValueError for a step back."""
        seconds = by.total_seconds() if isinstance(by, timedelta) else by
        if seconds < 0:
            raise ValueError(f"expected a step ahead, found one of {seconds} s: a clock of a broker never goes back")
        with self._lock:
            self._ahead_ms += round(seconds * 1000)
