"""Texts of options as values. Spark hands every option over as text, so each kind of value has one reader here.

Each reader takes a text and raises ValueError with what it expected; who knows the option's name adds it.
"""

from __future__ import annotations

import datetime as dt
import json
import re

from tiermq.config import StoreConfig
from tiermq.errors import BadConfig

_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_SIZE_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|min|h|d|seconds?|minutes?|hours?|days?)?", re.IGNORECASE)
_DURATION_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
LONG_MAX = (1 << 63) - 1


def read_text(text: str) -> str:
    if not text.strip():
        raise ValueError("a text that is not empty")
    return text.strip()


def read_texts(text: str) -> tuple[str, ...]:
    """A list: separated by commas, or a JSON list where an entry has a comma in it."""
    if text.lstrip().startswith("["):
        try:
            entries = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"a JSON list of texts ({error.msg} at character {error.pos + 1})") from None
        if not all(isinstance(entry, str) and entry for entry in entries):
            raise ValueError("a JSON list whose entries are texts that are not empty")
    else:
        entries = [entry.strip() for entry in text.split(",")]
        if not all(entries):
            raise ValueError("a list separated by commas, without empty entries")
    return tuple(dict.fromkeys(entries))


def read_tags(text: str) -> tuple[str, ...]:
    """Tags as RocketMQ's subscriptions write them, `a || b`, or as a list; `*` means every tag."""
    if "||" in text:
        text = ",".join(part.strip() for part in text.split("||"))
    tags = read_texts(text)
    return () if tags == ("*",) else tags


def read_bool(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.strip().lower() == "true"


def read_count(text: str) -> int:
    """A number of 1 or more."""
    if not re.fullmatch(r"\d+", text.strip()) or not 1 <= int(text) <= LONG_MAX:
        raise ValueError("a whole number of 1 or more")
    return int(text)


def read_queue_ids(text: str) -> tuple[int, ...]:
    """`0,2,5-7`."""
    found: list[int] = []
    for part in text.split(","):
        matched = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if matched is None or (matched[2] is not None and int(matched[2]) < int(matched[1])):
            raise ValueError("queue ids such as 0,2,5-7")
        found.extend(range(int(matched[1]), int(matched[2] or matched[1]) + 1))
    return tuple(dict.fromkeys(found))


def read_bytes(text: str) -> int:
    """A size: bytes, or with k, m, g, t for powers of 1024."""
    matched = _SIZE.fullmatch(text.strip())
    if matched is None or not int(matched[1]):
        raise ValueError("a size of 1 byte or more, such as 1048576, 64m or 1g")
    return min(int(matched[1]) << _SIZE_SHIFTS[matched[2].lower()], LONG_MAX)


def read_duration_ms(text: str) -> int:
    """A time span in ms; a number alone is milliseconds."""
    matched = _DURATION.fullmatch(text.strip())
    if matched is None:
        raise ValueError("a time span such as 500ms, 20s, 15m or 1h")
    unit = (matched[2] or "ms").lower()
    return int(matched[1]) * _DURATION_MS[unit if unit == "ms" else unit[0]]


def read_time_ms(text: str) -> int:
    """A moment in ms since 1970: that number, or ISO 8601 with its zone, as the session's zone is not known here."""
    text = text.strip()
    if re.fullmatch(r"\d+", text):
        return int(text)
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("milliseconds since 1970, or a time such as 2026-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        raise ValueError(f"a time with its zone, such as {text}Z or {text}+02:00")
    return time_ms(moment)


def time_ms(moment: dt.datetime) -> int:
    """A moment in whole ms since 1970, without a detour over floating point."""
    since = moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


def read_delay_levels(text: str) -> tuple[int, ...]:
    """RocketMQ's `messageDelayLevel`: the delay of each level in ms."""
    try:
        return StoreConfig(message_delay_level=text).delay_levels_ms
    except BadConfig:
        raise ValueError("delays such as 1s 5m 2h 1d") from None
