"""Subscription and Heartbeat: what clients report in heartbeats, as values; a cache of parsed expressions.

    {"classFilterMode":false,"codeSet":[2598919],"expressionType":"TAG","subString":"TagA","subVersion":1700000000000,
     "tagsSet":["TagA"],"topic":"TopicTest"}

Invariants: values never change. Enums are read by name or number, and unknown values become RocketMQ's default; a
body that is no heartbeat is refused whole.
"""

from __future__ import annotations

import enum
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tiermq.errors import RequestRefused
from tiermq.message.message_filter import EVERYTHING, TAG, TAG_BYTES, TAG_SEPARATOR, tags_in
from tiermq.remoting.json_dialect import (
    as_bool,
    as_int,
    as_name,
    decode_object,
    int32_in,
    int64_in,
    list_in,
    object_in,
    text_in,
)
from tiermq.remoting.limits import check_count

EXPRESSION_CACHE_BYTES_MAX = 8 * 1024 * 1024
Made = TypeVar("Made")


class ExpressionCache(Generic[Made]):
    """What was made of expressions, so that each is read once. Thread-safe.

    Weighed, since clients write them: at most EXPRESSION_CACHE_BYTES_MAX by `weigh`, and the one that was not asked for
    the longest goes first.
    """

    def __init__(self, make: Callable[[str], Made], weigh: Callable[[Made], int]) -> None:
        self._make = make
        self._weigh = weigh
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[Made, int]] = OrderedDict()
        self.bytes = 0

    def __call__(self, expression: str) -> Made:
        """What `make` makes of it; raises what that raises."""
        with self._lock:
            known = self._kept.get(expression)
            if known is not None:
                self._kept.move_to_end(expression)
                return known[0]
        made = self._make(expression)
        weight = self._weigh(made) + 4 * len(expression)
        with self._lock:
            if expression not in self._kept:
                self._kept[expression] = made, weight
                self.bytes += weight
            while self.bytes > EXPRESSION_CACHE_BYTES_MAX:
                self.bytes -= self._kept.popitem(last=False)[1][1]
        return made


EXPRESSION_TAGS_MAX = 1_024

EXPRESSION_CHARACTERS_MAX = 16 * 1024
"""Of one subscription: tags, or an SQL92 expression."""

HEARTBEAT_TAGS_MAX = 20_000
"""Tags of all these, and as many codes."""

HEARTBEAT_SUBSCRIPTIONS_MAX = 5_000
"""Subscriptions of one heartbeat, over all its groups."""

HEARTBEAT_GROUPS_MAX = 2_000
"""Groups of one client, producers' and consumers'."""


class ConsumeType(enum.IntEnum):
    CONSUME_ACTIVELY = 0
    CONSUME_PASSIVELY = 1
    CONSUME_POP = 2


class MessageModel(enum.IntEnum):
    BROADCASTING = 0
    CLUSTERING = 1


class ConsumeFromWhere(enum.IntEnum):
    CONSUME_FROM_LAST_OFFSET = 0
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = 1
    CONSUME_FROM_MIN_OFFSET = 2
    CONSUME_FROM_MAX_OFFSET = 3
    CONSUME_FROM_FIRST_OFFSET = 4
    CONSUME_FROM_TIMESTAMP = 5


def check_expression(text: str) -> None:
    """Before it is parsed. Raises RequestRefused."""
    check_count("characters in the expression of a subscription", len(text), EXPRESSION_CHARACTERS_MAX)
    check_count("tags in the expression of a subscription", text.count(TAG_SEPARATOR) + 1, EXPRESSION_TAGS_MAX)


_tags_in = ExpressionCache(tags_in, lambda made: TAG_BYTES * len(made[0]))
"""Each pull may bring its own."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which messages of a topic a group consumes."""

    topic: str
    expression: str = EVERYTHING
    expression_type: str = TAG
    tags: frozenset[str] = frozenset()
    codes: frozenset[int] = frozenset()
    version: int = 0
    class_filter_mode: bool = False

    @property
    def is_by_tag(self) -> bool:
        return not self.expression_type or self.expression_type == TAG

    @classmethod
    def of(cls, topic: str, expression: str | None, expression_type: str | None, version: int = 0) -> Subscription:
        """From a pull with an expression of its own. Raises RequestRefused if it is invalid."""
        kind = expression_type or TAG
        text = expression or ""
        check_expression(text)
        if kind != TAG:
            if not text.strip():
                raise RequestRefused(f"expected an expression of type {kind}, found none")
            return cls(topic, text, kind, version=version)
        if not text or text == EVERYTHING:
            return cls(topic, version=version)
        tags, codes = _tags_in(text)
        if not tags:
            raise RequestRefused(f"expected * or tags joined with {TAG_SEPARATOR}, found {text[:40]!r}")
        return cls(topic, text, TAG, tags, codes, version)

    def to_json(self) -> dict[str, Any]:
        return {
            "classFilterMode": self.class_filter_mode,
            "codeSet": sorted(self.codes),
            "expressionType": self.expression_type,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": sorted(self.tags),
            "topic": self.topic,
        }

    @classmethod
    def from_json(cls, value: object) -> Subscription:
        """Raises RequestRefused."""
        table = object_in(value, "a subscription")
        topic = text_in(table.get("topic"), "topic")
        if not topic:
            raise RequestRefused("expected a subscription with a topic, found one without")
        tags = frozenset(text_in(tag, "tagsSet") for tag in list_in(table, "tagsSet"))
        expression = text_in(table.get("subString"), "subString")
        check_expression(expression)
        return cls(
            topic,
            expression,
            text_in(table.get("expressionType"), "expressionType") or TAG,
            tags,
            frozenset(as_int(code) for code in list_in(table, "codeSet")),
            int64_in(table, "subVersion"),
            as_bool(table.get("classFilterMode")),
        )


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """A heartbeat's data of one consumer group of the client."""

    group: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscriptions: tuple[Subscription, ...] = ()
    unit_mode: bool = False


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A client, and the groups that it is in."""

    client_id: str
    producers: tuple[str, ...] = ()
    consumers: tuple[ConsumerData, ...] = ()
    fingerprint: int = 0
    without_subscriptions: bool = False

    @classmethod
    def decode(cls, body: bytes | memoryview) -> Heartbeat:
        """Raises RequestRefused for a body that is no heartbeat."""
        table = decode_object(body)
        client_id = text_in(table.get("clientID"), "clientID")
        if not client_id:
            raise RequestRefused("expected a heartbeat with a clientID, found one without")
        _check_counts(table)
        return cls(
            client_id,
            tuple(_group_in(each) for each in list_in(table, "producerDataSet")),
            tuple(_consumer_in(each) for each in list_in(table, "consumerDataSet")),
            int32_in(table, "heartbeatFingerprint"),
            as_bool(table.get("withoutSub")),
        )


def _check_counts(table: dict[str, Any]) -> None:
    """Before anything is made of it: see `remoting/limits.py`. Raises RequestRefused."""
    consumers = [object_in(each, "an element of consumerDataSet") for each in list_in(table, "consumerDataSet")]
    groups = len(consumers) + len(list_in(table, "producerDataSet"))
    check_count("groups of a client", groups, HEARTBEAT_GROUPS_MAX)
    lists = [list_in(each, "subscriptionDataSet") for each in consumers]
    check_count("subscriptions in a heartbeat", sum(map(len, lists)), HEARTBEAT_SUBSCRIPTIONS_MAX)
    subscriptions = [each for every in lists for each in every if isinstance(each, dict)]
    for name in ("tagsSet", "codeSet"):
        check_count(
            f"entries of {name} in a heartbeat",
            sum(len(list_in(each, name)) for each in subscriptions),
            HEARTBEAT_TAGS_MAX,
        )


def _consumer_in(value: object) -> ConsumerData:
    table = object_in(value, "an element of consumerDataSet")
    return ConsumerData(
        _group_in(table),
        as_name(table.get("consumeType"), ConsumeType, ConsumeType.CONSUME_PASSIVELY),
        as_name(table.get("messageModel"), MessageModel, MessageModel.CLUSTERING),
        as_name(table.get("consumeFromWhere"), ConsumeFromWhere, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET),
        tuple(Subscription.from_json(each) for each in list_in(table, "subscriptionDataSet")),
        as_bool(table.get("unitMode")),
    )


def _group_in(value: object) -> str:
    name = text_in(object_in(value, "a group of a heartbeat").get("groupName"), "groupName")
    if not name:
        raise RequestRefused("expected a heartbeat's groups to have a groupName, found one without")
    return name
