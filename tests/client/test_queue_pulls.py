"""Pulls in flight at guessed offsets: each message once, in order, however many a broker returns at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiermq.client.queue_access import Pulled
from tiermq.client.queue_pulls import GROW_AFTER, QueuePulls
from tiermq.errors import PeerGone
from tiermq.remoting.codes import ResponseCode


class Queue:
    """Answers with as many messages as `limit` says for an offset; notes what it was asked."""

    def __init__(self, end: int, limit: Callable[[int], int]) -> None:
        self.end = end
        self.limit = limit
        self.asked: list[tuple[int, int]] = []
        self.in_flight = self.in_flight_max = 0

    def pull_soon(self, _offset: int, _most: int) -> None:
        """As without a connection: each pull is a task of its own."""

    async def pull(self, offset: int, _expression: str = "*", most: int = 32) -> Pulled:
        self.asked.append((offset, most))
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight, self.in_flight_max)
        await asyncio.sleep(0)
        self.in_flight -= 1
        if offset >= self.end:
            return Pulled(ResponseCode.PULL_NOT_FOUND, self.end, b"")
        end = min(offset + max(1, min(most, self.limit(offset))), self.end)
        return Pulled(ResponseCode.SUCCESS, end, bytes(end - offset))


async def read(queue: Queue, end: int, ahead: int = 8, most: int = 1024) -> list[range]:
    pulls, at, pages = QueuePulls(queue, end, ahead=ahead, most=most), 0, []  # type: ignore[arg-type]
    while at < end:
        pulled = await pulls.take(at)
        if pulled.code != ResponseCode.SUCCESS:
            break
        pages.append(range(at, pulled.next_offset))
        at = pulled.next_offset
    pulls.forget()
    return pages


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=20), st.integers(1, 600), st.integers(1, 9), st.integers(1, 64)
)
def test_every_message_comes_once_and_in_order(limits: list[int], end: int, ahead: int, most: int) -> None:
    queue = Queue(end, lambda offset: limits[offset % len(limits)])
    pages = asyncio.run(read(queue, end, ahead, most))
    assert [offset for page in pages for offset in page] == list(range(end))
    assert queue.in_flight_max <= ahead + 1
    assert all(offset + asked <= end and asked <= most for offset, asked in queue.asked)


def test_a_broker_that_returns_32_at_a_time_is_asked_for_no_message_twice() -> None:
    queue = Queue(32 * 20, lambda _offset: 32)
    asyncio.run(read(queue, queue.end))
    assert [offset for offset, _ in queue.asked] == list(range(0, queue.end, 32))
    assert queue.in_flight_max == 8


def test_larger_answers_are_tried_after_a_while_and_a_failed_try_costs_one_pull() -> None:
    page = [8]
    queue = Queue(100_000, lambda _offset: page[0])

    async def both() -> None:
        pulls, at = QueuePulls(queue, queue.end, ahead=4, most=1024), 0  # type: ignore[arg-type]
        for number in range(40 * GROW_AFTER):
            if number == 4 * GROW_AFTER:
                page[0] = 32  # From the disk into memory.
            at = (await pulls.take(at)).next_offset
        pulls.forget()

    asyncio.run(both())
    assert queue.asked[-1][1] >= 32
    assert len({offset for offset, _ in queue.asked}) == len(queue.asked)


def test_what_lies_behind_a_jump_of_the_queue_is_asked_for_again() -> None:
    class Jumping(Queue):
        async def pull(self, offset: int, expression: str = "*", most: int = 32) -> Pulled:
            pulled = await super().pull(offset, expression, most)
            return Pulled(ResponseCode.SUCCESS, 500, b"500") if 64 <= offset < 500 else pulled

    queue = Jumping(600, lambda _offset: 32)
    pages = asyncio.run(read(queue, 600))
    assert [page.start for page in pages] == [0, 32, 64, 500, 532, 564, 596]


def test_an_error_is_raised_where_its_messages_would_be() -> None:
    class Gone(Queue):
        async def pull(self, offset: int, expression: str = "*", most: int = 32) -> Pulled:
            if offset >= 64:
                raise PeerGone("the broker went away")
            return await super().pull(offset, expression, most)

    async def run() -> int:
        pulls, at = QueuePulls(Gone(600, lambda _offset: 32), 600, ahead=8), 0  # type: ignore[arg-type]
        try:
            while True:
                at = (await pulls.take(at)).next_offset
        except PeerGone:
            pulls.forget()
            return at

    assert asyncio.run(run()) == 64


def test_with_a_filter_one_pull_is_in_flight() -> None:
    queue = Queue(320, lambda _offset: 32)
    pulls = QueuePulls(queue, 320, ahead=8, expression="paid")  # type: ignore[arg-type]

    async def run() -> None:
        at = 0
        while at < 320:
            at = (await pulls.take(at)).next_offset

    asyncio.run(run())
    assert queue.in_flight_max == 1


@pytest.mark.parametrize("end", [1, 31, 33])
def test_nothing_behind_the_end_is_asked_for(end: int) -> None:
    queue = Queue(1_000, lambda _offset: 32)
    asyncio.run(read(queue, end))
    assert max(offset + most for offset, most in queue.asked) == end
