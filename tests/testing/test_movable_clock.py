"""The clock that a test moves while a broker runs by it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from simulation.manual_clock import ManualClock
from tiermq.testing import MovableClock


def test_it_goes_with_its_base_and_is_ahead_by_what_it_was_moved() -> None:
    base = ManualClock(1_000)
    clock = MovableClock(base)
    clock.advance(2.5)
    clock.advance(timedelta(minutes=1))
    base.advance_ms(7)
    assert (clock.now_ms(), clock.monotonic()) == (63_507, 63.507)
    assert clock.ahead == timedelta(seconds=62.5)


def test_it_never_goes_back() -> None:
    with pytest.raises(ValueError, match="never goes back"):
        MovableClock().advance(-1)


def test_by_itself_it_is_the_machine_s() -> None:
    clock = MovableClock()
    first = clock.monotonic()
    while clock.monotonic() == first:
        continue
    assert clock.ahead == timedelta(0)
