"""Transactions with the real RocketMQ: its producer against our broker, and one store under both brokers in turn."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.consuming import on_loop, part, until
from broker.delivery.transaction_peer import COMMIT, ROLLBACK, UNKNOWN, TransactionPeer, shown
from interop.conftest import StartBroker
from interop.java_client import JavaClient, bodies
from interop.java_transactions import java_transactions
from interop.rocketmq import BROKER_NAME, SMALL_FILES, Cluster, Distribution, python_names
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.delivery.end_transaction_processor import EndTransactionProcessor
from tiermq.message.stored_message import StoredMessage
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from tiermq.testing import LocalBroker
from tiermq.testing.local_broker import MovableClock

pytestmark = pytest.mark.interop

HALF, OPS, DISCARDED = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
QUICK = {
    **SMALL_FILES,
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 3000,
    "transactionCheckMax": 50,
    "transactionOpBatchInterval": 100,  # It asks about what was ended until the op is written.
}
SETTINGS = python_names(SMALL_FILES)


def round_after(broker: Broker, clock: MovableClock, seconds: float = 30) -> None:
    processor: EndTransactionProcessor = part(broker, EndTransactionProcessor)
    broker.parts.local.dispatch_now()
    on_loop(broker, broker.parts.hooks.start_services)
    rounds = processor.check.rounds_count
    clock.advance(seconds)
    processor.check.wake()
    until(broker, lambda: processor.check.rounds_count > rounds)


def stored(broker: Broker, topic: str, queue_id: int = 0) -> list[StoredMessage]:
    local = broker.parts.local
    local.dispatch_now()
    found: list[StoredMessage] = []
    while (page := local.get(topic, queue_id, len(found))).count:
        found += page.messages
    return found


# RocketMQ's producer and consumer against our broker.


def test_javas_transactions_end_as_their_producer_says(distribution: Distribution, tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "store", transaction_check_max=2) as broker:
        broker.create_topic("orders", queues=4)
        processor: EndTransactionProcessor = part(broker.broker, EndTransactionProcessor)
        with java_transactions(distribution, broker.name_server, tmp_path / "home") as producer:
            for body, now, later in [
                ("committed", "commit", "unknown"),
                ("rolled back", "rollback", "unknown"),
                ("committed later", "unknown", "commit"),
                ("rolled back later", "unknown", "rollback"),
                ("never ended", "unknown", "unknown"),
            ]:
                sent = producer.send("orders", body, now, later, place="north")
                assert sent["status"] == "SEND_OK", sent
            until(broker.broker, lambda: processor.waiting == 3)
            round_after(broker.broker, broker.clock)
            asked = [producer.asked.get(timeout=60) for _ in range(3)]
            assert sorted((each["body"], each["topic"], each["times"]) for each in asked) == [
                ("committed later", "orders", "1"),
                ("never ended", "orders", "1"),
                ("rolled back later", "orders", "1"),
            ]
            until(broker.broker, lambda: processor.waiting == 1)
            round_after(broker.broker, broker.clock)
            assert producer.asked.get(timeout=60)["body"] == "never ended"
            round_after(broker.broker, broker.clock)
            until(broker.broker, lambda: processor.waiting == 0)
            assert producer.asked.empty()
        consumer = JavaClient(distribution, broker.name_server, tmp_path / "home")
        got = consumer.run(topic="orders", group="CG", receive=2)
        assert sorted(bodies(got)) == ["committed", "committed later"]
        assert sorted(message.body.decode() for message in broker.messages("orders")) == sorted(bodies(got))
        assert [message.body for message in stored(broker.broker, DISCARDED)] == [b"never ended"]


def test_a_java_producer_with_an_immunity_is_asked_when_it_is_over(distribution: Distribution, tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "store") as broker:
        broker.create_topic("orders", queues=1)
        with java_transactions(distribution, broker.name_server, tmp_path / "home") as producer:
            immunity = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "100"}
            producer.send("orders", "immune", "unknown", "commit", **immunity)
            for _ in range(3):
                round_after(broker.broker, broker.clock)
            assert producer.asked.empty()
            round_after(broker.broker, broker.clock)
            assert producer.asked.get(timeout=60)["times"] == "1"
            until(broker.broker, lambda: len(broker.messages("orders")) == 1)


# The same requests to both.


@contextmanager
def our_broker(store: Path, clock: MovableClock, **settings: Any) -> Iterator[Broker]:
    config = BrokerConfig(bind_address="127.0.0.1", listen_port=0, broker_name=BROKER_NAME, **settings)
    broker = Broker.open(store, config=config, clock=clock, **SETTINGS)
    if broker.parts.topics.get("T") is None:
        broker.parts.topics.put(TopicConfig("T", 4, 4))
    with broker:
        yield broker


def real_peer(cluster: Cluster) -> TransactionPeer:
    host, _, port = cluster.broker_address.rpartition(":")
    peer = TransactionPeer((host, int(port)), now_ms=lambda: time.time_ns() // 1_000_000)
    fields = {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
    fields |= {"order": "false", "topicFilterType": "SINGLE_TAG"}
    assert peer.client.request(RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=fields)).code == 0
    return peer


def our_peer(broker: Broker, clock: MovableClock) -> TransactionPeer:
    return TransactionPeer(("127.0.0.1", broker.port), now_ms=clock.now_ms)


def essence(message: StoredMessage) -> dict[str, object]:
    return {
        "body": message.body,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "prepared": message.prepared_transaction_offset > 0,
        "properties": message.properties,
    }


def test_both_brokers_answer_ends_alike_and_store_the_same_records(
    distribution: Distribution, tmp_path: Path, start_broker: StartBroker
) -> None:
    del distribution
    clock = MovableClock()
    cluster = start_broker(tmp_path / "real", SMALL_FILES)
    answers: list[list[tuple[int, str | None]]] = []
    with ExitStack() as peers:
        broker = peers.enter_context(our_broker(tmp_path / "ours", clock))
        for peer in (real_peer(cluster), our_peer(broker, clock)):
            peers.enter_context(peer)
            peer.prepare("first")  # The first half lies at 0 in the log, where a prepared offset says nothing.
            halves = {name: peer.prepare(name) for name in ("commit", "rollback", "wrong")}
            reported = [
                peer.end(halves["commit"], COMMIT),
                peer.end(halves["rollback"], ROLLBACK),
                peer.end(halves["wrong"], COMMIT, producerGroup="X"),
                peer.end(halves["wrong"], COMMIT, tranStateTableOffset=99),
                peer.end(halves["wrong"], COMMIT, commitLogOffset=10**9),
            ]
            places = [(answer.ext["queueId"], answer.ext["queueOffset"]) for answer in halves.values()]
            assert places == [("1", "1"), ("1", "2"), ("1", "3")]
            answers.append([(int(each.code), each.remark if each.code else None) for each in reported])
    assert answers[1] == answers[0]
    cluster.stop()
    found = []
    for name in ("real", "ours"):
        with our_broker(tmp_path / name, clock) as broker:
            kept = [
                essence(each) for each in stored(broker, HALF) if b"TRANSACTION_CHECK" not in each.encoded_properties
            ]
            ops = [(op.body, op.properties["TAGS"], op.properties["WAIT"]) for op in stored(broker, OPS)]
            found.append((kept[:4], [essence(each) for each in stored(broker, "T", 1)], ops))
    assert found[1] == found[0], "RocketMQ keeps REAL_TOPIC, REAL_QID and TRAN_MSG in a committed record"


# One directory, both brokers.


def end_of(peer: TransactionPeer, topic: str, queue_id: int = 0) -> int:
    """Where a queue ends, as its broker says."""
    asked = RemotingCommand(RequestCode.GET_MAX_OFFSET, ext={"topic": topic, "queueId": str(queue_id)})
    return int(peer.client.request(asked).ext["offset"])


def answer_all(peer: TransactionPeer, decisions: dict[str, int]) -> None:
    """Answer what a broker asks until each of them was asked about; those may be asked about again meanwhile."""
    left = set(decisions)
    while left:
        question = peer.asked.get(timeout=120)
        body = shown(question).body.decode()
        assert body in decisions, f"{body} was ended"
        assert peer.answer(question, decisions[body]).code == 0
        left.discard(body)


@pytest.mark.parametrize("ending", ["closed", "killed"])
def test_halves_in_flight_of_the_real_broker_are_ended_by_ours(
    ending: str, tmp_path: Path, start_broker: StartBroker
) -> None:
    store = tmp_path / "store"
    cluster = start_broker(store, {**QUICK, "transactionTimeOut": 600_000})
    with real_peer(cluster) as peer:
        now_ms, peer.now_ms = peer.now_ms, lambda: time.time_ns() // 1_000_000 - 700_000
        for name in ("one", "two", "three"):
            peer.prepare(name)
        peer.now_ms = now_ms  # Young ones: the real broker asks about what was ended while its op waits.
        peer.end(peer.prepare("committed"), COMMIT)
        peer.end(peer.prepare("rolled back"), ROLLBACK)
        asked: set[bytes] = set()
        while asked != {b"one", b"two", b"three"}:  # There are copies of them then.
            asked.add(shown(peer.asked.get(timeout=120)).body)
        while end_of(peer, OPS) == 0:
            pass
        if ending == "killed":
            cluster.crash()
        else:
            cluster.stop()
    clock = MovableClock()
    with our_broker(store, clock) as broker, our_peer(broker, clock) as peer:
        round_after(broker, clock, 3600)
        answer_all(peer, {"one": COMMIT, "two": ROLLBACK, "three": UNKNOWN})
        assert sorted(each.body for each in stored(broker, "T", 1)) == [b"committed", b"one"]
        round_after(broker, clock)
        answer_all(peer, {"three": COMMIT})
        round_after(broker, clock)
        assert sorted(each.body for each in stored(broker, "T", 1)) == [b"committed", b"one", b"three"]
        assert part(broker, EndTransactionProcessor).waiting == 0


@pytest.mark.parametrize("ending", ["closed", "killed"])
def test_a_commit_whose_op_the_real_broker_did_not_write_is_not_delivered_again(
    ending: str, tmp_path: Path, start_broker: StartBroker
) -> None:
    """The real broker itself asks about it after a restart, and delivers it again."""
    store = tmp_path / "store"
    cluster = start_broker(store, {**QUICK, "transactionTimeOut": 600_000, "transactionOpBatchInterval": 600_000})
    with real_peer(cluster) as peer:
        peer.prepare("open")
        half = peer.prepare("committed")
        assert peer.end(half, COMMIT).code == 0
        while end_of(peer, "T", 1) == 0:
            pass
        assert end_of(peer, OPS) == 0
        if ending == "killed":
            cluster.crash()
        else:
            cluster.stop()
    clock = MovableClock()
    with our_broker(store, clock) as broker, our_peer(broker, clock) as peer:
        round_after(broker, clock, 3600)
        assert shown(peer.asked.get(timeout=60)).body == b"open"
        assert peer.end(half, COMMIT).code == 0, "a producer that says it once more"
        round_after(broker, clock)
        assert shown(peer.asked.get(timeout=60)).body == b"open"
        assert peer.asked.empty()
        assert [each.body for each in stored(broker, "T", 1)] == [b"committed"]


@pytest.mark.parametrize("ending", ["closed", "killed"])
def test_halves_in_flight_of_ours_are_ended_by_the_real_broker(
    ending: str, tmp_path: Path, start_broker: StartBroker
) -> None:
    store = tmp_path / "store"
    clock = MovableClock()
    with our_broker(store, clock) as broker, our_peer(broker, clock) as peer:
        halves = {name: peer.prepare(name) for name in ("committed", "rolled back", "one", "two")}
        round_after(broker, clock, 30)
        for _ in halves:
            peer.asked.get(timeout=60)
        peer.end(halves["committed"], COMMIT)  # They have copies by now.
        peer.end(halves["rolled back"], ROLLBACK)
        round_after(broker, clock, 30)
        assert {shown(peer.asked.get(timeout=60)).body for _ in range(2)} == {b"one", b"two"}
        broker.parts.offsets.flush()
    if ending == "killed":
        (store / "abort").touch()  # As after a kill: the real broker recovers from the log.
    cluster = start_broker(store, QUICK)
    with real_peer(cluster) as peer:
        ops = end_of(peer, OPS)
        answer_all(peer, {"one": COMMIT, "two": ROLLBACK})
        while end_of(peer, "T", 1) < 2 or end_of(peer, OPS) == ops:
            pass
    cluster.stop()
    with our_broker(store, clock) as broker, our_peer(broker, clock) as peer:
        round_after(broker, clock, 3600)
        assert {each.body for each in stored(broker, "T", 1)} == {b"committed", b"one"}
        assert part(broker, EndTransactionProcessor).waiting == 0
        assert peer.asked.empty()
