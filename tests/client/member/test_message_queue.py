"""How a group's members share queues: everyone computes the same shares, and RocketMQ's members too."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tiermq.client.member.message_queue import MessageQueue, allocate_averagely

QUEUES = [MessageQueue("orders", "broker-a", number) for number in range(8)]


def numbers(queues: int, members: int) -> list[list[int]]:
    names = [f"m{number:02}" for number in range(members)]
    return [[queue.queue_id for queue in allocate_averagely(QUEUES[:queues], names, name)] for name in names]


def test_the_shares_are_rocketmq_s() -> None:
    # AllocateMessageQueueAveragely of RocketMQ 5.3.3: neighbours, the first members get one more.
    assert numbers(8, 3) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert numbers(4, 2) == [[0, 1], [2, 3]]
    assert numbers(5, 4) == [[0, 1], [2], [3], [4]]
    assert numbers(2, 3) == [[0], [1], []]


@given(st.integers(0, 8), st.integers(1, 12))
def test_every_queue_has_one_member_and_no_share_is_larger_by_two(queues: int, members: int) -> None:
    shares = numbers(queues, members)
    assert [number for share in shares for number in share] == list(range(queues))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_member_that_is_not_listed_has_no_share() -> None:
    assert allocate_averagely(QUEUES, ["a", "b"], "c") == []


def test_queues_are_sorted_by_topic_broker_and_number() -> None:
    mixed = [
        MessageQueue("b", "x", 1),
        MessageQueue("a", "y", 0),
        MessageQueue("a", "x", 10),
        MessageQueue("a", "x", 2),
    ]
    assert [tuple(each) for each in sorted(mixed)] == [("a", "x", 2), ("a", "x", 10), ("a", "y", 0), ("b", "x", 1)]
