"""Places, times, waits and numbers as programs write them: text or `Path`, relative or not; "1h" or a date."""

from __future__ import annotations

import datetime as dt
import operator
import os
import re
from pathlib import Path

from tiermq.clock import EVER_MS, read_moment_ms, time_ms
from tiermq.errors import BadConfig

Location = str | os.PathLike[str]
"""A directory, or (of a tier) a URL."""
Moment = str | int | dt.date | dt.timedelta
"""A time: an age ("90s", "15m", "1h", "3d", or a timedelta), an ISO text, a date (its midnight in UTC), a datetime, or
milliseconds since 1970.
"""
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:")
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://|file:")


def tier_url(tier: Location) -> str:
    """The URL of a tier: as given, or that of a directory, which may be relative."""
    text = _text_of(tier, "a tier is a URL such as s3://bucket/prefix, or a directory")
    return text if _SCHEME.match(text) else _expanded(text).absolute().as_uri()


def store_directory(path: Location) -> Path:
    """The directory of a store. Raises BadConfig for what is none, such as the URL of a tier."""
    text = _text_of(path, "a store is in a directory, given as text or a Path")
    if _URL.match(text):
        raise BadConfig(
            f"a store is in a directory of this machine, found the URL {text!r}: give a path, and a URL with tier= of "
            "TieredStore.open"
        )
    return _expanded(text)


def _text_of(place: Location, expected: str) -> str:
    text = os.fspath(place) if isinstance(place, str | os.PathLike) else place
    if not isinstance(text, str) or not text:
        raise BadConfig(f"{expected}; found {'an empty text' if text == '' else repr(place)}")
    return text


def _expanded(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise BadConfig(
            f"{text}: expected a path with the home of a user of this machine, found none: {error}"
        ) from None


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
    if isinstance(moment, dt.date):
        return time_ms(dt.datetime(moment.year, moment.month, moment.day, tzinfo=dt.UTC))
    if type(moment) is not int or not 0 <= moment <= EVER_MS:
        raise BadConfig(f"a moment in milliseconds since 1970 is a whole number of 0 or more, found {moment!r}")
    return moment


def checked_wait(wait_s: float) -> float:
    """How long to wait, in seconds. Raises BadConfig for what is no such time."""
    if not isinstance(wait_s, int | float) or not wait_s >= 0:
        raise BadConfig(f"wait_s: expected seconds, 0 or more, or float('inf') for no limit; found {wait_s!r}")
    return wait_s


def checked_count(name: str, value: int, least: int = 0) -> int:
    """A number of messages, a queue or an offset. Raises BadConfig for what is no whole number of `least` or more."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise BadConfig(f"{name}: expected a whole number of {least} or more, found {value!r}")
    return number
