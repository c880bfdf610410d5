"""The seam for far timers: what a place for them must have."""

from __future__ import annotations

import dataclasses

import pytest

from tiermq.delivery.timer.far_timers import FarTimer


def test_a_far_timer_is_a_value_that_nobody_changes_after_it_was_added() -> None:
    timer = FarTimer(1_700_000_000_000, False, b"record")
    assert timer == FarTimer(1_700_000_000_000, False, b"record")
    with pytest.raises(dataclasses.FrozenInstanceError):
        timer.deliver_ms = 0  # type: ignore[misc]
