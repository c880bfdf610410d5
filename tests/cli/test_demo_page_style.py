"""The style sheet knows every series, on light and dark screens, with colours that can be read."""

from __future__ import annotations

import pytest

from tiermq.cli.demo_chart import SERIES
from tiermq.cli.demo_page_style import STYLE, TONES


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_every_series_has_its_tones() -> None:
    assert set(TONES) == set(SERIES)
    for name in SERIES:
        assert f".area.{name}" in STYLE
        assert STYLE.count(f"--{name}:") == 2


@pytest.mark.parametrize("name", TONES)
def test_a_tone_stands_out_from_its_background(name: str) -> None:
    light, dark = TONES[name]
    assert contrast(light, "#ffffff") >= 2.7
    assert contrast(dark, "#191c22") >= 4.5


def test_both_screens_and_those_who_want_no_movement_are_served() -> None:
    assert "prefers-color-scheme:dark" in STYLE
    assert "prefers-reduced-motion" in STYLE
    assert STYLE.count("{") == STYLE.count("}")
