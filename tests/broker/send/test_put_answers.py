"""Answers that wait for the disk: in order, once, and not for ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from tiermq.broker.durable_answers import DurableAnswers
from tiermq.clock import ManualClock
from tiermq.remoting.connection import Connection
from tiermq.remoting.server import RemotingServer
from tiermq.status import PutStatus
from tiermq.store.local_store import LocalStore


class Disk:
    """A store's flush, done when a test says so; a server whose calls run at once; a peer that notes its answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, Callable[[PutStatus], None]]] = []
        self.answers: list[bytes] = []
        self.config = self
        self.sync_flush_timeout = 5_000
        self.flushed_where = 0

    def when_durable(self, offset: int, call: Callable[[PutStatus], None]) -> None:
        self.asked.append((offset, call))

    def call_threadsafe(self, call: Callable[..., object], *arguments: Any) -> None:
        call(*arguments)

    def send_bytes(self, answer: bytes) -> None:
        self.answers.append(answer)

    def flushes(self, status: PutStatus = PutStatus.PUT_OK) -> None:
        _, call = self.asked.pop(0)
        call(status)


def made(disk: Disk, clock: ManualClock | None = None) -> DurableAnswers:
    return DurableAnswers(cast(LocalStore, disk), cast(RemotingServer, disk), clock or ManualClock())


def add(answers: DurableAnswers, disk: Disk, end_offset: int, name: bytes, sends: int = 1) -> None:
    answers.add(end_offset, cast(Connection, disk), name, lambda: name + b" late", sends)


def test_nothing_is_answered_before_it_is_durable_and_one_flush_answers_all_below_it() -> None:
    disk = Disk()
    answers = made(disk)
    add(answers, disk, 100, b"a")
    add(answers, disk, 200, b"b")
    add(answers, disk, 300, b"c")
    assert (disk.answers, [end for end, _ in disk.asked], answers.waiting) == ([], [100], 3)
    disk.flushes()
    assert (disk.answers, [end for end, _ in disk.asked]) == ([b"a"], [300])
    disk.flushes()
    assert (disk.answers, disk.asked, answers.waiting) == ([b"a", b"b", b"c"], [], 0)


def test_a_flush_that_failed_is_told_to_those_who_waited_for_it() -> None:
    disk = Disk()
    answers = made(disk)
    add(answers, disk, 100, b"a")
    add(answers, disk, 200, b"b")
    disk.flushes(PutStatus.FLUSH_DISK_TIMEOUT)
    disk.flushes()
    assert (disk.answers, answers.timed_out) == ([b"a late", b"b"], 1)


def test_who_waits_for_too_long_is_answered_late_once() -> None:
    disk, clock = Disk(), ManualClock()
    answers = made(disk, clock)
    add(answers, disk, 100, b"a")
    clock.advance_ms(4_000)
    add(answers, disk, 200, b"b")
    assert answers.answer_late() == 0
    clock.advance_ms(2_000)
    assert (answers.answer_late(), disk.answers) == (1, [b"a late"])
    disk.flushes()
    disk.flushes()
    assert disk.answers == [b"a late", b"b"]


def test_a_flush_that_nobody_waits_for_is_asked_for_all_the_same() -> None:
    disk = Disk()
    answers = made(disk)
    answers.flush_soon(100)
    answers.flush_soon(250)
    disk.flushes()
    assert [end for end, _ in disk.asked] == [250]
    disk.flushes()
    assert (disk.asked, disk.answers) == ([], [])


def test_a_flush_that_took_along_what_came_after_it_was_asked_for_answers_that_too() -> None:
    disk = Disk()
    answers = made(disk)
    add(answers, disk, 100, b"a")
    add(answers, disk, 200, b"b")
    add(answers, disk, 300, b"c")
    disk.flushed_where = 250
    disk.flushes()
    assert (disk.answers, [end for end, _ in disk.asked]) == ([b"a", b"b"], [300])
    disk.flushed_where = 300
    disk.flushes()
    assert (disk.answers, disk.asked) == ([b"a", b"b", b"c"], [])


def test_a_flush_that_failed_answers_nobody_by_what_an_earlier_one_made_durable() -> None:
    disk = Disk()
    answers = made(disk)
    add(answers, disk, 100, b"a")
    add(answers, disk, 200, b"b")
    disk.flushed_where = 100
    disk.flushes(PutStatus.FLUSH_DISK_TIMEOUT)
    assert (disk.answers, [end for end, _ in disk.asked]) == ([b"a late"], [200])


def test_answers_to_many_sends_count_as_many_that_wait_and_are_late() -> None:
    disk, clock = Disk(), ManualClock()
    answers = made(disk, clock)
    add(answers, disk, 100, b"a and b", sends=2)
    assert answers.waiting == 2
    add(answers, disk, 200, b"c")
    assert answers.waiting == 3
    disk.flushes()
    assert (answers.waiting, disk.answers) == (1, [b"a and b"])
    add(answers, disk, 300, b"d and e", sends=2)
    clock.advance_ms(6_000)
    assert (answers.answer_late(), answers.timed_out, answers.waiting) == (3, 3, 0)
