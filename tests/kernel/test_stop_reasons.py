"""The kernel's vocabulary: numbers that the compiled twin has in C."""

from __future__ import annotations

from tiermq.kernel.stop_reasons import Refusal, Stop


def test_refusals_are_negative_so_that_an_offset_is_never_taken_for_one() -> None:
    assert all(refusal.value < 0 for refusal in Refusal)
    assert len({refusal.value for refusal in Refusal}) == len(Refusal)


def test_stops_count_from_zero() -> None:
    assert [stop.value for stop in Stop] == list(range(len(Stop)))
    assert Stop.END.value == 0
