"""The demo's topic over the wire: what a client is told of it, and what it does not put up with."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tiermq.cli import demo_wire as wire
from tiermq.cli.demo_orders import QUEUES, TOPIC, DemoFailed, body_of, key_of, number_of
from tiermq.cli.demo_producers import fill_up
from tiermq.testing import LocalBroker


def test_a_topic_is_made_filled_and_read_by_offset_key_and_time(tmp_path: Path) -> None:
    async def look(orders: wire.OrdersClient) -> None:
        assert await orders.ends() == [64] * QUEUES
        page = await orders.pull(3, 60)
        assert [message.queue_offset for message in page] == [60, 61, 62, 63]
        assert await orders.pull(3, 64) == []
        [one] = await orders.pull(3, 7, 1)
        assert one.body == body_of(number_of(3, 7))
        assert [message.queue_offset for message in await orders.find(key_of(number_of(3, 7)))] == [7]
        assert await orders.find("order-none") == []
        # A list is stored at one time, so its first message is the first at that time.
        assert await orders.offset_at(3, one.store_timestamp_ms) == 0

    with LocalBroker(tmp_path) as broker:
        wire.over_the_wire(broker.name_server, broker.address, lambda orders: orders.create_topic())
        fill_up(broker.name_server, [0] * QUEUES, [1] * QUEUES, lambda _: None)
        broker.broker.parts.local.dispatch_now()
        wire.over_the_wire(broker.name_server, broker.address, look)


def test_an_operator_can_have_full_files_deleted_and_sees_which_are_left(tmp_path: Path) -> None:
    async def range_after_cleaning(orders: wire.OrdersClient) -> tuple[int, int]:
        await orders.clean()
        return await orders.log_range()

    settings = {"mapped_file_size_commit_log": 128 << 10, "file_reserved_time": 0}
    with LocalBroker(tmp_path, **settings) as broker:
        broker.create_topic(TOPIC, queues=QUEUES)
        fill_up(broker.name_server, [0] * QUEUES, [1] * QUEUES, lambda _: None)
        broker.advance(hours=1)
        local = broker.broker.parts.local
        local.flush()
        local.dispatch_now()
        first, end = wire.over_the_wire(broker.name_server, broker.address, range_after_cleaning)
        assert first > 0
        assert end == local.max_physical_offset


def test_a_broker_that_leaves_messages_out_is_a_failure(tmp_path: Path) -> None:
    settings = {"mapped_file_size_commit_log": 128 << 10, "file_reserved_time": 0}
    with LocalBroker(tmp_path, **settings) as broker:
        broker.create_topic(TOPIC, queues=QUEUES)
        fill_up(broker.name_server, [0] * QUEUES, [100] * QUEUES, lambda _: None)
        broker.advance(hours=1)
        local = broker.broker.parts.local
        local.flush()
        local.dispatch_now()
        assert local.clean_now().log_files > 0
        with pytest.raises(DemoFailed, match="queue 0: expected message 0 or the queue's end, found that the broker"):
            wire.over_the_wire(broker.name_server, broker.address, lambda orders: orders.pull(0, 0))


def test_what_does_not_come_to_be_is_a_failure_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LOOK_S", 0.0)
    looks: list[bool] = []

    async def at_the_third_look() -> bool:
        looks.append(len(looks) == 2)
        return looks[-1]

    async def never() -> bool:
        return False

    asyncio.run(wire.until(at_the_third_look, "a third look"))
    assert looks == [False, False, True]
    with pytest.raises(DemoFailed, match="expected the moon"):
        asyncio.run(wire.until(never, "the moon"))
