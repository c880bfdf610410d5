"""Filters as a store asks them: with records."""

from __future__ import annotations

import pytest

from tiermq.broker.filtering.compiled import RetryFilter, SqlFilter, compile_sql, encoded_properties_of, filter_of
from tiermq.broker.subscriptions import Subscription
from tiermq.errors import BadExpression, CorruptRecord
from tiermq.message.message_filter import MessageFilter, TagCodeFilter
from tiermq.message.properties import encode_properties
from tiermq.message.record import encode_record


def record(**properties: str) -> bytes:
    return encode_record(topic="T", body=b"body", properties=encode_properties(properties))


def test_an_expression_chooses_records_by_their_properties() -> None:
    chosen = SqlFilter("n > 5 AND TAGS = 'A'")
    assert isinstance(chosen, MessageFilter)
    assert chosen.matches_unit(7, None)
    assert chosen.matches_record(record(n="6", TAGS="A"))
    assert not chosen.matches_record(record(n="5", TAGS="A"))
    assert not chosen.matches_record(record(n="six", TAGS="A")), "an error is no yes"
    assert not chosen.matches_record(record(TAGS="A")), "nothing is no yes"
    assert chosen.matches_record(memoryview(record(n="6", TAGS="A")))


def test_a_property_that_is_not_utf8_is_a_value_like_any_other() -> None:
    assert SqlFilter("n IS NOT NULL").matches_properties(b"n\x01\xff\xfe\x02")


def test_expressions_are_compiled_once_good_and_bad_ones_alike() -> None:
    assert compile_sql("a = 1") is compile_sql("a = 1")
    for _ in range(2):
        with pytest.raises(BadExpression, match="expected"):
            compile_sql("a = ")


@pytest.mark.parametrize(
    ("subscription", "kind"),
    [
        (Subscription("T"), type(None)),
        (Subscription("T", ""), type(None)),
        (Subscription("T", " * "), type(None)),
        (Subscription("T", "A || B"), TagCodeFilter),
        (Subscription("T", "a = 1", "SQL92"), SqlFilter),
        (Subscription("T", "a = 1", "SQL92", class_filter_mode=True), type(None)),
    ],
)
def test_a_subscription_has_the_filter_of_its_kind(subscription: Subscription, kind: type) -> None:
    assert type(filter_of(subscription)) is kind


def test_a_kind_that_nobody_knows_is_refused() -> None:
    with pytest.raises(BadExpression, match="XPATH"):
        filter_of(Subscription("T", "a", "XPATH"))


def test_a_retry_is_filtered_as_its_first_topic_is() -> None:
    chosen = RetryFilter({"T": SqlFilter("n = 1")}.get)
    assert chosen.matches_unit(None)
    assert chosen.matches_record(record(n="1", RETRY_TOPIC="T"))
    assert not chosen.matches_record(record(n="2", RETRY_TOPIC="T"))
    assert chosen.matches_record(record(n="2", RETRY_TOPIC="U"))
    assert chosen.matches_record(record(n="2"))


def test_bytes_that_are_no_record_are_damage() -> None:
    for data in (b"", bytes(100), record(n="1")[:-1]):
        with pytest.raises(CorruptRecord):
            encoded_properties_of(data)
