"""Moments as operators write them."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tiermq.cli.main import cli
from tiermq.cli.option_values import Moment, Span
from tiermq.clock import read_moment_ms
from tiermq.store.local_store import LocalStore

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
        ("2w", NOW_MS - 14 * 86_400_000),
        ("1y", NOW_MS - 365 * 86_400_000),
        ("2026-01-31T12:00:00Z", 1_769_860_800_000),
        ("2026-01-31T12:00", 1_769_860_800_000),
        ("2026-01-31T12:00:00.250+02:00", 1_769_853_600_250),
    ],
)
def test_a_moment_is_a_number_an_age_or_a_time_with_its_zone(text: str, expected: int) -> None:
    assert read_moment_ms(text, NOW_MS) == expected


@pytest.mark.parametrize("text", ["", "soon", "2 hours", "-5", "2026-01-31T25:00", "1q"])
def test_other_texts_are_no_moments(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        read_moment_ms(text, NOW_MS)


def test_an_option_takes_a_moment_or_its_default() -> None:
    assert Moment().convert(7, None, None) == 7
    assert Moment().convert("8", None, None) == 8


@pytest.mark.parametrize(
    "words",
    [
        ["serve", "{url}"],
        ["follow", "{url}", "--tier", "memory://t"],
        ["store", "stat", "{url}"],
        ["transaction", "ls", "{url}"],
        ["delayed", "ls", "--store", "{url}"],
        ["tier", "restore", "memory://t", "--store", "{url}"],
        ["status", "--store", "{url}"],
        ["console", "--store", "{url}"],
    ],
    ids=" ".join,
)
def test_a_url_is_no_store_directory(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    url = (tmp_path / "tier").as_uri()
    refused = CliRunner().invoke(cli, [word.format(url=url) for word in words])
    assert refused.exit_code == 2
    assert f"expected a store directory, found the URL {url}" in refused.output
    assert list(tmp_path.iterdir()) == []


def test_a_store_of_the_console_and_of_lists_may_have_its_brokers_name(tmp_path: Path) -> None:
    LocalStore.open(tmp_path / "s", background=False).close()
    listed = CliRunner().invoke(cli, ["topic", "list", "--store", f"{tmp_path / 's'}=shop", "--json"])
    assert listed.exit_code == 0, listed.output
    refused = CliRunner().invoke(cli, ["topic", "list", "--store", f"{tmp_path / 'none'}=shop"])
    assert "does not exist" in refused.output


@pytest.mark.parametrize(
    ("text", "unit", "seconds"),
    [("90s", "s", 90.0), ("15m", "s", 900.0), ("2h", "s", 7_200.0), ("0", "h", 0.0), ("24", "h", 86_400.0),
     ("1d", "h", 86_400.0), ("0.5", "s", 0.5), ("1.5h", "s", 5_400.0), ("2w", "s", 1_209_600.0)],
)  # fmt: skip
def test_a_length_of_time_is_a_number_of_the_option_s_unit_or_has_one(text: str, unit: str, seconds: float) -> None:
    assert Span(unit).convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "-1", "soon", "1q", "1 hour", "1e9", "9" * 20])
def test_other_texts_are_no_length_of_time(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected a length of time"):
        Span().convert(text, None, None)
