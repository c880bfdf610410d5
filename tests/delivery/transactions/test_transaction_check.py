"""Check rounds: who is asked when, what is given up, how far the progress goes, and what a restart changes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from delivery.transactions.transaction_world import World
from tiermq import Message, PutResult
from tiermq.delivery.transactions.end_transaction import EndRequest, EndStatus
from tiermq.delivery.transactions.half_messages import TransactionRules
from tiermq.delivery.transactions.op_messages import Outcome, encode_op
from tiermq.message.properties import encode_properties
from tiermq.message.record import decode_record
from tiermq.message.topic_name import HALF_TOPIC, OPERATION_HALF_TOPIC, TRANSACTION_GROUP
from tiermq.status import PutStatus


def test_a_producer_is_asked_about_what_is_open_once_it_is_old_enough(world: World) -> None:
    world.half("a")
    assert world.round_after(5.999) == []
    assert world.round_after(0.001) == ["a"]
    (asked,) = world.asked
    assert asked.group == "PG"
    shown = decode_record(asked.record)
    assert (shown.topic, shown.queue_id, shown.body, shown.queue_offset) == ("T", 1, b"a", 1)
    copy = world.messages(HALF_TOPIC)[1]
    assert (copy.physical_offset, copy.message_id) == (asked.log_offset, asked.message_id)
    assert copy.properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert world.half_progress == 1


def test_the_answer_to_a_question_ends_the_message(world: World) -> None:
    world.half("a")
    world.half("b")
    world.round_after(6)
    assert world.commit(world.asked[0], is_answer=True).status is EndStatus.DONE
    assert world.roll_back(world.asked[1], is_answer=True).status is EndStatus.DONE
    assert world.bodies() == ["a"]
    assert world.messages("T", 1)[0].flag == 7, "also when it was committed from a copy"
    assert world.round_after(30) == []
    assert world.round_after(30) == []
    assert (world.waiting, world.half_progress) == (0, 4)


def test_what_is_not_answered_is_asked_again_and_given_up_in_the_end(tmp_path: Path) -> None:
    world = World(tmp_path, check_max=3)
    world.half("a")
    assert [world.round_after(30) for _ in range(5)] == [["a"], ["a"], ["a"], [], []]
    assert world.discarded() == ["a"]
    assert (world.topics_made, world.check.discarded_count, world.waiting) == (1, 1, 0)
    assert world.bodies() == []
    world.store.close()


def test_the_last_question_can_be_answered(tmp_path: Path) -> None:
    """RocketMQ may give a message up in the round of its last question."""
    world = World(tmp_path, check_max=1)
    world.half("a")
    assert world.round_after(30) == ["a"]
    assert world.discarded() == []
    world.commit(world.asked[0], is_answer=True)
    world.round_after(30)
    assert (world.bodies(), world.discarded()) == (["a"], [])
    world.store.close()


def test_what_is_older_than_the_files_of_the_log_is_given_up(world: World) -> None:
    world.rules = TransactionRules(reserved_ms=3_600_000)
    world.half("a")
    world.half("b", born_timestamp_ms=world.clock.now_ms() - 3_600_000)
    assert world.round_after(10) == ["a"]
    assert world.discarded() == ["b"]


def test_a_young_message_ends_the_round_and_a_late_born_one_is_asked_about(world: World) -> None:
    world.half("a")
    world.clock.advance_ms(6_000)
    world.half("young")
    world.half("b", born_timestamp_ms=world.clock.now_ms() - 60_000)
    assert world.round_after(0) == ["a"]
    assert world.half_progress == 1
    world.half("future", born_timestamp_ms=world.clock.now_ms() + 3_600_000)
    assert world.round_after(6) == ["young", "b", "a", "future"]


def test_a_producer_that_asked_for_more_time_gets_it_and_does_not_hold_up_the_others(world: World) -> None:
    world.half("immune", more={"CHECK_IMMUNITY_TIME_IN_SECONDS": "100"})
    world.half("a")
    assert world.round_after(30) == ["a"]
    assert world.messages(HALF_TOPIC)[2].properties["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
    assert world.round_after(30) == ["a"]
    assert world.round_after(39.999) == ["a"]
    assert "immune" in world.round_after(0.001)


def test_waiting_for_an_immunity_does_not_count_as_questions(tmp_path: Path) -> None:
    """RocketMQ counts, and gives up a message with a long immunity without ever asking."""
    world = World(tmp_path, check_max=2)
    world.half("a", more={"CHECK_IMMUNITY_TIME_IN_SECONDS": "300"})
    assert [world.round_after(30) for _ in range(9)] == [[]] * 9
    assert [world.round_after(30) for _ in range(4)] == [["a"], ["a"], [], []]
    assert world.discarded() == ["a"]
    world.store.close()


def test_an_end_of_a_message_that_was_copied_meanwhile_ends_the_copy(world: World) -> None:
    """RocketMQ forgets such an op, asks again, and delivers twice."""
    half = world.half("a")
    assert world.round_after(30) == ["a"]
    world.commit(half)
    assert [world.round_after(30) for _ in range(3)] == [[], [], []]
    assert world.bodies() == ["a"]
    assert (world.waiting, world.op_progress) == (0, 1)


def test_an_end_of_an_immune_message_that_was_copied_ends_the_copy(world: World) -> None:
    half = world.half("a", more={"CHECK_IMMUNITY_TIME_IN_SECONDS": "100"})
    world.round_after(30)
    world.round_after(30)
    world.roll_back(half)
    assert [world.round_after(30) for _ in range(4)] == [[]] * 4
    assert (world.bodies(), world.discarded(), world.waiting) == ([], [], 0)


def test_a_late_answer_to_an_older_question_ends_the_newest_copy(world: World) -> None:
    world.half("a")
    world.round_after(30)
    world.round_after(30)
    first, second = world.asked
    assert world.commit(first, is_answer=True).status is EndStatus.DONE
    assert world.commit(second, is_answer=True).status is EndStatus.ALREADY
    assert world.round_after(30) == []
    assert world.bodies() == ["a"]
    assert world.ops_written() == [b"1,0,"]


def test_no_producer_is_asked_about_what_was_ended_a_moment_ago(world: World) -> None:
    """RocketMQ asks while the op waits to be written."""
    half, other = world.half("a"), world.half("b")
    world.clock.advance_ms(6_000)
    world.roll_back(other)
    world.commit(half)
    assert world.ops.pending == (0,)
    assert world.round_after(0) == []
    assert world.half_progress == 2


def test_an_end_while_a_young_message_holds_the_round_is_remembered(world: World) -> None:
    young = [world.half(name) for name in "abc"]
    world.roll_back(young[1])
    world.round_after(1)
    assert (world.half_progress, world.op_progress, world.waiting) == (-1, -1, 2)
    world.commit(young[0])
    world.commit(young[2])
    assert world.round_after(10) == []
    assert (world.half_progress, world.waiting) == (3, 0)
    assert world.round_after(30) == []
    assert world.op_progress == world.store.max_offset(OPERATION_HALF_TOPIC, 0)


def test_ops_are_passed_only_when_everything_before_them_in_the_log_is(world: World) -> None:
    world.roll_back(world.half("a"))
    world.clock.advance_ms(30_000)
    world.half("young")
    world.roll_back(world.half("b"))
    assert world.round_after(1) == []
    assert (world.half_progress, world.op_progress) == (1, 1), "the second op lies behind one that is still young"


def test_many_ended_messages_are_passed_in_one_round(world: World) -> None:
    halves = [world.half(f"m{number}") for number in range(150)]
    for number, half in enumerate(halves):
        if number != 77:
            (world.commit if number % 3 else world.roll_back)(half)
    assert world.waiting == 1
    assert world.round_after(30) == ["m77"]
    assert (world.half_progress, len(world.bodies())) == (150, 99)
    assert world.waiting == 1


def test_a_restart_forgets_nothing_that_was_written(world: World) -> None:
    committed, rolled_back, _open = world.half("a"), world.half("b"), world.half("c")
    world.commit(committed)
    world.roll_back(rolled_back)
    world.restart()
    assert world.round_after(30) == ["c"]
    world.restart()
    world.commit(world.asked[0], is_answer=True)
    world.ops.write()
    world.restart()
    assert world.round_after(30) == []
    assert world.bodies() == ["a", "c"]


def test_no_producer_is_asked_about_a_commit_whose_op_was_not_written(world: World) -> None:
    """RocketMQ asks, and delivers again: it does not write ops when it stops."""
    half = world.half("a")
    world.commit(half)
    assert world.ops_written() == []
    world.restart()
    assert world.roll_back(half).status is EndStatus.OTHERWISE
    assert world.commit(half).status is EndStatus.ALREADY
    world.restart()
    assert world.round_after(30) == []
    assert (world.bodies(), world.waiting) == (["a"], 0)
    world.restart()
    assert world.round_after(30) == []


def test_a_commit_that_cannot_be_found_is_asked_about_again(tmp_path: Path) -> None:
    world = World(tmp_path, {"message_index_enable": False})
    world.commit(world.half("a"))
    world.restart()
    assert world.round_after(30) == ["a"]
    assert world.bodies() == ["a"], "it was in the log before"
    world.store.close()


def test_a_message_with_the_key_of_another_that_was_committed_is_open(world: World) -> None:
    world.commit(world.half("a"))
    world.half("b", more={"UNIQ_KEY": "ID-a"})
    world.restart()
    assert world.round_after(30) == ["a"]
    assert [decode_record(each.record).body for each in world.asked] == [b"b"]


def test_without_progress_a_round_begins_at_the_beginning_and_asks_no_producer_twice(world: World) -> None:
    world.roll_back(world.half("a"))
    world.half("b")
    assert world.round_after(30) == ["b"]
    world.progress.table.clear()
    assert world.round_after(30) == ["b"], "the first is open in the log as well; both are one message"
    world.commit(world.asked[-1], is_answer=True)
    assert world.round_after(30) == []
    assert world.bodies() == ["b"]


def test_copies_of_a_rocketmq_which_name_no_origin_are_one_transaction(world: World) -> None:
    first = world.half("a")
    for times in ("1", "2"):
        world.half("a", more={"TRANSACTION_CHECK_TIMES": times}, born_timestamp_ms=world.clock.now_ms())
    assert world.round_after(30) == ["a"]
    assert world.round_after(30) == ["a"]
    world.commit(first)
    assert [world.round_after(30) for _ in range(3)] == [[], [], []]
    assert world.bodies() == ["a"]


def test_two_messages_with_one_unique_key_are_two_transactions(world: World) -> None:
    first = world.half("a", more={"UNIQ_KEY": "same"})
    second = world.half("b", more={"UNIQ_KEY": "same"})
    third = world.half("c", more={"UNIQ_KEY": "same"})
    world.commit(first)
    assert world.round_after(30) == ["same", "same"]
    assert world.commit(second).status is EndStatus.DONE
    assert world.roll_back(third).status is EndStatus.DONE
    assert [world.round_after(30) for _ in range(2)] == [[], []]
    assert world.bodies() == ["a", "b"]


@pytest.mark.parametrize("known", [99, 10**12])
def test_a_progress_beyond_the_queue_goes_on_at_its_end(world: World, known: int) -> None:
    world.half("a")
    world.progress.commit(TRANSACTION_GROUP, HALF_TOPIC, 0, known)
    world.progress.commit(TRANSACTION_GROUP, OPERATION_HALF_TOPIC, 0, known)
    assert world.round_after(30) == []
    world.half("b")
    world.progress.commit(TRANSACTION_GROUP, HALF_TOPIC, 0, 1)
    assert world.round_after(30) == ["b"]


def test_a_full_disk_holds_the_round_and_loses_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.half("a")
    world.half("b")
    append = world.store.append

    def full(message: Message) -> PutResult:
        return PutResult(PutStatus.SERVICE_NOT_AVAILABLE) if message.body == b"b" else append(message)

    with monkeypatch.context() as failing:
        failing.setattr(world.store, "append", full)
        assert world.round_after(30) == ["a"]
        assert world.half_progress == 1
    assert world.round_after(0) == ["b", "a"]


def test_a_discard_that_the_store_refuses_is_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.rules = TransactionRules(check_max=0)
    world.half("a")

    def full(_message: Message) -> PutResult:
        return PutResult(PutStatus.SERVICE_NOT_AVAILABLE)

    with monkeypatch.context() as failing:
        failing.setattr(world.store, "append", full)
        world.round_after(30)
        assert world.half_progress == -1
    world.round_after(0)
    assert world.discarded() == ["a"]


def test_a_message_without_room_for_a_count_is_asked_about_until_it_is_too_old(tmp_path: Path) -> None:
    world = World(tmp_path, store={"mapped_file_size_commit_log": 1 << 20})
    named = {"UNIQ_KEY": "ID-a", "PGROUP": "PG", "REAL_TOPIC": "T", "REAL_QID": "1"}
    room = 32_767 - len(encode_properties({**named, "big": ""}))
    message = Message(
        HALF_TOPIC, b"a", 0, properties={**named, "big": "x" * room}, born_timestamp_ms=world.clock.now_ms()
    )
    assert world.store.put(message).ok
    world.half("b")
    for _ in range(3):
        assert world.round_after(30) == ["a", "b"]
    assert world.discarded() == []
    world.round_after(73 * 3_600)
    assert sorted(world.discarded()) == ["a", "b"]
    world.store.close()


def test_records_that_say_nothing_are_passed_over(world: World) -> None:
    world.store.put(Message(HALF_TOPIC, b"no place", 0))
    world.store.put(Message(OPERATION_HALF_TOPIC, b"nonsense,", 0, tags="d"))
    world.store.put(Message(OPERATION_HALF_TOPIC, encode_op([1]), 0, tags="other"))
    world.half("a")
    assert world.round_after(30) == ["a"]
    assert world.check.skipped_count == 2


def test_rounds_come_at_their_interval_and_ops_in_between(world: World) -> None:
    world.half("a")
    world.commit(world.half("b"))
    world.clock.advance_ms(29_999)
    world.check.run_once()
    world.store.dispatch_now()
    assert (world.asked, world.ops_written()) == ([], [b"1,"])
    world.clock.advance_ms(1)
    assert world.check.run_once() == pytest.approx(0.25)
    assert len(world.asked) == 1
    world.commit(world.half("c"))
    world.check.finish()
    world.store.dispatch_now()
    assert world.ops_written()[-1] == b"3,", "a clean end leaves nothing unwritten"


def test_a_round_that_takes_too_long_goes_on_in_the_next(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        world.half(name)
    append = world.store.append

    def slow(message: Message) -> PutResult:
        world.clock.advance_ms(60_001)
        return append(message)

    with monkeypatch.context() as slowly:
        slowly.setattr(world.store, "append", slow)
        assert world.round_after(30) == ["a"]
    assert world.half_progress == 1
    assert world.round_after(0) == ["b", "c", "a"]


def test_ends_and_rounds_at_the_same_time_end_each_message_once(tmp_path: Path) -> None:
    world = World(tmp_path, store={"mapped_file_size_commit_log": 4 << 20}, timeout_ms=1)
    halves = [world.half(str(number)) for number in range(300)]
    world.clock.advance_ms(1_000)
    ending = threading.Event()
    ended: list[EndStatus] = []

    def end_all(places: list[PutResult]) -> None:
        for half in places:
            outcome = Outcome.COMMIT if half.queue_offset % 2 else Outcome.ROLLBACK
            request = EndRequest(outcome, "PG", half.physical_offset, half.queue_offset)
            ended.append(world.ending.end(request).status)

    def go_round() -> None:
        while not ending.is_set():
            world.store.dispatch_now()
            world.check.round()

    rounds = threading.Thread(target=go_round)
    enders = [threading.Thread(target=end_all, args=(halves[each::2],)) for each in range(2)]
    for thread in (rounds, *enders):
        thread.start()
    for thread in enders:
        thread.join()
    ending.set()
    rounds.join()
    assert ended == [EndStatus.DONE] * 300
    for _ in range(3):
        world.round_after(1)
    asked = len(world.asked)
    world.round_after(1)
    assert (world.waiting, len(world.asked)) == (0, asked), "what was ended is not asked about any more"
    assert sorted(map(int, world.bodies())) == list(range(1, 300, 2))
    world.store.close()
