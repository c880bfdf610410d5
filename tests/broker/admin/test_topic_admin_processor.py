"""What operators ask and tell of topics."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from broker.clocked import options_with_clock as options_with_clock
from broker.consuming import Peer, on_loop, part, put, running
from simulation.manual_clock import ManualClock
from tiermq import Message
from tiermq.broker.admin.topic_admin_processor import TopicAdminProcessor
from tiermq.broker.broker import Broker
from tiermq.broker.topic.topic_table import TopicTable
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_dialect import decode_body
from tiermq.testing import LocalBroker


def wanted(topic: str, **changes: object) -> dict[str, Any]:
    return {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": 4,
        "writeQueueNums": 3,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
        **changes,
    }


def test_a_topic_is_made_and_changed_and_on_disk_when_it_is_answered(broker: Broker, peer: Peer) -> None:
    assert peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **wanted("new", attributes="+message.type=FIFO")).code == 0
    expected = TopicConfig("new", 4, 3, attributes={"message.type": "FIFO"})
    assert broker.parts.topics.get("new") == expected
    config, clock = broker.config, broker.parts.clock
    directory = str(Path(broker.parts.topics.path).parent)
    assert TopicTable(directory, config, clock).get("new") == expected
    assert peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **wanted("new", perm=4)).code == 0
    found = decode_body(peer.ask(RequestCode.GET_TOPIC_CONFIG, topic="new").body)
    assert (found["perm"], found["attributes"]) == (4, {"message.type": "FIFO"})


def test_a_topic_that_was_made_is_known_to_the_name_server_when_it_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalBroker(tmp_path) as at:
        topics = at.broker.parts.topics
        look = topics.registration_snapshot
        # A tenth of a second late: a broker that did not wait would always be asked too early.
        monkeypatch.setattr(topics, "registration_snapshot", lambda: (threading.Event().wait(0.1), look())[1])
        host, port = at.name_server.split(":")

        def route() -> int:
            with BlockingClient(host, int(port)) as client:
                asked = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "new"})
                return int(client.request(asked).code)

        with Peer(at.broker) as peer:
            assert peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **wanted("new")).code == 0
            assert route() == ResponseCode.SUCCESS


def test_a_change_that_changes_nothing_makes_no_new_version(broker: Broker, peer: Peer) -> None:
    peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **wanted("new"))
    before = broker.parts.topics.data_version
    peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **wanted("new"))
    assert broker.parts.topics.data_version == before


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "TBW102"}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "rmq_sys_anything"}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "b"}, ResponseCode.INVALID_PARAMETER),  # The broker's own name.
        ({"topic": "no good"}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "x" * 128}, ResponseCode.INVALID_PARAMETER),
        ({"topic": ""}, ResponseCode.INVALID_PARAMETER),
        ({"perm": 8}, ResponseCode.INVALID_PARAMETER),
        ({"readQueueNums": -1}, ResponseCode.INVALID_PARAMETER),
        ({"writeQueueNums": 1 << 20}, ResponseCode.INVALID_PARAMETER),
        ({"readQueueNums": "many"}, ResponseCode.SYSTEM_ERROR),
        ({"attributes": "+nope=1"}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_topic_that_cannot_be_is_refused(
    broker: Broker, peer: Peer, changes: dict[str, object], code: ResponseCode
) -> None:
    before = broker.parts.topics.table
    assert peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **{**wanted("new"), **changes}).code == code
    assert broker.parts.topics.table == before


def test_a_deleted_topic_leaves_nothing_and_begins_at_0_when_it_is_made_again(broker: Broker, peer: Peer) -> None:
    put(broker, "one", "two")
    broker.parts.topics.put(TopicConfig("%RETRY%G_T", 1, 1))
    for topic in ("T", "%RETRY%G_T"):
        broker.parts.offsets.commit("G", topic, 0, 1)
    assert peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T").code == 0
    assert broker.parts.topics.get("T") is None
    assert broker.parts.topics.get("%RETRY%G_T") is None
    assert broker.parts.offsets.topics_of("G") == []
    assert broker.parts.local.max_offset("T", 0) == 0
    assert peer.ask(RequestCode.GET_TOPIC_CONFIG, topic="T").code == ResponseCode.TOPIC_NOT_EXIST
    broker.parts.topics.put(TopicConfig("T", 4, 4))
    put(broker, "three")
    assert broker.parts.local.max_offset("T", 0) == 1


@pytest.mark.parametrize("topic", ["TBW102", "", " ", "SCHEDULE_TOPIC_XXXX"])
def test_topics_of_the_system_are_not_deleted(broker: Broker, peer: Peer, topic: str) -> None:
    before = broker.parts.topics.table
    assert peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic).code == ResponseCode.INVALID_PARAMETER
    assert broker.parts.topics.table == before


def test_deleting_what_is_not_there_does_nothing(peer: Peer) -> None:
    assert peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="nobody-s").code == 0


def test_the_ends_of_queues_are_reported_with_queues_for_keys(
    broker: Broker, peer: Peer, manual_clock: ManualClock
) -> None:
    put(broker, "one", "two", queue_id=1)
    answer = peer.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="T")
    assert b'"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{' in bytes(answer.body)
    table = decode_body(answer.body)["offsetTable"]
    assert len(table) == 4
    assert table['{"brokerName":"b","queueId":1,"topic":"T"}'] == {
        "flushedOffset": 0,
        "lastUpdateTimestamp": manual_clock.now_ms(),
        "maxOffset": 2,
        "minOffset": 0,
    }
    assert table['{"brokerName":"b","queueId":0,"topic":"T"}']["lastUpdateTimestamp"] == 0
    assert peer.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="none").code == ResponseCode.TOPIC_NOT_EXIST


def test_the_ends_of_queues_are_behind_every_message_that_was_acknowledged(broker: Broker, peer: Peer) -> None:
    for number in range(1, 50):
        assert broker.parts.local.put(Message("T", b"x", 1)).ok  # Nobody has dispatched it.
        table = decode_body(peer.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="T").body)["offsetTable"]
        assert table['{"brokerName":"b","queueId":1,"topic":"T"}']["maxOffset"] == number


def test_the_ends_of_queues_name_the_offset_below_which_a_crash_takes_nothing_back(broker: Broker, peer: Peer) -> None:
    def flushed() -> int:
        table = decode_body(peer.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="T").body)["offsetTable"]
        return int(table['{"brokerName":"b","queueId":1,"topic":"T"}']["flushedOffset"])

    put(broker, "one", "two", queue_id=1)
    broker.parts.local.flush()
    assert flushed() == 2
    put(broker, "three", queue_id=1)
    assert flushed() == 2
    broker.parts.local.flush()
    assert flushed() == 3


def test_the_rate_of_a_topic_is_that_of_the_last_minute(
    broker: Broker, peer: Peer, manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker.parts.local, "put_counts", lambda: {"T": 30})
    manual_clock.advance_ms(10_000)
    on_loop(broker, part(broker, TopicAdminProcessor).note_rates)
    assert decode_body(peer.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="T").body)["topicPutTps"] == 3.0


def test_who_consumes_a_topic_is_shown_by_offsets_and_by_who_is_connected(broker: Broker, peer: Peer) -> None:
    broker.parts.offsets.commit("offline", "T", 0, 1)
    peer.join("online")
    reported = decode_body(peer.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="T").body)
    assert reported == {"groupList": ["offline", "online"]}
    assert decode_body(peer.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="U").body) == {"groupList": []}


def test_all_topics_and_those_of_the_system_are_listed(broker: Broker, peer: Peer) -> None:
    everything = decode_body(peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG).body)
    assert everything["dataVersion"] == broker.parts.topics.data_version.to_json()
    assert {name: TopicConfig.from_json(each) for name, each in everything["topicConfigTable"].items()} == dict(
        broker.parts.topics.table
    )
    system = decode_body(peer.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER).body)["topicList"]
    assert {"TBW102", "b", "SCHEDULE_TOPIC_XXXX"} < set(system)
    assert "T" not in system


def test_queues_of_topics_that_nobody_knows_are_cleaned(broker: Broker, peer: Peer) -> None:
    put(broker, "kept")
    put(broker, "left", topic="unknown")
    assert peer.ask(RequestCode.CLEAN_UNUSED_TOPIC).code == 0
    assert set(broker.parts.local.topics()) == {"T"}


@pytest.mark.parametrize("name", ["../../outside", "..", "a/b", "a\0b", "../../../outside"])
def test_a_name_that_leads_out_of_the_store_deletes_nothing(tmp_path: Path, name: str) -> None:
    outside = [tmp_path / "outside", tmp_path / "store" / "outside"]
    with running(tmp_path / "store") as broker, Peer(broker) as peer:
        for directory in outside:
            directory.mkdir()
        answer = peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=name)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert all(directory.is_dir() for directory in outside)
        assert broker.parts.server.handler_errors == 0


def topic_body(name: str, **changes: object) -> dict[str, Any]:
    return {"topicName": name, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "order": False, **changes}


def test_a_list_of_topics_is_made_with_one_write_to_the_disk(broker: Broker, peer: Peer) -> None:
    before = broker.parts.topics.data_version.counter
    asked = [topic_body(f"t{number}", attributes={"+message.type": "DELAY"}) for number in range(50)]
    assert peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": asked}).code == 0
    directory = str(Path(broker.parts.topics.path).parent)
    kept = TopicTable(directory, broker.config, broker.parts.clock)
    assert kept.get("t49") == TopicConfig("t49", 4, 4, attributes={"message.type": "DELAY"})
    assert broker.parts.topics.data_version.counter == before + 1
    taken = [topic_body("t1", attributes={"-message.type": ""})]
    assert peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": taken}).code == 0
    assert broker.parts.topics.table["t1"].attributes == {}


@pytest.mark.parametrize(
    "wrong",
    [
        topic_body("no good"),
        topic_body("SCHEDULE_TOPIC_XXXX"),
        topic_body("T2", perm=9),
        topic_body("T2", writeQueueNums=1 << 20),
        topic_body("T2", attributes={"message.type": "FIFO"}),
        topic_body("T2", attributes={"+nope": "1"}),
        {"perm": 6},
        "T2",
    ],
)
def test_a_list_with_one_topic_that_cannot_be_changes_nothing(broker: Broker, peer: Peer, wrong: object) -> None:
    before = broker.parts.topics.table
    assert peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": [topic_body("good"), wrong]}).code
    assert broker.parts.topics.table == before
