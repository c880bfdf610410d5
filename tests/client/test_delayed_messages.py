"""What waits, asked over the wire: rolls once, what is due and what was cancelled not at all."""

from __future__ import annotations

from pathlib import Path

from tiermq import Message
from tiermq.client.cluster_client import Access, ClusterClient
from tiermq.client.delayed_messages import AtBroker, cancel_timer, delayed_messages
from tiermq.message.properties import encode_properties
from tiermq.testing import LocalBroker

HOUR_MS = 3_600_000


async def all_of(cluster: ClusterClient) -> list[AtBroker]:
    return [each async for each in delayed_messages(cluster)]


def wait(broker: LocalBroker, key: str, delay_ms: int, **more: str) -> None:
    """Put a timer into the broker's timer topic, as a send would."""
    out_ms = broker.clock.now_ms() + delay_ms
    properties = {"TIMER_OUT_MS": str(out_ms), "REAL_TOPIC": "T", "REAL_QID": "0", "UNIQ_KEY": key, **more}
    message = Message("rmq_sys_wheel_timer", b"body", 0, encoded_properties=encode_properties(properties))
    assert broker.broker.parts.local.put(message).ok
    broker.broker.parts.local.dispatch_now()


def test_each_timer_that_waits_is_found_once(tmp_path: Path) -> None:
    with LocalBroker(tmp_path, timer_stop_enqueue=True) as broker:
        broker.create_topic("T", queues=1)
        wait(broker, "rolled", HOUR_MS)
        wait(broker, "due", -HOUR_MS)
        wait(broker, "cancelled", HOUR_MS)
        wait(broker, "cancels", HOUR_MS, TIMER_DEL_UNIQKEY="T+cancelled")
        wait(broker, "rolled", HOUR_MS, TIMER_ROLL_TIMES="1")
        broker.broker.parts.local.put(Message("rmq_sys_wheel_timer", b"no timer"))
        found = Access(broker.name_server, "", "", False).run(all_of)
        assert [(each.waiting.unique_key, each.waiting.rolls) for each in found] == [("rolled", 1)]
        assert found[0].to_dict()["broker"] == found[0].broker_name


def test_more_than_a_page_of_messages_is_read(tmp_path: Path) -> None:
    with LocalBroker(tmp_path, timer_stop_enqueue=True) as broker:
        for number in range(100):
            wait(broker, f"K{number}", HOUR_MS + number * 1_000)
        found = Access(broker.name_server, "", "", False).run(all_of)
        assert {each.waiting.unique_key for each in found} == {f"K{number}" for number in range(100)}


def test_a_timer_that_is_not_there_cannot_be_cancelled(tmp_path: Path) -> None:
    with LocalBroker(tmp_path) as broker:
        broker.create_topic("T", queues=1)
        wait(broker, "K", HOUR_MS)
        wait(broker, "due", -HOUR_MS)
        access = Access(broker.name_server, "", "", False)
        assert access.run(lambda cluster: cancel_timer(cluster, "T", "unknown")) == []
        assert access.run(lambda cluster: cancel_timer(cluster, "U", "K")) == []
        assert access.run(lambda cluster: cancel_timer(cluster, "T", "due")) == []
        [done] = access.run(lambda cluster: cancel_timer(cluster, "T", "K"))
        assert done.waiting.unique_key == "K"
