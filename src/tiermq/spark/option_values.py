"""Texts of options as values. Spark hands every option over as text, so each kind of value has one reader here.

Each reader takes a text and raises ValueError with what it expected; the caller adds the option's name. Offsets are
`earliest`, `latest`, a number, or JSON by topic, broker and queue (`queue_offsets`).
"""

from __future__ import annotations

import datetime as dt
import json
import re
from typing import Any

from tiermq.clock import time_ms
from tiermq.config import StoreConfig
from tiermq.errors import BadConfig
from tiermq.pipeline.scan.queue_offsets import Edge, EveryQueue, QueueNumber, QueueOffsets, queue_list, queue_numbers
from tiermq.settings import LONG_MAX

_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_SIZE_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|min|h|d|seconds?|minutes?|hours?|days?)?", re.IGNORECASE)
_DURATION_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_EXCERPT = 24


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


def read_delay_levels(text: str) -> tuple[int, ...]:
    """RocketMQ's `messageDelayLevel`: the delay of each level in ms."""
    try:
        return StoreConfig(message_delay_level=text).delay_levels_ms
    except BadConfig:
        raise ValueError("delays such as 1s 5m 2h 1d") from None


def read_settings(text: str) -> dict[str, Any]:
    """A JSON object."""
    document = _read_json(text)
    if not isinstance(document, dict):
        raise ValueError("a JSON object")  # noqa: TRY004 - as every reader here.
    return document


def read_offsets(text: str) -> QueueOffsets:
    """`startingOffsets`, `endingOffsets`: a word, a number or JSON with offsets."""
    word = text.strip().lower()
    if word in list(Edge):
        return Edge(word)
    if word.isascii() and word.isdigit() and int(word) <= LONG_MAX:
        return EveryQueue(int(word))
    if not word.startswith("{"):
        raise ValueError('earliest, latest, an offset, or JSON such as {"topic": {"broker-a": {"0": 100}}}')
    return queue_numbers(_read_json(text))


def read_times(text: str) -> tuple[QueueNumber, ...]:
    """`startingOffsetsByTimestamp`, `endingOffsetsByTimestamp`: JSON with ms since 1970."""
    return queue_numbers(_read_json(text), lowest=0)


def read_queues(text: str) -> tuple[QueueNumber, ...]:
    """`assign`: JSON with lists of queue ids."""
    return queue_list(_read_json(text))


def _read_json(text: str) -> Any:
    def pairs(entries: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in entries]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"JSON that names everything once, found {name!r} twice")
        return dict(entries)

    try:
        return json.loads(text, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        before = text[max(0, error.pos - _EXCERPT) : error.pos]
        after = text[error.pos : error.pos + _EXCERPT]
        raise ValueError(f"JSON ({error.msg}, at character {error.pos + 1}: {before}<here>{after})") from None
