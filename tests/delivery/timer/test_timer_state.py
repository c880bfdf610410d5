"""What taking in and delivering share: putting, passing over."""

from __future__ import annotations

from delivery.timer.timer_world import TimerWorld
from tiermq import Message
from tiermq.delivery.timer.timer_state import is_done
from tiermq.status import PutStatus


def test_each_message_that_is_put_has_its_own_status() -> None:
    state = TimerWorld().timers._state
    assert state.put([]) == []
    large = bytes(5 * 1024 * 1024)
    statuses = state.put([Message("T", b"a"), Message("T", large), Message("T", b"b")])
    assert statuses == [PutStatus.PUT_OK, PutStatus.MESSAGE_ILLEGAL, PutStatus.PUT_OK]
    assert all(map(is_done, statuses))


def test_only_what_is_stored_or_never_can_be_is_done() -> None:
    done = {status for status in PutStatus if is_done(status)}
    assert done == {
        PutStatus.PUT_OK,
        PutStatus.FLUSH_DISK_TIMEOUT,
        PutStatus.MESSAGE_ILLEGAL,
        PutStatus.PROPERTIES_SIZE_EXCEEDED,
    }


def test_what_is_passed_over_is_counted() -> None:
    state = TimerWorld().timers._state
    state.skip("here", "damage")
    assert state.counts.skipped == 1
