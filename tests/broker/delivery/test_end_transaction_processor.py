"""Transactions over the wire: halves, ends, questions, settings, and what survives a restart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import waiting
from broker.brokers import send_command
from broker.consuming import Peer, bodies_of, messages_of, on_loop, part, running, until
from broker.delivery.transaction_peer import COMMIT, ROLLBACK, UNKNOWN, TransactionPeer, shown
from simulation.manual_clock import ManualClock
from tiermq import PutResult
from tiermq.broker.broker import Broker
from tiermq.broker.delivery.end_transaction_processor import EndTransactionProcessor
from tiermq.message.record import encode_record
from tiermq.message.stored_message import StoredMessage
from tiermq.message.system_flag import TransactionType
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.status import PutStatus


class World:
    """A broker whose clock stands, a producer of transactions and a consumer."""

    def __init__(self, broker: Broker, clock: ManualClock, producer: TransactionPeer, consumer: Peer) -> None:
        self.broker = broker
        self.clock = clock
        self.producer = producer
        self.consumer = consumer
        self.processor: EndTransactionProcessor = part(broker, EndTransactionProcessor)

    def visible(self) -> list[str]:
        self.broker.parts.local.flush()
        self.broker.parts.local.dispatch_now()
        return bodies_of(self.consumer.pull(0, queueId=1, topic="T"))

    def round_after(self, seconds: int) -> None:
        """Time passes, and what is due is done by the broker's own thread."""
        self.broker.parts.local.dispatch_now()
        on_loop(self.broker, self.broker.parts.hooks.start_services)
        check = self.processor.check
        rounds = check.rounds_count
        self.clock.advance_ms(seconds * 1000)
        check.wake()
        until(self.broker, lambda: check.rounds_count > rounds)

    def ask_again(self) -> RemotingCommand:
        self.round_after(30)
        return self.producer.asked.get(timeout=60)


@contextmanager
def world_at(path: Path, clock: ManualClock, **settings: Any) -> Iterator[World]:
    with (
        running(path, clock=clock, **settings) as broker,
        Peer(broker) as consumer,
        TransactionPeer(("127.0.0.1", broker.port), now_ms=clock.now_ms) as producer,
    ):
        consumer.join()
        yield World(broker, clock, producer, consumer)


@pytest.fixture
def world(tmp_path: Path, manual_clock: ManualClock) -> Iterator[World]:
    with world_at(tmp_path, manual_clock) as made:
        yield made


def test_a_half_message_is_answered_with_its_place_and_seen_by_nobody(world: World) -> None:
    answer = world.producer.prepare("a")
    assert (answer.code, answer.ext["queueId"], answer.ext["queueOffset"]) == (0, "1", "0")
    assert answer.ext["transactionId"] == "ID-a"
    assert world.visible() == []
    (half,) = world.broker.parts.local.get("RMQ_SYS_TRANS_HALF_TOPIC", 0, 0).messages
    assert half.transaction_type is TransactionType.NONE
    assert half.properties.items() >= {"REAL_TOPIC": "T", "REAL_QID": "1", "__transactionId__": "ID-a"}.items()
    assert world.processor.waiting == 1


def test_a_commit_makes_it_visible_and_a_rollback_does_not(world: World) -> None:
    halves = [world.producer.prepare(name) for name in ("a", "b", "c")]
    assert world.producer.end(halves[0], COMMIT).code == 0
    assert world.producer.end(halves[1], ROLLBACK).code == 0
    assert world.producer.end(halves[2], UNKNOWN).code == 0
    assert world.visible() == ["a"]
    (message,) = messages_of(world.consumer.pull(0, queueId=1))
    assert message.transaction_type is TransactionType.COMMIT
    assert message.prepared_transaction_offset == int(halves[0].ext["msgId"][-16:], 16)
    assert world.processor.waiting == 1
    reported = world.broker.render_metrics()
    assert (
        'rocketmq_commit_messages_total{cluster="DefaultCluster",node_type="broker",node_id="b",topic="T"} 1'
        in reported
    )
    assert (
        'rocketmq_rollback_messages_total{cluster="DefaultCluster",node_type="broker",node_id="b",topic="T"} 1'
        in reported
    )
    assert "tiermq_half_messages_waiting 1" in reported
    finish = (
        'rocketmq_finish_message_latency_count{cluster="DefaultCluster",node_type="broker",node_id="b",topic="T"} 1'
    )
    assert finish in reported, "of the commit, and of no rollback"


@pytest.mark.parametrize(
    ("changes", "code", "word"),
    [
        ({"producerGroup": "X"}, ResponseCode.SYSTEM_ERROR, "The producer group wrong"),
        ({"tranStateTableOffset": 9}, ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong"),
        ({"commitLogOffset": 3}, ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed"),
        ({"commitLogOffset": "x"}, ResponseCode.SYSTEM_ERROR, "expected a number"),
    ],
)
def test_an_end_of_another_message_is_refused_in_rocketmqs_words(
    world: World, changes: dict[str, object], code: ResponseCode, word: str
) -> None:
    half = world.producer.prepare("a")
    for how in (COMMIT, ROLLBACK):
        refused = world.producer.end(half, how, **changes)
        assert (refused.code, word in (refused.remark or "")) == (code, True), refused
    assert world.visible() == []


def test_an_end_after_the_time_that_its_producer_named_is_illegal(world: World) -> None:
    half = world.producer.prepare("a", "CHECK_IMMUNITY_TIME_IN_SECONDS\x0110\x02")
    world.clock.advance_ms(10_001)
    assert world.producer.end(half, COMMIT).code == ResponseCode.ILLEGAL_OPERATION
    assert world.producer.end(half, COMMIT, fromTransactionCheck="true").code == 0
    assert world.visible() == ["a"]


def test_a_live_producer_of_the_group_is_asked_and_its_answer_counts(world: World) -> None:
    half = world.producer.prepare("a")
    question = world.ask_again()
    assert question.is_oneway
    assert question.ext == {
        "topic": "RMQ_SYS_TRANS_HALF_TOPIC",
        "bname": "b",
        "msgId": "ID-a",
        "transactionId": "ID-a",
        "offsetMsgId": question.ext["offsetMsgId"],
        "tranStateTableOffset": "1",
        "commitLogOffset": str(int(question.ext["offsetMsgId"][-16:], 16)),
    }
    message = shown(question)
    assert (message.topic, message.queue_id, message.body) == ("T", 1, b"a")
    assert message.properties.items() >= {"PGROUP": "PG", "TRANSACTION_CHECK_TIMES": "1"}.items()
    assert world.producer.answer(question, COMMIT).code == 0
    assert world.producer.end(half, COMMIT).code == 0, "it says the same again"
    assert world.producer.end(half, ROLLBACK).code == ResponseCode.SYSTEM_ERROR
    assert world.visible() == ["a"]


def test_producers_of_a_group_are_asked_in_turn_and_others_never(world: World) -> None:
    address = ("127.0.0.1", world.broker.port)
    with (
        TransactionPeer(address, "PG", "p2", now_ms=world.clock.now_ms) as second,
        TransactionPeer(address, "other", "p3", now_ms=world.clock.now_ms) as other,
    ):
        for name in ("a", "b", "c", "d"):
            world.producer.prepare(name)
        world.round_after(30)
        for peer in (world.producer, second):
            for _ in range(2):
                peer.asked.get(timeout=60)
        assert other.asked.empty()


def test_without_a_live_producer_the_message_waits_for_one(world: World, tmp_path: Path) -> None:
    del tmp_path
    world.producer.prepare("a")
    world.producer.client.close()
    until(world.broker, lambda: world.broker.parts.clients.producers("PG") is None)
    world.round_after(30)
    until(world.broker, lambda: world.processor.unanswerable_count == 1)
    with TransactionPeer(("127.0.0.1", world.broker.port), now_ms=world.clock.now_ms) as again:
        world.round_after(30)
        question = again.asked.get(timeout=60)
        assert shown(question).properties["TRANSACTION_CHECK_TIMES"] == "2"
        again.answer(question, COMMIT)
        assert world.visible() == ["a"]


def test_a_message_that_nobody_ends_is_kept_where_people_find_it(tmp_path: Path, manual_clock: ManualClock) -> None:
    with world_at(tmp_path, manual_clock, transaction_check_max=1) as world:
        world.producer.prepare("a")
        world.ask_again()
        world.round_after(30)
        assert world.broker.parts.topics.get("TRANS_CHECK_MAX_TIME_TOPIC") is not None
        world.broker.parts.local.dispatch_now()
        (kept,) = world.broker.parts.local.get("TRANS_CHECK_MAX_TIME_TOPIC", 0, 0).messages
        assert (kept.body, kept.properties["REAL_TOPIC"]) == (b"a", "T")
        assert world.processor.waiting == 0


def test_a_committed_message_with_a_delay_comes_when_its_time_has_come(world: World) -> None:
    half = world.producer.prepare("a", "DELAY\x013\x02")
    assert half.ext["queueOffset"] == "0"
    assert world.producer.end(half, COMMIT).code == 0
    assert world.visible() == []
    (waiting,) = world.broker.parts.local.get("SCHEDULE_TOPIC_XXXX", 2, 0).messages
    assert waiting.properties["REAL_TOPIC"] == "T"
    assert waiting.transaction_type is TransactionType.COMMIT
    held = world.consumer.pull_later(0, queueId=1, sysFlag=2)
    world.clock.advance_ms(10_000)
    assert bodies_of(held.result(60)) == ["a"]


def test_a_committed_message_for_a_time_of_its_own_comes_at_that_time(world: World) -> None:
    half = world.producer.prepare("a", "TIMER_DELAY_SEC\x0160\x02")
    assert world.producer.end(half, COMMIT).code == 0
    assert world.visible() == []
    (timer,) = world.broker.parts.local.get("rmq_sys_wheel_timer", 0, 0).messages
    assert timer.properties["REAL_TOPIC"] == "T"
    assert timer.transaction_type is TransactionType.COMMIT
    world.clock.advance_ms(62_000)
    waiting.until(world.visible)
    assert world.visible() == ["a"]


def test_a_broker_that_takes_no_transactions_refuses_the_half(tmp_path: Path, manual_clock: ManualClock) -> None:
    with world_at(tmp_path, manual_clock, reject_transaction_message=True) as world:
        refused = world.producer.prepare("a")
        assert (refused.code, "rejectTransactionMessage" in (refused.remark or "")) == (16, True)
        command = RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, body=b"rejectTransactionMessage=false\n")
        assert world.consumer.client.request(command).code == 0
        assert world.producer.prepare("a").code == 0


def test_settings_can_change_while_halves_wait(world: World) -> None:
    world.producer.prepare("a")
    body = b"transactionTimeOut=3600000\ntransactionCheckMax=2\n"
    assert world.consumer.client.request(RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, body=body)).code == 0
    world.round_after(30)
    assert world.producer.asked.empty()
    world.round_after(3600)
    world.producer.asked.get(timeout=60)


def test_what_was_ended_stays_ended_over_a_restart_and_the_open_is_asked_about(
    tmp_path: Path, manual_clock: ManualClock
) -> None:
    with world_at(tmp_path, manual_clock) as world:
        halves = [world.producer.prepare(name) for name in ("a", "b", "c")]
        world.producer.end(halves[0], COMMIT)
        world.producer.end(halves[1], ROLLBACK)
    with world_at(tmp_path, manual_clock) as world:
        assert world.processor.waiting == 1
        question = world.ask_again()
        assert shown(question).body == b"c"
        world.producer.answer(question, ROLLBACK)
        world.round_after(30)
    with world_at(tmp_path, manual_clock) as world:
        world.round_after(30)
        assert (world.processor.waiting, world.visible()) == (0, ["a"])
        assert world.producer.asked.empty()


def test_under_sync_flush_an_end_is_answered_when_it_is_durable(tmp_path: Path, manual_clock: ManualClock) -> None:
    with world_at(tmp_path, manual_clock, store={"flush_disk_type": "SYNC_FLUSH"}) as world:
        local = world.broker.parts.local
        for name, how in (("a", COMMIT), ("b", ROLLBACK)):
            half = world.producer.prepare(name)
            assert world.producer.end(half, how).code == 0
            assert local.flushed_where == local.max_physical_offset
        half = world.producer.prepare("c")
        place = {"tranStateTableOffset": "2", "commitLogOffset": int(half.ext["msgId"][-16:], 16)}
        world.producer.client.oneway(world.producer.ending(place, COMMIT))
        until(world.broker, lambda: local.flushed_where == local.max_physical_offset and local.put_count == 6)
        assert world.visible() == ["a", "c"]


def test_a_flush_that_takes_too_long_is_reported(
    tmp_path: Path, manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = {"flush_disk_type": "SYNC_FLUSH", "sync_flush_timeout": 5_000}
    with world_at(tmp_path, manual_clock, store=store) as world:
        half = world.producer.prepare("a")
        monkeypatch.setattr(world.broker.parts.local, "when_durable", lambda _offset, _call: None)
        place = {"tranStateTableOffset": "0", "commitLogOffset": int(half.ext["msgId"][-16:], 16)}
        later = world.producer.client.request_later(world.producer.ending(place, COMMIT), 60)
        until(world.broker, lambda: world.processor.durable.waiting == 1)
        world.clock.advance_ms(6_000)
        assert later.result(60).code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert world.processor.durable.timed_out == 1
        assert "tiermq_transaction_ends_answered_late_total 1\n" in world.broker.render_metrics()


def test_a_slave_ends_nothing(tmp_path: Path, manual_clock: ManualClock) -> None:
    store = {"broker_role": "SLAVE"}
    of: dict[str, Any] = {"broker_id": 1, "ha_master_address": "127.0.0.1:1"}
    with running(tmp_path, clock=manual_clock, store=store, **of) as broker, Peer(broker) as peer:
        fields: dict[str, Any] = {
            "producerGroup": "PG",
            "tranStateTableOffset": 0,
            "commitLogOffset": 0,
            "commitOrRollback": COMMIT,
        }
        answer = peer.ask(RequestCode.END_TRANSACTION, **fields)
        assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE
        assert not part(broker, EndTransactionProcessor).check.running


def test_a_store_that_is_full_is_reported_to_whoever_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    half = world.producer.prepare("a")
    local = world.broker.parts.local

    with monkeypatch.context() as failing:
        failing.setattr(local, "append", lambda _message: PutResult(PutStatus.SERVICE_NOT_AVAILABLE))
        answer = world.producer.end(half, COMMIT)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert world.producer.end(half, COMMIT).code == 0
    assert world.visible() == ["a"]


def test_no_half_message_speaks_for_another(world: World) -> None:
    """What copies of a half name is the broker's to say: a client's own must not end a transaction of others."""
    mine = world.producer.prepare("mine")
    theirs = world.producer.prepare("theirs", "TRAN_PREPARED_QUEUE_OFFSET\x010\x02TRANSACTION_CHECK_TIMES\x0114\x02")
    assert world.producer.end(theirs, ROLLBACK).code == ResponseCode.SUCCESS
    world.broker.parts.local.dispatch_now()
    assert world.processor.waiting == 1
    assert world.producer.end(mine, COMMIT).code == ResponseCode.SUCCESS
    assert world.visible() == ["mine"]


@pytest.mark.parametrize("target", ["T", "rmq_sys_REVIVE_LOG_DefaultCluster"])
def test_a_record_in_the_body_of_a_message_is_no_half_message(world: World, target: str) -> None:
    """It has topic, group and offset of a client's choice: it could end any transaction, and be stored anywhere."""
    mine = world.producer.prepare("mine")
    local = world.broker.parts.local
    before = local.max_offset(target, 1)

    def forged(place: int) -> bytes:
        properties = {
            "REAL_TOPIC": target,
            "REAL_QID": "1",
            "PGROUP": "PG",
            "UNIQ_KEY": "ID-forged",
            "TRAN_MSG": "true",
        }
        return encode_record(
            topic="RMQ_SYS_TRANS_HALF_TOPIC",
            body=b"forged",
            physical_offset=place,
            properties=properties,
            born_timestamp_ms=world.clock.now_ms(),
        )

    carrier = world.producer.client.request(send_command("T", forged(0)))
    (stored,) = [each for each in messages_in(world, "T", 0) if each.message_id == carrier.ext["msgId"]]
    inside = stored.physical_offset + stored.size - len(forged(0)) - len(stored.encoded_properties) - len("T") - 3
    carrier = world.producer.client.request(send_command("T", forged(inside + stored.size)))
    place = inside + stored.size
    assert local.message_at(place) is not None, "it can be read there"
    answer = world.producer.client.request(
        world.producer.ending({"tranStateTableOffset": 0, "commitLogOffset": place}, COMMIT)
    )
    assert answer.code == ResponseCode.SYSTEM_ERROR
    local.dispatch_now()
    assert local.max_offset(target, 1) == before
    assert world.producer.end(mine, COMMIT).code == ResponseCode.SUCCESS


def messages_in(world: World, topic: str, queue_id: int) -> list[StoredMessage]:
    world.broker.parts.local.dispatch_now()
    return list(world.broker.parts.local.get(topic, queue_id, 0).messages)
