"""Clocks: the machine's one moves by itself, the manual one only when it is moved."""

from __future__ import annotations

import time

from simulation.manual_clock import ManualClock
from tiermq.clock import SystemClock


def test_a_manual_clock_stands_still_until_it_is_moved(manual_clock: ManualClock) -> None:
    before_ms, before = manual_clock.now_ms(), manual_clock.monotonic()
    assert (manual_clock.now_ms(), manual_clock.monotonic()) == (before_ms, before)
    manual_clock.advance_ms(1_500)
    assert manual_clock.now_ms() == before_ms + 1_500
    assert manual_clock.monotonic() == before + 1.5
    manual_clock.set_ms(7)
    assert manual_clock.now_ms() == 7


def test_the_system_clock_counts_milliseconds_since_1970_and_waits_by_seconds_that_cannot_be_set() -> None:
    clock = SystemClock()
    before, wall_ms, after = time.time_ns() // 10**6, clock.now_ms(), time.time_ns() // 10**6
    assert before <= wall_ms <= after
    before_s, waiting_s, after_s = time.monotonic(), clock.monotonic(), time.monotonic()
    assert before_s <= waiting_s <= after_s
