"""Parts of filter expressions: three-valued logic, and what is refused when a part is made."""

from __future__ import annotations

import contextlib
import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.broker.pull import sql_nodes as nodes
from tiermq.broker.pull.sql_nodes import (
    Long,
    Node,
    NotComparable,
    Value,
    are_equal,
    compare,
    in_order,
    negated,
    whole_constant,
)
from tiermq.errors import BadExpression

THREE: tuple[bool | None, ...] = (True, False, None)
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


def value_of(node: Node, **properties: str) -> Value:
    return node.evaluate(properties.get)


@pytest.mark.parametrize(("left", "right"), list(itertools.product(THREE, THREE)))
def test_and_or_and_not_are_those_of_sql(left: bool | None, right: bool | None) -> None:
    known = [each for each in (left, right) if each is not None]
    both = False if False in known else True if len(known) == 2 else None
    either = True if True in known else False if len(known) == 2 else None
    assert value_of(nodes.both(nodes.constant(left), nodes.constant(right))) is both
    assert value_of(nodes.either(nodes.constant(left), nodes.constant(right))) is either
    assert value_of(nodes.opposite(nodes.constant(left))) is (None if left is None else not left)


def test_a_property_alone_is_a_condition_that_never_holds() -> None:
    node = nodes.condition(nodes.named("a"))
    assert value_of(node) is None
    assert value_of(node, a="true") is False


def test_a_value_alone_is_no_condition() -> None:
    for node in (nodes.constant(5), nodes.constant("x"), nodes.minus(nodes.constant(5))):
        with pytest.raises(BadExpression, match="condition"):
            nodes.condition(node)


def test_null_is_asked_for_by_is_null() -> None:
    with pytest.raises(BadExpression, match="IS NULL"):
        nodes.equal(nodes.named("a"), nodes.constant(None))
    assert value_of(nodes.is_null(nodes.named("a"))) is True
    assert value_of(nodes.is_null(nodes.named("a")), a="x") is False


def test_true_is_not_compared_with_a_number() -> None:
    with pytest.raises(BadExpression, match="TRUE or FALSE"):
        nodes.equal(nodes.constant(True), nodes.constant(5))


@pytest.mark.parametrize("sign", ["<", "<=", ">", ">="])
@pytest.mark.parametrize(
    "wrong", [nodes.constant("x"), nodes.constant(True), nodes.constant(None), nodes.is_null(nodes.named("a"))]
)
def test_only_numbers_are_ordered(sign: str, wrong: Node) -> None:
    with pytest.raises(BadExpression, match="numbers"):
        nodes.ordered(sign, nodes.named("a"), wrong)
    with pytest.raises(BadExpression, match="numbers"):
        nodes.ordered(sign, wrong, nodes.named("a"))


@pytest.mark.parametrize(("low", "high"), [(5, 1), (None, 1), (1, None), ("a", "b"), (True, "x")])
def test_a_between_that_is_empty_or_no_range_is_refused(low: Value, high: Value) -> None:
    with pytest.raises(BadExpression):
        nodes.between(nodes.named("a"), nodes.constant(low), nodes.constant(high))


def test_between_includes_its_ends() -> None:
    node = nodes.between(nodes.named("a"), nodes.constant(1), nodes.constant(3))
    outside = nodes.not_between(nodes.named("a"), nodes.constant(1), nodes.constant(3))
    for number in range(5):
        assert value_of(node, a=str(number)) is (1 <= number <= 3)
        assert value_of(outside, a=str(number)) is not value_of(node, a=str(number))
    assert value_of(node) is None
    assert value_of(outside) is None


def test_in_is_for_properties() -> None:
    node = nodes.member(nodes.named("a"), ["x", "y"], wanted=True)
    assert (value_of(node, a="x"), value_of(node, a="z"), value_of(node)) == (True, False, None)
    node = nodes.member(nodes.named("a"), ["x", "y"], wanted=False)
    assert (value_of(node, a="x"), value_of(node, a="z"), value_of(node)) == (False, True, None)
    with pytest.raises(BadExpression, match="property"):
        nodes.member(nodes.constant("x"), ["x"], wanted=True)


@pytest.mark.parametrize(
    ("word", "holds", "fails"), [("CONTAINS", "xaby", "xy"), ("STARTSWITH", "abx", "xab"), ("ENDSWITH", "xab", "abx")]
)
def test_pieces_of_text(word: str, holds: str, fails: str) -> None:
    test = nodes.text_test(word, nodes.named("a"), "ab", wanted=True)
    opposite = nodes.text_test(word, nodes.named("a"), "ab", wanted=False)
    assert (value_of(test, a=holds), value_of(test, a=fails), value_of(test)) == (True, False, False)
    assert (value_of(opposite, a=holds), value_of(opposite, a=fails), value_of(opposite)) == (False, True, False)
    for wanted in (True, False):
        assert value_of(nodes.text_test(word, nodes.named("a"), "", wanted=wanted), a="x") is False
        assert value_of(nodes.text_test(word, nodes.constant(5), "5", wanted=wanted)) is False


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
