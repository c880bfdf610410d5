"""How far groups are, and sending them elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.clocked import options_with_clock as options_with_clock
from broker.consuming import Peer, bodies_of, on_loop, part, put
from simulation.manual_clock import ManualClock
from tiermq.broker.admin.offset_admin_processor import OffsetAdminProcessor
from tiermq.broker.broker import Broker
from tiermq.broker.group.consumer_offsets import ConsumerOffsets
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.json_dialect import decode_body


@pytest.fixture
def broker(broker: Broker) -> Broker:
    broker.parts.groups.find_or_make("G")
    return broker


def key(queue_id: int, topic: str = "T") -> str:
    return f'{{"brokerName":"b","queueId":{queue_id},"topic":"{topic}"}}'


def test_progress_is_reported_for_every_queue_of_topics_with_an_offset(
    broker: Broker, peer: Peer, manual_clock: ManualClock
) -> None:
    put(broker, "one")
    stored_ms = manual_clock.now_ms()
    manual_clock.advance_ms(1000)
    put(broker, "two", "three")
    broker.parts.offsets.commit("G", "T", 0, 1)
    broker.parts.offsets.pulled("G", "T", 0, 3)
    table = decode_body(peer.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="G").body)["offsetTable"]
    assert len(table) == 4
    assert table[key(0)] == {"brokerOffset": 3, "consumerOffset": 1, "lastTimestamp": stored_ms, "pullOffset": 3}
    assert table[key(1)] == {"brokerOffset": 0, "consumerOffset": 0, "lastTimestamp": 0, "pullOffset": 0}


def test_topics_that_members_no_longer_subscribe_to_are_left_out(broker: Broker, peer: Peer) -> None:
    broker.parts.topics.put(TopicConfig("old", 1, 1))
    for topic in ("T", "old", "deleted"):
        broker.parts.offsets.commit("G", topic, 0, 1)
    offline = decode_body(peer.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="G").body)["offsetTable"]
    assert key(0, "old") in offline
    assert key(0, "deleted") not in offline
    peer.join("G")
    online = decode_body(peer.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="G").body)["offsetTable"]
    assert set(online) == {key(queue_id) for queue_id in range(4)}
    asked = decode_body(peer.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="G", topic="T").body)["offsetTable"]
    assert asked == online


def test_the_rate_of_a_group_counts_what_it_was_given(broker: Broker, peer: Peer, manual_clock: ManualClock) -> None:
    put(broker, *(f"m{number}" for number in range(20)))
    peer.join("G")
    assert len(bodies_of(peer.pull())) == 20
    broker.parts.offsets.commit("G", "T", 0, 20)
    manual_clock.advance_ms(10_000)
    on_loop(broker, part(broker, OffsetAdminProcessor).note_rates)
    assert decode_body(peer.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="G").body)["consumeTps"] == 2.0


def reset(peer: Peer, **changes: object) -> dict[str, int]:
    asked: dict[str, Any] = {"topic": "T", "group": "G", "timestamp": 0, "isForce": "true", **changes}
    answer = peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **asked)
    assert answer.code == 0, answer.remark
    table: dict[str, int] = decode_body(answer.body)["offsetTable"]
    return table


def test_a_group_is_sent_to_a_time(broker: Broker, peer: Peer, manual_clock: ManualClock) -> None:
    put(broker, "old")
    manual_clock.advance_ms(60_000)
    at_ms = manual_clock.now_ms()
    put(broker, "new", "newer")
    broker.parts.offsets.commit("G", "T", 0, 3)
    peer.join("G")
    assert reset(peer, timestamp=at_ms) == {key(0): 1, key(1): 0, key(2): 0, key(3): 0}
    moved = peer.pull(3)
    assert (moved.code, moved.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "1")
    assert bodies_of(peer.pull(1)) == ["new", "newer"]


def test_a_reset_is_on_disk_when_it_is_answered(broker: Broker, peer: Peer) -> None:
    put(broker, "one", "two")
    assert reset(peer, timestamp=-1)[key(0)] == 2
    directory = str(Path(broker.parts.offsets.path).parent)
    assert ConsumerOffsets(directory, broker.parts.clock).query("G", "T", 0) == 2


def test_one_queue_is_sent_to_an_offset(broker: Broker, peer: Peer) -> None:
    put(broker, "one", "two", queue_id=2)
    assert reset(peer, queueId=2, offset=1) == {key(2): 1}
    assert broker.parts.offsets.query("G", "T", 2) == 1
    beyond: dict[str, Any] = {"topic": "T", "group": "G", "timestamp": 0, "isForce": "true", "queueId": 2, "offset": 3}
    answer = peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **beyond)
    assert (answer.code, answer.remark) == (1, "Target offset 3 not in consume queue range [0-2]")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"group": "none"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"timestamp": "noon"}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_nobody_is_sent_to_what_is_not_there(peer: Peer, changes: dict[str, object], code: ResponseCode) -> None:
    asked: dict[str, Any] = {"topic": "T", "group": "G", "timestamp": 0, "isForce": "true", **changes}
    assert peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **asked).code == code


def test_a_group_begins_where_another_is(broker: Broker, peer: Peer) -> None:
    broker.parts.offsets.commit("G", "T", 1, 7)
    assert peer.ask(RequestCode.CLONE_GROUP_OFFSET, srcGroup="G", destGroup="H").code == 0
    assert broker.parts.offsets.query("H", "T", 1) == 7


def test_whole_tables_are_reported_as_files_have_them(broker: Broker, peer: Peer) -> None:
    broker.parts.offsets.commit("G", "T", 1, 7)
    answer = bytes(peer.ask(RequestCode.GET_ALL_CONSUMER_OFFSET).body)
    assert b'"offsetTable":{"T@G":{1:7}}' in answer
    delays = decode_body(peer.ask(RequestCode.GET_ALL_DELAY_OFFSET).body)
    assert delays["offsetTable"] == {}


def test_how_late_a_group_is_is_shown_by_times(broker: Broker, peer: Peer, manual_clock: ManualClock) -> None:
    times = []
    for body in ("one", "two", "three"):
        times.append(manual_clock.now_ms())
        put(broker, body)
        manual_clock.advance_ms(1000)
    broker.parts.offsets.commit("G", "T", 0, 1)
    spans = decode_body(peer.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="T", group="G").body)["consumeTimeSpanSet"]
    first = spans[0]
    assert (first["minTimeStamp"], first["consumeTimeStamp"], first["maxTimeStamp"]) == (times[0], times[0], times[2])
    assert first["delayTime"] == manual_clock.now_ms() - times[1]
    assert (spans[1]["minTimeStamp"], spans[1]["delayTime"]) == (-1, 0)


def test_progress_of_all_groups_is_summed(broker: Broker, peer: Peer) -> None:
    put(broker, "one", "two", "three")
    broker.parts.topics.put(TopicConfig("ordered", 1, 1, order=True))
    put(broker, "a", "b", topic="ordered")
    broker.parts.groups.find_or_make("H")
    broker.parts.offsets.commit("G", "T", 0, 1)
    broker.parts.offsets.pulled("G", "T", 0, 3)
    broker.parts.offsets.commit("H", "ordered", 0, 2)
    reported = decode_body(peer.ask(RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false").body)
    of_groups = {group: stats for each in reported["consumeStatsList"] for group, stats in each.items()}
    assert (reported["totalDiff"], reported["totalInflightDiff"], reported["brokerAddr"]) == (2, 2, broker.address)
    assert of_groups["G"][0]["offsetTable"][key(0)]["consumerOffset"] == 1
    assert of_groups["H"][0]["offsetTable"][key(0, "ordered")]["brokerOffset"] == 2
    assert of_groups["TOOLS_CONSUMER"] == []
    ordered = decode_body(peer.ask(RequestCode.GET_BROKER_CONSUME_STATS, isOrder="true").body)
    assert {group for each in ordered["consumeStatsList"] for group, stats in each.items() if stats} == {"H"}
    assert ordered["totalDiff"] == 0


@pytest.mark.parametrize("queue_id", [4, 30_000, 2**31 - 1])
def test_a_queue_that_the_topic_has_not_is_not_reset(broker: Broker, peer: Peer, queue_id: int) -> None:
    places: list[dict[str, Any]] = [{"offset": 0, "timestamp": 0}, {"timestamp": 0}, {"timestamp": -1}]
    for place in places:
        answer = peer.ask(222, group="G", topic="T", isForce="true", queueId=queue_id, **place)
        assert (answer.code, "has 4 queues" in str(answer.remark)) == (ResponseCode.INVALID_PARAMETER, True)
    assert broker.parts.offsets.snapshot() == {}


def test_a_group_that_cannot_be_is_given_no_offsets(broker: Broker, peer: Peer) -> None:
    broker.parts.offsets.commit("G", "T", 0, 1)
    answer = peer.ask(RequestCode.CLONE_GROUP_OFFSET, srcGroup="G", destGroup="not@a group", topic="T")
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert broker.parts.offsets.snapshot() == {"T@G": {0: 1}}
