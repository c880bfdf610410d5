"""How much a micro-batch takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tiermq.spark.source.stream_reader import fair_shares, rows_within
from tiermq.tier.names import QueueKey


def key(number: int) -> QueueKey:
    return QueueKey("c", "b", "t", number)


AVAILABLE = st.dictionaries(st.integers(0, 9).map(key), st.integers(0, 1000), max_size=10)


@given(AVAILABLE, st.integers(1, 3000), st.integers(0, 100))
def test_shares_are_exactly_the_limit_and_never_more_than_there_is(
    available: dict[QueueKey, int], limit: int, turn: int
) -> None:
    shares = fair_shares(available, limit, turn)
    assert sum(shares.values()) == min(limit, sum(available.values()))
    assert all(0 < count <= available[queue] for queue, count in shares.items())


@given(AVAILABLE, st.integers(1, 3000))
def test_no_queue_is_starved_when_there_is_one_for_each(available: dict[QueueKey, int], limit: int) -> None:
    waiting = {queue for queue, count in available.items() if count}
    if limit >= len(waiting):
        assert set(fair_shares(available, limit)) == waiting


def test_a_queue_with_twice_as_much_gets_about_twice_as_much() -> None:
    shares = fair_shares({key(0): 1000, key(1): 2000, key(2): 1}, 300)
    assert shares[key(2)] == 1
    assert abs(shares[key(1)] - 2 * shares[key(0)]) <= 3


def test_queues_take_turns_when_there_is_not_one_for_each() -> None:
    available = {key(number): 5 for number in range(4)}
    taken = [set(fair_shares(available, 1, turn)) for turn in range(4)]
    assert set.union(*taken) == set(available)


def test_limits_by_rows_and_by_bytes_are_joined() -> None:
    assert rows_within(None, None, 100, 1000) is None
    assert rows_within(7, None, 100, 1000) == 7
    assert rows_within(None, 500, 100, 1000) == 50
    assert rows_within(7, 500, 100, 1000) == 7
    assert rows_within(None, 5000, 100, 1000) is None
    assert rows_within(None, 1, 100, 1000) == 1
