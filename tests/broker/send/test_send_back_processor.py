"""Messages that a consumer gives back: to the queue of their delay, and to dead letters in the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.consuming import SIZES, Peer, bodies_of, messages_of, put, running
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.group.group_table import SubscriptionGroup
from tiermq.message.stored_message import StoredMessage
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.store.local_store import LocalStore
from tiermq.tier.tiered_store import TieredStore

SCHEDULE = "SCHEDULE_TOPIC_XXXX"


def back(peer: Peer, message: StoredMessage, level: int = 0, **changes: Any) -> RemotingCommand:
    fields = {"offset": message.physical_offset, "group": "G", "delayLevel": level, "originTopic": message.topic}
    fields |= {"originMsgId": message.unique_key or message.message_id, "maxReconsumeTimes": 16, "unitMode": "false"}
    return peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, **{**fields, **changes})


def in_queue(store: LocalStore, topic: str, queue_id: int) -> list[StoredMessage]:
    store.dispatch_now()
    return store.get(topic, queue_id, 0).messages


@pytest.mark.parametrize(("tries", "level", "queue_id"), [(0, 0, 2), (1, 0, 3), (15, 0, 17), (0, 5, 4), (3, 99, 17)])
def test_a_message_waits_longer_each_time(tmp_path: Path, tries: int, level: int, queue_id: int) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        peer.join()
        fields: dict[str, Any] = {
            "keys": ["k"],
            "tags": "A",
            "flag": 5,
            "born_timestamp_ms": 77,
            "born_host": "1.2.3.4:5",
        }
        put(broker, "a", reconsume_times=tries, properties={"x": "y"}, **fields)
        (message,) = messages_of(peer.pull())
        assert back(peer, message, level).code == 0
        (found,) = in_queue(broker.parts.local, SCHEDULE, queue_id)
        assert found.reconsume_times == tries + 1
        assert (found.body, found.flag, found.born_timestamp_ms, found.born_host) == (b"a", 5, 77, "1.2.3.4:5")
        expected = {"KEYS": "k", "TAGS": "A", "x": "y", "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": message.message_id}
        expected |= {"REAL_TOPIC": "%RETRY%G", "REAL_QID": "0", "DELAY": str(queue_id + 1), "WAIT": "false"}
        assert found.properties == expected


def test_what_comes_back_again_remembers_where_it_was_first(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        peer.join()
        put(broker, "a", topic="%RETRY%G", properties={"RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": "first"})
        message = broker.parts.local.get("%RETRY%G", 0, 0).messages[0]
        assert back(peer, message).code == 0
        (found,) = in_queue(broker.parts.local, SCHEDULE, 2)
        assert found.properties["RETRY_TOPIC"] == "T"
        assert found.properties["ORIGIN_MESSAGE_ID"] == "first"


@pytest.mark.parametrize(
    ("tries", "changes", "level"),
    [(16, {}, 0), (0, {}, -1), (3, {"maxReconsumeTimes": 3}, 0), (2, {"maxReconsumeTimes": 0}, 1)],
)
def test_a_message_that_was_tried_too_often_is_a_dead_letter(
    tmp_path: Path, tries: int, changes: dict[str, Any], level: int
) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        peer.join()
        put(broker, "a", reconsume_times=tries, properties={"DELAY": "3"})
        message = broker.parts.local.get("T", 0, 0).messages[0]
        assert back(peer, message, level, **changes).code == 0
        (found,) = in_queue(broker.parts.local, "%DLQ%G", 0)
        assert (found.body, found.reconsume_times) == (b"a", tries + 1)
        assert (found.properties["DELAY"], found.properties["WAIT"]) == ("0", "false")
        assert found.properties["RETRY_TOPIC"] == "T"
        topic = broker.parts.topics.get("%DLQ%G")
        assert topic is not None
        assert (topic.read_queues, topic.perm) == (1, 6)


@pytest.mark.parametrize("level", [-1, 1])
def test_a_lite_message_that_is_given_back_does_not_come_to_its_lite_topic_again(tmp_path: Path, level: int) -> None:
    light, settings = "%LMQ%$T$x", {"enable_lmq": True, "enable_multi_dispatch": True}
    with running(tmp_path, store=settings) as broker, Peer(broker) as peer:
        peer.join()
        put(broker, "a", properties={"INNER_MULTI_DISPATCH": light, "x": "y"})
        message = broker.parts.local.get("T", 0, 0).messages[0]
        assert back(peer, message, level).code == 0
        (found,) = in_queue(broker.parts.local, *(("%DLQ%G", 0) if level < 0 else (SCHEDULE, 0)))
        assert (found.properties["x"], "INNER_MULTI_DISPATCH" in found.properties) == ("y", False)
        assert "INNER_MULTI_QUEUE_OFFSET" not in found.properties
        assert broker.parts.local.max_offset(light, 0) == 1


def test_the_groups_own_limit_counts_where_the_client_names_none(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        broker.parts.groups.put(SubscriptionGroup("G", retry_max_times=2, retry_queue_nums=4))
        put(broker, "a", reconsume_times=2)
        put(broker, "b", reconsume_times=1)
        dead, alive = broker.parts.local.get("T", 0, 0).messages
        for message in (dead, alive):
            fields: dict[str, Any] = {"offset": message.physical_offset, "group": "G", "delayLevel": 0}
            assert peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, **fields).code == 0
        assert [each.body for each in in_queue(broker.parts.local, "%DLQ%G", 0)] == [b"a"]
        (waiting,) = in_queue(broker.parts.local, SCHEDULE, 3)
        assert waiting.body == b"b"
        assert 0 <= int(waiting.properties["REAL_QID"]) < 4


def test_a_group_without_retry_queues_loses_its_message_silently(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        broker.parts.groups.put(SubscriptionGroup("G", retry_queue_nums=0))
        put(broker, "a")
        assert back(peer, broker.parts.local.get("T", 0, 0).messages[0]).code == 0
        assert in_queue(broker.parts.local, SCHEDULE, 2) == []


def test_what_cannot_be_taken_back_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, auto_create_subscription_group=False) as broker, Peer(broker) as peer:
        put(broker, "a")
        (message,) = broker.parts.local.get("T", 0, 0).messages
        assert back(peer, message).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        broker.parts.groups.put(SubscriptionGroup("G"))
        assert back(peer, message, offset=10**9).code == ResponseCode.SYSTEM_ERROR
        assert back(peer, message, offset=7).code == ResponseCode.SYSTEM_ERROR
        broker.parts.topics.put(TopicConfig("%RETRY%G", 1, 1, perm=4))
        assert back(peer, message).code == ResponseCode.NO_PERMISSION
        assert broker.parts.server.handler_errors == 0


@pytest.mark.parametrize("level", [0, -1])
def test_under_sync_flush_what_was_taken_back_is_on_the_disk_when_the_answer_comes(tmp_path: Path, level: int) -> None:
    with running(tmp_path, store={"flush_disk_type": "SYNC_FLUSH"}) as broker, Peer(broker) as peer:
        peer.join()
        put(broker, "a")
        (message,) = messages_of(peer.pull())
        assert back(peer, message, level).code == 0
        assert broker.parts.local.flushed_where == broker.parts.local.max_physical_offset


def test_a_broker_that_may_not_be_written_takes_nothing_back(tmp_path: Path) -> None:
    with running(tmp_path, broker_permission=4) as broker, Peer(broker) as peer:
        put(broker, "a")
        assert back(peer, broker.parts.local.get("T", 0, 0).messages[0]).code == ResponseCode.NO_PERMISSION


def test_a_message_from_the_tier_is_taken_for_itself_and_for_no_other(tmp_path: Path) -> None:
    small = {**SIZES, "mapped_file_size_commit_log": 16 * 1024, "file_reserved_time": 0, "delete_when": "00"}
    config = BrokerConfig(bind_address="127.0.0.1", listen_port=0, broker_name="b")
    with Broker.open(tmp_path / "store", tier=(tmp_path / "tier").as_uri(), config=config, **small) as broker:
        broker.parts.topics.put(TopicConfig("T", 4, 4))
        for number in range(60):
            put(broker, f"{number} ".ljust(1000, "x"), properties={"UNIQ_KEY": f"U{number}"})
        store = broker.store
        assert isinstance(store, TieredStore)
        assert store.flush_to_tier(60)
        while store.local.min_offset("T", 0) == 0:
            store.clean_now()
        with Peer(broker) as peer:
            peer.join()
            cold = messages_of(peer.pull(0))[0]
            assert cold.unique_key == "U0"
            assert back(peer, cold).code == 0
            (found,) = in_queue(store.local, SCHEDULE, 2)
            assert (found.unique_key, found.body.split()[0]) == ("U0", b"0")
            hot = messages_of(peer.pull(59))[0]
            wrong = back(peer, hot, originMsgId="U-nobody")
            assert wrong.code == ResponseCode.SYSTEM_ERROR, "something lies at that offset, and is not what is meant"
            assert back(peer, hot).code == 0
            assert bodies_of(peer.pull(59))[0].split()[0] == "59"
