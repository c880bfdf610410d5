"""Parts of filter expressions: three-valued logic, and what is refused when a part is made."""

from __future__ import annotations

import itertools

import pytest

from tiermq.broker.filtering import sql_nodes as nodes
from tiermq.broker.filtering.sql_nodes import Node
from tiermq.broker.filtering.sql_values import Value
from tiermq.errors import BadExpression

THREE: tuple[bool | None, ...] = (True, False, None)


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
