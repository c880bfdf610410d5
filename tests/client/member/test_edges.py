"""Calls that end early, come twice or make no sense: a member leaves all the same, and errors are in words."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

import tiermq
from tiermq import Message
from tiermq.client import AsyncConsumer, Consumer, Producer, SimpleConsumer
from tiermq.client.member.cluster import Cluster
from tiermq.client.member.session import Session
from tiermq.errors import BadConfig, BadExpression, IllegalMessage, RemotingError
from tiermq.testing import LocalBroker


def members(broker: LocalBroker, group: str) -> int:
    return len(broker.broker.parts.clients.client_ids(group))


def test_what_is_no_message_is_refused_by_a_type_error_in_words(cluster: Cluster, topic: str, group: str) -> None:
    wrong: Any = topic
    with cluster.producer("shop", check=lambda _: None) as producer:
        sends: list[Callable[[], Any]] = [
            lambda: producer.send(wrong),
            lambda: producer.send_later(wrong),
            lambda: producer.send_oneway(wrong),
            lambda: producer.send_all([wrong]),
            lambda: producer.request(wrong),
            lambda: producer.transaction(wrong),
        ]
        for send in sends:
            with pytest.raises(
                TypeError, match=r"expected a tiermq.Message, such as Message\(topic, body\), found 'ord"
            ):
                send()
        one: Any = Message(topic, b"x")
        with pytest.raises(TypeError, match="expected Messages, such as a list of them, found Message"):
            producer.send_all(one)
        assert producer.metrics["in_flight"] == 0
    with cluster.consumer(group, topic=topic) as consumer:
        for call in (consumer.ack, consumer.retry, consumer.dead_letter):
            with pytest.raises(TypeError, match="expected a message that the consumer gave, found 'orders-"):
                call(wrong)
    with cluster.simple_consumer(f"{group}-pop", topic=topic) as popped, pytest.raises(TypeError, match="gave"):
        popped.ack(wrong)


@pytest.mark.parametrize("wait_s", [-1, float("nan"), "1"])
def test_a_wait_that_is_no_time_is_refused_in_words(cluster: Cluster, topic: str, group: str, wait_s: Any) -> None:
    with cluster.consumer(group, topic=topic) as consumer:
        with pytest.raises(BadConfig, match="wait_s, idle_s: expected seconds"):
            consumer.poll(wait_s=wait_s)
        with pytest.raises(BadConfig, match="max_messages: expected 1 or more, found 0"):
            consumer.poll(0)
    with pytest.raises(BadConfig, match="wait_s, idle_s: expected seconds"):
        cluster.consumer(group, topic=topic, idle_s=wait_s)
    with cluster.simple_consumer(f"{group}-pop", topic=topic) as popped:
        wrong: Any
        for wrong in (wait_s, None, float("inf")):
            with pytest.raises(BadConfig, match="wait_s: expected"):
                popped.receive(wait_s=wrong)


def test_a_poll_may_wait_without_a_limit(broker: LocalBroker, cluster: Cluster, topic: str, group: str) -> None:
    with cluster.consumer(group, topic=topic, start="first") as consumer:
        sends = threading.Thread(target=broker.send, args=(topic, b"x"))
        sends.start()
        assert [message.body for message in consumer.poll(wait_s=float("inf"))] == [b"x"]
        sends.join()


def test_a_close_that_is_cancelled_leaves_the_group(broker: LocalBroker, topic: str, group: str) -> None:
    """While a handler works, for which a close waits."""

    async def work() -> None:
        inside, go = threading.Event(), threading.Event()

        def handle(_message: object) -> None:
            inside.set()
            assert go.wait(60)

        broker.send(topic, b"x")
        async with tiermq.aconnect(broker.name_server) as cluster:
            consumer = cluster.consumer(group, topic=topic, start="first", on_message=handle)
            await consumer.start()
            await asyncio.to_thread(inside.wait)
            assert members(broker, group) == 1
            closing = asyncio.create_task(consumer.close())
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            assert members(broker, group) == 0
            await consumer.close()
            go.set()
            async with cluster.consumer(group, topic=topic) as other:
                assert len(other.queues) == 4

    asyncio.run(work())


@pytest.mark.parametrize("steps", range(8))
def test_a_start_that_is_cancelled_leaves_the_group(broker: LocalBroker, topic: str, group: str, steps: int) -> None:
    async def work() -> None:
        async with tiermq.aconnect(broker.name_server) as cluster:
            for make in (cluster.consumer, cluster.simple_consumer):
                first: Any = make(group, topic=topic)
                starting = asyncio.create_task(first.start())
                for _ in range(steps):
                    await asyncio.sleep(0)
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)
                second: Any = make(group, topic=topic)
                if not starting.cancelled():
                    await first.close()
                async with second:
                    assert cluster.session.consumers == {group: second}
                assert members(broker, group) == 0

    asyncio.run(work())


def test_a_simple_consumer_of_an_unknown_topic_leaves_no_trace(cluster: Cluster, topic: str, group: str) -> None:
    with pytest.raises(RemotingError), cluster.simple_consumer(group, topic="unknown-topic"):
        raise AssertionError
    with cluster.simple_consumer(group, topic=topic) as consumer:
        assert consumer.receive(wait_s=0) == []


def test_a_consumer_that_never_joined_does_not_take_another_one_out(
    broker: LocalBroker, cluster: Cluster, topic: str, group: str
) -> None:
    with cluster.consumer(group, topic=topic) as consumer:
        other = cluster.consumer(group, topic=topic)
        with pytest.raises(IllegalMessage, match="found a second"), other:
            raise AssertionError
        other.close()
        assert members(broker, group) == 1
        assert len(consumer.queues) == 4


def test_a_closed_consumer_does_not_begin_again(cluster: Cluster, topic: str, group: str) -> None:
    for consumer in (cluster.consumer(group, topic=topic), cluster.simple_consumer(group, topic=topic)):
        with consumer:
            pass
        with pytest.raises(RemotingError, match="expected an open consumer, found it closed"), consumer:
            raise AssertionError


def test_a_cluster_is_entered_by_one_block_at_a_time(broker: LocalBroker) -> None:
    async def work() -> None:
        cluster = tiermq.aconnect(broker.name_server)
        async with cluster:
            with pytest.raises(RemotingError, match="found it open"):
                async with cluster:
                    raise AssertionError
            await cluster.producer("shop").queues("TBW102")
        async with cluster:
            assert cluster.client_id

    asyncio.run(work())


def test_a_producer_whose_close_is_cancelled_has_left(broker: LocalBroker, topic: str) -> None:
    async def work(monkeypatch: pytest.MonkeyPatch) -> None:
        left = []
        leave = Session.leave

        async def noted(session: Session, member: Any, *, is_consumer: bool) -> None:
            left.append(member)
            await leave(session, member, is_consumer=is_consumer)

        monkeypatch.setattr(Session, "leave", noted)
        async with tiermq.aconnect(broker.name_server) as cluster:
            producer = cluster.producer("shop")
            later = await producer.send_later(Message(topic, b"x"))
            closing = asyncio.create_task(producer.close())
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            assert left == [producer]
            assert (await later).topic == topic

    with pytest.MonkeyPatch.context() as monkeypatch:
        asyncio.run(work(monkeypatch))


def test_everything_of_the_client_has_a_readable_repr(cluster: Cluster, broker: LocalBroker, group: str) -> None:
    broker.create_topic("shown")
    assert repr(cluster) == f"Cluster({broker.name_server!r})"
    producer: Producer
    with cluster.producer("shop", check=lambda _: None) as producer:
        assert repr(producer) == "Producer('shop')"
        transaction = producer.transaction(Message("shown", b"x"))
        assert repr(transaction) == "Transaction('shown', not begun)"
        with transaction:
            assert repr(transaction) == "Transaction('shown', open)"
        assert repr(transaction) == "Transaction('shown', ended)"
        receipt = producer.send(Message("shown", b"x", keys=["k"], tags="t"))
    assert repr(producer) == "Producer('shop', closed)"
    consumer: Consumer = cluster.consumer(group, topic="shown", start="first")
    popped: SimpleConsumer = cluster.simple_consumer(f"{group}-pop", topic="shown")
    assert repr(consumer) == f"Consumer({group!r}, topics=['shown'], not begun)"
    with consumer, popped:
        assert repr(consumer) == f"Consumer({group!r}, topics=['shown'])"
        assert repr(popped) == f"SimpleConsumer('{group}-pop', topic='shown')"
        shown = [receipt, consumer.poll()[0], consumer.queues[0], consumer._inner.settings, consumer._inner]
    assert [repr(each) for each in shown if " object at 0x" in repr(each)] == []
    assert isinstance(consumer._inner, AsyncConsumer)
    assert repr(popped) == f"SimpleConsumer('{group}-pop', topic='shown', closed)"
    closed = tiermq.connect(broker.name_server, access_key="a", secret_key="secret")
    closed.close()
    assert repr(closed) == f"Cluster({broker.name_server!r}, closed)"


def test_a_poll_of_a_closed_consumer_is_refused(cluster: Cluster, topic: str, group: str) -> None:
    with cluster.consumer(group, topic=topic) as consumer:
        assert consumer.poll(wait_s=0) == []
    for _ in range(2):
        with pytest.raises(RemotingError, match=f"group {group}: expected an open consumer, found it closed"):
            consumer.poll(wait_s=0)


def test_where_and_when_a_message_goes_is_refused_in_words(cluster: Cluster, topic: str, group: str) -> None:
    options: list[tuple[Any, str]] = [
        ({"queue": "1"}, "queue: expected its number, or a function .* found '1'"),
        ({"queue": 1.5}, "queue: expected its number, or a function .* found 1.5"),
        ({"queue": lambda places: 99}, "queue: expected a function that gives one of the topic's 4 queues.* found 99"),
        ({"queue": lambda places: None}, "queue: expected a function that gives one of .* found None"),
        ({"sharding_key": 42}, "sharding_key: expected a text that is not empty, found 42"),
        ({"sharding_key": ""}, "sharding_key: expected a text that is not empty, found ''"),
    ]
    delays: list[tuple[Any, str]] = [
        ({"delay_level": "3"}, "expected a delay level of 1 to 18, found '3'"),
        ({"delay_s": "5"}, "delay_s: expected a delay above 0 s, found '5'"),
        ({"deliver_at": 1_790_000_000_000}, "deliver_at: expected a datetime"),
    ]
    message = Message(topic, b"x")
    with cluster.producer("shop") as producer:
        for given, words in options:
            sends: list[Callable[..., Any]] = [producer.send, producer.send_oneway]
            for send in sends:
                with pytest.raises(IllegalMessage, match=words):
                    send(message, **given)
            with pytest.raises(IllegalMessage, match=words):
                producer.send_all([message], **given)
        for given, words in delays:
            with pytest.raises(IllegalMessage, match=words):
                producer.send(message, **given)
        assert producer.metrics["in_flight"] == 0


def test_options_of_a_wrong_type_are_refused_in_words(cluster: Cluster, topic: str, group: str) -> None:
    wrong: Any = ["a"]
    with pytest.raises(BadExpression, match=r"tags: expected one text, of tags joined with \|\|, found \['a'\]"):
        cluster.consumer(group, topic=topic, tags=wrong)
    for wrong in ("4", 1.5, 0):
        with pytest.raises(BadConfig, match="workers: expected a whole number of at least 1"):
            cluster.consumer(group, topic=topic, on_message=print, workers=wrong)
    wrong = "x"
    with pytest.raises(BadConfig, match="check: expected a function of one message, found 'x'"):
        cluster.producer("shop", check=wrong)
    with cluster.consumer(group, topic=topic) as consumer, pytest.raises(TypeError, match="consumer gave, found 'x'"):
        consumer.reply(wrong, b"")


def test_a_reply_is_bytes(broker: LocalBroker, cluster: Cluster, topic: str, group: str) -> None:
    broker.send(topic, b"x")
    wrong: Any = "two coffees"
    with cluster.consumer(group, topic=topic, start="first") as consumer:
        [message] = consumer.poll(wait_s=float("inf"))
        with pytest.raises(TypeError, match="body: expected bytes, found 'two coffees'"):
            consumer.reply(message, wrong)


@pytest.mark.parametrize("wrong", [b"127.0.0.1:9876", [b"127.0.0.1:9876"], 9876, "http://127.0.0.1:9876"])
def test_a_name_server_is_host_and_port(wrong: Any) -> None:
    with pytest.raises(BadConfig, match="expected name servers .*host:port"):
        tiermq.connect(wrong)


def test_an_unreachable_name_server_is_named_without_options_of_commands() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # It does not listen.
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            tiermq.connect(address) as cluster,
            cluster.producer("shop", patience_s=0) as producer,
            pytest.raises(RemotingError, match=f"no name server can be reached at {address}") as refused,
        ):
            producer.send(Message("orders", b"x"))
    assert "--namesrv" not in str(refused.value)
