"""Rows to brokers: what a task that is run again sends, and what it does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from broker.brokers import broker_config, running
from tiermq.errors import IllegalMessage, RequestRefused
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.permissions import AccessTable
from tiermq.spark.options import SinkOptions
from tiermq.spark.sink.staged_rows import BatchName
from tiermq.spark.sink.wire_rows import SentRows, send_rows
from tiermq.testing import LocalBroker

NAME = BatchName("query-1", 7)
ACCOUNTS = """
[[accounts]]
accessKey = "sender"
secretKey = "the secret of sender"
defaultTopicPerm = "DENY"
topicPerms = ["orders=PUB"]
"""
ROWS = [{"body": b"%d" % n, "tags": "t", "keys": [f"k{n}"]} for n in range(600)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    with LocalBroker(tmp_path) as made:
        made.create_topic("orders", queues=3)
        yield made


def send(broker: LocalBroker, rows: list[dict[str, Any]], *, is_repeated: bool = False, partition: int = 0) -> SentRows:
    options = SinkOptions.of({"namesrv": broker.name_server, "topic": "orders"})
    half = len(rows) // 2
    batches = [pa.RecordBatch.from_pylist(part) for part in (rows[:half], rows[half:]) if part]
    sent = send_rows(batches, NAME, partition, options, 5, is_repeated=is_repeated)
    broker.broker.parts.local.dispatch_now()
    return sent


def bodies(broker: LocalBroker) -> list[int]:
    return sorted(int(message.body) for message in broker.messages("orders"))


def test_rows_arrive_spread_over_the_queues_in_order(broker: LocalBroker) -> None:
    assert send(broker, ROWS) == SentRows(NAME, 0, 600, 600)
    for queue_id in range(3):
        stored = broker.messages("orders", queue_id)
        assert [int(message.body) for message in stored] == list(range(queue_id, 600, 3))
    first = broker.messages("orders", 0)[0]
    assert (first.tags, first.keys, first.properties["TIERMQ_SINK"]) == ("t", ["k0"], "query-1/7/0/0")
    assert len(first.properties["UNIQ_KEY"]) == 32


def test_a_task_that_died_half_way_goes_on_where_it_was(broker: LocalBroker) -> None:
    send(broker, ROWS[:200])
    assert send(broker, ROWS).sent == 400, "its first row is there, so each row is asked for"
    assert send(broker, ROWS, is_repeated=True).sent == 0
    assert bodies(broker) == list(range(600))


def test_another_partition_or_other_rows_are_not_taken_for_a_repetition(broker: LocalBroker) -> None:
    send(broker, ROWS[:10])
    assert send(broker, ROWS[:10], partition=1).sent == 10
    assert send(broker, ROWS[10:20], is_repeated=True).sent == 10, "the same places, other rows: none is lost"
    assert bodies(broker) == sorted([*range(20), *range(10)])


def test_a_row_reports_its_queue_and_one_that_is_not_there_is_reported(broker: LocalBroker) -> None:
    send(broker, [{"body": b"1", "queueId": 2}, {"body": b"2", "queueId": 2}])
    assert [int(message.body) for message in broker.messages("orders", 2)] == [1, 2]
    with pytest.raises(IllegalMessage, match="queueId 9"):
        send(broker, [{"body": b"3", "queueId": 9}], partition=5)


def test_a_key_that_a_row_brings_along_is_replaced(broker: LocalBroker) -> None:
    row = {"body": b"1", "properties": [("UNIQ_KEY", "old"), ("place", "north")]}
    schema = pa.schema([("body", pa.binary()), ("properties", pa.map_(pa.string(), pa.string()))])
    options = SinkOptions.of({"namesrv": broker.name_server, "topic": "orders"})
    send_rows([pa.RecordBatch.from_pylist([row], schema=schema)], NAME, 0, options, 5, is_repeated=False)
    [stored] = broker.messages("orders")
    assert stored.properties["place"] == "north"
    assert stored.properties["UNIQ_KEY"] != "old"


def test_delayed_rows_are_delivered_when_they_are_due(broker: LocalBroker) -> None:
    send(broker, [{"body": b"1", "delayLevel": 18}, {"body": b"2", "delayLevel": None}])
    assert bodies(broker) == [2]
    assert len(broker.messages("SCHEDULE_TOPIC_XXXX")) == 1
    broker.advance(hours=2)
    while bodies(broker) != [1, 2]:
        assert bodies(broker) in ([2], [1, 2])


def test_an_account_that_may_only_send_sends_and_is_refused_for_that_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acl.toml").write_text(ACCOUNTS)
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "sender")
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "the secret of sender")
    rows = [pa.RecordBatch.from_pylist(ROWS[:10])]
    with NameServer(NameServerConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path="")) as server:
        names = f"127.0.0.1:{server.port}"
        config, acl = broker_config(namesrv_addr=names), AccessTable.load(tmp_path / "acl.toml")
        with running(tmp_path, config=config, acl=acl) as broker:
            broker.parts.topics.put_all([TopicConfig("orders", 1, 1), TopicConfig("denied", 1, 1)])
            assert broker.registration is not None
            assert broker.registration.wait_accepted(60.0)
            options = SinkOptions.of({"namesrv": names, "topic": "orders"})
            assert send_rows(rows, NAME, 0, options, 5, is_repeated=False).sent == 10
            assert send_rows(rows, NAME, 0, options, 5, is_repeated=True).sent == 10, "no broker can be asked"
            options = SinkOptions.of({"namesrv": names, "topic": "denied"})
            for is_repeated in (False, True):
                with pytest.raises(RequestRefused, match="may not PUB the topic 'denied'"):
                    send_rows(rows, NAME, 0, options, 5, is_repeated=is_repeated)
