"""Offsets as users write them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.pipeline.scan.queue_offsets import Edge, EveryQueue, QueueNumber
from tiermq.spark.option_values import read_offsets, read_queues, read_times


def test_words_are_edges_whatever_their_case() -> None:
    assert read_offsets(" Earliest") is Edge.EARLIEST
    assert read_offsets("latest") is Edge.LATEST


def test_a_number_is_for_every_queue() -> None:
    assert read_offsets(" 100 ") == EveryQueue(100)


def test_offsets_are_by_broker_or_not() -> None:
    assert read_offsets('{"a": {"b": {"0": 5, "1": -1}}, "c": {"2": -2}}') == (
        QueueNumber("a", "b", 0, 5),
        QueueNumber("a", "b", 1, -1),
        QueueNumber("c", "", 2, -2),
    )


def test_queues_are_assigned_by_lists() -> None:
    assert read_queues('{"a": [0, 1], "c": {"b": [2]}}') == (
        QueueNumber("a", "", 0),
        QueueNumber("a", "", 1),
        QueueNumber("c", "b", 2),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("newest", "earliest, latest, an offset, or JSON"),
        ('{"a": {"0": 5}', "at character 15"),
        ('{"orders": {"0": 5,}}', '{"orders": {"0": 5,<here>}}'),
        ("{}", "a JSON object of topics"),
        ('{"a": 5}', "object of brokers or queues at 'a', found 5"),
        ('{"a": {}}', "at 'a', found {}"),
        ('{"a": {"x": 5}}', "queue ids of 0 or more at 'a', found \"x\""),
        ('{"a": {"-1": 5}}', "queue ids of 0 or more"),
        (
            '{"a": {"b": {"0": "5"}}}',
            "an offset (-2 for the earliest, -1 for the latest) at 'a' > 'b' > '0', found \"5\"",
        ),
        ('{"a": {"0": -3}}', "found -3"),
        ('{"a": {"0": true}}', "found true"),
        ('{"a": {"0": 1.5}}', "found 1.5"),
        ('{"a": {"b": {}}}', "object of queues at 'a' > 'b', found {}"),
        ('{"a": {"0": 1, "0": 2}}', "'0' twice"),
        ('{"a": {"0": 1, "00": 2}}', "queue a 0 twice"),
        ('{"": {"0": 1}}', "names that are not empty"),
        ('{"a": {"0": 9223372036854775808}}', "found 9223372036854775808"),
    ],
)
def test_a_complaint_reports_where(text: str, expected: str) -> None:
    with pytest.raises(ValueError) as raised:
        read_offsets(text)
    assert expected in str(raised.value)


def test_times_are_not_negative_and_assigned_queues_are_lists() -> None:
    with pytest.raises(ValueError, match="milliseconds since 1970 at 'a' > '0', found -1"):
        read_times('{"a": {"0": -1}}')
    with pytest.raises(ValueError, match="a list of queue ids at 'a' > 'b', found 5"):
        read_queues('{"a": {"b": 5}}')
    with pytest.raises(ValueError, match="queue a 0 twice"):
        read_queues('{"a": [0, 0]}')
    with pytest.raises(ValueError, match="queue ids of 0 or more at 'a', found true"):
        read_queues('{"a": [true]}')


_NUMBERS = st.dictionaries(st.integers(0, 9).map(str), st.integers(-2, 2**63 - 1), min_size=1, max_size=4)
_TOPICS = st.dictionaries(
    st.text(min_size=1, max_size=5), st.dictionaries(st.just("b"), _NUMBERS, min_size=1), min_size=1
)


@given(_TOPICS)
def test_every_number_of_sound_json_is_read(document: dict[str, dict[str, dict[str, int]]]) -> None:
    read = read_offsets(json.dumps(document))
    assert not isinstance(read, Edge | EveryQueue)
    again: dict[str, dict[str, dict[str, int]]] = {}
    for each in read:
        again.setdefault(each.topic, {}).setdefault(each.broker, {})[str(each.queue_id)] = each.number
    assert again == document


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
)


@given(_ANYTHING)
def test_any_other_json_is_refused_in_words(document: object) -> None:
    for read in (read_offsets, read_times, read_queues):
        try:
            found = read(json.dumps(document))
        except ValueError:
            continue
        if not isinstance(found, Edge | EveryQueue):
            assert all(each.topic and each.queue_id >= 0 for each in found)
