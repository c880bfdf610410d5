"""Attributes of a topic as mqadmin writes them, and what they may be.

    +message.type=FIFO,-reserve.time        add or change the first, take away the second

Invariants: what is refused changes nothing; a new topic is only given attributes; those that decide how its messages
are stored (`queue.type`, `cleanup.policy`) never change. The words of refusals are RocketMQ's, which tools show.
"""

from __future__ import annotations

from collections.abc import Mapping

from tiermq.errors import RequestRefused
from tiermq.namesrv.topic_config import LONG_MAX
from tiermq.remoting.codes import ResponseCode

MESSAGE_TYPE = "message.type"
RESERVE_TIME = "reserve.time"
"""RocketMQ's: how many hours the tier keeps a topic's messages; 0 and -1: the broker's setting."""
RESERVE_BYTES = "reserve.bytes"
"""Ours: how many bytes of a topic the tier keeps, by the same rule."""
RETENTION = (RESERVE_TIME, RESERVE_BYTES)
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "queue.type": ("SimpleCQ", "BatchCQ"),
    "cleanup.policy": ("DELETE", "COMPACTION"),
    MESSAGE_TYPE: ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"),
}
_FIXED = frozenset({"queue.type", "cleanup.policy"})


def parse_attributes(text: str) -> dict[str, str | None]:
    """Name → value, or None to take it away. Raises RequestRefused."""
    found: dict[str, str | None] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        sign, name = name[:1], name[1:]
        if not name or sign not in ("+", "-") or (sign == "+") != bool(equals):
            what = "add/alter" if equals else "delete"
            raise RequestRefused(f"{what} attribute format is wrong: {part.partition('=')[0]}")
        if name in found:
            raise RequestRefused(f"key duplication: {name}")
        found[name] = value if sign == "+" else None
    return found


def altered_attributes(
    current: Mapping[str, str] | None, changes: Mapping[str, str | None], *, mixed_allowed: bool = False
) -> dict[str, str]:
    """The attributes after a change; `current` is None for a new topic. Raises RequestRefused."""
    result = dict(current or {})
    for name, value in changes.items():
        if name not in RETENTION and name not in _CHOICES:
            raise RequestRefused(f"unsupported key: {name}")
        if current is None and value is None:
            raise RequestRefused(f"only add attribute is supported while creating topic. key: {name}")
        if current is not None and name in _FIXED:
            raise RequestRefused(f"attempt to update an unchangeable attribute. key: {name}")
        if value is None:
            if name not in result:
                raise RequestRefused(f"attempt to delete a nonexistent key: {name}")
            del result[name]
            continue
        _check_value(name, value)
        result[name] = value
    if result.get(MESSAGE_TYPE) == "MIXED" and not mixed_allowed:
        raise RequestRefused("MIXED message type is not supported.", ResponseCode.INVALID_PARAMETER)
    return result


def _check_value(name: str, value: str) -> None:
    if name in RETENTION:
        digits = value.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and -1 <= int(value) <= LONG_MAX):
            raise RequestRefused(f"value is not in range(-1, {LONG_MAX}): {value[:40]}")
    elif value not in _CHOICES[name]:
        raise RequestRefused(f"value is not in set: [{', '.join(_CHOICES[name])}]")


def retention_of(attributes: Mapping[str, str]) -> tuple[int, int]:
    """The hours and bytes that a topic's attributes say; -1 for the broker's setting."""
    hours, size = (int(attributes.get(name, -1)) for name in RETENTION)
    return hours if hours > 0 else -1, size if size > 0 else -1


def with_retention(attributes: Mapping[str, str], hours: int, max_bytes: int) -> dict[str, str]:
    """The attributes that say so; none for -1."""
    found = {name: value for name, value in attributes.items() if name not in RETENTION}
    return found | {name: str(value) for name, value in zip(RETENTION, (hours, max_bytes), strict=True) if value > 0}
