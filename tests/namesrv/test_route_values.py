"""Routes in the two dialects of JSON that clients read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.errors import RequestRefused
from tiermq.namesrv.route_values import BrokerData, QueueData, TopicRoute
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.json_dialect import decode_body

ROUTE = TopicRoute(
    (BrokerData("DefaultCluster", "broker-a", {1: "10.0.0.2:10911", 0: "10.0.0.1:10911"}),),
    (QueueData("broker-a", 4, 4, 6),),
)


def test_a_route_is_the_text_that_rocketmq_s_name_server_writes() -> None:
    assert ROUTE.encode() == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"},"brokerName":"broker-a",'
        b'"cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},'
        b'"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
    )


def test_old_clients_get_broker_ids_without_quotes() -> None:
    assert ROUTE.encode(standard_json=False) == (
        b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"broker-a",'
        b'"cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},'
        b'"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
    )


TEXT = st.text(max_size=8) | st.just('"brokerDatas":[]') | st.just("{0:1}")


@given(TEXT, TEXT, TEXT, TEXT)
def test_both_dialects_say_the_same_whatever_the_names(name: str, cluster: str, address: str, order: str) -> None:
    route = TopicRoute(
        (BrokerData(cluster, name, {0: address}, True, order), BrokerData(cluster, "b", {3: address})),
        (QueueData(name, 1, 2, 6, 1),),
        {address: (order,)},
        order,
    )
    standard = route.encode()
    assert standard.isascii()
    if not any(0xD800 <= ord(each) < 0xE000 for each in name + cluster + address + order):
        assert decode_body(route.encode(standard_json=False)) == json.loads(standard)


def test_the_lowest_id_takes_the_place_of_a_master_that_is_gone() -> None:
    broker = BrokerData("C", "b", {2: "two", 5: "five"}, acting_master=True)
    assert broker.with_acting_master().addresses == {0: "two", 5: "five"}


def test_queue_data_read_back_and_come_from_a_topic() -> None:
    queue = QueueData.of_topic("b", TopicConfig("t", 3, 4, 6, 1))
    assert queue == QueueData("b", 3, 4, 6, 1)
    assert QueueData.from_json(queue.to_json()) == queue
    assert queue.is_writable
    assert not QueueData("b", 1, 1, 4).is_writable


@pytest.mark.parametrize("bad", [None, [], {}, {"brokerName": ""}, {"brokerName": "b", "perm": "x"}])
def test_what_is_no_queue_data_is_refused(bad: Any) -> None:
    with pytest.raises(RequestRefused):
        QueueData.from_json(bad)
