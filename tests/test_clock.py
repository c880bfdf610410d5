"""Clocks: the machine's one moves by itself, the manual one only when told."""

from __future__ import annotations

from tiermq.clock import ManualClock, SystemClock


def test_a_manual_clock_stands_still_until_it_is_moved(manual_clock: ManualClock) -> None:
    before_ms, before = manual_clock.now_ms(), manual_clock.monotonic()
    assert (manual_clock.now_ms(), manual_clock.monotonic()) == (before_ms, before)
    manual_clock.advance_ms(1_500)
    assert manual_clock.now_ms() == before_ms + 1_500
    assert manual_clock.monotonic() == before + 1.5
    manual_clock.set_ms(7)
    assert manual_clock.now_ms() == 7


def test_the_system_clock_does_not_go_back_and_counts_milliseconds_since_1970() -> None:
    clock = SystemClock()
    first, second = clock.monotonic(), clock.monotonic()
    assert second >= first
    assert clock.now_ms() > 1_700_000_000_000
