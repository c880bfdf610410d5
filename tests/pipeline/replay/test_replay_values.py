"""What a replay makes of a message."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.errors import BadOption
from tiermq.pipeline.replay.message import (
    LEFT_BEHIND,
    MARK,
    ROW_COLUMNS,
    ReplayMapping,
    ReplayMessage,
    SourcePosition,
    function_of,
    message_of_row,
)

SOURCE = SourcePosition("broker-a", "orders", 3, 7)
MESSAGE = ReplayMessage("orders", b"body", 3, SOURCE, "paid", ("k1", "k2"), {"a": "1"})
WORLD = "pipeline.replay.replay_world"


def row(**changes: Any) -> dict[str, Any]:
    moment = dt.datetime(2026, 1, 31, tzinfo=dt.UTC)
    values = ("orders", "broker-a", 3, 7, "paid", ["k1"], b"body", [("a", "1")], 5, moment, moment)
    return {**dict(zip(ROW_COLUMNS, values, strict=True)), **changes}


@given(
    st.from_regex(r"[^\n]+", fullmatch=True),
    st.from_regex(r"[%|a-zA-Z0-9_-]+", fullmatch=True),
    st.integers(0, 1 << 31),
    st.integers(0, 1 << 60),
)
def test_a_place_is_its_text(broker: str, topic: str, queue_id: int, offset: int) -> None:
    place = SourcePosition(broker, topic, queue_id, offset)
    assert SourcePosition.of(place.text) == place


def test_a_row_becomes_a_message_without_what_belonged_to_its_delivery() -> None:
    given_properties = [("a", "1"), ("empty", ""), *((name, "x") for name in LEFT_BEHIND)]
    made = message_of_row(row(properties=given_properties))
    assert made == replace(
        MESSAGE, keys=("k1",), flag=5, born_timestamp_ms=1769817600000, store_timestamp_ms=1769817600000
    )
    assert MARK in LEFT_BEHIND
    assert message_of_row(row(properties={"a": "1"})).properties == {"a": "1"}


def test_a_row_may_lack_what_a_message_may_lack() -> None:
    made = message_of_row(row(tags=None, keys=None, body=None, properties=None, flag=None, bornTimestamp=None))
    assert (made.tags, made.keys, made.body, made.properties, made.born_timestamp_ms) == ("", (), b"", {}, 0)


def test_options_apply_after_the_function_and_the_place_stays() -> None:
    mapping = ReplayMapping("again", 2, (("why", "test"),), f"{WORLD}:moved")
    made = mapping.apply(MESSAGE)
    assert made == replace(MESSAGE, topic="again", queue_id=1, properties={"a": "1", "why": "test"})
    assert ReplayMapping().apply(MESSAGE) is MESSAGE
    assert ReplayMapping(function=f"{WORLD}:shouted").apply(MESSAGE) is None


@pytest.mark.parametrize(
    ("function", "reported"),
    [
        (f"{WORLD}:wrong", "found bytes .*broker-a/orders/3/7"),
        (f"{WORLD}:failing", "KeyError.*same record"),
        ("nowhere:f", "importable"),
        (":f", "module:function"),
    ],
)
def test_a_function_that_does_not_do_is_named_with_its_message(function: str, reported: str) -> None:
    with pytest.raises(BadOption, match=reported):
        ReplayMapping(function=function).apply(MESSAGE)


def test_a_function_is_looked_up_once() -> None:
    assert function_of(f"{WORLD}:shouted") is function_of(f"{WORLD}:shouted")
