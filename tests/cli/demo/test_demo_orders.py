"""The demo's messages follow from their numbers, and tallies would notice a lost, doubled or changed one."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.cli.demo import orders
from tiermq.cli.demo.orders import QUEUES, DemoFailed, body_of, expected, key_of, number_of

HELD = st.lists(st.integers(0, 40), min_size=orders.QUEUES, max_size=orders.QUEUES)


@given(st.integers(0, 10**7))
def test_a_body_is_json_that_says_what_the_number_says(number: int) -> None:
    order = json.loads(orders.body_of(number))
    assert (order["order"], order["cents"]) == (number, orders.cents_of(number))
    assert orders.tag_of(number) in orders.ORDER_TAGS
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
        assert {orders.tag_of(orders.number_of(queue_id, offset)) for offset in range(200)} == set(orders.ORDER_TAGS)


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


EACH = 100


@dataclass
class Stored:
    queue_offset: int
    body: bytes
    store_timestamp_ms: int


class FakeOrders:
    """The demo's messages in memory; the message at `at` of queue 3 may be lost or changed. A message a second."""

    def __init__(self, lost: int = -1, changed: int = -1, late: int = 0) -> None:
        self.late = late
        self.queues: list[list[Stored]] = []
        for queue_id in range(QUEUES):
            wanted = [Stored(each, body_of(number_of(queue_id, each)), 1_000 * each) for each in range(EACH)]
            if queue_id == 3 and changed >= 0:
                wanted[changed].body = b"other"
            self.queues.append([each for each in wanted if queue_id != 3 or each.queue_offset != lost])

    async def pull(self, queue_id: int, offset: int, most: int = 32) -> list[Stored]:
        return self.queues[queue_id][offset : offset + most]

    async def find(self, key: str) -> list[Stored]:
        offset, queue_id = divmod(int(key.removeprefix("order-")), QUEUES)
        return [each for each in self.queues[queue_id] if each.queue_offset == offset]

    async def offset_at(self, queue_id: int, moment_ms: int) -> int:
        return moment_ms // 1_000 + self.late


def test_everything_is_counted_by_queue() -> None:
    reported: list[int] = []
    held, tally = asyncio.run(orders.read_back(FakeOrders(), reported.append))
    assert held == [EACH] * QUEUES
    assert tally.agrees(expected(held))
    assert sum(reported) == tally.count == EACH * QUEUES


@pytest.mark.parametrize("offset", [0, 31, 32, EACH - 2])
def test_a_message_that_is_lost_or_changed_is_named(offset: int) -> None:
    for wrong in (FakeOrders(lost=offset), FakeOrders(changed=offset)):
        with pytest.raises(DemoFailed, match=f"queue 3: message {offset} is not what was sent"):
            asyncio.run(orders.read_back(wrong, lambda _: None))


def test_a_queue_that_ends_too_early_is_named() -> None:
    held, _ = asyncio.run(orders.read_back(FakeOrders(lost=EACH - 1), lambda _: None))
    orders.require_acknowledged(held, [EACH - 1] * QUEUES)
    with pytest.raises(DemoFailed, match=f"only {EACH - 1} are there; {key_of(number_of(3, EACH - 1))} is gone"):
        orders.require_acknowledged(held, [EACH] * QUEUES)


def test_a_key_that_is_not_found_is_named() -> None:
    assert asyncio.run(orders.look_up_keys(FakeOrders(), [EACH] * QUEUES)) == orders.KEYS_TRIED
    with pytest.raises(DemoFailed, match=key_of(number_of(3, 0))):
        asyncio.run(orders.look_up_keys(FakeOrders(lost=0), [EACH] * QUEUES))


@pytest.mark.parametrize("late", [-1, 1])
def test_a_place_before_or_behind_a_time_is_noticed(late: int) -> None:
    assert asyncio.run(orders.look_up_times(FakeOrders(), [EACH] * QUEUES)) == orders.TIMES_TRIED * QUEUES
    with pytest.raises(DemoFailed, match="expected the first message at or after"):
        asyncio.run(orders.look_up_times(FakeOrders(late=late), [EACH] * QUEUES))


def test_queues_without_messages_are_not_asked() -> None:
    assert asyncio.run(orders.look_up_times(FakeOrders(), [0] * QUEUES)) == 0
    assert asyncio.run(orders.look_up_keys(FakeOrders(), [0] * QUEUES)) == 0
