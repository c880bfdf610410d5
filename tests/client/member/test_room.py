"""Back-pressure: count and bytes on their way, for threads and tasks."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tiermq.client.member.room import Room
from tiermq.errors import BadConfig
from waiting import until


def test_a_task_waits_until_there_is_room() -> None:
    async def work() -> list[str]:
        room, order = Room(2, 100), []
        await room.take(10)
        await room.take(10)

        async def third() -> None:
            await room.take(10)
            order.append("third")

        waiting = asyncio.ensure_future(third())
        await asyncio.sleep(0)
        order.append("release")
        room.release(10)
        await waiting
        return order

    assert asyncio.run(work()) == ["release", "third"]


def test_a_thread_waits_for_bytes() -> None:
    room = Room(100, 100)
    room.take_blocking(60)
    taken = threading.Event()

    def take() -> None:
        room.take_blocking(60)
        taken.set()

    thread = threading.Thread(target=take)
    thread.start()
    until(lambda: room._waiting)
    assert not taken.is_set()
    room.release(60)
    thread.join()
    assert taken.is_set()


def test_a_message_larger_than_all_room_goes_alone() -> None:
    room = Room(10, 100)
    room.take_blocking(1_000)
    assert not room.try_take(1, lambda: None)


def test_a_wait_that_is_given_up_takes_no_room() -> None:
    async def work() -> None:
        room = Room(1, 100)
        await room.take(1)
        waiting = asyncio.ensure_future(room.take(1))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        room.release(1)
        await room.take(1)

    asyncio.run(work())


def test_the_order_of_those_who_wait_is_kept() -> None:
    room, granted = Room(1, 100), []
    room.take_blocking(1)
    for number in range(3):
        assert not room.try_take(1, lambda number=number: granted.append(number))  # type: ignore[misc]
    for _ in range(3):
        room.release(1)
    assert granted == [0, 1, 2]


def test_who_waits_for_the_number_is_woken_when_a_quarter_is_free() -> None:
    room, granted = Room(64, 1 << 20), []
    for _ in range(64):
        room.take_blocking(1)
    for number in range(20):
        assert not room.try_take(1, lambda number=number: granted.append(number))  # type: ignore[misc]
    for _ in range(15):
        room.release(1)
    assert granted == []
    room.release(1)
    assert granted == list(range(16)), "one wake, many messages"


def test_no_room_at_all_is_refused() -> None:
    with pytest.raises(BadConfig, match="max_in_flight"):
        Room(0, 10)
