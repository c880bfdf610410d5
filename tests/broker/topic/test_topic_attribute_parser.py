"""Attributes of topics as mqadmin writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.broker.topic.attributes import altered_attributes, parse_attributes
from tiermq.errors import RequestRefused
from tiermq.remoting.codes import ResponseCode

NAMES = st.text(alphabet="abcdefghij.", min_size=1)
VALUES = st.text(alphabet="abcXYZ0123-", min_size=0)


@given(st.dictionaries(NAMES, st.none() | VALUES))
def test_what_is_written_is_read(changes: dict[str, str | None]) -> None:
    text = ",".join(f"-{name}" if value is None else f"+{name}={value}" for name, value in changes.items())
    assert parse_attributes(text) == changes


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse_attributes(text)
    except RequestRefused:
        return


@pytest.mark.parametrize("text", ["message.type=FIFO", "+message.type", "-message.type=FIFO", "+=x", "+a=1,+a=2"])
def test_what_is_no_change_is_refused(text: str) -> None:
    with pytest.raises(RequestRefused):
        parse_attributes(text)


def test_attributes_are_added_changed_and_taken_away() -> None:
    made = altered_attributes(None, {"message.type": "FIFO", "queue.type": "BatchCQ"})
    assert made == {"message.type": "FIFO", "queue.type": "BatchCQ"}
    changed = altered_attributes(made, {"message.type": "DELAY", "reserve.time": "12"})
    assert changed == {**made, "message.type": "DELAY", "reserve.time": "12"}
    assert altered_attributes(changed, {"reserve.time": None}) == {**made, "message.type": "DELAY"}


@pytest.mark.parametrize(
    ("current", "name", "value", "word"),
    [
        (None, "nope", "1", "unsupported key: nope"),
        (None, "message.type", None, "only add attribute"),
        (None, "message.type", "FAST", "not in set"),
        (None, "reserve.time", "soon", "not in range"),
        (None, "reserve.time", "-2", "not in range"),
        ({}, "queue.type", "BatchCQ", "unchangeable"),
        ({}, "cleanup.policy", None, "unchangeable"),
        ({}, "message.type", None, "nonexistent"),
    ],
)
def test_what_cannot_be_is_refused(current: dict[str, str] | None, name: str, value: str | None, word: str) -> None:
    with pytest.raises(RequestRefused, match=word) as refused:
        altered_attributes(current, {name: value})
    assert refused.value.code == ResponseCode.SYSTEM_ERROR


def test_mixed_topics_are_refused_as_in_rocketmq_unless_they_are_allowed() -> None:
    with pytest.raises(RequestRefused) as refused:
        altered_attributes(None, {"message.type": "MIXED"})
    assert refused.value.code == ResponseCode.INVALID_PARAMETER
    assert altered_attributes(None, {"message.type": "MIXED"}, mixed_allowed=True) == {"message.type": "MIXED"}
