"""History replayed to a real RocketMQ broker: checked first, in order, and once after a crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from interop.conftest import StartBroker
from interop.two_brokers import await_registered
from pipeline.replay.replay_world import ReplayWorld
from tiermq.client.cluster_client import Access, BlockingCluster
from tiermq.client.queue_access import QueueAccess
from tiermq.errors import BadOption
from tiermq.message.record import decode_records
from tiermq.message.stored_message import StoredMessage
from tiermq.pipeline.replay import wire_task
from tiermq.pipeline.replay.job import replay
from tiermq.pipeline.replay.message import MARK
from tiermq.pipeline.replay.wire_record import SentWindows

pytestmark = pytest.mark.interop


class Died(Exception):
    """What the replay dies of."""


def stored(cluster: BlockingCluster, topic: str, queue_id: int) -> list[StoredMessage]:
    """What the broker has in a queue, once all that it acknowledged can be read."""
    place = next(each for each in cluster.run(cluster.client.route(topic)).readable if each.queue_id == queue_id)
    queue = QueueAccess(cluster.client, topic, place)
    offset, end = cluster.run(queue.bounds())
    found: list[StoredMessage] = []
    while offset < end:
        pulled = cluster.run(queue.pull(offset))
        found += decode_records(pulled.records)
        offset = pulled.next_offset
    return found


def test_a_real_broker_gets_history_in_order_and_once_after_a_crash(
    start_broker: StartBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = ReplayWorld(tmp_path)
    server = start_broker(tmp_path / "theirs")
    host, _, port = server.name_server.partition(":")
    await_registered(host, int(port))
    given: dict[str, Any] = {"tier": world.url, "store": world.disk, "broker": "broker-a", "topic": "orders"}
    given |= {"namesrv": server.name_server, "to_topic": "again", "record": world.record}
    with pytest.raises(BadOption, match="expected a topic again with queues to write to"):
        replay(None, **given)
    monkeypatch.setattr(wire_task, "SEND_WINDOW_MESSAGES", 6)
    add, calls = SentWindows.add, []

    def dying(self: SentWindows, lines: Any) -> None:
        calls.append(len(lines))
        if len(calls) == 3:
            raise Died  # A window that the broker has, and the record has not.
        add(self, lines)

    monkeypatch.setattr(SentWindows, "add", dying)
    with pytest.raises(Died):
        replay(None, create=2, **given)
    with BlockingCluster(Access(server.name_server)) as cluster:
        assert len(stored(cluster, "again", 0)) + len(stored(cluster, "again", 1)) > 6  # And their keys are indexed.
        report = replay(None, **given)
        assert report.done["messages_before"] + report.done["messages"] == 35
        assert not [text for text in report.details["notes"] if "keys cannot be asked for" in text]
        for queue_id in (0, 1):
            found = stored(cluster, "again", queue_id)
            assert [message.body for message in found] == world.bodies("orders", queue_id)
            assert [message.get_property(MARK) for message in found] == [
                f"{report.details['name']}:broker-a/orders/{queue_id}/{offset}" for offset in range(len(found))
            ]
    world.bury()
