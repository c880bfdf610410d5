"""A broker that answers with messages of another topic or queue: consumers refuse the answer, count it and log it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tiermq
from tiermq.cli.main import cli
from tiermq.client.cluster_client import Access, BlockingCluster, QueuePlace
from tiermq.client.queue_access import ForeignRecord, QueueAccess
from tiermq.message.record import decode_records
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from tiermq.testing import LocalBroker
from waiting import until

Lie = Callable[[str, int], None]


@pytest.fixture
def liar(tmp_path: Path) -> Iterator[LocalBroker]:
    """With three topics of two queues: one message in each queue, its body names both."""
    with LocalBroker(tmp_path / "store") as broker:
        for topic in ("orders", "secrets", "other"):
            broker.create_topic(topic, queues=2)
            for queue_id in (0, 1):
                broker.send(topic, f"{topic} {queue_id}".encode(), queue_id=queue_id)
        yield broker


@pytest.fixture
def lie(liar: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> Lie:
    """From its call on, reads of orders, queue 0, give what is in another queue."""
    assert liar._broker is not None
    local = liar._broker.parts.local
    get = local.get

    def begin(topic: str, queue_id: int) -> None:
        def lying(asked: str, asked_id: int, *more: Any, **named: Any) -> Any:
            is_it = (asked, asked_id) == ("orders", 0)
            return get(*((topic, queue_id) if is_it else (asked, asked_id)), *more, **named)

        monkeypatch.setattr(local, "get", lying)

    return begin


OTHERS = [("secrets", 0), ("orders", 1)]


@pytest.mark.parametrize("other", OTHERS)
def test_a_pull_consumer_gives_nothing_of_another_queue_and_counts_it(
    liar: LocalBroker, lie: Lie, other: tuple[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    lie(*other)
    with tiermq.connect(liar.name_server) as cluster, caplog.at_level(logging.WARNING):
        with cluster.consumer("audit", topics=["orders"], start="first") as consumer:
            assert next(iter(consumer)).body == b"orders 1"
            until(lambda: consumer.metrics["refused"] >= 1)
            assert (consumer.metrics["received"], consumer.metrics["ready"]) == (1, 0)
        assert f"found one of topic '{other[0]}', queue {other[1]}: none of that answer is taken" in caplog.text
        with cluster.consumer("audit2", topics=["orders"], start="first") as consumer:
            lie("orders", 0)
            assert {next(iter(consumer)).body for _ in range(2)} == {b"orders 0", b"orders 1"}, "it goes on afterwards"


def test_a_handler_gets_nothing_of_another_queue(liar: LocalBroker, lie: Lie) -> None:
    got: list[bytes] = []
    lie("secrets", 0)
    with (
        tiermq.connect(liar.name_server) as cluster,
        cluster.consumer(
            "audit", topics=["orders"], start="first", on_message=lambda message: got.append(message.body)
        ) as consumer,
    ):
        until(lambda: got and consumer.metrics["refused"] >= 2)
    assert got == [b"orders 1"]


def test_the_async_consumer_refuses_the_same(liar: LocalBroker, lie: Lie) -> None:
    async def received() -> tuple[bytes, int]:
        async with (
            tiermq.aconnect(liar.name_server) as cluster,
            cluster.consumer("audit", topics=["orders"], start="first") as consumer,
        ):
            message = await anext(consumer)
            while not consumer.metrics["refused"]:
                await asyncio.sleep(0.002)
            return message.body, consumer.metrics["ready"]

    lie("secrets", 0)
    assert asyncio.run(received()) == (b"orders 1", 0)


def test_a_simple_consumer_refuses_messages_of_another_topic_and_takes_retries(liar: LocalBroker, lie: Lie) -> None:
    with tiermq.connect(liar.name_server) as cluster:
        with cluster.simple_consumer("pops", topic="orders", invisible_s=60) as consumer:
            lie("secrets", 0)
            with pytest.raises(ForeignRecord, match="topic orders .* found one of topic 'secrets', queue 0: none"):
                consumer.receive(wait_s=0)
            lie("orders", 0)
        with cluster.simple_consumer("pops2", topic="orders", invisible_s=60) as consumer:
            first = consumer.receive(wait_s=5)[0]
            consumer.extend(first, 0)
            again: list[bytes] = []
            while again.count(first.body) == 0:
                again += [message.body for message in consumer.receive(wait_s=1)]


def test_reads_over_the_wire_refuse_it_too(liar: LocalBroker, lie: Lie) -> None:
    lie("secrets", 0)
    consumed = CliRunner().invoke(cli, ["consume", "orders", "--namesrv", liar.name_server, "--from", "first"])
    assert "secrets 0" not in consumed.output
    assert consumed.exit_code != 0
    assert "none of that answer is taken" in consumed.output
    with BlockingCluster(Access(liar.name_server)) as cluster:
        queue = QueueAccess(cluster.client, "orders", QueuePlace("broker-a", liar.address, 0))
        pulled = cluster.run(queue.pull(0))
        with pytest.raises(ForeignRecord, match=liar.address):
            queue.messages_of(pulled)


def test_a_handler_is_not_handed_a_message_of_a_topic_that_its_group_does_not_read(liar: LocalBroker) -> None:
    """CONSUME_MESSAGE_DIRECTLY: an operator gives one message to one member."""
    got: list[bytes] = []
    host, _, port = liar.address.rpartition(":")
    with (
        tiermq.connect(liar.name_server) as cluster,
        cluster.consumer(
            "direct", topics=["orders"], start="first", on_message=lambda message: got.append(message.body)
        ),
        BlockingClient(host, int(port)) as operator,
    ):
        until(lambda: len(got) == 2)
        listed = operator.request(
            RemotingCommand(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext={"consumerGroup": "direct"})
        )
        [member] = json.loads(bytes(listed.body))["consumerIdList"]
        for topic in ("secrets", "orders"):
            page = liar.broker.parts.local.get(topic, 0, 0, 1)
            [message] = decode_records(page.data)
            ext = {"consumerGroup": "direct", "clientId": member, "msgId": message.message_id, "brokerName": "broker-a"}
            answer = operator.request(RemotingCommand(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext=ext))
            assert (answer.code == 0) == (topic == "orders"), answer.remark
    assert sorted(got) == [b"orders 0", b"orders 0", b"orders 1"]
