"""Filters as a store asks them: by tag (the store's own), by SQL92, and for retries.

A message whose properties make an expression fail (a text where a number is needed) does not pass. Expressions are
compiled once and remembered, good and bad ones alike.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from tiermq.broker.filtering.sql_nodes import Node
from tiermq.broker.filtering.sql_parser import parse_counted
from tiermq.broker.filtering.sql_values import NotComparable
from tiermq.broker.subscriptions import SQL92, Subscription
from tiermq.errors import BadExpression, CorruptRecord
from tiermq.message.layout import ReadableBuffer
from tiermq.message.message_filter import EVERYTHING, EXPRESSIONS_KEPT, MessageFilter, TagCodeFilter
from tiermq.message.properties import RETRY_TOPIC, get_property
from tiermq.message.record_head import HeadKind, read_head
from tiermq.remoting.limits import EXPRESSION_TERMS_MAX


@lru_cache(maxsize=EXPRESSIONS_KEPT)
def _compiled(expression: str) -> tuple[Node, int] | BadExpression:
    try:
        return parse_counted(expression)
    except BadExpression as error:
        return error


def compile_sql(expression: str) -> tuple[Node, int]:
    """The condition that an expression is, and what asking it costs. Raises BadExpression."""
    found = _compiled(expression)
    if isinstance(found, BadExpression):
        raise BadExpression(str(found)) from found
    return found


class SqlFilter:
    """An SQL92 expression over the properties of messages, each of which is looked up only when it is needed."""

    __slots__ = ("_evaluate", "expression", "steps")

    def __init__(self, expression: str) -> None:
        """Raises BadExpression."""
        self.expression = expression
        node, self.steps = compile_sql(expression)
        self._evaluate = node.evaluate

    def matches_unit(self, tags_code: int | None, ext_unit: object | None = None) -> bool:  # noqa: ARG002
        return True

    def matches_record(self, record: ReadableBuffer) -> bool:
        return self.matches_properties(encoded_properties_of(record))

    def matches_properties(self, encoded: bytes) -> bool:
        """Whether a message with these properties passes."""

        known: dict[str, str | None] = {}

        def look_up(name: str) -> str | None:
            if name not in known:
                value = get_property(encoded, name.encode())
                known[name] = None if value is None else value.decode("utf-8", "replace")
            return known[name]

        try:
            return self._evaluate(look_up) is True
        except NotComparable:
            return False

    def __repr__(self) -> str:
        return f"SqlFilter({self.expression!r})"


class RetryFilter:
    """For a group's retry topic: what the group filters the topic by that a message was first sent to."""

    __slots__ = ("_filter_of",)
    steps = EXPRESSION_TERMS_MAX
    """Of the longest expression that the group may have."""

    def __init__(self, filter_of: Callable[[str], MessageFilter | None]) -> None:
        """`filter_of` gives the filter of a topic, None for all messages."""
        self._filter_of = filter_of

    def matches_unit(self, tags_code: int | None, ext_unit: object | None = None) -> bool:  # noqa: ARG002
        return True

    def matches_record(self, record: ReadableBuffer) -> bool:
        topic = get_property(encoded_properties_of(record), RETRY_TOPIC.encode())
        chosen = None if topic is None else self._filter_of(topic.decode("utf-8", "replace"))
        return chosen is None or chosen.matches_record(record)


def filter_of(subscription: Subscription) -> MessageFilter | None:
    """How a store filters for a subscription; None lets everything pass. Raises BadExpression."""
    if subscription.class_filter_mode:
        return None
    if subscription.is_by_tag:
        text = subscription.expression.strip()
        if not text or text == EVERYTHING:
            return None
        return _tag_filter(text)
    if subscription.expression_type != SQL92:
        raise BadExpression(f"expected an expression of type TAG or {SQL92}, found {subscription.expression_type!r}")
    return _sql_filter(subscription.expression)


_tag_filter = lru_cache(maxsize=EXPRESSIONS_KEPT)(TagCodeFilter)
_sql_filter = lru_cache(maxsize=EXPRESSIONS_KEPT)(SqlFilter)
"""Pulls that bring the same expression share its filter: thousands of them may be held."""


def encoded_properties_of(record: ReadableBuffer) -> bytes:
    head = read_head(record)
    if head.kind is not HeadKind.OK:
        raise CorruptRecord(f"record at {head.reason or 'byte 0: a blank record'}")
    start = head.properties_position
    return bytes(record[start : start + head.properties_length])
