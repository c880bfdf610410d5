"""The demo's topic over the wire: what a client is told of it, and what it does not put up with."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tiermq.cli.demo import wire
from tiermq.cli.demo.broker import BrokerProcess, Place, settings_text, store_settings
from tiermq.cli.demo.orders import (
    LIST_MESSAGES,
    QUEUES,
    TOPIC,
    DemoFailed,
    body_of,
    key_of,
    number_of,
    tag_of,
)
from tiermq.cli.demo.wire import fill_up, over_the_wire
from tiermq.errors import RequestRefused
from tiermq.store.local_store import LocalStore
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

    settings: dict[str, Any] = {"mapped_file_size_commit_log": 128 << 10, "file_reserved_time": 0}
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
    settings: dict[str, Any] = {"mapped_file_size_commit_log": 128 << 10, "file_reserved_time": 0}
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


ENOUGH = 1_000


@pytest.mark.crash
def test_what_a_killed_broker_acknowledged_is_in_its_store(tmp_path: Path) -> None:
    place = Place(tmp_path / "store", (tmp_path / "tier").as_uri(), tmp_path / "table")
    place.settings.write_text(settings_text(place, 2 * ENOUGH))
    reported: list[int] = []
    with BrokerProcess(place.settings, tmp_path / "log") as broker:
        broker.start()
        over_the_wire(broker.name_server, broker.address, lambda orders: orders.create_topic())
        acknowledged, rate = wire.send_until_killed(broker.name_server, ENOUGH, broker.kill, reported.append)
        broker.forget_killed()
    assert sum(acknowledged) == sum(reported)
    assert sum(acknowledged) >= ENOUGH
    assert rate > 0
    with LocalStore.open(place.store, **store_settings(2 * ENOUGH)) as store:
        for queue_id, count in enumerate(acknowledged):
            assert store.max_offset(TOPIC, queue_id) >= count
            if count:
                last = store.get(TOPIC, queue_id, count - 1, 1).messages[0]
                assert last.body == body_of(number_of(queue_id, count - 1))


@pytest.mark.crash
def test_a_broker_that_is_gone_before_it_is_killed_is_a_failure(tmp_path: Path) -> None:
    place = Place(tmp_path / "store", (tmp_path / "tier").as_uri(), tmp_path / "table")
    place.settings.write_text(settings_text(place, 1))
    with BrokerProcess(place.settings, tmp_path / "log") as broker:
        broker.start()
        over_the_wire(broker.name_server, broker.address, lambda orders: orders.create_topic())
        with pytest.raises(DemoFailed, match="gone before it was to be killed"):
            wire.send_until_killed(broker.name_server, 10**9, lambda: None, lambda _: broker.kill())
        broker.forget_killed()


def test_queues_are_filled_from_where_they_are(tmp_path: Path) -> None:
    reported: list[int] = []
    wanted = [LIST_MESSAGES, LIST_MESSAGES + 1, *([3 * LIST_MESSAGES] * (QUEUES - 2))]
    with LocalBroker(tmp_path) as broker:
        broker.create_topic(TOPIC, queues=QUEUES)
        held = wire.fill_up(broker.name_server, [0] * QUEUES, [1] * QUEUES, reported.append)
        assert held == [LIST_MESSAGES] * QUEUES
        ends = wire.fill_up(broker.name_server, held, wanted, reported.append)
        broker.broker.parts.local.dispatch_now()
        found = broker.messages(TOPIC)
    assert ends == [LIST_MESSAGES, 2 * LIST_MESSAGES, *([3 * LIST_MESSAGES] * (QUEUES - 2))]
    assert sum(reported) == sum(ends) == len(found)
    for message in found:
        number = number_of(message.queue_id, message.queue_offset)
        assert (message.body, message.keys, message.tags) == (body_of(number), [key_of(number)], tag_of(number))
    assert len({message.unique_key for message in found}) == len(found)


def test_a_list_that_gets_other_places_is_noticed(tmp_path: Path) -> None:
    with LocalBroker(tmp_path) as broker:
        broker.create_topic(TOPIC, queues=QUEUES)
        with pytest.raises(DemoFailed, match="expected the next message at 64, found 0"):
            wire.fill_up(broker.name_server, [64] * QUEUES, [65] * QUEUES, lambda _: None)


def test_a_list_that_is_refused_is_reported_in_the_words_of_the_broker(tmp_path: Path) -> None:
    with LocalBroker(tmp_path, max_message_size=1_000) as broker:
        broker.create_topic(TOPIC, queues=QUEUES)
        with pytest.raises(RequestRefused, match=broker.address):
            wire.fill_up(broker.name_server, [0] * QUEUES, [1] * QUEUES, lambda _: None)
