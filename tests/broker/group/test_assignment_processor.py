"""Who gets which queues when the broker balances."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.consuming import LOCALLY, SIZES, Peer, running
from servers.stranger import stranger_with
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.group.assignment_processor import (
    STRATEGIES,
    GroupMode,
    RequestMode,
    averagely,
    by_circle,
    decode_modes,
    encode_modes,
    shares_for_pop,
)
from tiermq.broker.group.client_table import MessageQueue
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.json_dialect import decode_body
from tiermq.remoting.permissions import AccessTable, Account, Credentials
from tiermq.remoting.tls import TlsMode, TlsSettings, trusting_client_context

NAMES = st.lists(st.text(alphabet="abcdef", min_size=1), min_size=1, max_size=9, unique=True).map(sorted)


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("T", "b", queue_id) for queue_id in range(count)]


@given(st.integers(0, 40), NAMES, st.sampled_from(sorted(STRATEGIES)))
def test_every_queue_is_one_member_s(count: int, members: list[str], strategy: str) -> None:
    shares = [STRATEGIES[strategy](queues(count), members, member) for member in members]
    assert sorted(queue for share in shares for queue in share) == queues(count)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(st.integers(1, 40), NAMES, st.integers(0, 12))
def test_every_queue_is_popped_by_somebody(count: int, members: list[str], share_queues: int) -> None:
    mode = GroupMode(RequestMode.POP, share_queues)
    found = {queue for member in members for queue in shares_for_pop(queues(count), members, member, mode, averagely)}
    assert found == {MessageQueue("T", "b", -1)} or found == set(queues(count))


def test_strategies_are_rocketmq_s() -> None:
    assert [len(averagely(queues(8), list("abc"), member)) for member in "abc"] == [3, 3, 2]
    assert [queue.queue_id for queue in averagely(queues(8), list("abc"), "b")] == [3, 4, 5]
    assert [queue.queue_id for queue in by_circle(queues(8), list("abc"), "b")] == [1, 4, 7]
    assert averagely(queues(8), list("abc"), "stranger") == by_circle(queues(8), list("abc"), "stranger") == []


@given(
    st.dictionaries(
        st.tuples(st.text(min_size=1), st.text(min_size=1)),
        st.builds(GroupMode, st.sampled_from(RequestMode), st.integers(-1, 100)),
    )
)
def test_modes_are_read_as_they_were_written(modes: dict[tuple[str, str], GroupMode]) -> None:
    assert decode_modes(encode_modes(modes)) == modes


def asked(peer: Peer, **changes: Any) -> list[tuple[str, int, str]]:
    body = {
        "clientId": "c1",
        "consumerGroup": "G",
        "messageModel": "CLUSTERING",
        "strategyName": "AVG",
        "topic": "T",
        **changes,
    }
    answer = peer.ask(RequestCode.QUERY_ASSIGNMENT, body)
    assert answer.code == 0, answer.remark
    return [
        (each["messageQueue"]["brokerName"], each["messageQueue"]["queueId"], each["mode"])
        for each in decode_body(answer.body)["messageQueueAssignments"]
    ]


def test_members_share_the_queues_of_a_topic(broker: Broker) -> None:
    with Peer(broker) as one, Peer(broker) as two:
        assert asked(one) == [], "nobody's yet: it is no member"
        one.join("G", client_id="c1")
        assert asked(one) == [("b", queue_id, "PULL") for queue_id in range(4)]
        two.join("G", client_id="c2")
        assert asked(one) == [("b", 0, "PULL"), ("b", 1, "PULL")]
        assert asked(two, clientId="c2") == [("b", 2, "PULL"), ("b", 3, "PULL")]
        assert len(asked(two, clientId="c2", messageModel="BROADCASTING")) == 4
        assert asked(two, topic="none") == []


def test_a_group_pops_once_it_was_asked_to_and_still_after_a_restart(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        reported = {"topic": "T", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 0}
        assert peer.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, reported).code == 0
    with running(tmp_path) as broker, Peer(broker) as peer:
        peer.join("G")
        assert asked(peer) == [("b", -1, "POP")]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"topic": "%RETRY%G", "consumerGroup": "G", "mode": "POP"}, ResponseCode.NO_PERMISSION),
        ({"topic": "T", "mode": "POP"}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "..", "consumerGroup": "G", "mode": "POP"}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "T\0", "consumerGroup": "G", "mode": "POP"}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "T", "consumerGroup": "../G", "mode": "POP"}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "T", "consumerGroup": "G\0", "mode": "POP"}, ResponseCode.INVALID_PARAMETER),
        (b"no json", ResponseCode.SYSTEM_ERROR),
    ],
)
def test_modes_that_cannot_be_are_refused(broker: Broker, body: bytes, code: ResponseCode) -> None:
    with Peer(broker) as peer:
        assert peer.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body).code == code


def test_an_unknown_strategy_is_refused(broker: Broker) -> None:
    with Peer(broker) as peer:
        answer = peer.ask(RequestCode.QUERY_ASSIGNMENT, {"topic": "T", "consumerGroup": "G", "strategyName": "MAGIC"})
    assert (answer.code, "AVG" in (answer.remark or "")) == (ResponseCode.INVALID_PARAMETER, True)


def test_queues_of_other_brokers_are_known_from_the_name_server(tmp_path: Path) -> None:
    config = NameServerConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path="")
    with NameServer(config) as server:
        address = f"127.0.0.1:{server.port}"
        with (
            running(tmp_path / "a", broker_name="a", namesrv_addr=address) as first,
            running(tmp_path / "b", broker_name="b", namesrv_addr=address) as second,
            Peer(first) as peer,
        ):
            for broker in (first, second):
                assert broker.registration is not None
                assert broker.registration.wait_registered(60)
            peer.join("G")
            expected = [(name, queue_id, "PULL") for name in "ab" for queue_id in range(4)]
            while asked(peer) != expected:  # Until the second broker's topic is known there.
                second.parts.topics.put(TopicConfig("T", 4, 4))


def test_a_route_with_more_queues_than_a_topic_can_have_is_not_used(tmp_path: Path) -> None:
    config = NameServerConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path="")
    with NameServer(config) as server:
        address = f"127.0.0.1:{server.port}"
        with (
            running(tmp_path, namesrv_addr=address) as broker,
            stranger_with(address, "many", 1_000_000),
            Peer(broker) as peer,
        ):
            peer.join("G")
            assert asked(peer, topic="many") == []


def test_a_name_server_that_wants_tls_and_a_signature_is_asked_with_both(tmp_path: Path) -> None:
    config = NameServerConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path="")
    accounts = AccessTable([Account("broker", "a long secret", admin=True)], [])
    with NameServer(config, tls=TlsSettings(TlsMode.ENFORCING), acl=accounts) as server:
        settings: dict[str, Any] = {
            "credentials": Credentials("broker", "a long secret"),
            "name_server_tls": trusting_client_context(),
        }
        at: dict[str, Any] = {**LOCALLY, "namesrv_addr": f"127.0.0.1:{server.port}"}
        opened = [
            Broker.open(tmp_path / name, config=BrokerConfig(**{**at, "broker_name": name}), **SIZES, **settings)
            for name in "ab"
        ]
        for broker in opened:
            broker.parts.topics.put(TopicConfig("T", 4, 4))
        with opened[0] as first, opened[1] as second, Peer(first) as peer:
            for broker in (first, second):
                assert broker.registration is not None
                assert broker.registration.wait_registered(60)
            peer.join("G")
            assert asked(peer) == [(name, queue_id, "PULL") for name in "ab" for queue_id in range(4)]
