"""Ending transactions: what commit and rollback do, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from delivery.transactions.transaction_world import World
from tiermq import Message, PutResult
from tiermq.delivery.transactions.end_transaction import EndStatus, EndTransaction
from tiermq.delivery.transactions.op_messages import PENDING_MAX, Outcome
from tiermq.errors import IllegalMessage
from tiermq.message.system_flag import TransactionType
from tiermq.message.topic_name import HALF_TOPIC
from tiermq.status import PutStatus


def test_a_half_message_is_not_seen_until_it_is_committed(world: World) -> None:
    half = world.half("a")
    assert world.bodies() == []
    ended = world.commit(half)
    assert (ended.status, ended.topic) == (EndStatus.DONE, "T")
    (message,) = world.messages("T", 1)
    assert (message.body, message.flag, message.born_host, message.tags) == (b"a", 7, "9.8.7.6:5", "A")
    assert message.transaction_type is TransactionType.COMMIT
    assert message.prepared_transaction_offset == half.physical_offset
    assert ended.end_offset == message.physical_offset + message.size


def test_a_rolled_back_message_never_appears(world: World) -> None:
    half = world.half("a")
    ended = world.roll_back(half)
    assert ended.status is EndStatus.DONE
    assert world.ops_written() == [b"0,"]
    assert ended.end_offset == world.store.max_physical_offset
    assert world.round_after(60) == []
    assert (world.bodies(), world.discarded(), world.waiting) == ([], [], 0)


def test_a_message_that_was_committed_is_not_committed_twice(world: World) -> None:
    """RocketMQ stores it again each time."""
    half = world.half("a")
    world.commit(half)
    again = world.commit(half)
    assert (again.status, again.end_offset) == (EndStatus.ALREADY, world.store.max_physical_offset)
    assert world.roll_back(half).status is EndStatus.OTHERWISE
    assert world.bodies() == ["a"]


def test_a_message_that_was_rolled_back_cannot_be_committed(world: World) -> None:
    half = world.half("a")
    world.roll_back(half)
    assert world.commit(half).status is EndStatus.OTHERWISE
    assert world.roll_back(half).status is EndStatus.ALREADY
    assert world.bodies() == []


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"group": "other"}, EndStatus.OTHER_GROUP),
        ({"queue_offset": 3}, EndStatus.OTHER_OFFSET),
        ({"log_offset": 3}, EndStatus.NOT_FOUND),
        ({"log_offset": -1}, EndStatus.NOT_FOUND),
        ({"log_offset": 10**12}, EndStatus.NOT_FOUND),
    ],
)
@pytest.mark.parametrize("outcome", list(Outcome))
def test_only_the_half_message_that_is_meant_is_ended(
    world: World, changes: dict[str, Any], status: EndStatus, outcome: Outcome
) -> None:
    half = world.half("a")
    assert world.end(half, outcome, **changes).status is status
    assert world.bodies() == []
    assert world.waiting == 1
    assert world.commit(half).status is EndStatus.DONE


def test_a_record_that_is_no_half_message_cannot_be_committed(world: World) -> None:
    put = world.store.put(Message("T", b"plain", 1, properties={"PGROUP": "PG", "REAL_TOPIC": "U", "REAL_QID": "0"}))
    assert world.commit(put).status is EndStatus.NOT_FOUND


def test_a_producer_that_named_a_time_cannot_end_it_later_by_itself_but_can_answer(world: World) -> None:
    half = world.half("a", more={"CHECK_IMMUNITY_TIME_IN_SECONDS": "10"})
    world.clock.advance_ms(10_001)
    assert world.commit(half).status is EndStatus.TOO_LATE
    assert world.commit(half, is_answer=True).status is EndStatus.DONE


def test_a_producer_that_named_no_time_may_be_late(world: World) -> None:
    half = world.half("a")
    world.clock.advance_ms(3_600_000)
    assert world.commit(half).status is EndStatus.DONE


def test_a_commit_that_the_store_refuses_ends_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    half = world.half("a")

    def full(_message: Message) -> PutResult:
        return PutResult(PutStatus.SERVICE_NOT_AVAILABLE)

    with monkeypatch.context() as failing:
        failing.setattr(world.store, "append", full)
        ended = world.commit(half)
        assert (ended.status, ended.put_status) == (EndStatus.NOT_STORED, PutStatus.SERVICE_NOT_AVAILABLE)
    assert world.commit(half).status is EndStatus.DONE
    assert world.bodies() == ["a"]


def test_a_rollback_that_cannot_be_written_is_not_acknowledged_and_is_written_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = world.half("a")

    def full(_message: Message) -> PutResult:
        return PutResult(PutStatus.SERVICE_NOT_AVAILABLE)

    with monkeypatch.context() as failing:
        failing.setattr(world.store, "append", full)
        assert world.roll_back(half).status is EndStatus.NOT_STORED
        assert world.roll_back(half).status is EndStatus.NOT_STORED
    assert world.roll_back(half).status is EndStatus.ALREADY
    assert world.ops_written() == [b"0,"]


def test_ended_messages_that_cannot_be_written_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    half = world.half("a")

    def full(_message: Message) -> PutResult:
        return PutResult(PutStatus.SERVICE_NOT_AVAILABLE)

    with monkeypatch.context() as failing:
        failing.setattr(world.store, "append", full)
        for offset in range(100, 100 + PENDING_MAX):
            world.ops.end(Outcome.COMMIT, offset)
        assert world.commit(half).status is EndStatus.BUSY
    assert world.commit(half).status is EndStatus.DONE


def test_a_committed_message_goes_where_its_delay_sends_it(world: World) -> None:
    def delayed(message: Message) -> Message:
        assert message.sys_flag & 0x0C == TransactionType.COMMIT
        return Message("SCHEDULE_TOPIC_XXXX", message.body, 2, sys_flag=message.sys_flag)

    world.ending = EndTransaction(world.store, world.ops, world.clock, rewrite=delayed)
    assert world.commit(world.half("a", more={"DELAY": "3"})).status is EndStatus.DONE
    assert world.commit(world.half("b")).status is EndStatus.DONE  # Without a delay it stays as it is.
    assert (world.bodies(), world.bodies("SCHEDULE_TOPIC_XXXX", 2)) == (["b"], ["a"])


def test_a_commit_that_no_record_can_hold_is_reported(world: World) -> None:
    def illegal(_message: Message) -> Message:
        raise IllegalMessage("no")

    world.ending = EndTransaction(world.store, world.ops, world.clock, rewrite=illegal)
    ended = world.commit(world.half("a", more={"DELAY": "3"}))
    assert (ended.status, ended.put_status) == (EndStatus.NOT_STORED, PutStatus.MESSAGE_ILLEGAL)
    assert world.store.max_offset(HALF_TOPIC, 0) == 1
