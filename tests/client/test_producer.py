"""Messages to brokers: in batches, found by their keys, and sent again only where they are missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from client.wire_world import filled
from present import present
from tiermq.client.cluster_client import ClusterClient, QueuePlace
from tiermq.client.producer import BATCH_BYTES, BATCH_MESSAGES, Outgoing, Producer, batches_of
from tiermq.errors import RequestRefused
from tiermq.message.properties import encode_properties
from tiermq.remoting.codes import RequestCode

PLACE = QueuePlace("broker-a", "127.0.0.1:1", 0)


def outgoing(number: int, place: QueuePlace = PLACE, *, body: bytes = b"", alone: bool = False) -> Outgoing:
    properties = encode_properties({"UNIQ_KEY": f"key{number}"})
    return Outgoing("new", place, body or b"%d" % number, properties, f"key{number}", 5, alone)


def test_batches_keep_the_order_of_a_queue_and_their_limits() -> None:
    other = QueuePlace("broker-a", "127.0.0.1:1", 1)
    large = outgoing(9, body=b"x" * BATCH_BYTES)
    messages = [outgoing(1), outgoing(2, other), outgoing(3), outgoing(4, alone=True), outgoing(5), large, outgoing(6)]
    keys = [[message.unique_key for message in batch] for batch in batches_of(messages)]
    assert keys == [["key1", "key3"], ["key2"], ["key4"], ["key5"], ["key9"], ["key6"]]
    assert [len(batch) for batch in batches_of([outgoing(n) for n in range(BATCH_MESSAGES + 1)])] == [BATCH_MESSAGES, 1]


def test_messages_are_stored_once_however_often_they_are_sent(tmp_path: Path) -> None:
    with filled(tmp_path) as (broker, cluster):
        producer = Producer(cluster.client, "group")
        places = cluster.run(producer.places("new"))
        assert len(places) == 4
        messages = [outgoing(number, places[number % 4]) for number in range(40)]
        assert cluster.run(producer.send_all(messages[:25])) == 25
        broker.broker.parts.local.dispatch_now()
        # Also before name servers know of the topic.
        assert present(cluster.run(producer.find_stored(messages[3]))).body == b"3"
        assert cluster.run(producer.find_stored(messages[30])) is None
        assert cluster.run(producer.send_all(messages, ask_first=True)) == 15
        assert sorted(int(message.body) for message in broker.messages("new")) == list(range(40))
        assert broker.messages("new")[0].born_timestamp_ms == 5


def test_a_send_reports_where_its_first_message_lies(tmp_path: Path) -> None:
    with filled(tmp_path) as (_, cluster):
        producer = Producer(cluster.client, "group")
        place = cluster.run(producer.places("new"))[0]
        sends = [[outgoing(1, place)], [outgoing(number, place) for number in range(2, 5)], [outgoing(5, place)]]
        assert [cluster.run(producer.send(messages)) for messages in sends] == [0, 1, 4]


def test_a_refusal_is_raised_and_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    ask = ClusterClient.ask

    def counted(self: ClusterClient, address: str, code: RequestCode, *arguments: Any, **fields: Any) -> Any:
        asked.append(code)
        return ask(self, address, code, *arguments, **fields)

    monkeypatch.setattr(ClusterClient, "ask", counted)
    with filled(tmp_path) as (broker, cluster):
        producer = Producer(cluster.client, "group")
        nowhere = QueuePlace("broker-a", broker.address, 77)
        with pytest.raises(RequestRefused):
            cluster.run(producer.send_all([outgoing(1, nowhere)]))
    assert asked.count(RequestCode.SEND_MESSAGE_V2) == 1
    assert RequestCode.QUERY_MESSAGE not in asked, "a refusal leaves no doubt"
