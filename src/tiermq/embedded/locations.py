"""Directories, tiers, times and waits as programs write them: text or `Path`, relative or not; "1h" or a date."""

from __future__ import annotations

import datetime as dt
import os
import re
from pathlib import Path

from tiermq.clock import EVER_MS, read_moment_ms, time_ms
from tiermq.errors import BadConfig

Location = str | os.PathLike[str]
"""A directory, or (of a tier) a URL."""
Moment = str | int | dt.datetime | dt.timedelta
"""A time: an age ("90s", "15m", "1h", "3d", or a timedelta), an ISO text, a datetime, or milliseconds since 1970."""
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:")


def tier_url(tier: Location) -> str:
    """The URL of a tier: as given, or that of a directory, which may be relative."""
    text = os.fspath(tier)
    if not text:
        raise BadConfig("a tier is a URL such as s3://bucket/prefix, or a directory; found an empty text")
    return text if _SCHEME.match(text) else Path(text).expanduser().absolute().as_uri()


def moment_ms(moment: Moment, now_ms: int) -> int:
    """A moment in milliseconds since 1970. Times without a zone are UTC. Raises BadConfig."""
    if isinstance(moment, str):
        try:
            return read_moment_ms(moment, now_ms)
        except ValueError:
            raise BadConfig(
                "a moment is an age such as 90s, 15m, 1h or 3d, a time such as 2026-01-31T12:00:00Z, a datetime, a "
                f"timedelta, or milliseconds since 1970; found {moment!r}"
            ) from None
    if isinstance(moment, dt.timedelta):
        return now_ms - round(moment.total_seconds() * 1000)
    if isinstance(moment, dt.datetime):
        return time_ms(moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC))
    if type(moment) is not int or not 0 <= moment <= EVER_MS:
        raise BadConfig(f"a moment in milliseconds since 1970 is a whole number of 0 or more, found {moment!r}")
    return moment


def checked_wait(wait_s: float) -> float:
    """How long to wait, in seconds. Raises BadConfig for what is no such time."""
    if not isinstance(wait_s, int | float) or not wait_s >= 0:
        raise BadConfig(f"wait_s: expected seconds, 0 or more, or float('inf') for no limit; found {wait_s!r}")
    return wait_s
