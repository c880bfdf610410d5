"""The thread that tends far timers: goes on by itself, also after a tier that was down."""

from __future__ import annotations

from pathlib import Path

import pytest

from delivery.far.far_world import DAY_MS, NOW_MS, FarWorld, timer
from tiermq.delivery.far.far_service import REST_AFTER_REFUSAL_S, REST_S, FarTimerService
from tiermq.tier.driver.faulty import Down, FaultyDriver
from tiermq.tier.driver.memory import MemoryDriver


def test_a_round_says_how_long_to_rest(tmp_path: Path) -> None:
    world = FarWorld(tmp_path, MemoryDriver())
    service = FarTimerService(world.timers)
    assert service.run_once() == REST_S
    world.add((timer(number, NOW_MS + 2 * DAY_MS) for number in range(20)), flush_every=5)
    assert service.run_once() == 0.0
    assert service.run_once() == REST_S


def test_a_tier_that_is_down_is_told_once_and_asked_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    driver = FaultyDriver(MemoryDriver(), Down())
    service = FarTimerService(FarWorld(tmp_path, driver).timers)
    assert service.run_once() == REST_AFTER_REFUSAL_S
    assert service.run_once() == REST_AFTER_REFUSAL_S
    assert caplog.text.count("not tended") == 1
    driver.plan = None
    assert service.run_once() == REST_S
    assert service.refusal == ""


def test_the_thread_sorts_flushes_into_days(tmp_path: Path) -> None:
    world = FarWorld(tmp_path, MemoryDriver())
    world.add((timer(number, NOW_MS + 2 * DAY_MS) for number in range(20)), flush_every=5)
    service = FarTimerService(world.timers)
    service.start()
    while any(name.startswith("new/") for name in world.objects()):
        service.wake()
    service.stop()
    assert service.error_count == 0
    assert len(list(world.timers.pull(NOW_MS + 3 * DAY_MS))) == 20
