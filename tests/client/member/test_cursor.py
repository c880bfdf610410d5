"""A loop over messages: asking for the next one means that this one is done."""

from __future__ import annotations

from client.member.test_assigned_queue import queue_with
from tiermq.client.member.cursor import MessageCursor


def test_asking_for_more_finishes_what_was_given() -> None:
    queue, messages = queue_with([0, 1, 2])
    cursor = MessageCursor(auto_ack=True)
    cursor.refill(messages.values())
    assert cursor.next() is messages[0]
    assert queue.commit_offset == 0
    assert cursor.next() is messages[1]
    assert queue.commit_offset == 1
    cursor.finish()
    assert queue.commit_offset == 2


def test_without_auto_ack_nothing_is_finished() -> None:
    queue, messages = queue_with([0, 1])
    cursor = MessageCursor(auto_ack=False)
    cursor.refill(messages.values())
    assert len(cursor.next_many(5)) == 2
    assert cursor.next() is None
    cursor.finish()
    assert queue.commit_offset == 0


def test_messages_of_another_member_are_skipped() -> None:
    queue, messages = queue_with([0, 1])
    cursor = MessageCursor(auto_ack=True)
    cursor.refill(messages.values())
    assert cursor.next() is messages[0]
    queue.drop()
    assert cursor.next() is None


def test_what_was_decided_otherwise_is_not_finished() -> None:
    queue, messages = queue_with([0, 1])
    cursor = MessageCursor(auto_ack=True)
    cursor.refill(messages.values())
    found = cursor.next_many(2)
    cursor.keep_open(found[0])
    cursor.finish()
    assert queue.commit_offset == 0
