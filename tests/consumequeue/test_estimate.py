"""Estimates are exact while everything can be looked at, and proportional beyond."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.consumequeue.estimate import estimate_matches


def is_one(tags_code: int) -> bool:
    return tags_code == 1


@given(st.lists(st.integers(0, 2), max_size=50))
def test_it_is_exact_when_all_are_looked_at(codes: list[int]) -> None:
    assert estimate_matches(codes, len(codes), is_one, len(codes), len(codes)) == codes.count(1)


@pytest.mark.parametrize(
    ("codes", "count", "max_scan", "threshold", "expected"),
    [
        ([1, 0] * 25, 50, 20, 100, 25),
        ([1] * 50, 1000, 20, 10, 1000),
        ([0] * 50, 50, 20, 10, 0),
        ([1] + [0] * 49, 50, 20, 10, 2),
        ([1] * 5, 5, 0, 10, 0),
        ([], 50, 20, 10, 0),
    ],
)
def test_it_stops_looking_after_enough_and_takes_the_rest_in_proportion(
    codes: list[int], count: int, max_scan: int, threshold: int, expected: int
) -> None:
    looked_at = []

    def matches(code: int) -> bool:
        looked_at.append(code)
        return is_one(code)

    assert estimate_matches(codes, count, matches, max_scan, threshold) == expected
    assert len(looked_at) <= max_scan
    assert sum(map(is_one, looked_at)) <= threshold + 1
