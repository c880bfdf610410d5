"""Moments as operators write them."""

from __future__ import annotations

import pytest

from tiermq.cli.option_values import Moment
from tiermq.clock import read_moment_ms

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        (" 1700000000123 ", 1_700_000_000_123),
        ("90s", NOW_MS - 90_000),
        ("15m", NOW_MS - 900_000),
        ("2h", NOW_MS - 7_200_000),
        ("3d", NOW_MS - 259_200_000),
        ("2026-01-31T12:00:00Z", 1_769_860_800_000),
        ("2026-01-31T12:00:00.250+02:00", 1_769_853_600_250),
    ],
)
def test_a_moment_is_a_number_an_age_or_a_time_with_its_zone(text: str, expected: int) -> None:
    assert read_moment_ms(text, NOW_MS) == expected


@pytest.mark.parametrize("text", ["", "soon", "2 hours", "-5", "2026-01-31T12:00:00", "1w"])
def test_other_texts_are_no_moments(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        read_moment_ms(text, NOW_MS)


def test_an_option_takes_a_moment_or_its_default() -> None:
    assert Moment().convert(7, None, None) == 7
    assert Moment().convert("8", None, None) == 8
