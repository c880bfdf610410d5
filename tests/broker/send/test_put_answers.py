"""Statuses of the store as codes of the wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from simulation.manual_clock import ManualClock
from tiermq.broker.send.put_answers import STORED, DurableAnswers, answers_with, code_of, refusal_of
from tiermq.config import StoreConfig
from tiermq.errors import RequestRefused
from tiermq.kernel import Frame, FrameReader, SendRequest, send_answer
from tiermq.remoting.codes import ResponseCode
from tiermq.remoting.connection import Connection
from tiermq.remoting.frame import command_of
from tiermq.remoting.server import RemotingServer
from tiermq.status import PutStatus
from tiermq.store.local_store import LocalStore

ROCKETMQ_S = {
    PutStatus.PUT_OK: 0,
    PutStatus.FLUSH_DISK_TIMEOUT: 10,
    PutStatus.SLAVE_NOT_AVAILABLE: 11,
    PutStatus.FLUSH_SLAVE_TIMEOUT: 12,
    PutStatus.MESSAGE_ILLEGAL: 13,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: 13,
    PutStatus.WHEEL_TIMER_MSG_ILLEGAL: 13,
    PutStatus.SERVICE_NOT_AVAILABLE: 14,
    PutStatus.OS_PAGE_CACHE_BUSY: 2,
}


@pytest.mark.parametrize("status", list(PutStatus))
def test_every_status_has_rocketmq_s_code_and_all_but_success_a_remark(status: PutStatus) -> None:
    code, remark = code_of(status)
    assert code == ROCKETMQ_S.get(status, ResponseCode.SYSTEM_ERROR)
    assert (remark is None) == (status is PutStatus.PUT_OK)


def test_clients_get_a_place_with_the_codes_on_which_they_expect_one() -> None:
    assert {code_of(status)[0] for status in STORED} == {0, 10, 11, 12}


def test_a_refusal_answers_in_the_request_s_header_type_and_to_its_opaque() -> None:
    request = SendRequest(
        310, 42, producer_group="g", topic="t", default_topic="", default_topic_queue_nums=4, queue_id=0, sys_flag=0,
        born_ms=0, flag=0, header_type=1,
    )  # fmt: skip
    answer = refusal_of(request, RequestRefused("no", ResponseCode.NO_PERMISSION))
    assert (answer.opaque, answer.header_type, answer.is_response) == (42, 1, True)
    assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "no")


@pytest.mark.parametrize("header_type", [0, 1])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_answers_that_are_changed_to_another_status_are_those_that_were_made_with_it(
    header_type: int, count: int
) -> None:
    def joined(status: PutStatus) -> bytes:
        code, remark = code_of(status)
        return b"".join(
            send_answer(header_type, opaque, code, 477, f"ID{opaque}", 3, 70 + opaque, "K", "R", "true", remark)
            for opaque in range(count)
        )

    changed, made = (
        frames_of(each)
        for each in (
            answers_with(joined(PutStatus.PUT_OK), PutStatus.FLUSH_DISK_TIMEOUT),
            joined(PutStatus.FLUSH_DISK_TIMEOUT),
        )
    )
    assert changed == made
    assert len(made) == count


def frames_of(joined: bytes) -> list[tuple[object, ...]]:
    """What stands in frames that lie side by side."""
    reader = FrameReader(1 << 20)
    frames = reader.feed(joined)
    commands = [command_of(frame) for frame in frames if isinstance(frame, Frame)]
    assert len(commands) == len(frames)
    return [(each.code, each.opaque, each.flag, each.version, each.remark, each.ext) for each in commands]


class Disk:
    """A store's flush, done when a test says so; a server whose calls run at once; a peer that notes its answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, Callable[[PutStatus], None]]] = []
        self.answers: list[bytes] = []
        self.config = StoreConfig(flush_disk_type="SYNC_FLUSH", sync_flush_timeout=5_000)  # type: ignore[arg-type]
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
    answers.add(end_offset, cast(Connection, disk), name, lambda _status: name + b" late", sends)


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


def test_a_flush_that_failed_is_reported_to_those_who_waited_for_it() -> None:
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
