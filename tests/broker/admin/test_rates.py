"""Rates: growth of totals over the last minute."""

from __future__ import annotations

from simulation.manual_clock import ManualClock
from tiermq.broker.admin.rates import Rates, Window


def test_a_rate_is_growth_over_time(manual_clock: ManualClock) -> None:
    rates: Rates[str] = Rates(manual_clock)
    assert rates.per_second("T") == 0.0
    manual_clock.advance_ms(10_000)
    rates.note({"T": 120})
    assert rates.per_second("T") == 12.0
    assert rates.per_second("another") == 0.0
    manual_clock.advance_ms(10_000)
    rates.note({"T": 120})
    assert rates.per_second("T") == 6.0


def test_what_is_older_than_a_minute_no_longer_counts(manual_clock: ManualClock) -> None:
    rates: Rates[str] = Rates(manual_clock)
    for _ in range(7):
        manual_clock.advance_ms(10_000)
        rates.note({"T": 1000})
    assert rates.per_second("T") == 0.0
    assert rates.grown("T", Window.MINUTE) == (0, 60.0)
    assert rates.grown("T", Window.HOUR) == (1000, 70.0)


def test_hours_and_days_are_kept_in_steps_and_end(manual_clock: ManualClock) -> None:
    rates: Rates[str] = Rates(manual_clock)
    for total in range(1, 8_641):  # A day, noted every ten seconds.
        manual_clock.advance_ms(10_000)
        rates.note({"T": total, "idle": 7})
    assert rates.grown("T", Window.MINUTE) == (6, 60.0)
    assert rates.grown("T", Window.HOUR).per_second == 0.1
    assert 3_000 <= rates.grown("T", Window.HOUR).seconds <= 4_200
    assert rates.grown("T", Window.DAY) == (8_640, 86_400.0)
    assert rates.grown("idle", Window.DAY).total == 7
    assert len(rates._steps[Window.DAY]) == 24
    assert [len(step) for _, _, step in rates._steps[Window.DAY]] == [2] + [1] * 23, "idle names cost nothing"
    manual_clock.advance_ms(3 * 86_400_000)
    rates.note({"T": 8_640, "idle": 7})
    assert rates.grown("T", Window.DAY).total == 0


def test_a_total_that_began_again_counts_from_nothing(manual_clock: ManualClock) -> None:
    rates: Rates[str] = Rates(manual_clock)
    rates.note({"T": 500})
    manual_clock.advance_ms(60_000)
    rates.note({"T": 500})
    assert rates.per_second("T") == 0.0
    manual_clock.advance_ms(10_000)
    rates.note({"T": 20})
    assert rates.grown("T", Window.MINUTE).total == 20
