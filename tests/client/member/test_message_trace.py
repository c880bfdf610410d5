"""Traces of sends and handlers, as RocketMQ's clients write them."""

from __future__ import annotations

import os
import re
from collections import defaultdict

import pytest

import tiermq
from tiermq import Message
from tiermq.client.member import message_trace
from tiermq.client.member.received_message import ReceivedMessage
from tiermq.errors import BadConfig, RemotingError
from tiermq.testing import LocalBroker
from waiting import until

TRACES = "RMQ_SYS_TRACE_TOPIC"


def records(broker: LocalBroker, key: str) -> dict[str, list[list[str]]]:
    """The records of messages that are found by `key`, by kind."""
    found: dict[str, list[list[str]]] = defaultdict(list)
    for message in broker.messages(TRACES):
        if key in message.keys:
            for text in filter(None, message.body.decode().split("\x02")):
                kind, *fields = text.split("\x01")
                found[kind].append(fields)
    return found


def test_sends_and_handlers_are_recorded(broker: LocalBroker, topic: str, group: str) -> None:
    attempts: list[int] = []

    def handle(message: ReceivedMessage) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            raise tiermq.RetryLater(delay_level=1)

    with tiermq.connect(broker.name_server) as cluster:
        with cluster.producer("shop", trace=True) as producer:
            receipt = producer.send(Message(topic, b"two coffees", keys=[f"{topic}-42", "vip"], tags="paid"))
            producer.send_all([Message(topic, b"a", keys=[f"{topic}-a"]), Message(topic, b"b", keys=[f"{topic}-b"])])
        with cluster.consumer(group, topic=topic, tags="paid", start="first", on_message=handle, trace=True):
            until(lambda: attempts == [1, 2])
    found = records(broker, f"{topic}-42")
    pubs = [fields for fields in found["Pub"] if fields[4] == receipt.unique_key]
    [(_, region, own_group, own_topic, _, tags, keys, store, length, _, kind, offset_id, success)] = pubs
    assert (region, own_group, own_topic, tags, keys) == ("DefaultRegion", "shop", topic, "paid", f"{topic}-42 vip")
    assert (length, kind, offset_id, success) == ("11", "0", receipt.message_id, "true")
    assert store == broker.address
    before = {fields[3]: fields for fields in found["SubBefore"] if fields[4] == receipt.unique_key}
    after = {fields[0]: fields for fields in found["SubAfter"] if fields[1] == receipt.unique_key}
    assert before.keys() == after.keys()
    assert sorted(fields[5] for fields in before.values()) == ["0", "1"]
    assert sorted((after[request][3], before[request][5]) for request in before) == [("false", "0"), ("true", "1")]
    assert len([fields for fields in records(broker, f"{topic}-b")["Pub"] if fields[6] == f"{topic}-b"]) == 1


def test_a_send_that_fails_is_recorded_and_no_trace_without_the_option(broker: LocalBroker, topic: str) -> None:
    with tiermq.connect(broker.name_server) as cluster:
        with cluster.producer("shop", trace=True) as producer, pytest.raises(RemotingError):
            producer.send(Message(topic, os.urandom(5 << 20), keys=[f"{topic}-no"]))  # Too large.
        with cluster.producer("shop") as producer:
            producer.send(Message(topic, b"quiet", keys=[f"{topic}-quiet"]))
    assert [fields[-1] for fields in records(broker, f"{topic}-no")["Pub"]] == ["false"]
    assert records(broker, f"{topic}-quiet") == {}


def test_records_that_are_dropped_are_counted_in_the_log(
    broker: LocalBroker, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(message_trace, "WAITING_MAX", 0)
    with tiermq.connect(broker.name_server) as cluster, cluster.producer("shop", trace=True) as producer:
        for _ in range(3):
            producer.send(Message(topic, b"untraced", keys=[f"{topic}-0"]))
    assert records(broker, f"{topic}-0") == {}
    assert sum(map(int, re.findall(r"(\d+) trace records are dropped", caplog.text))) == 3


def test_a_consumer_without_a_handler_cannot_be_traced(broker: LocalBroker, topic: str) -> None:
    with tiermq.connect(broker.name_server) as cluster, pytest.raises(BadConfig, match="on_message"):
        cluster.consumer("readers", topic=topic, trace=True)
