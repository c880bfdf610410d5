"""The demo would notice whatever a broker loses, doubles, moves or changes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from tiermq.cli import demo_reading as reading
from tiermq.cli.demo_orders import QUEUES, DemoFailed, body_of, expected, key_of, number_of

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
    told: list[int] = []
    held, tally = asyncio.run(reading.read_back(FakeOrders(), told.append))
    assert held == [EACH] * QUEUES
    assert tally.agrees(expected(held))
    assert sum(told) == tally.count == EACH * QUEUES


@pytest.mark.parametrize("offset", [0, 31, 32, EACH - 2])
def test_a_message_that_is_lost_or_changed_is_named(offset: int) -> None:
    for orders in (FakeOrders(lost=offset), FakeOrders(changed=offset)):
        with pytest.raises(DemoFailed, match=f"queue 3: message {offset} is not what was sent"):
            asyncio.run(reading.read_back(orders, lambda _: None))


def test_a_queue_that_ends_too_early_is_named() -> None:
    held, _ = asyncio.run(reading.read_back(FakeOrders(lost=EACH - 1), lambda _: None))
    reading.require_acknowledged(held, [EACH - 1] * QUEUES)
    with pytest.raises(DemoFailed, match=f"only {EACH - 1} are there; {key_of(number_of(3, EACH - 1))} is gone"):
        reading.require_acknowledged(held, [EACH] * QUEUES)


def test_a_key_that_is_not_found_is_named() -> None:
    assert asyncio.run(reading.look_up_keys(FakeOrders(), [EACH] * QUEUES)) == reading.KEYS_TRIED
    with pytest.raises(DemoFailed, match=key_of(number_of(3, 0))):
        asyncio.run(reading.look_up_keys(FakeOrders(lost=0), [EACH] * QUEUES))


@pytest.mark.parametrize("late", [-1, 1])
def test_a_place_before_or_behind_a_time_is_noticed(late: int) -> None:
    assert asyncio.run(reading.look_up_times(FakeOrders(), [EACH] * QUEUES)) == reading.TIMES_TRIED * QUEUES
    with pytest.raises(DemoFailed, match="expected the first message at or after"):
        asyncio.run(reading.look_up_times(FakeOrders(late=late), [EACH] * QUEUES))


def test_queues_without_messages_are_not_asked() -> None:
    assert asyncio.run(reading.look_up_times(FakeOrders(), [0] * QUEUES)) == 0
    assert asyncio.run(reading.look_up_keys(FakeOrders(), [0] * QUEUES)) == 0
