"""The demo's messages follow from their numbers, and tallies would notice a lost, doubled or changed one."""

from __future__ import annotations

import json
import zlib
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tiermq.cli import demo_orders as orders

HELD = st.lists(st.integers(0, 40), min_size=orders.QUEUES, max_size=orders.QUEUES)


@given(st.integers(0, 10**7))
def test_a_body_is_json_that_says_what_the_number_says(number: int) -> None:
    order = json.loads(orders.body_of(number))
    assert (order["order"], order["cents"]) == (number, orders.cents_of(number))
    assert orders.tag_of(number) in orders.TAGS
    assert orders.key_of(number) == f"order-{number}"


@given(HELD)
def test_every_message_has_a_number_of_its_own(held: list[int]) -> None:
    numbers = list(orders.numbers(held))
    assert len(set(numbers)) == len(numbers) == sum(held)


def test_every_queue_has_one_producer() -> None:
    owned = Counter(queue for producer in range(orders.PRODUCERS) for queue in orders.queues_of(producer))
    assert owned == dict.fromkeys(range(orders.QUEUES), 1)


def test_every_tag_is_used_in_every_queue() -> None:
    for queue_id in range(orders.QUEUES):
        assert {orders.tag_of(orders.number_of(queue_id, offset)) for offset in range(200)} == set(orders.TAGS)


@given(HELD, HELD)
def test_what_was_put_in_two_parts_adds_up_to_the_whole(first: list[int], more: list[int]) -> None:
    held = [here + there for here, there in zip(first, more, strict=True)]
    whole, parts = orders.expected(held), orders.expected(first).plus(orders.expected(held, since=first))
    assert parts.agrees(whole)
    assert parts.by_tag == whole.by_tag
    assert sum(count for count, _ in whole.by_tag.values()) == whole.count == sum(held)


def test_a_lost_a_doubled_and_a_changed_message_are_noticed() -> None:
    whole = orders.expected([3] * orders.QUEUES)
    bodies = [orders.body_of(number) for number in orders.numbers([3] * orders.QUEUES)]
    for others in (bodies[1:], [*bodies[1:], bodies[1]], [*bodies[1:], b"changed"]):
        tally = orders.Tally()
        for body in others:
            tally.add(body)
        assert not tally.agrees(whole)
    assert whole.checksum == sum(map(zlib.crc32, bodies))
    assert str(whole) == f"{len(bodies)} messages with the checksum {whole.checksum:x}"


def test_queues_get_the_same_and_at_least_one_list() -> None:
    assert orders.even(1) == [orders.LIST_MESSAGES] * orders.QUEUES
    assert abs(sum(orders.even(300_000)) - 300_000) <= orders.QUEUES * orders.LIST_MESSAGES
