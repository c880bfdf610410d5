"""Where a group begins in a queue that it has no offset for: at the first message, behind the last, or at a time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

from tiermq.clock import SystemClock, read_moment_ms
from tiermq.errors import BadConfig

Start = str | datetime | timedelta | int
"""`first`, `last`, or a time: a datetime with its zone, an age (`1h`, a timedelta), ISO text with its zone, or ms."""


def checked_start(start: Start, option: str = "start") -> Literal["first", "last"] | int:
    """`first`, `last`, or a time in milliseconds. Raises BadConfig."""
    if start == "first":
        return "first"
    if start == "last":
        return "last"
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise BadConfig(f"{option}: expected a time with its time zone, found {start}")
        return round(start.timestamp() * 1000)
    if isinstance(start, timedelta):
        return max(0, SystemClock().now_ms() - round(start.total_seconds() * 1000))
    if isinstance(start, str):
        try:
            return max(0, read_moment_ms(start, SystemClock().now_ms(), zone=None))
        except ValueError:
            pass
    if type(start) is int and start >= 0:
        return start
    raise BadConfig(
        f"{option}: expected 'first', 'last', an age such as 1h, a datetime, a time with its zone such as "
        f"2026-01-31T12:00:00Z, or milliseconds, found {start!r}"
    )
