"""Check points: open until they are acknowledged, due in the order of their times."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.broker.pop.pop_checkpoints import CheckPoint, CheckPoints, PoppedMessage, popped_in
from tiermq.broker.pop.pop_waiting import INVISIBLE_MS_MAX
from tiermq.errors import RequestRefused

NAMES = st.text("abc_%-", min_size=1, max_size=100)
OFFSETS = st.lists(st.integers(0, 2**40), min_size=1, max_size=32, unique=True).map(sorted).map(tuple)


def point(start: int = 0, count: int = 2, pop_ms: int = 1000, invisible_ms: int = 100, queue: int = 0) -> CheckPoint:
    popped = PoppedMessage("G", "T", 0, start, pop_ms)
    return CheckPoint(popped, invisible_ms, tuple(range(start, start + count)), queue, start)


@given(NAMES, NAMES, st.integers(0, 9), st.integers(0, 2**40), st.integers(0, INVISIBLE_MS_MAX), OFFSETS)
def test_a_check_point_is_read_as_it_was_written(
    group: str, topic: str, queue_id: int, pop_ms: int, invisible_ms: int, offsets: tuple[int, ...]
) -> None:
    made = CheckPoint(PoppedMessage(group, topic, queue_id, offsets[0], pop_ms), invisible_ms, offsets, 3, 77)
    assert CheckPoint.from_json(made.to_json("b"), 3, 77) == made


def test_a_check_point_of_rocketmq_is_understood() -> None:
    table: dict[str, Any] = {"c": "G", "t": "T", "q": 1, "so": 5, "pt": 9, "it": 60, "n": 3, "bm": 2}
    found = CheckPoint.from_json(table, 0, 0)
    assert (found.offsets, found.open, found.due_ms) == ((5, 6, 7), {5, 7}, 69)


@pytest.mark.parametrize("table", [{}, {"c": "G"}, {"c": 1, "t": "T"}, {"c": "G", "t": "T", "q": 1 << 40}])
def test_what_is_none_is_refused(table: dict[str, Any]) -> None:
    with pytest.raises(RequestRefused):
        popped_in(table)


def test_what_is_acknowledged_is_no_longer_open_and_a_whole_one_is_forgotten() -> None:
    points = CheckPoints(1)
    made = point()
    points.add(made)
    assert points.acknowledge(made.popped, [1, 99]) == {1}
    assert points.acknowledge(made.popped, [1]) == set()
    assert points.find(made.popped) is made
    assert points.acknowledge(made.popped, [0]) == {0}
    assert (len(points), points.find(made.popped), points.next_due_ms()) == (0, None, None)
    assert points.acknowledge(made.popped, [0]) == set()


def test_those_that_are_due_are_taken_once_in_the_order_of_their_times() -> None:
    points = CheckPoints(1)
    late, early, done = point(0, invisible_ms=300), point(10, invisible_ms=200), point(20, invisible_ms=100)
    for each in (late, early, done):
        points.add(each)
    points.acknowledge(done.popped, done.offsets)
    assert points.next_due_ms() == 1200
    assert points.take_due(1199) is None
    assert points.take_due(2000) is early
    assert points.take_due(2000) is late
    assert points.take_due(2000) is None
    points.put_off(early, 2500)
    assert points.take_due(2499) is None
    assert points.take_due(2500) is early


def test_the_oldest_that_is_not_done_reports_where_the_log_is_needed_from() -> None:
    points = CheckPoints(2)
    first, second = point(10), point(20)
    points.add(first)
    points.add(second)
    assert (points.oldest_logged(0), points.oldest_logged(1)) == (10, None)
    points.acknowledge(first.popped, first.offsets)
    assert points.oldest_logged(0) == 20
    assert list(points) == [second]
