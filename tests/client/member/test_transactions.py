"""Transactions: a message becomes visible with its block, or never; a broker that asks is answered."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import tiermq
from broker.consuming import on_loop, part
from tiermq import Decision, Message
from tiermq.broker.delivery.end_transaction_processor import EndTransactionProcessor
from tiermq.client.member.cluster import Cluster
from tiermq.client.member.received_message import ReceivedMessage
from tiermq.errors import IllegalMessage
from tiermq.testing import LocalBroker
from waiting import until


def never(message: ReceivedMessage) -> Decision:
    raise AssertionError(f"the broker asked for {message}")


def test_a_block_that_ends_commits_and_one_that_raises_rolls_back(
    broker: LocalBroker, cluster: Cluster, topic: str
) -> None:
    with cluster.producer("shop", check=never) as producer:
        with producer.transaction(Message(topic, b"paid", keys=["42"])) as transaction:
            assert transaction.receipt is not None
            assert broker.messages(topic) == []
        with pytest.raises(ZeroDivisionError), producer.transaction(Message(topic, b"failed")):
            raise ZeroDivisionError
        with producer.transaction(Message(topic, b"said so")) as transaction:
            transaction.commit()
            with pytest.raises(IllegalMessage, match="ended"):
                transaction.roll_back()
        with producer.transaction(Message(topic, b"unsaid")) as transaction:
            transaction.roll_back()
    until(lambda: len(broker.messages(topic)) == 2)
    assert sorted(message.body for message in broker.messages(topic)) == [b"paid", b"said so"]
    with (
        cluster.producer("shop") as producer,
        pytest.raises(IllegalMessage, match="check="),
        producer.transaction(Message(topic, b"x")),
    ):
        pass


def ask(broker: LocalBroker) -> None:
    """A round of questions, half a minute later."""
    check = part(broker.broker, EndTransactionProcessor).check
    broker.broker.parts.local.dispatch_now()
    on_loop(broker.broker, broker.broker.parts.hooks.start_services)
    broker.advance(seconds=30)
    check.wake()


def test_the_check_answers_for_a_sender_that_died(tmp_path: Path) -> None:
    asked: list[bytes] = []

    def check(message: ReceivedMessage) -> Decision:
        asked.append(message.body)
        assert message.topic == "orders"
        return Decision.COMMIT if message.body == b"paid" else Decision.ROLLBACK

    with LocalBroker(tmp_path) as broker:
        broker.create_topic("orders")
        with tiermq.connect(broker.name_server) as dying, dying.producer("shop", check=never) as producer:
            for body in (b"paid", b"failed"):
                with producer.transaction(Message("orders", body)) as transaction:
                    transaction.leave_open()
        with tiermq.connect(broker.name_server) as cluster, cluster.producer("shop", check=check) as producer:
            producer.serve("orders")
            ask(broker)
            until(lambda: [message.body for message in broker.messages("orders")] == [b"paid"] and len(asked) >= 2)


def test_a_check_may_be_a_coroutine_function_and_one_that_fails_is_asked_again(tmp_path: Path) -> None:
    asked: list[bytes] = []

    async def check(message: ReceivedMessage) -> Decision:
        asked.append(message.body)
        if len(asked) == 1:
            raise ValueError("the database is away")
        return Decision.COMMIT

    async def work(broker: LocalBroker) -> None:
        async with tiermq.aconnect(broker.name_server) as cluster, cluster.producer("shop", check=check) as producer:
            async with producer.transaction(Message("orders", b"paid")) as transaction:
                await transaction.leave_open()
            for count in (1, 2):
                await asyncio.to_thread(ask, broker)
                await asyncio.to_thread(until, lambda count=count: len(asked) >= count)  # type: ignore[misc]
            await asyncio.to_thread(until, lambda: broker.messages("orders"))

    with LocalBroker(tmp_path) as broker:
        broker.create_topic("orders")
        asyncio.run(work(broker))
