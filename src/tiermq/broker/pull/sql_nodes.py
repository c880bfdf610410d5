"""The parts of a filter expression, each of which gives a value of the properties of a message.

Three values count: True, False and nothing (None). Nothing comes from properties that a message does not have; AND, OR
and NOT treat it as SQL does, and a message passes only when the whole is True. What RocketMQ refuses when it reads an
expression (ordering text, comparing with NULL, a BETWEEN that is empty) raises BadExpression when the part is made.

Values of filter expressions and how two of them compare: Java's rules, since RocketMQ's filter is Java.

A property is text. Compared with a number it is read as a number of that kind: against a whole number it must be one of
the same width (`"9.5"` against 9 is an error, `"3000000000"` against 5 too), against a decimal number any will do. An
error is no result: the message does not pass, regardless of the rest of the expression. Kinds that do not compare are
unequal, the left one being the smaller.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tiermq.errors import BadExpression
from tiermq.settings import INT_MAX, INT_MIN, LONG_MAX, LONG_MIN

Value = bool | int | float | str | None

_WHOLE = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)")
_HEXADECIMAL = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?")
_JAVA_SPACE = "".join(map(chr, range(33)))
_UNLIKE = -1
Lookup = Callable[[str], str | None]
"""The value of a property, or None."""


class NotComparable(Exception):
    """Two values that Java would raise on."""


class Long(int):
    """A whole number of 64 bits, where a plain int is one of 32."""

    __slots__ = ()


def whole_constant(text: str) -> int:
    """The number of a literal; raises ValueError beyond 64 bits."""
    digits = text.rstrip("lL").lstrip("0") or "0"
    number = int(digits) if len(digits) <= len(str(LONG_MAX)) else LONG_MAX + 1
    if number > LONG_MAX:
        raise ValueError(f"{text[:40]}, which does not fit 64 bits")
    return number if number <= INT_MAX else Long(number)


def negated(value: Value) -> Value:
    """Minus a number; of anything else, nothing. Whole numbers wrap around."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return None
    if isinstance(value, float):
        return -value
    if isinstance(value, Long):
        return value if value == LONG_MIN else Long(-value)
    return value if value == INT_MIN else -value


def are_equal(left: Value, right: Value) -> bool | None:
    """SQL's `=`: nothing when the left side is nothing; False when only the right one is."""
    if left is None or right is None:
        return None if right is not None else left is None
    return compare(left, right) == 0


def in_order(left: Value, right: Value) -> int | None:
    """How the left value compares to the right one (<0, 0, >0) for < <= > >=; None when one is nothing."""
    if left is None or right is None:
        return None
    if isinstance(left, str) and isinstance(right, str):
        return _compare_decimals(_decimal(left), _decimal(right))
    return compare(left, right)


def compare(left: Value, right: Value) -> int:
    """Java's compareTo after both are of one kind. Raises NotComparable."""
    if isinstance(left, str):
        if isinstance(right, str):
            return (left > right) - (left < right)
        if isinstance(right, bool):
            return int(left.lower() == "true") - int(right)
        return _compare_numbers(_like(left, right), right)
    if isinstance(left, bool):
        if isinstance(right, str):
            raise NotComparable("a boolean and a text")
        return int(left) - int(right) if isinstance(right, bool) else _UNLIKE
    if isinstance(right, bool):
        return _UNLIKE
    if isinstance(right, str):
        return _compare_numbers(left, _like(right, left))
    return _compare_numbers(left, right)


def _like(text: str, number: Value) -> Value:
    """A text as a number of the kind of `number`."""
    if isinstance(number, float):
        return _decimal(text)
    low, high = (LONG_MIN, LONG_MAX) if isinstance(number, Long) else (INT_MIN, INT_MAX)
    if not _WHOLE.fullmatch(text) or len(text) > 40 or not low <= int(text) <= high:
        raise NotComparable(f"{text[:40]!r} is no number from {low} to {high}")
    return int(text)


def _decimal(text: str) -> float:
    trimmed = text.strip(_JAVA_SPACE)
    if _DECIMAL.fullmatch(trimmed):
        if trimmed.endswith(("NaN", "Infinity")):
            return float(trimmed)
        return float(trimmed.rstrip("fFdD"))
    if _HEXADECIMAL.fullmatch(trimmed):
        mantissa, exponent = re.split("[pP]", trimmed)
        return float.fromhex(f"{mantissa}p{exponent.rstrip('fFdD')}")
    raise NotComparable(f"{text[:40]!r} is no number")


def _compare_numbers(left: Value, right: Value) -> int:
    assert isinstance(left, int | float)
    assert isinstance(right, int | float)
    if isinstance(left, float) or isinstance(right, float):
        return _compare_decimals(float(left), float(right))
    return (left > right) - (left < right)


def _compare_decimals(left: float, right: float) -> int:
    """As Java: NaN equals NaN and is above all other values, and minus zero is below zero."""
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) - math.isnan(right)
    if left == right == 0.0:
        return int(math.copysign(1.0, left) - math.copysign(1.0, right))
    return (left > right) - (left < right)


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
        """Whether its value is true, false or nothing, like a comparison."""
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
    """CONTAINS, STARTSWITH, ENDSWITH. Of nothing, of a number and of an empty text both the test and its NOT fail."""
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
