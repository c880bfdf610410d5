"""Every request of the name server, answered without a network."""

from __future__ import annotations

import contextlib
import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.floods import CHANGES_TOO_LARGE
from simulation.manual_clock import ManualClock
from tiermq.errors import RequestRefused
from tiermq.namesrv.kv_config import ORDER_TOPIC_CONFIG, KvConfig
from tiermq.namesrv.name_processor import NameProcessor
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.namesrv.route_table import RouteTable
from tiermq.namesrv.topic_config import DataVersion, TopicConfig, body_checksum, encode_register_body
from tiermq.remoting.access import declared_by
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.server import RemotingServer, Steps

A = "10.0.0.1:10911"
WHO = {"brokerName": "broker-a", "brokerAddr": A, "clusterName": "C", "brokerId": "0"}
TOPICS = [TopicConfig("TBW102", 8, 8, 7), TopicConfig("orders", 4, 4)]
VERSION = DataVersion(5, 1)


class Channel:
    """Stands for a connection, which the processor only keeps."""


class Unhurried(RemotingServer):
    """Takes all steps of a request at once: without a network there is no other peer to be served."""

    def in_steps(self, connection: Connection, command: RemotingCommand, steps: Steps) -> RemotingCommand | None:
        while True:
            try:
                next(steps)
            except StopIteration as done:
                return cast(RemotingCommand, done.value)


class Desk:
    """A processor and the connection that asks it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.processor = NameProcessor(NameServerConfig(), RouteTable(self.clock), KvConfig())
        self.processor.serve_at(Unhurried())
        self.connection = cast(Connection, Channel())
        self.declared = {declared.code: (declared, handler) for declared, handler in declared_by(self.processor)}

    def ask(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", version: int = 479
    ) -> RemotingCommand:
        declared, handler = self.declared[code]
        request = RemotingCommand(code, ext=ext, body=body, version=version)
        decoded = () if declared.decode is None else (declared.decode(request),)
        answer = handler(self.connection, request, *decoded)
        assert isinstance(answer, RemotingCommand)
        return answer

    def register(self, **ext: str) -> RemotingCommand:
        body = encode_register_body(TOPICS, VERSION)
        checksum = {"bodyCrc32": str(body_checksum(body))}
        return self.ask(RequestCode.REGISTER_BROKER, {**WHO, "haServerAddr": f"{A}-ha", **checksum, **ext}, body)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def document(answer: RemotingCommand) -> Any:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return json.loads(bytes(answer.body))


def test_a_registered_broker_is_in_routes_lists_and_the_cluster(desk: Desk) -> None:
    answer = desk.register()
    assert (answer.code, answer.ext, answer.body) == (0, {}, b"")
    route = document(desk.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}))
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": A}
    assert route["queueDatas"][0]["writeQueueNums"] == 4
    broker = {"brokerAddrs": {"0": A}, "brokerName": "broker-a", "cluster": "C", "enableActingMaster": False}
    assert document(desk.ask(RequestCode.GET_BROKER_CLUSTER_INFO)) == {
        "brokerAddrTable": {"broker-a": broker},
        "clusterAddrTable": {"C": ["broker-a"]},
    }
    topics = {"topicList": ["TBW102", "orders"]}
    assert document(desk.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)) == topics
    assert document(desk.ask(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "C"})) == topics
    assert document(desk.ask(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "D"})) == {"topicList": []}
    assert document(desk.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)) == {
        "brokerAddr": A,
        "topicList": ["C", "broker-a"],
    }
    group = document(desk.ask(RequestCode.GET_BROKER_MEMBER_GROUP, {"clusterName": "C", "brokerName": "broker-a"}))
    assert group == {"brokerMemberGroup": {"brokerAddrs": {"0": A}, "brokerName": "broker-a", "cluster": "C"}}


def test_an_empty_name_server_answers_with_empty_lists(desk: Desk) -> None:
    assert document(desk.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)) == {"topicList": []}
    assert document(desk.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)) == {"topicList": []}
    assert document(desk.ask(RequestCode.GET_BROKER_CLUSTER_INFO)) == {"brokerAddrTable": {}, "clusterAddrTable": {}}


def test_topics_of_units_are_known_by_their_flags(desk: Desk) -> None:
    body = encode_register_body([TopicConfig(f"flags-{flag}", 4, 4, 6, flag) for flag in range(4)], VERSION)
    assert desk.ask(RequestCode.REGISTER_BROKER, {**WHO, "haServerAddr": "h"}, body).code == 0
    for code, expected in (
        (RequestCode.GET_UNIT_TOPIC_LIST, ["flags-1", "flags-3"]),
        (RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, ["flags-2", "flags-3"]),
        (RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, ["flags-2"]),
    ):
        assert document(desk.ask(code)) == {"topicList": expected}


def test_a_slave_is_given_its_master(desk: Desk) -> None:
    desk.register()
    answer = desk.register(brokerId="1", brokerAddr="10.0.0.2:10911")
    assert answer.ext == {"haServerAddr": f"{A}-ha", "masterAddr": A}


def test_an_unknown_topic_is_answered_with_17(desk: Desk) -> None:
    answer = desk.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "nothing"})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert "nothing" in (answer.remark or "")


@pytest.mark.parametrize(
    ("version", "ext", "bare"),
    [(401, {}, False), (400, {}, True), (400, {"acceptStandardJsonOnly": "true"}, False), (0, {}, True)],
)
def test_broker_ids_have_quotes_for_who_reads_standard_json(
    desk: Desk, version: int, ext: dict[str, str], bare: bool
) -> None:
    desk.register()
    answer = desk.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders", **ext}, version=version)
    assert (b'{0:"' in bytes(answer.body)) is bare


def test_a_body_with_another_checksum_is_refused_and_nothing_is_registered(desk: Desk) -> None:
    with pytest.raises(RequestRefused, match="CRC"):
        desk.register(bodyCrc32="1")
    assert desk.processor.table.topics() == []
    desk.register(bodyCrc32="0")
    assert desk.processor.table.topics() != []


def test_unregistering_takes_the_routes_away(desk: Desk) -> None:
    desk.register()
    assert desk.ask(RequestCode.UNREGISTER_BROKER, WHO).code == 0
    assert desk.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}).code == ResponseCode.TOPIC_NOT_EXIST
    assert desk.ask(RequestCode.UNREGISTER_BROKER, WHO).code == 0, "it is not there, which is what was asked for"


def test_the_end_of_a_connection_takes_its_broker_away(desk: Desk) -> None:
    desk.register()
    desk.processor.connection_closed(cast(Connection, Channel()))
    assert desk.processor.table.topics() != []
    desk.processor.connection_closed(desk.connection)
    assert desk.processor.table.topics() == []


def test_a_version_is_compared_and_the_question_is_a_sign_of_life(desk: Desk) -> None:
    asked = json.dumps(VERSION.to_json()).encode()
    answer = desk.ask(RequestCode.QUERY_DATA_VERSION, WHO, asked)
    assert (answer.ext, answer.body) == ({"changed": "true"}, b"")
    desk.register()
    desk.clock.advance_ms(100_000)
    answer = desk.ask(RequestCode.QUERY_DATA_VERSION, WHO, asked)
    assert answer.ext == {"changed": "false"}
    assert document(answer) == VERSION.to_json()
    desk.clock.advance_ms(100_000)
    assert desk.ask(RequestCode.BROKER_HEARTBEAT, WHO).code == 0
    desk.clock.advance_ms(100_000)
    assert desk.processor.table.expire() == []
    assert desk.ask(RequestCode.QUERY_DATA_VERSION, WHO, b"{}").ext == {"changed": "true"}


def test_write_permissions_are_wiped_and_given_back(desk: Desk) -> None:
    desk.register()
    wiped = desk.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    assert wiped.ext == {"wipeTopicCount": "2"}
    route = desk.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    assert document(route)["queueDatas"][0]["perm"] == 4
    added = desk.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    assert added.ext == {"addTopicCount": "2"}
    route = desk.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    assert document(route)["queueDatas"][0]["perm"] == 6


def test_topics_are_registered_and_deleted_by_name(desk: Desk) -> None:
    desk.register()
    queue = {"brokerName": "broker-a", "perm": 6, "readQueueNums": 2, "topicSysFlag": 0, "writeQueueNums": 2}
    body = json.dumps({"brokerDatas": [], "queueDatas": [queue]}).encode()
    assert desk.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "new"}, body).code == 0
    assert document(desk.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "new"}))["queueDatas"] == [queue]
    assert desk.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "new"}).code == 0
    assert desk.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders", "clusterName": "D"}).code == 0
    assert desk.processor.table.topics() == ["TBW102", "orders"]


def test_key_value_settings_are_put_read_listed_and_deleted(desk: Desk) -> None:
    place = {"namespace": ORDER_TOPIC_CONFIG, "key": "orders"}
    assert desk.ask(RequestCode.GET_KV_CONFIG, place).code == ResponseCode.QUERY_NOT_FOUND
    assert desk.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, place).code == ResponseCode.QUERY_NOT_FOUND
    assert desk.register().body == b""
    assert desk.ask(RequestCode.PUT_KV_CONFIG, {**place, "value": "broker-a:4"}).code == 0
    assert desk.ask(RequestCode.GET_KV_CONFIG, place).ext == {"value": "broker-a:4"}
    table = {"table": {"orders": "broker-a:4"}}
    assert document(desk.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, place)) == table
    assert document(desk.register()) == table, "a broker hears of ordered topics when it registers"
    assert desk.ask(RequestCode.DELETE_KV_CONFIG, place).code == 0
    assert desk.ask(RequestCode.GET_KV_CONFIG, place).code == ResponseCode.QUERY_NOT_FOUND


def test_the_order_of_a_topic_is_in_its_route_only_where_that_is_enabled(desk: Desk) -> None:
    desk.register()
    desk.processor.kv.put(ORDER_TOPIC_CONFIG, "orders", "broker-a:4")
    ask = {"topic": "orders"}
    assert "orderTopicConf" not in document(desk.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ask))
    assert desk.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true\n").code == 0
    assert document(desk.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ask))["orderTopicConf"] == "broker-a:4"
    assert b"orderMessageEnable=true" in bytes(desk.ask(RequestCode.GET_NAMESRV_CONFIG).body)


def test_settings_that_cannot_change_are_not_permitted_and_wrong_ones_refused(desk: Desk) -> None:
    answer = desk.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"listenPort=1\norderMessageEnable=true\n")
    assert answer.code == ResponseCode.NO_PERMISSION
    assert not desk.processor.config.order_message_enable
    for bad in (b"orderMessageEnable=7", b"\xff", b"orderMessageEnable=\\u12"):
        with pytest.raises(RequestRefused):
            desk.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=bad)


@pytest.mark.parametrize("body", CHANGES_TOO_LARGE.values(), ids=CHANGES_TOO_LARGE)
def test_a_change_of_settings_is_bounded_before_it_is_read(desk: Desk, body: bytes) -> None:
    with pytest.raises(RequestRefused, match="at most"):
        desk.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)
    assert desk.processor.config == type(desk.processor.config)()


def test_changed_settings_reach_the_route_table(desk: Desk) -> None:
    desk.ask(
        RequestCode.UPDATE_NAMESRV_CONFIG, body=b"deleteTopicWithBrokerRegistration=true\nsupportActingMaster=true"
    )
    assert desk.processor.table.delete_missing_topics
    assert desk.processor.table.support_acting_master


NEEDS = {
    RequestCode.REGISTER_BROKER: [*WHO],
    RequestCode.UNREGISTER_BROKER: [*WHO],
    RequestCode.BROKER_HEARTBEAT: ["clusterName", "brokerName", "brokerAddr"],
    RequestCode.QUERY_DATA_VERSION: ["clusterName", "brokerName", "brokerAddr"],
    RequestCode.GET_BROKER_MEMBER_GROUP: ["clusterName", "brokerName"],
    RequestCode.GET_ROUTEINFO_BY_TOPIC: ["topic"],
    RequestCode.GET_TOPICS_BY_CLUSTER: ["cluster"],
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: ["brokerName"],
    RequestCode.ADD_WRITE_PERM_OF_BROKER: ["brokerName"],
    RequestCode.DELETE_TOPIC_IN_NAMESRV: ["topic"],
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: ["topic"],
    RequestCode.PUT_KV_CONFIG: ["namespace", "key", "value"],
    RequestCode.GET_KV_CONFIG: ["namespace", "key"],
    RequestCode.DELETE_KV_CONFIG: ["namespace", "key"],
    RequestCode.GET_KVLIST_BY_NAMESPACE: ["namespace"],
}


@pytest.mark.parametrize(("code", "missing"), [(code, name) for code, names in NEEDS.items() for name in names])
def test_a_request_without_a_mandatory_field_is_refused(desk: Desk, code: RequestCode, missing: str) -> None:
    ext = {name: WHO.get(name, "x") for name in NEEDS[code] if name != missing}
    with pytest.raises(RequestRefused, match=missing):
        desk.ask(code, ext, b'{"queueDatas":[]}')


FUZZED = Desk()
EXT = st.dictionaries(
    st.sampled_from([*WHO, "haServerAddr", "bodyCrc32", "compressed", "topic", "cluster", "heartbeatTimeoutMillis"]),
    st.sampled_from(["", "0", "true", "-1", "99999999999999999999", "x"]) | st.text(max_size=3),
)
BODY = st.binary(max_size=20) | st.sampled_from(
    [b"", b"[]", b"{}", b'{"queueDatas":[{}]}', b'{"queueDatas":{}}', encode_register_body(TOPICS, VERSION)]
)


@given(st.sampled_from(sorted(FUZZED.declared)), EXT, BODY, st.sampled_from([0, 37, 479]))
def test_whatever_is_asked_there_is_an_answer_or_a_refusal_and_the_table_still_works(
    code: int, ext: dict[str, str], body: bytes, version: int
) -> None:
    with contextlib.suppress(RequestRefused):
        FUZZED.ask(code, ext, body, version)
    document(FUZZED.ask(RequestCode.GET_BROKER_CLUSTER_INFO))
    for topic in FUZZED.processor.table.topics():
        document(FUZZED.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}))
