"""What taking in and delivering share: putting, passing over."""

from __future__ import annotations

import json
from typing import Any

import pytest

from delivery.timer.timer_world import TimerWorld
from tiermq import Message
from tiermq.delivery.timer.timer_state import SLOTS, TimerMetrics, TimerSettings, Unput, decode_timer_metrics
from tiermq.errors import BadConfig, StoreDamaged
from tiermq.status import PutStatus


def test_what_can_never_be_put_is_counted_and_does_not_wait() -> None:
    state = TimerWorld().timers._state
    assert state.put([]) == Unput()
    large = Message("T", bytes(5 * 1024 * 1024))
    assert state.put([Message("T", b"a"), large, Message("T", b"b")]) == Unput(never=[large])
    assert state.counts.skipped == 1
    assert state.store.max_offset("T", 0, committed=False) == 2


def test_what_cannot_be_put_now_waits() -> None:
    state = TimerWorld().timers._state
    state.store.appender.closed = True
    message = Message("T", b"a")
    unput = state.put([message])
    assert (unput.waiting, unput.never, unput.status) == ([message], [], PutStatus.SERVICE_NOT_AVAILABLE)
    assert state.counts.skipped == 0


def test_what_is_passed_over_is_counted() -> None:
    state = TimerWorld().timers._state
    state.skip("here", "damage")
    assert state.counts.skipped == 1


def test_the_defaults_are_rocketmqs() -> None:
    settings = TimerSettings()
    assert settings.wheel_slots * 32 == 38_707_200
    assert settings.roll_window_ms == 172_800_000
    assert settings.floor(1_700_000_000_999) == 1_700_000_000_000


@pytest.mark.parametrize("window", [0, 1, SLOTS, SLOTS - 59, 10**9])
def test_a_roll_window_that_makes_no_sense_is_almost_the_whole_wheel(window: int) -> None:
    assert TimerSettings(roll_window_slots=window).roll_slots == SLOTS - 60


def test_a_roll_window_never_overflows_the_delay_of_a_unit() -> None:
    settings = TimerSettings(precision_ms=60_000)
    assert settings.roll_window_ms <= 2**31 - 1
    assert settings.roll_window_ms % 60_000 == 0


@pytest.mark.parametrize("wrong", [{"precision_ms": 0}, {"precision_ms": 2**31}, {"log_file_bytes": 100}])
def test_impossible_timer_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadConfig, match="expected"):
        TimerSettings(**wrong)


def test_counts_go_up_and_down_and_those_of_nothing_are_not_reported() -> None:
    metrics = TimerMetrics()
    metrics.add("orders", 1, 5)
    metrics.add("orders", 1, 6)
    metrics.add("bills", 1, 7)
    metrics.add("bills", -1, 8)
    assert metrics.counts() == {"orders": 2}
    assert metrics.changed


def test_timer_metrics_are_written_as_rocketmq_writes_them() -> None:
    metrics = TimerMetrics()
    metrics.add("orders", 2, 5)
    assert json.loads(metrics.encode(9)) == {
        "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 9},
        "timingCount": {"orders": {"count": 2, "timeStamp": 5}},
    }
    again = decode_timer_metrics(metrics.encode(9))
    again.add("orders", 1, 6)
    assert again.counts() == {"orders": 3}
    assert json.loads(again.encode(9))["dataVersion"]["counter"] == 2


@pytest.mark.parametrize(
    "wrong", [b"[]", b"{}", b'{"timingCount":[]}', b'{"timingCount":{"T":3}}', b'{"timingCount":{"T":{"count":"x"}}}']
)
def test_timer_metrics_that_are_none_are_damage(wrong: bytes) -> None:
    with pytest.raises(StoreDamaged):
        decode_timer_metrics(wrong)
