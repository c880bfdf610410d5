"""How full a disk is, by RocketMQ's arithmetic."""

from __future__ import annotations

import pytest

from tiermq.files.disk_space import usage_ratio


@pytest.mark.parametrize(
    ("total", "free", "usable", "ratio"),
    [
        (1000, 1000, 1000, 0.0),
        (1000, 0, 0, 1.0),
        (1000, 500, 500, 0.5),
        (1000, 499, 499, 0.51),  # Rounded up to the next hundredth.
        (1000, 999, 999, 0.01),
        (1000, 500, 450, 0.53),  # What root keeps for itself does not count as room.
        (0, 0, 0, -1.0),
    ],
)
def test_the_used_share_is_rounded_up_to_hundredths(total, free, usable, ratio):
    assert usage_ratio(total, free, usable) == ratio
