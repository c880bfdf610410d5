"""One queue of a consumer: what may be committed is below the first message that is not done."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from present import present
from tiermq.client.member.assigned_queue import AssignedQueue
from tiermq.client.member.message_queue import MessageQueue
from tiermq.client.member.received_message import ReceivedMessage
from tiermq.message.record import decode_record, encode_record

NAME = MessageQueue("orders", "broker-a", 0)


def message(offset: int) -> ReceivedMessage:
    record = encode_record(topic="orders", body=b"x" * 10, queue_offset=offset, properties=b"")
    return ReceivedMessage(decode_record(record), NAME)


def queue_with(offsets: list[int]) -> tuple[AssignedQueue, dict[int, ReceivedMessage]]:
    queue = AssignedQueue(NAME, 0)
    messages = {offset: message(offset) for offset in offsets}
    queue.add(messages.values(), max(offsets, default=-1) + 1)
    return queue, messages


def done(each: ReceivedMessage) -> None:
    present(each.receipt).done()


@given(st.sets(st.integers(0, 50), min_size=1), st.randoms(use_true_random=False), st.integers(0, 50))
def test_the_commit_offset_is_the_first_that_is_not_done(offsets: set[int], chance: object, count: int) -> None:
    queue, messages = queue_with(sorted(offsets))
    order = sorted(offsets)
    chance.shuffle(order)  # type: ignore[attr-defined]
    finished, open_ones = order[:count], sorted(order[count:])
    for offset in finished:
        done(messages[offset])
    assert queue.commit_offset == (open_ones[0] if open_ones else max(offsets) + 1)


def test_what_is_done_twice_counts_once() -> None:
    queue, messages = queue_with([0, 1, 2])
    for offset in (1, 1, 0, 0, 1):
        done(messages[offset])
    assert (queue.commit_offset, queue.open_count) == (2, 1)


def test_messages_of_a_queue_that_was_dropped_or_moved_change_nothing() -> None:
    queue, messages = queue_with([0, 1, 2])
    queue.move_to(100)
    done(messages[0])
    assert queue.commit_offset == 100
    assert not present(messages[0].receipt).is_current
    queue.add([message(100)], 101)
    done(messages[1])
    assert queue.commit_offset == 100
    queue.drop()
    assert queue.is_dropped
    assert not queue.ready


def test_ready_bytes_follow_what_is_added_and_taken() -> None:
    queue, _ = queue_with([0, 1])
    assert queue.ready_bytes == 20
    assert queue.take().offset == 0
    assert queue.ready_bytes == 10
