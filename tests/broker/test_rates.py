"""Rates: growth of totals over the last minute."""

from __future__ import annotations

from tiermq.broker.rates import Rates
from tiermq.clock import ManualClock


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
    assert len(rates._notes) == 7


def test_a_total_that_began_anew_counts_from_nothing(manual_clock: ManualClock) -> None:
    rates: Rates[str] = Rates(manual_clock)
    rates.note({"T": 500})
    rates._notes.popleft()
    manual_clock.advance_ms(10_000)
    rates.note({"T": 20})
    assert rates.per_second("T") == 2.0
