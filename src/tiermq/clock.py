"""Clocks: all code reads the time from a clock that tests can move."""

from __future__ import annotations

import time
from typing import Protocol

HOUR_MS = 3_600_000
AGE_UNITS_MS = {"s": 1_000, "m": 60_000, "h": HOUR_MS, "d": 24 * HOUR_MS}
"""Letters of ages and delays, such as `90s` and `2h`."""
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
