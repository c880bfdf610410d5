"""A directory that a Python program made with an embedded store goes on under a RocketMQ broker, and comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from interop.conftest import StartBroker
from interop.topics_file import write_topics
from tiermq import LocalStore, Message
from tiermq.broker.group.consumer_offsets import ConsumerOffsets
from tiermq.clock import SystemClock

pytestmark = pytest.mark.interop


def test_rocketmq_serves_an_embedded_store_and_its_groups_and_gives_it_back(
    tmp_path: Path, start_broker: StartBroker
) -> None:
    store = tmp_path / "store"
    with LocalStore.open(store) as local:  # Every size is the default, which is RocketMQ's.
        for number in range(200):
            local.put(Message("orders", b"%d" % number, queue_id=number % 2, keys=[f"k{number}"], tags="paid"))
        with local.consumer("orders", group="audit") as consumer:
            assert len(consumer.take(50)) == 50
            consumer.commit()
            positions = consumer.positions
    used = sum(path.stat().st_blocks * 512 for path in store.rglob("*") if path.is_file())
    assert used < 30 << 20
    write_topics(store, [("orders", 2)])
    cluster = start_broker(store, {})
    peer = cluster.peer()
    for queue in range(2):
        assert [int(each["body"]) for each in peer.read("orders", queue)] == list(range(queue, 200, 2))
    for number in (0, 7, 127, 128, 199):
        [found] = peer.query("orders", f"k{number}")
        assert int(found["body"]) == number
    cluster.stop()
    assert ConsumerOffsets(str(store / "config"), SystemClock()).queues("audit", "orders") == positions
    with LocalStore.open(store) as local, local.consumer("orders", group="audit") as consumer:
        assert len(list(consumer)) == 150
        assert len(local.query("orders", "k7")) == 1
