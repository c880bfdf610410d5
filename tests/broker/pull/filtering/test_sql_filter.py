"""Filters as a store asks them: with records."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from tiermq.broker.group.subscription import EXPRESSION_CACHE_BYTES_MAX, Subscription
from tiermq.broker.pull import sql_filter
from tiermq.broker.pull.sql_filter import (
    LOOKUPS_MAX,
    RetryFilter,
    SqlFilter,
    encoded_properties_of,
    filter_of,
)
from tiermq.errors import BadExpression, CorruptRecord
from tiermq.message.message_filter import MessageFilter, TagCodeFilter
from tiermq.message.properties import encode_properties, get_property
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
    good, bad = Subscription("T", "a = 1", "SQL92"), Subscription("T", "a = ", "SQL92")
    assert filter_of(good) is filter_of(good)
    for _ in range(2):
        with pytest.raises(BadExpression, match="expected"):
            filter_of(bad)


HEAVY = [
    ("SQL92", lambda number: " OR ".join([f"a > {number}"] * 250)),
    ("SQL92", lambda number: f"a = {number} OR b IN (" + ",".join(f"'{each:x}'" for each in range(2_500)) + ")"),
    ("TAG", lambda number: "||".join(f"{number}-{each}" for each in range(1_000))),
]


@pytest.mark.parametrize(("kind", "expression"), HEAVY)
def test_what_is_remembered_of_expressions_is_bounded_in_bytes(kind: str, expression: Callable[[int], str]) -> None:
    tracemalloc.start()
    try:
        for number in range(100):
            assert filter_of(Subscription.of("T", expression(number), kind)) is not None
        kept_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept_bytes < 2.5 * EXPRESSION_CACHE_BYTES_MAX, "one cache of filters, and one of tags"


def test_properties_are_found_alike_by_few_names_and_by_many() -> None:
    encoded = b"".join(b"p%d\x01%d\x02" % (number, number) for number in range(300)) + b"p7\x01\x02odd\x02p250\x01\xff"
    absent = " OR ".join(f"z{number} = 1" for number in range(LOOKUPS_MAX + 10))
    for condition, passes in [("p299 = 299", True), ("p7 = 7", True), ("p250 = 250", False), ("p1 = 2", False)]:
        assert SqlFilter(condition).matches_properties(encoded) is passes
        assert SqlFilter(f"{absent} OR {condition}").matches_properties(encoded) is passes


def test_the_properties_of_a_message_are_read_once_however_many_an_expression_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[str] = []

    def counted(encoded: bytes, name: bytes) -> bytes | None:
        looks.append(name.decode())
        return get_property(encoded, name)

    monkeypatch.setattr(sql_filter, "get_property", counted)
    assert not SqlFilter(" OR ".join(f"z{number} = 1" for number in range(255))).matches_properties(b"a\x011\x02")
    assert len(looks) == LOOKUPS_MAX


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
