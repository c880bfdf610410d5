"""Members of one group: they share the queues, and take over from one that leaves or dies."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tiermq
from client.member.broker_pair import broker_pair
from present import present
from tiermq import Message
from tiermq.client.member.cluster import Cluster, Consumer
from tiermq.client.member.received_message import ReceivedMessage
from tiermq.errors import RequestRefused
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_dialect import ObjectKeyed, decode_object, encode_body
from tiermq.testing import LocalBroker
from waiting import until


def shares(*consumers: Consumer) -> list[list[int]]:
    return [[queue.queue_id for queue in each.queues] for each in consumers]


def test_members_share_the_queues_and_the_last_one_gets_all(broker: LocalBroker, topic: str, group: str) -> None:
    with (
        tiermq.connect(broker.name_server) as one,
        tiermq.connect(broker.name_server) as other,
        one.consumer(group, topic=topic) as first,
    ):
        assert shares(first) == [[0, 1, 2, 3]]
        with other.consumer(group, topic=topic) as second:
            until(lambda: sorted(shares(first, second)) == [[0, 1], [2, 3]])
        until(lambda: shares(first) == [[0, 1, 2, 3]])


def test_a_member_that_dies_is_replaced_and_its_messages_come_again(
    broker: LocalBroker, topic: str, group: str
) -> None:
    with tiermq.connect(broker.name_server) as cluster, cluster.producer("shop") as producer:
        for number in range(40):
            producer.send(Message(topic, b"%d" % number))
    one, other = tiermq.connect(broker.name_server), tiermq.connect(broker.name_server)
    with one, other:
        dying = one.consumer(group, topic=topic, start="first")
        dying.__enter__()
        assert len(dying.poll(10)) > 0
        with other.consumer(group, topic=topic, start="first") as heir:
            until(lambda: sorted(shares(dying, heir)) == [[0, 1], [2, 3]])
            # What a kill does: the connections end, and nothing is committed or unregistered.
            session = dying._inner._session
            dying._thread.call(lambda: [task.cancel() for task in session._tasks])
            connections = [present(client.connection) for client in session._greeted.values()]
            for connection in connections:
                dying._thread.call(connection.abort)
            until(lambda: shares(heir) == [[0, 1, 2, 3]])
            found = {next(heir).body for _ in range(40)}
        assert found == {b"%d" % number for number in range(40)}


def test_nothing_is_lost_or_given_twice_while_members_come_and_go(broker: LocalBroker, topic: str, group: str) -> None:
    """Members that leave by their block commit first: so a message that was handled is not handled again."""
    lock, seen, sent = threading.Lock(), Counter[bytes](), itertools.count()
    stored: list[bytes] = []

    def handle(message: ReceivedMessage) -> None:
        with lock:
            seen[message.body] += 1

    def member(cluster: Cluster) -> Consumer:
        return cluster.consumer(group, topic=topic, start="first", on_message=handle, workers=2)

    with (
        tiermq.connect(broker.name_server) as one,
        tiermq.connect(broker.name_server) as other,
        one.producer("shop") as producer,
        member(one) as first,
    ):

        def send(count: int) -> None:
            for number in itertools.islice(sent, count):
                stored.append(b"%d" % number)
                producer.send(Message(topic, stored[-1]))

        for _ in range(3):
            send(30)
            with member(other) as second:
                until(lambda second=second: sorted(shares(first, second)) == [[0, 1], [2, 3]])  # type: ignore[misc]
                send(30)
                until(lambda: len(seen) == len(stored))
            until(lambda: shares(first) == [[0, 1, 2, 3]])
        until(lambda: len(seen) == len(stored))
    twice = [body for body, count in seen.items() if count > 1]
    assert twice == []


def test_a_reset_that_a_broker_passes_on_moves_members_that_run(broker: LocalBroker, topic: str, group: str) -> None:
    """As RocketMQ's brokers do it; TierMQ's answers the next pull instead: see below."""
    for number in range(8):
        broker.send(topic, b"%d" % number, number % 4)
    with (
        tiermq.connect(broker.name_server) as cluster,
        cluster.consumer(group, topic=topic, start="first") as consumer,
    ):
        assert len({next(consumer).body for _ in range(8)}) == 8
        offsets = [({"brokerName": "broker-a", "queueId": queue, "topic": topic}, 0) for queue in range(4)]
        command = RemotingCommand(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            ext={"topic": topic, "group": group, "timestamp": "0", "isForce": "true"},
            body=encode_body({"offsetTable": ObjectKeyed(offsets)}),
        )
        work = consumer._inner.on_request("", command)
        assert work is not None
        assert consumer._run(work) is None
        assert len({next(consumer).body for _ in range(8)}) == 8


def test_an_operator_s_reset_at_the_broker_moves_members_that_run(broker: LocalBroker, topic: str, group: str) -> None:
    for number in range(8):
        broker.send(topic, b"%d" % number, number % 4)
    host, _, port = broker.address.rpartition(":")
    with (
        tiermq.connect(broker.name_server) as cluster,
        cluster.consumer(group, topic=topic, start="first") as consumer,
        BlockingClient(host, int(port)) as operator,
    ):
        old = {next(consumer).body for _ in range(8)}
        assert len(old) == 8
        consumer.commit()
        ext = {"topic": topic, "group": group, "timestamp": "0", "isForce": "true"}
        answer = operator.request(RemotingCommand(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext=ext))
        assert answer.code == 0, answer.remark
        for queue_id in range(4):
            broker.send(topic, b"new", queue_id)  # Ends the pulls that the broker holds.
        found: list[bytes] = []
        while not old <= set(found):
            found.append(next(consumer).body)
        assert Counter(each for each in found if each in old) == dict.fromkeys(old, 1)


def test_members_share_the_queues_of_two_brokers(tmp_path: Path, group: str) -> None:
    with broker_pair(tmp_path) as (left, right):
        for broker in (left, right):
            for number in range(8):
                broker.send("orders", b"%s %d" % (broker.broker.config.broker_name.encode(), number), number % 4)
        with tiermq.connect(left.name_server) as one, tiermq.connect(left.name_server) as other:
            seen: list[bytes] = []
            lock = threading.Lock()

            def handle(message: ReceivedMessage) -> None:
                with lock:
                    seen.append(message.body)

            def member(cluster: Cluster) -> Consumer:
                return cluster.consumer(group, topic="orders", start="first", on_message=handle, workers=2)

            with member(one) as first:
                until(lambda: len(first.queues) == 8)
                until(lambda: len(seen) == 16)
                with member(other) as second:
                    until(lambda: len(first.queues) == len(second.queues) == 4)
                    assert {*first.queues}.isdisjoint(second.queues)
                    assert {queue.broker_name for queue in (*first.queues, *second.queues)} == {"left", "right"}
                    for broker in (left, right):
                        for queue_id in range(4):
                            broker.send("orders", b"%s new %d" % (broker.address.encode(), queue_id), queue_id)
                    until(lambda: len(seen) == 24)
                until(lambda: len(first.queues) == 8)
            assert len(set(seen)) == 24
        for broker in (left, right):
            assert [broker.committed_offset(group, "orders", queue_id) for queue_id in range(4)] == [3] * 4


def test_an_operator_sees_the_members_and_where_they_are(broker: LocalBroker, topic: str, group: str) -> None:
    broker.send(topic, b"x", 2)
    with (
        tiermq.connect(broker.name_server) as cluster,
        cluster.consumer(group, topic=topic, tags="*", start="first") as consumer,
    ):
        next(consumer)
        client = cluster._inner.session.client
        answer = cluster._run(client.ask(broker.address, RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup=group))
        assert cluster.client_id.encode() in bytes(answer.body)
        assert b"PYTHON" in bytes(answer.body)
        ask = partial(client.ask, broker.address)
        status = cluster._run(ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic=topic, group=group))
        [offsets] = decode_object(status.body)["consumerTable"].values()
        assert sorted(offsets.values()) == [0, 0, 0, 0]  # The one message was given, and is not done yet.
        named: dict[str, Any] = {"consumerGroup": group, "clientId": cluster.client_id}
        info = decode_object(cluster._run(ask(RequestCode.GET_CONSUMER_RUNNING_INFO, **named)).body)
        assert len([queue for queue in info["mqTable"] if group not in queue]) == 4
        assert {each["topic"] for each in info["subscriptionSet"]} == {topic, f"%RETRY%{group}"}
        named["msgId"] = broker.messages(topic)[0].message_id
        with pytest.raises(RequestRefused, match="with a handler"):
            cluster._run(ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, **named))


def test_an_operator_lets_a_handler_consume_one_message(broker: LocalBroker, topic: str, group: str) -> None:
    stored = broker.send(topic, b"old")
    seen: list[bytes] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if len(seen) > 1:
            raise ValueError("once is enough")

    with (
        tiermq.connect(broker.name_server) as cluster,
        cluster.consumer(group, topic=topic, on_message=handle),
    ):
        named: dict[str, Any] = {"consumerGroup": group, "clientId": cluster.client_id, "msgId": stored.message_id}
        for expected in ("CR_SUCCESS", "CR_THROW_EXCEPTION"):
            asked = cluster._inner.session.client.ask(broker.address, RequestCode.CONSUME_MESSAGE_DIRECTLY, **named)
            assert decode_object(cluster._run(asked).body)["consumeResult"] == expected
    assert seen == [b"old", b"old"]
