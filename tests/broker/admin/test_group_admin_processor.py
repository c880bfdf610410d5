"""What operators ask and tell of groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.consuming import Peer, put, running
from tiermq.broker.broker import Broker
from tiermq.broker.group.group_table import GroupTable
from tiermq.message.topic_name import PREDEFINED_GROUPS
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.json_dialect import decode_body


def test_a_group_is_made_and_changed_and_on_disk_when_it_is_answered(broker: Broker, peer: Peer) -> None:
    body = {"groupName": "CG", "retryMaxTimes": 3, "consumeBroadcastEnable": False}
    assert peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body).code == 0
    directory = str(Path(broker.parts.groups.path).parent)
    found = GroupTable(directory, broker.config, broker.parts.clock).get("CG")
    assert found is not None
    assert (found.retry_max_times, found.consume_broadcast_enable) == (3, False)
    reported = decode_body(peer.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="CG").body)
    assert reported == found.to_json()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"groupName": "no good"}, ResponseCode.INVALID_PARAMETER),
        ({"groupName": "x" * 256}, ResponseCode.INVALID_PARAMETER),
        ({}, ResponseCode.SYSTEM_ERROR),
        ({"groupName": "G", "retryMaxTimes": "often"}, ResponseCode.SYSTEM_ERROR),
        (b"no json", ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_group_that_cannot_be_is_refused(peer: Peer, broker: Broker, body: bytes, code: ResponseCode) -> None:
    before = broker.parts.groups.table
    assert peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body).code == code
    assert broker.parts.groups.table == before


def test_attributes_of_a_group_change_one_by_one(broker: Broker, peer: Peer) -> None:
    def change(**attributes: str) -> int:
        signed = {name.replace("_", "."): value for name, value in attributes.items()}
        body = {"groupName": "CG", "attributes": signed}
        return peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body).code

    def found() -> dict[str, str]:
        group = broker.parts.groups.get("CG")
        assert group is not None
        return dict(group.attributes)

    assert change(**{"+lite_bind_topic": "Sessions"}) == 0
    assert change(**{"+lite_sub_model": "Exclusive", "+lite_sub_client_quota": "5"}) == 0
    expected = {"lite.bind.topic": "Sessions", "lite.sub.model": "Exclusive", "lite.sub.client.quota": "5"}
    assert found() == expected
    assert change() == 0  # A change of other settings.
    for refused in (
        {"lite_sub_model": "Shared"},  # Without a sign.
        {"+lite_sub_model": "Both"},
        {"+lite_sub_client_quota": "0"},
        {"+lite_bind_topic": "no good"},
        {"+priority_factor": "0"},
        {"-lite_sub_reset_offset_exclusive": ""},
    ):
        assert change(**refused) == ResponseCode.SYSTEM_ERROR
    assert found() == expected
    assert change(**{"-lite_sub_model": ""}) == 0
    assert "lite.sub.model" not in found()


@pytest.mark.parametrize("clean", [True, False])
def test_a_deleted_group_keeps_its_offsets_unless_asked(broker: Broker, peer: Peer, clean: bool) -> None:
    broker.parts.groups.find_or_make("CG")
    broker.parts.offsets.commit("CG", "T", 0, 1)
    assert peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="CG", cleanOffset=str(clean).lower()).code == 0
    assert broker.parts.groups.get("CG") is None
    assert broker.parts.offsets.query("CG", "T", 0) == (-1 if clean else 1)


def test_a_group_that_may_not_come_by_itself_is_not_there(tmp_path: Path) -> None:
    with running(tmp_path, auto_create_subscription_group=False) as broker, Peer(broker) as peer:
        answer = peer.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="CG")
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_all_groups_are_listed(broker: Broker, peer: Peer) -> None:
    reported = decode_body(peer.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)
    assert set(reported["subscriptionGroupTable"]) == set(PREDEFINED_GROUPS)
    assert reported["dataVersion"] == broker.parts.groups.data_version.to_json()


def test_members_of_a_group_are_notified_with_what_they_subscribe_to(peer: Peer) -> None:
    peer.join("CG", "TagA")
    reported = decode_body(peer.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="CG").body)
    (connection,) = reported["connectionSet"]
    assert (connection["clientId"], connection["language"]) == ("c1", "PYTHON")
    assert connection["clientAddr"].startswith("127.0.0.1:")
    assert (reported["consumeType"], reported["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert reported["consumeFromWhere"] == "CONSUME_FROM_LAST_OFFSET"
    assert reported["subscriptionTable"]["T"]["subString"] == "TagA"
    producers = decode_body(peer.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="P").body)
    assert producers == {"connectionSet": [connection]}


def test_a_group_without_members_is_offline(peer: Peer) -> None:
    offline = peer.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="CG")
    assert offline.code == ResponseCode.CONSUMER_NOT_ONLINE
    missing = peer.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="PG")
    assert missing.code == ResponseCode.SYSTEM_ERROR


def test_topics_and_subscriptions_of_a_group_are_notified(broker: Broker, peer: Peer) -> None:
    broker.parts.offsets.commit("CG", "T", 0, 1)
    reported = decode_body(peer.ask(RequestCode.QUERY_TOPICS_BY_CONSUMER, group="CG").body)
    assert reported == {"brokerAddr": broker.address, "topicList": ["T"]}
    peer.join("CG", "TagA")
    found = decode_body(peer.ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, group="CG", topic="T").body)
    assert found["subscriptionData"]["tagsSet"] == []
    assert (found["group"], found["topic"], found["subscriptionData"]["subString"]) == ("CG", "T", "TagA")
    none = decode_body(peer.ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, group="CG", topic="U").body)
    assert none == {"group": "CG", "topic": "U"}


def test_a_list_of_groups_is_made_whole_or_not_at_all(broker: Broker, peer: Peer) -> None:
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    before = broker.parts.groups.table
    wrong = {"groupConfigList": [{"groupName": "G1"}, {"groupName": "no good"}]}
    assert peer.ask(code, wrong).code == ResponseCode.INVALID_PARAMETER
    assert peer.ask(code, {"groupConfigList": {"groupName": "G1"}}).code == ResponseCode.SYSTEM_ERROR
    assert broker.parts.groups.table == before
    assert peer.ask(code, {"groupConfigList": [{"groupName": "G1"}, {"groupName": "G2", "retryMaxTimes": 3}]}).code == 0
    found = GroupTable(str(Path(broker.parts.groups.path).parent), broker.config, broker.parts.clock)
    assert (found.table["G1"].retry_max_times, found.table["G2"].retry_max_times) == (16, 3)


def test_a_group_that_may_not_read_a_topic_is_refused_until_it_may_again(broker: Broker, peer: Peer) -> None:
    put(broker, "hello")
    peer.join()
    code = RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN
    reported = decode_body(peer.ask(code, group="G", topic="T", readable="false").body)
    assert reported == {"group": "G", "readable": False, "topic": "T"}
    assert peer.pull().code == ResponseCode.NO_PERMISSION
    assert decode_body(peer.ask(code, group="G", topic="T").body)["readable"] is False
    assert decode_body(peer.ask(code, group="G", topic="T", readable="true").body)["readable"] is True
    assert peer.pull().code == 0


def test_producers_of_all_groups_are_notified_with_their_clients(broker: Broker, peer: Peer) -> None:
    assert decode_body(peer.ask(RequestCode.GET_ALL_PRODUCER_INFO).body) == {"data": {}}
    peer.join(client_id="sender")
    (only,) = decode_body(peer.ask(RequestCode.GET_ALL_PRODUCER_INFO).body)["data"]["P"]
    assert (only["clientId"], only["language"]) == ("sender", "PYTHON")
    assert only["remoteIP"].startswith("/127.0.0.1:")
    assert abs(only["lastUpdateTimestamp"] - broker.parts.clock.now_ms()) < 60_000
