"""How values of filter expressions compare: Java's rules."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.broker.filtering.sql_values import (
    Long,
    NotComparable,
    Value,
    are_equal,
    compare,
    in_order,
    negated,
    whole_constant,
)

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1).map(Long),
    st.floats(),
    st.text(),
    st.integers().map(str),
    st.floats().map(str),
)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("5", 5, 0),
        ("+5", 5, 0),
        ("4", 5, -1),
        ("3000000000", Long(5), 1),
        ("9.5", 9.0, 1),
        (" 9.5e1 ", 95.0, 0),
        ("1f", 1.0, 0),
        ("0x1p3", 8.0, 0),
        ("NaN", 1.0, 1),
        ("-Infinity", 1.0, -1),
        (5, "6", -1),
        (5, 5.0, 0),
        (Long(2**40), 1, 1),
        ("true", True, 0),
        ("TRUE", True, 0),
        ("yes", True, -1),
        (True, 5, -1),
        (5, True, -1),
        (True, False, 1),
        (-0.0, 0.0, -2),
        (math.nan, math.nan, 0),
    ],
)
def test_values_of_unlike_kinds_compare_as_in_java(left: Value, right: Value, expected: int) -> None:
    assert compare(left, right) == expected


@pytest.mark.parametrize(
    ("left", "right"),
    [("9.5", 9), ("3000000000", 5), ("x", 5), ("", 5), (" 5", 5), ("x", 1.5), (True, "true"), ("1_0", 10), ("--5", 5)],
)
def test_what_java_raises_on_does_not_compare(left: Value, right: Value) -> None:
    with pytest.raises(NotComparable):
        compare(left, right)


def test_texts_are_ordered_as_numbers_or_not_at_all() -> None:
    assert in_order("10", "9.5") == 1
    with pytest.raises(NotComparable):
        in_order("a", "b")


@pytest.mark.parametrize(
    ("left", "right", "expected"), [(None, None, True), (None, 1, None), (1, None, False), ("a", "a", True)]
)
def test_equality_with_nothing(left: Value, right: Value, expected: bool | None) -> None:
    assert are_equal(left, right) is expected
    if left is None or right is None:
        assert in_order(left, right) is None


@pytest.mark.parametrize(("text", "kind"), [("0", int), ("2147483647", int), ("2147483648", Long), ("5L", int)])
def test_whole_constants_are_as_wide_as_they_need(text: str, kind: type[int]) -> None:
    assert type(whole_constant(text)) is kind


def test_a_constant_beyond_64_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="64 bits"):
        whole_constant(str(2**63))


@pytest.mark.parametrize(
    ("value", "expected"),
    [(5, -5), (1.5, -1.5), (Long(7), -7), (-(2**31), -(2**31)), (Long(-(2**63)), -(2**63)), ("5", None), (True, None)],
)
def test_minus_is_for_numbers(value: Value, expected: Value) -> None:
    assert negated(value) == expected
    assert isinstance(negated(value), Long) == isinstance(value, Long)


@given(VALUES, VALUES)
def test_any_two_values_compare_or_say_that_they_do_not(left: Value, right: Value) -> None:
    for question in (are_equal, in_order):
        with contextlib.suppress(NotComparable):
            assert question(left, right) is None or isinstance(question(left, right), int)


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1))
def test_numbers_as_text_compare_like_numbers(left: int, right: int) -> None:
    assert (
        compare(str(left), right)
        == compare(left, str(right))
        == compare(left, right)
        == (left > right) - (left < right)
    )
