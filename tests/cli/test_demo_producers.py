"""Producers of the demo: real clients at a real broker, which is killed, refuses, or puts a list elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiermq import LocalStore
from tiermq.cli import demo_producers as producers
from tiermq.cli.demo_broker import BrokerProcess, Place, settings_text, store_settings
from tiermq.cli.demo_orders import (
    LIST_MESSAGES,
    QUEUES,
    TOPIC,
    DemoFailed,
    body_of,
    key_of,
    number_of,
    tag_of,
)
from tiermq.cli.demo_wire import over_the_wire
from tiermq.errors import RequestRefused
from tiermq.testing import LocalBroker

ENOUGH = 1_000


@pytest.mark.crash
def test_what_a_killed_broker_acknowledged_is_in_its_store(tmp_path: Path) -> None:
    place = Place(tmp_path / "store", (tmp_path / "tier").as_uri(), tmp_path / "table")
    place.settings.write_text(settings_text(place, 2 * ENOUGH))
    told: list[int] = []
    with BrokerProcess(place.settings, tmp_path / "log") as broker:
        broker.start()
        over_the_wire(broker.name_server, broker.address, lambda orders: orders.create_topic())
        acknowledged, rate = producers.send_until_killed(broker.name_server, ENOUGH, broker.kill, told.append)
        broker.forget_killed()
    assert sum(acknowledged) == sum(told)
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
            producers.send_until_killed(broker.name_server, 10**9, lambda: None, lambda _: broker.kill())
        broker.forget_killed()


def test_queues_are_filled_from_where_they_are(tmp_path: Path) -> None:
    told: list[int] = []
    wanted = [LIST_MESSAGES, LIST_MESSAGES + 1, *([3 * LIST_MESSAGES] * (QUEUES - 2))]
    with LocalBroker(tmp_path) as broker:
        broker.create_topic(TOPIC, queues=QUEUES)
        held = producers.fill_up(broker.name_server, [0] * QUEUES, [1] * QUEUES, told.append)
        assert held == [LIST_MESSAGES] * QUEUES
        ends = producers.fill_up(broker.name_server, held, wanted, told.append)
        broker.broker.parts.local.dispatch_now()
        found = broker.messages(TOPIC)
    assert ends == [LIST_MESSAGES, 2 * LIST_MESSAGES, *([3 * LIST_MESSAGES] * (QUEUES - 2))]
    assert sum(told) == sum(ends) == len(found)
    for message in found:
        number = number_of(message.queue_id, message.queue_offset)
        assert (message.body, message.keys, message.tags) == (body_of(number), [key_of(number)], tag_of(number))
    assert len({message.unique_key for message in found}) == len(found)


def test_a_list_that_gets_other_places_is_noticed(tmp_path: Path) -> None:
    with LocalBroker(tmp_path) as broker:
        broker.create_topic(TOPIC, queues=QUEUES)
        with pytest.raises(DemoFailed, match="expected the next message at 64, found 0"):
            producers.fill_up(broker.name_server, [64] * QUEUES, [65] * QUEUES, lambda _: None)


def test_a_list_that_is_refused_is_told_in_the_words_of_the_broker(tmp_path: Path) -> None:
    with LocalBroker(tmp_path, max_message_size=1_000) as broker:
        broker.create_topic(TOPIC, queues=QUEUES)
        with pytest.raises(RequestRefused, match=broker.address):
            producers.fill_up(broker.name_server, [0] * QUEUES, [1] * QUEUES, lambda _: None)
