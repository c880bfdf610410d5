"""What a group wants of a topic, as brokers read it."""

from __future__ import annotations

import pytest

from tiermq.client.member.subscription import Subscription
from tiermq.errors import BadExpression, IllegalMessage
from tiermq.message.message_filter import SQL92


def test_tags_are_described_with_their_hashes() -> None:
    made = Subscription.of("orders", "TagA || paid", None, 7)
    assert made.described() == {
        "classFilterMode": False,
        "codeSet": sorted([2598919, 3433164]),
        "expressionType": "TAG",
        "subString": "TagA || paid",
        "subVersion": 7,
        "tagsSet": ["TagA", "paid"],
        "topic": "orders",
    }
    assert [made.wants(tag) for tag in ("TagA", "paid", "other", None)] == [True, True, False, False]


def test_everything_is_wanted_without_a_filter() -> None:
    for tags in (None, "", "*", " * "):
        assert Subscription.of("orders", tags, None, 1).expression == "*"
        assert Subscription.of("orders", tags, None, 1).wants(None)


def test_a_condition_is_left_to_the_broker() -> None:
    made = Subscription.of("orders", None, "amount > 3", 1)
    assert (made.kind, made.expression, made.tags) == (SQL92, "amount > 3", frozenset())


@pytest.mark.parametrize(("tags", "sql"), [("a", "b > 1"), (None, " "), ("||", None)])
def test_what_is_no_filter_is_refused(tags: str | None, sql: str | None) -> None:
    with pytest.raises(BadExpression):
        Subscription.of("orders", tags, sql, 1)


def test_what_is_no_topic_is_refused() -> None:
    with pytest.raises(IllegalMessage):
        Subscription.of("or ders", None, None, 1)
