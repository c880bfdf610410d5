"""Clocks: all code reads the time from a clock that tests can move."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Protocol

HOUR_MS = 3_600_000
AGE_UNITS_MS = {"s": 1_000, "m": 60_000, "h": HOUR_MS, "d": 24 * HOUR_MS}
"""Letters of ages and delays, such as `90s` and `2h`."""
SPAN_UNITS_MS = {**AGE_UNITS_MS, "w": 7 * 24 * HOUR_MS, "y": 365 * 24 * HOUR_MS}
"""Of times that people give; RocketMQ's own delays have no weeks and years."""
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


MOMENT = "milliseconds since 1970, a time such as 2026-01-31T12:00 (UTC, or with its zone), or an age such as 2h or 3d"


def read_moment_ms(text: str, now_ms: int, zone: tzinfo | None = UTC) -> int:
    """The time in ms since 1970, in `zone` if the text has none; None: it must have one.

    Raises ValueError, which names the expected forms.
    """
    text = text.strip()
    if re.fullmatch(r"[0-9]+", text):
        return int(text)
    if age := re.fullmatch(r"([0-9]+)\s*([smhdwy])", text):
        return now_ms - int(age[1]) * SPAN_UNITS_MS[age[2]]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"expected {MOMENT}, found {text!r}") from None
    if moment.tzinfo is None and zone is not None:
        moment = moment.replace(tzinfo=zone)
    if moment.tzinfo is None:
        raise ValueError(f"expected a time with its zone, such as {text}Z or {text}+02:00, found none")
    return round(moment.timestamp() * 1000)


def time_ms(moment: datetime) -> int:
    """A moment in whole ms since 1970, without a detour over floating point."""
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


def iso_moment(timestamp_ms: int, timespec: str = "seconds") -> str:
    """UTC, to the second or another unit: 2026-01-31T12:00:00Z."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms)
    return moment.isoformat(timespec=timespec).replace("+00:00", "Z")
