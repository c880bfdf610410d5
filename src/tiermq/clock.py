"""Clocks: all code reads the time from a clock that tests can move."""

from __future__ import annotations

import time
from typing import Protocol

HOUR_MS = 3_600_000
EVER_MS = (1 << 63) - 1
"""No record is younger."""
LINE_INTERVAL_S = 60.0
"""An event that repeats is logged once in this time."""


class Clock(Protocol):
    """Wall time in milliseconds (for records) and monotonic time in seconds (for waiting)."""

    def now_ms(self) -> int: ...

    def monotonic(self) -> float: ...


class SystemClock:
    """The operating system's clock."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
