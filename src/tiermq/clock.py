"""Time as a seam: everything that asks the hour asks a clock that a test can move."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time in milliseconds (for records) and a monotonic one in seconds (for waiting)."""

    def now_ms(self) -> int: ...

    def monotonic(self) -> float: ...


class SystemClock:
    """The machine's own clock."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that stands still until it is moved. For tests and simulations."""

    __slots__ = ("_ms",)

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._ms = now_ms

    def now_ms(self) -> int:
        return self._ms

    def monotonic(self) -> float:
        return self._ms / 1000.0

    def advance_ms(self, delta_ms: int) -> None:
        self._ms += delta_ms

    def set_ms(self, now_ms: int) -> None:
        self._ms = now_ms
