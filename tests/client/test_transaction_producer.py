"""A producer of transactions from outside: halves, ends, and answers to a broker that asks."""

from __future__ import annotations

import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.consuming import on_loop, part, until
from tiermq.broker.delivery.end_transaction_processor import EndTransactionProcessor
from tiermq.client.cluster_client import Access, BlockingCluster
from tiermq.client.transaction_producer import Decision, Prepared, TransactionProducer
from tiermq.errors import PeerGone, RequestRefused
from tiermq.message.stored_message import StoredMessage
from tiermq.testing import LocalBroker


class World:
    def __init__(self, broker: LocalBroker, cluster: BlockingCluster) -> None:
        self.broker = broker
        self.cluster = cluster
        self.decisions: dict[str, Decision] = {}
        self.asked: list[StoredMessage] = []
        self.producer = self.made()
        self.run(self.producer.__aenter__())

    def made(self, **settings: Any) -> TransactionProducer:
        return TransactionProducer(self.cluster.client, "PG", self.check, clock=self.broker.clock, **settings)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.cluster.run(work)

    def check(self, message: StoredMessage) -> Decision:
        assert threading.current_thread().name != "cluster-client", "it may wait"
        self.asked.append(message)
        return self.decisions[message.body.decode()]

    def prepare(self, body: str, **fields: Any) -> Prepared:
        prepared: Prepared = self.run(self.producer.prepare("orders", body.encode(), **fields))
        return prepared

    def bodies(self) -> list[str]:
        return sorted(message.body.decode() for message in self.broker.messages("orders"))

    def ask(self) -> None:
        """A round of questions, half a minute later."""
        check = part(self.broker.broker, EndTransactionProcessor).check
        self.broker.broker.parts.local.dispatch_now()
        on_loop(self.broker.broker, self.broker.broker.parts.hooks.start_services)
        rounds = check.rounds_count
        self.broker.advance(seconds=30)
        check.wake()
        until(self.broker.broker, lambda: check.rounds_count > rounds)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with LocalBroker(tmp_path) as broker:
        broker.create_topic("orders", queues=2)
        with BlockingCluster(Access(broker.name_server)) as cluster:
            made = World(broker, cluster)
            yield made
            cluster.run(made.producer.close())


def test_consumers_see_what_was_committed_and_nothing_else(world: World) -> None:
    committed, rolled_back = world.prepare("a", keys=["42", "43"], tags="paid"), world.prepare("b")
    world.prepare("open")
    assert world.bodies() == []
    world.run(world.producer.commit(committed))
    world.run(world.producer.roll_back(rolled_back))
    (message,) = world.broker.messages("orders")
    assert (message.body, message.keys, message.tags, message.unique_key) == (
        b"a",
        ["42", "43"],
        "paid",
        committed.transaction_id,
    )


def test_a_broker_that_asks_is_answered_by_the_check(world: World) -> None:
    world.decisions = {"a": Decision.COMMIT, "b": Decision.ROLLBACK, "c": Decision.UNKNOWN}
    for name in world.decisions:
        world.prepare(name, properties={"order": name})
    world.ask()
    until(world.broker.broker, lambda: world.producer.answered_count == 2 and len(world.asked) == 3)
    # Each question has a thread of its own, so that one that waits holds up no other: they come in any order.
    assert sorted(message.properties["order"] for message in world.asked) == ["a", "b", "c"]
    assert world.bodies() == ["a"]
    world.decisions["c"] = Decision.COMMIT
    world.ask()
    until(world.broker.broker, lambda: world.producer.answered_count == 3)
    assert world.bodies() == ["a", "c"]


def test_a_check_that_fails_does_not_know(world: World) -> None:
    world.prepare("nobody knows it")
    world.ask()
    until(world.broker.broker, lambda: len(world.asked) == 1)
    world.decisions["nobody knows it"] = Decision.COMMIT
    world.ask()
    until(world.broker.broker, lambda: world.producer.answered_count == 1)
    assert world.bodies() == ["nobody knows it"]


def test_a_sender_that_was_started_again_answers_for_the_one_that_died(world: World) -> None:
    world.decisions = {"a": Decision.COMMIT}
    world.prepare("a")
    world.run(world.producer.close())
    world.producer = world.made()
    world.run(world.producer.__aenter__())
    world.run(world.producer.serve("orders"))
    world.ask()
    until(world.broker.broker, lambda: world.producer.answered_count == 1)
    assert world.bodies() == ["a"]


def test_a_producer_comes_back_to_a_broker_that_was_started_again(world: World) -> None:
    world.decisions = {"a": Decision.COMMIT}
    world.run(world.producer.close())
    world.producer = world.made(heartbeat_s=0.02)
    world.run(world.producer.__aenter__())
    world.prepare("a")
    world.broker.restart()
    until(world.broker.broker, lambda: world.broker.broker.parts.clients.producers("PG") is not None)
    world.ask()
    until(world.broker.broker, lambda: world.producer.answered_count == 1)
    assert world.bodies() == ["a"]


def test_an_end_that_the_broker_refuses_is_reported(world: World) -> None:
    prepared = world.prepare("a")
    world.run(world.producer.roll_back(prepared))
    with pytest.raises(RequestRefused, match="the other way"):
        world.run(world.producer.commit(prepared))
    assert world.bodies() == []


def test_who_leaves_is_not_asked(world: World) -> None:
    world.prepare("a")
    world.run(world.producer.close())
    world.run(world.producer.close())
    until(world.broker.broker, lambda: world.broker.broker.parts.clients.producers("PG") is None)
    world.ask()
    assert world.asked == []


def test_a_broker_that_is_gone_is_reported(world: World) -> None:
    world.prepare("a")
    world.broker.stop()
    with pytest.raises(PeerGone):
        world.prepare("b")
