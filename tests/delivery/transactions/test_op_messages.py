"""Op messages: their bytes, when they are written, and what is known before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.transactions.transaction_world import World
from tiermq import Message, PutResult
from tiermq.delivery.transactions.op_messages import OpLog, Outcome, decode_op, encode_op, op_properties, outcomes_of
from tiermq.errors import CorruptRecord
from tiermq.message.record import decode_record, encode_record
from tiermq.message.topic_name import OPERATION_HALF_TOPIC
from tiermq.status import PutStatus


@given(st.lists(st.integers(0, 2**63 - 1)))
def test_an_op_says_what_was_written_to_it(offsets: list[int]) -> None:
    assert decode_op(encode_op(offsets)) == offsets


def test_an_op_has_rocketmqs_bytes() -> None:
    assert encode_op([0, 1, 25]) == b"0,1,25,"
    assert decode_op(b"0,1,25") == [0, 1, 25]
    assert decode_op(b"") == []


@pytest.mark.parametrize("body", [b"x,", b"-1,", b"1;2,", "٣,".encode(), b"9" * 20 + b",", b" 1,"])
def test_an_op_that_is_no_list_of_offsets_is_refused(body: bytes) -> None:
    with pytest.raises(CorruptRecord, match="expected offsets"):
        decode_op(body)


@given(st.dictionaries(st.integers(0, 2**63 - 1), st.sampled_from(Outcome), max_size=20))
def test_an_op_of_ours_says_how_each_of_its_messages_ended(ended: dict[int, Outcome]) -> None:
    rolled_back = [offset for offset, outcome in ended.items() if outcome is Outcome.ROLLBACK]
    record = encode_record(topic=OPERATION_HALF_TOPIC, body=encode_op(ended), properties=op_properties(rolled_back))
    assert outcomes_of(decode_record(record)) == ended


def test_an_op_of_rocketmq_does_not_say_how_and_another_record_says_nothing() -> None:
    for tag, expected in (("d", {0: None, 7: None}), ("other", {})):
        record = encode_record(topic=OPERATION_HALF_TOPIC, body=b"0,7,", properties={"WAIT": "true", "TAGS": tag})
        assert outcomes_of(decode_record(record)) == expected


def test_commits_wait_until_they_are_old_enough_and_are_known_before(world: World) -> None:
    assert world.ops.end(Outcome.COMMIT, 5) is None
    assert world.ops.outcome(5) is Outcome.COMMIT
    assert list(world.ops.pending) == [5]
    world.clock.advance_ms(2_999)
    assert world.ops.write_if_due() is None
    world.clock.advance_ms(1)
    assert world.ops.write_if_due() is not None
    world.store.dispatch_now()
    (op,) = world.messages(OPERATION_HALF_TOPIC)
    assert (op.body, op.properties) == (b"5,", {"WAIT": "true", "TAGS": "d", "TIERMQ_ROLLBACKS": "-"})
    assert outcomes_of(op) == {5: Outcome.COMMIT}
    assert (world.ops.pending, world.ops.outcome(5)) == ((), Outcome.COMMIT)


def test_an_op_is_written_when_it_is_large_enough(world: World) -> None:
    ops = OpLog(world.store, world.clock, max_bytes=10)
    assert [ops.end(Outcome.COMMIT, offset) is None for offset in (111, 222, 333)] == [True, True, False]
    world.store.dispatch_now()
    assert world.ops_written() == [b"111,222,333,"]


def test_a_rollback_is_in_the_log_at_once_and_takes_along_what_waits(world: World) -> None:
    world.ops.end(Outcome.COMMIT, 5)
    assert world.ops.end(Outcome.ROLLBACK, 9, 6) is not None
    world.store.dispatch_now()
    assert world.ops_written() == [b"5,9,6,"]
    (op,) = world.messages(OPERATION_HALF_TOPIC)
    assert outcomes_of(op) == {5: Outcome.COMMIT, 9: Outcome.ROLLBACK, 6: Outcome.ROLLBACK}
    assert world.ops.outcome(7, 6) is Outcome.ROLLBACK


def test_an_origin_that_is_the_message_itself_is_written_once(world: World) -> None:
    world.ops.end(Outcome.ROLLBACK, 9, 9)
    world.store.dispatch_now()
    assert world.ops_written() == [b"9,"]


def test_what_the_store_refuses_waits_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_message: Message) -> PutResult:
        return PutResult(PutStatus.SERVICE_NOT_AVAILABLE)

    with monkeypatch.context() as failing:
        failing.setattr(world.store, "append", full)
        refused = world.ops.end(Outcome.ROLLBACK, 5)
    assert refused is not None
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert list(world.ops.pending) == [5]
    assert world.ops.write() is not None
    world.store.dispatch_now()
    assert world.ops_written() == [b"5,"]
    assert world.ops.write() is None


def test_an_end_is_known_by_what_all_copies_share_as_long_as_by_its_offset(world: World) -> None:
    one, other = ("X", "T", 5, 7), ("X", "T", 5, 8)
    world.ops.end(Outcome.ROLLBACK, 5, 3, identity=one)
    assert (world.ops.outcome(7, one), world.ops.outcome(7, other)) == (Outcome.ROLLBACK, None)
    world.ops.was_read(1)
    world.ops.was_read(1)
    assert world.ops.outcome(5, 3, one) is None


def test_what_a_round_has_read_is_forgotten_a_round_later(world: World) -> None:
    world.ops.end(Outcome.ROLLBACK, 5)
    world.ops.was_read(1)
    assert world.ops.outcome(5) is Outcome.ROLLBACK, "a producer may answer twice"
    world.ops.end(Outcome.ROLLBACK, 6)
    world.ops.was_read(1)
    assert (world.ops.outcome(5), world.ops.outcome(6)) == (None, Outcome.ROLLBACK), "the second op was not read"
