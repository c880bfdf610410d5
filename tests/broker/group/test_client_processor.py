"""Heartbeats, leaving, who is in a group, and whether a filter can be had."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.consuming import Peer, heartbeat, running
from tiermq.broker.group.group_table import SubscriptionGroup
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import HeaderType


@pytest.mark.parametrize("header_type", [HeaderType.JSON, HeaderType.ROCKETMQ])
def test_a_heartbeat_makes_the_group_and_its_retry_topic_before_it_is_answered(
    tmp_path: Path, header_type: HeaderType
) -> None:
    with running(tmp_path) as broker, Peer(broker, header_type=header_type) as peer:
        broker.parts.groups.put(SubscriptionGroup("H", retry_queue_nums=3))
        answer = peer.join("G")
        assert (answer.code, answer.ext) == (0, {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"})
        assert broker.parts.groups.get("G") is not None
        topic = broker.parts.topics.get("%RETRY%G")
        assert topic is not None
        assert (topic.read_queues, topic.write_queues, topic.perm) == (1, 1, 6)
        peer.join("H")
        topic = broker.parts.topics.get("%RETRY%H")
        assert topic is not None
        assert topic.read_queues == 3
        members = json.loads(bytes(peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="G").body))
        assert members == {"consumerIdList": ["c1"]}


def test_a_group_that_may_not_be_made_is_left_out_silently(tmp_path: Path) -> None:
    with running(tmp_path, auto_create_subscription_group=False) as broker, Peer(broker) as peer:
        assert peer.join("G").code == 0
        assert broker.parts.clients.consumers("G") is None
        assert broker.parts.topics.get("%RETRY%G") is None
        assert broker.parts.clients.producers("P") is not None
        answer = peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="G")
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "no consumer for this group, G")


def test_a_heartbeat_with_a_fingerprint_says_whether_subscriptions_are_needed(tmp_path: Path) -> None:
    def changed(body: dict[str, object]) -> str:
        return peer.ask(RequestCode.HEART_BEAT, body).ext["IS_SUB_CHANGE"]

    with running(tmp_path) as broker, Peer(broker) as peer:
        short = {**heartbeat(heartbeatFingerprint=7), "withoutSub": True}
        assert changed(short) == "true", "nobody knows that client"
        assert changed(heartbeat(heartbeatFingerprint=7)) == "true"
        assert changed(heartbeat(heartbeatFingerprint=7)) == "false"
        assert changed(short) == "false"
        assert changed({**short, "heartbeatFingerprint": 8}) == "true"
        assert broker.parts.clients.subscription("G", "T") is not None


def test_a_client_that_unregisters_is_gone_and_its_connection_stays(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        peer.join()
        answer = peer.ask(RequestCode.UNREGISTER_CLIENT, clientID="c1", consumerGroup="G")
        assert answer.code == 0
        assert broker.parts.clients.consumers("G") is None
        assert broker.parts.clients.producers("P") is not None
        peer.ask(RequestCode.UNREGISTER_CLIENT, clientID="c1", producerGroup="P", consumerGroup="unknown")
        assert broker.parts.clients.producers("P") is None
        assert peer.ask(RequestCode.UNREGISTER_CLIENT).code == ResponseCode.SYSTEM_ERROR
        assert peer.join().code == 0


@pytest.mark.parametrize("body", [b"", b"x", b"[]", b'{"clientID":7}'])
def test_what_is_no_heartbeat_is_answered_with_an_error(tmp_path: Path, body: bytes) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        answer = peer.ask(RequestCode.HEART_BEAT, body)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "expected" in (answer.remark or "")
        assert broker.parts.server.handler_errors == 0


@pytest.mark.parametrize(
    ("kind", "expression", "enabled", "code"),
    [
        ("TAG", "A", True, 0),
        ("SQL92", "a > 5", True, 0),
        ("SQL92", "a >", True, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ("SQL92", "a > 5", False, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_client_can_ask_whether_its_filter_works(
    tmp_path: Path, kind: str, expression: str, enabled: bool, code: int
) -> None:
    subscription = {"topic": "T", "expressionType": kind, "subString": expression}
    body = {"clientId": "c", "group": "G", "subscriptionData": subscription}
    with running(tmp_path, enable_property_filter=enabled) as broker, Peer(broker) as peer:
        assert peer.ask(RequestCode.CHECK_CLIENT_CONFIG, body).code == code
        assert peer.ask(RequestCode.CHECK_CLIENT_CONFIG, {}).code == 0


def test_a_heartbeat_of_many_new_groups_costs_two_writes(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        groups, topics = broker.parts.groups.data_version.counter, broker.parts.topics.data_version.counter
        beat = heartbeat()
        beat["consumerDataSet"] = [{**beat["consumerDataSet"][0], "groupName": f"many-{n}"} for n in range(500)]
        assert peer.ask(34, beat).code == ResponseCode.SUCCESS
        assert broker.parts.groups.get("many-499") is not None
        assert broker.parts.topics.get("%RETRY%many-499") is not None
        assert broker.parts.groups.data_version.counter == groups + 1
        assert broker.parts.topics.data_version.counter == topics + 1
