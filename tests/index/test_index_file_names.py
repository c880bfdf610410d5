"""Names of index files ascend, whatever the clock does."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tiermq.index.index_file import index_name, is_index_name, next_index_name

MS = 1_700_000_000_123  # 2023-11-14 22:13:20.123 UTC


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    yield monkeypatch
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("zone_name", "expected"),
    [("UTC0", "20231114221320123"), ("CST-8", "20231115061320123"), ("EST5", "20231114171320123")],
)
def test_a_name_is_the_local_time(zone: pytest.MonkeyPatch, zone_name: str, expected: str) -> None:
    zone.setenv("TZ", zone_name)
    time.tzset()
    assert index_name(MS) == expected


def test_the_same_millisecond_gives_the_next_one() -> None:
    assert next_index_name(MS, None) == index_name(MS)
    assert next_index_name(MS, index_name(MS)) == index_name(MS + 1)


def test_a_clock_that_was_set_back_does_not_put_a_new_file_before_an_old_one() -> None:
    last = index_name(MS)
    assert next_index_name(MS - 3_600_000, last) == index_name(MS + 1)


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ("20231231235959999", "20240101000000000"),
        ("20991399000000000", "20991399000000001"),
        ("99991231235959999", "99991231235960000"),
    ],
)
def test_counting_on_carries_like_time_and_survives_names_that_are_no_time(last: str, expected: str) -> None:
    assert next_index_name(0, last) == expected


def test_only_seventeen_ascii_digits_are_a_name() -> None:
    assert is_index_name("20231114221320123")
    for name in ("2023111422132012", "202311142213201234", "2023111422132012x", "２0231114221320123", ""):
        assert not is_index_name(name)
