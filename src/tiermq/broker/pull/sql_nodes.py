"""The parts of a filter expression, each of which gives a value of the properties of a message.

Three values count: True, False and nothing (None). Nothing comes from properties that a message does not have; AND, OR
and NOT treat it as SQL does, and a message passes only when the whole is True. What RocketMQ refuses when it reads an
expression (ordering text, comparing with NULL, a BETWEEN that is empty) raises BadExpression when the part is made.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tiermq.broker.filtering.sql_values import NotComparable, Value, are_equal, compare, in_order, negated
from tiermq.errors import BadExpression

Lookup = Callable[[str], str | None]
"""The value of a property, or None."""


class Shape(enum.Enum):
    CONSTANT = "constant"
    PROPERTY = "property"
    NUMBER = "number"
    """A value with a sign before it."""
    CONDITION = "condition"


class Node(NamedTuple):
    """A part: how to evaluate it, what it is, and the value or the name that it consists of."""

    evaluate: Callable[[Lookup], Value]
    shape: Shape
    constant: Value = None
    name: str = ""

    @property
    def is_condition(self) -> bool:
        """Whether it is true, false or nothing by itself, as a comparison is."""
        if self.shape is Shape.CONSTANT:
            return self.constant is None or isinstance(self.constant, bool)
        return self.shape is Shape.CONDITION


def constant(value: Value) -> Node:
    return Node(lambda _properties: value, Shape.CONSTANT, value)


def named(name: str) -> Node:
    return Node(lambda properties: properties(name), Shape.PROPERTY, None, name)


def minus(inner: Node) -> Node:
    return Node(lambda properties: negated(inner.evaluate(properties)), Shape.NUMBER)


def condition(node: Node) -> Node:
    """A part as a condition: a property alone is one that is never true, since properties are text."""
    if node.is_condition:
        return node
    if node.shape is Shape.PROPERTY:
        return _condition(lambda properties: None if node.evaluate(properties) is None else False)
    raise BadExpression("expected a condition such as a comparison, found a value alone")


def both(*nodes: Node) -> Node:
    """AND, of as many as there are: a row of thousands needs no deeper stack than one."""
    return _joined(nodes, decisive=False)


def either(*nodes: Node) -> Node:
    """OR, of as many as there are."""
    return _joined(nodes, decisive=True)


def _joined(nodes: Sequence[Node], *, decisive: bool) -> Node:
    """From the left, until one decides; where none does, one that is unknown leaves all unknown."""
    asked = [condition(node).evaluate for node in nodes]

    def evaluate(properties: Lookup) -> Value:
        known = True
        for ask in asked:
            value = ask(properties)
            if value is decisive:
                return decisive
            known = known and value is not None
        return not decisive if known else None

    return _condition(evaluate)


def opposite(inner: Node) -> Node:
    asked = condition(inner).evaluate

    def evaluate(properties: Lookup) -> Value:
        value = asked(properties)
        return None if value is None else not value

    return _condition(evaluate)


def equal(left: Node, right: Node) -> Node:
    for side in (left, right):
        if side.shape is Shape.CONSTANT and side.constant is None:
            raise BadExpression("expected IS NULL or IS NOT NULL, found a comparison with NULL")
    both_fixed = left.shape is Shape.CONSTANT and right.shape is Shape.CONSTANT
    if both_fixed and left.is_condition and not right.is_condition:
        raise BadExpression(f"expected TRUE or FALSE beside {left.constant}, found {right.constant!r}")
    return _equal(left, right)


def is_null(inner: Node) -> Node:
    return _equal(inner, constant(None))


def _equal(left: Node, right: Node) -> Node:
    first, second = left.evaluate, right.evaluate
    return _condition(lambda properties: are_equal(first(properties), second(properties)))


_TESTS: dict[str, Callable[[int], bool]] = {
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
}


def ordered(sign: str, left: Node, right: Node) -> Node:
    """One of < <= > >=, which are for numbers."""
    for side in (left, right):
        is_number = side.shape is not Shape.CONSTANT or _is_number(side.constant)
        if side.is_condition or not is_number:
            raise BadExpression(f"expected numbers beside {sign}, found {side.constant!r}")
    test, first, second = _TESTS[sign], left.evaluate, right.evaluate

    def evaluate(properties: Lookup) -> Value:
        order = in_order(first(properties), second(properties))
        return None if order is None else test(order)

    return _condition(evaluate)


def between(value: Node, low: Node, high: Node) -> Node:
    if low.shape is Shape.CONSTANT and high.shape is Shape.CONSTANT:
        if low.constant is None or high.constant is None:
            raise BadExpression("expected two numbers behind BETWEEN, found NULL")
        try:
            is_empty = compare(high.constant, low.constant) < 0
        except NotComparable as error:
            raise BadExpression(f"expected two numbers behind BETWEEN, found {error}") from error
        if is_empty:
            raise BadExpression(
                f"expected the smaller number first behind BETWEEN, found {low.constant} AND {high.constant}"
            )
    return both(ordered(">=", value, low), ordered("<=", value, high))


def not_between(value: Node, low: Node, high: Node) -> Node:
    return either(ordered("<", value, low), ordered(">", value, high))


def member(value: Node, texts: list[str], *, wanted: bool) -> Node:
    """IN and NOT IN, which are for properties."""
    if value.shape is not Shape.PROPERTY:
        raise BadExpression("expected a property before IN, found something else")
    known, asked = frozenset(texts), value.evaluate

    def evaluate(properties: Lookup) -> Value:
        found = asked(properties)
        return None if found is None else (found in known) is wanted

    return _condition(evaluate)


_TEXT_TESTS: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": lambda text, piece: piece in text,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def text_test(word: str, value: Node, piece: str, *, wanted: bool) -> Node:
    """CONTAINS, STARTSWITH, ENDSWITH. Of nothing, of a number and of an empty piece both the test and its NOT fail."""
    test, asked = _TEXT_TESTS[word], value.evaluate

    def evaluate(properties: Lookup) -> Value:
        if not piece:
            return False
        found = asked(properties)
        return isinstance(found, str) and test(found, piece) is wanted

    return _condition(evaluate)


def _condition(evaluate: Callable[[Lookup], Value]) -> Node:
    return Node(evaluate, Shape.CONDITION)


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
