"""Simple consumers: popped messages are acknowledged, come again in time, and may be given more of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiermq
from tiermq.client.member.cluster import Cluster
from tiermq.client.member.received_message import ReceivedMessage
from tiermq.errors import BadConfig, IllegalMessage, RemotingError, RequestRefused
from tiermq.testing import LocalBroker


def test_what_is_acknowledged_is_gone_and_the_rest_comes_again(tmp_path: Path) -> None:
    with LocalBroker(tmp_path) as broker, tiermq.connect(broker.name_server) as cluster:
        broker.create_topic("orders", queues=2)
        for number in range(6):
            broker.send("orders", b"%d" % number, number % 2, tags="paid")
        with cluster.simple_consumer("G", topic="orders", invisible_s=30, start="first") as consumer:
            found: list[ReceivedMessage] = []
            while len(found) < 6:
                found += consumer.receive(4)
            assert {message.body for message in found} == {b"%d" % number for number in range(6)}
            assert consumer.receive(wait_s=0) == []
            for message in found[:4]:
                consumer.ack(message)
            consumer.extend(found[4], 3_600)
            broker.advance(seconds=60)
            [again] = consumer.receive(wait_s=60)
            assert (again.body, again.attempt, again.topic) == (found[5].body, 2, "orders")
            consumer.ack(again)
            broker.advance(seconds=3_600)
            [again] = consumer.receive(wait_s=60)
            assert again.body == found[4].body
            consumer.extend(again, 0)
            [again] = consumer.receive(wait_s=60)
            assert (again.body, again.attempt) == (found[4].body, 3)
            consumer.ack(again)
            broker.advance(seconds=3_600)
            assert consumer.receive(wait_s=0) == []


def test_tags_and_conditions_choose_what_is_popped(
    broker: LocalBroker, cluster: Cluster, topic: str, group: str
) -> None:
    for number in range(4):
        broker.send(topic, b"%d" % number, tags="odd" if number % 2 else "even", properties={"n": str(number)})
    with cluster.simple_consumer(group, topic=topic, tags="odd", start="first") as consumer:
        assert [message.body for message in consumer.receive()] == [b"1", b"3"]
    with cluster.simple_consumer(f"{group}-sql", topic=topic, sql="n > 1", start="first") as consumer:
        assert [message.body for message in consumer.receive()] == [b"2", b"3"]


def test_what_cannot_be_received_is_refused_in_words(cluster: Cluster, topic: str, group: str) -> None:
    with pytest.raises(RemotingError, match=r"use `with cluster\.simple_consumer\("):
        cluster.simple_consumer(group, topic=topic).receive(wait_s=0)
    with pytest.raises(BadConfig, match="above 0"):
        cluster.simple_consumer(group, topic=topic, invisible_s=0)
    with pytest.raises(RequestRefused, match="expected the topic"), cluster.simple_consumer(group, topic="unheard"):
        pass
    with cluster.simple_consumer(group, topic=topic) as consumer, pytest.raises(IllegalMessage, match="1 to 32"):
        consumer.receive(33)
