"""Attributes of topics and groups: what they may be, and how they change.

    mqadmin writes    +message.type=FIFO,-reserve.time        sets the first, removes the second
    as a JSON map     {"+message.type": "FIFO", "-reserve.time": ""}

Invariants: an attribute that is not listed here is refused, and so is one that cannot change; a refused change changes
nothing. Remarks are RocketMQ's, which tools show. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from tiermq.errors import RequestRefused
from tiermq.message.topic_name import topic_problem
from tiermq.namesrv.topic_config import RETENTION
from tiermq.remoting.codes import ResponseCode
from tiermq.settings import LONG_MAX

Rule = Callable[[str], str | None]
"""Why a value is refused; None when it is not."""

MESSAGE_TYPE = "message.type"
BY_PRIORITY = "PRIORITY"
"""A type of messages: the number of a message's queue is its priority."""
LITE = "LITE"
"""A type of messages: they belong to lite topics below the topic."""
LITE_EXPIRATION = "lite.topic.expiration"
LITE_EXPIRATION_MINUTES_MAX = 30 * 24 * 60
LITE_BIND_TOPIC = "lite.bind.topic"
LITE_MODEL = "lite.sub.model"
LITE_EXCLUSIVE = "Exclusive"
LITE_RESET_TAKEN = "lite.sub.reset.offset.exclusive"
LITE_RESET_LEFT = "lite.sub.reset.offset.unsubscribe"
LITE_CLIENT_QUOTA = "lite.sub.client.quota"
LITE_CLIENT_QUOTA_MAX = 100_000


def _in_range(low: int, high: int) -> Rule:
    def refusal(value: str) -> str | None:
        digits = value.removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) < 20 and low <= int(value) <= high:
            return None
        return f"value is not in range({low}, {high}): {value[:40]}"

    return refusal


def _one_of(*choices: str) -> Rule:
    return lambda value: None if value in choices else f"value is not in set: [{', '.join(choices)}]"


TOPIC_ATTRIBUTES: Mapping[str, Rule] = {
    "queue.type": _one_of("SimpleCQ", "BatchCQ"),
    "cleanup.policy": _one_of("DELETE", "COMPACTION"),
    MESSAGE_TYPE: _one_of("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", LITE, BY_PRIORITY),
    **dict.fromkeys(RETENTION, _in_range(-1, LONG_MAX)),
    LITE_EXPIRATION: _in_range(-1, LITE_EXPIRATION_MINUTES_MAX),
}
FIXED = frozenset({"queue.type", "cleanup.policy"})
"""They decide how messages are stored."""
GROUP_ATTRIBUTES: Mapping[str, Rule] = {
    LITE_BIND_TOPIC: topic_problem,
    LITE_MODEL: _one_of("Shared", LITE_EXCLUSIVE),
    LITE_RESET_TAKEN: _one_of("true", "false"),
    LITE_RESET_LEFT: _one_of("true", "false"),
    LITE_CLIENT_QUOTA: _in_range(1, LITE_CLIENT_QUOTA_MAX),
}


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


def signed_changes(attributes: Mapping[str, str]) -> dict[str, str | None]:
    """The same, of a map whose names have signs. Raises RequestRefused."""
    return parse_attributes(
        ",".join(name if name.startswith("-") else f"{name}={value}" for name, value in attributes.items())
    )


def altered_attributes(
    current: Mapping[str, str] | None,
    changes: Mapping[str, str | None],
    *,
    rules: Mapping[str, Rule] = TOPIC_ATTRIBUTES,
    fixed: Collection[str] = FIXED,
    mixed_allowed: bool = False,
) -> dict[str, str]:
    """The attributes after a change; `current` is None for a new topic or group. Raises RequestRefused."""
    result = dict(current or {})
    for name, value in changes.items():
        if name not in rules:
            raise RequestRefused(f"unsupported key: {name}")
        if current is None and value is None:
            raise RequestRefused(f"only add attribute is supported while creating topic. key: {name}")
        if current is not None and name in fixed:
            raise RequestRefused(f"attempt to update an unchangeable attribute. key: {name}")
        if value is None:
            if name not in result:
                raise RequestRefused(f"attempt to delete a nonexistent key: {name}")
            del result[name]
            continue
        if (refusal := rules[name](value)) is not None:
            raise RequestRefused(refusal)
        result[name] = value
    if result.get(MESSAGE_TYPE) == "MIXED" and not mixed_allowed:
        raise RequestRefused("MIXED message type is not supported.", ResponseCode.INVALID_PARAMETER)
    return result


def with_retention(attributes: Mapping[str, str], hours: int, max_bytes: int) -> dict[str, str]:
    """The attributes for that retention; none for -1."""
    found = {name: value for name, value in attributes.items() if name not in RETENTION}
    return found | {name: str(value) for name, value in zip(RETENTION, (hours, max_bytes), strict=True) if value > 0}
