"""The page stands alone, says what was found, and says it as text."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from cli.demo.demo_cases import account_of, timeline_of
from tiermq.cli.demo.drawing import SERIES
from tiermq.cli.demo.engine import SQL
from tiermq.cli.demo.page import STYLE, TONES, page


class Words(HTMLParser):
    """The texts of a page, and everything it would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.fetched: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_needs_nothing_but_itself() -> None:
    timeline = timeline_of()
    text = page(account_of(timeline), timeline)
    words = Words(text)
    assert words.fetched == []
    assert "script" not in words.tags
    assert words.tags.count("svg") == 2
    assert not re.search(r"url\((?!#)|@import|//", re.sub(r"s3://\S*", "", text))


def test_the_page_tells_the_numbers() -> None:
    timeline = timeline_of()
    told = " ".join(Words(page(account_of(timeline), timeline)).texts)
    for expected in ("1,000 messages went the whole way", "by SQL", "differs", "agrees", "abd", "50.00", SQL[:20]):
        assert expected in told


def test_what_others_named_is_text_and_no_markup() -> None:
    timeline = timeline_of()
    text = page(account_of(timeline), timeline)
    assert "<open>" not in text
    assert "<here>" not in text
    assert {"<open>", "killed <here>"} <= set(Words(text).texts)
    assert "a&amp;b" in text


def test_without_spark_there_is_no_word_of_sql() -> None:
    timeline = timeline_of()
    told = " ".join(Words(page(account_of(timeline, without_spark="no Java"), timeline)).texts)
    assert "copied to the tier by a job" in told
    assert "by SQL" not in told
    assert "Restored" in told


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
