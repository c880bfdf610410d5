"""Where a group begins in a queue that it has no offset for: at the first message, behind the last, or at a time."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from tiermq.errors import BadConfig

Start = Literal["first", "last"] | datetime | int
"""A time is a datetime with its time zone, or milliseconds."""


def checked_start(start: Start) -> Literal["first", "last"] | int:
    """`first`, `last`, or a time in milliseconds. Raises BadConfig."""
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise BadConfig(f"start: expected a time with its time zone, found {start}")
        return round(start.timestamp() * 1000)
    if start in ("first", "last") or (type(start) is int and start >= 0):
        return start
    raise BadConfig(f"start: expected 'first', 'last', a datetime or milliseconds, found {start!r}")
