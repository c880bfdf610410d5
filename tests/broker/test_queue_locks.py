"""Locks of queues: one holder, renewed or lost."""

from __future__ import annotations

from tiermq.broker.queue_locks import QueueLocks, QueueName
from tiermq.clock import ManualClock

A, B = QueueName("T", "b", 0), QueueName("T", "b", 1)


def test_a_queue_has_one_holder_at_a_time(manual_clock: ManualClock) -> None:
    locks = QueueLocks(60_000, manual_clock)
    assert locks.lock("g", "one", [A]) == [A]
    assert locks.lock("g", "two", [A, B]) == [B]
    assert locks.lock("h", "two", [A]) == [A], "another group has locks of its own"
    assert locks.lock("g", "one", [A]) == [A], "a holder renews"


def test_a_lock_that_is_not_renewed_is_anybodys(manual_clock: ManualClock) -> None:
    locks = QueueLocks(60_000, manual_clock)
    locks.lock("g", "one", [A])
    manual_clock.advance_ms(60_000)
    assert locks.lock("g", "two", [A]) == []
    assert locks.holds_any("g")
    manual_clock.advance_ms(1)
    assert not locks.holds_any("g")
    assert locks.lock("g", "two", [A]) == [A]
    assert locks.lock("g", "one", [A]) == []


def test_only_the_holder_lets_go(manual_clock: ManualClock) -> None:
    locks = QueueLocks(60_000, manual_clock)
    locks.lock("g", "one", [A, B])
    locks.unlock("g", "two", [A])
    assert locks.lock("g", "two", [A]) == []
    locks.unlock("g", "one", [A])
    assert locks.lock("g", "two", [A, B]) == [A]
    locks.unlock("x", "one", [A])


def test_locks_that_are_over_are_forgotten(manual_clock: ManualClock) -> None:
    locks = QueueLocks(60_000, manual_clock)
    locks.lock("g", "one", [A])
    manual_clock.advance_ms(40_000)
    locks.lock("g", "one", [B])
    manual_clock.advance_ms(30_000)
    assert locks.drop_expired() == 1
    assert locks.holds_any("g")
    manual_clock.advance_ms(60_000)
    assert locks.drop_expired() == 1
    assert locks.drop_expired() == 0
