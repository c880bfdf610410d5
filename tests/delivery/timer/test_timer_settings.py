"""Settings of the wheel: RocketMQ's meaning, and no overflow."""

from __future__ import annotations

import pytest

from tiermq.delivery.timer.timer_settings import SLOTS, TimerSettings
from tiermq.errors import BadConfig


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
def test_impossible_timer_settings_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(BadConfig, match="expected"):
        TimerSettings(**wrong)
