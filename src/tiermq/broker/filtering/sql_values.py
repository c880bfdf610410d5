"""Values of filter expressions and how two of them compare: Java's rules, since RocketMQ's filter is Java.

A property is text. Compared with a number it is read as a number of that kind: against a whole number it must be one of
the same width (`"9.5"` against 9 is an error, `"3000000000"` against 5 too), against a decimal number any will do. An
error is no answer: the message does not pass, whatever else the expression says. Kinds that do not compare are unequal,
the left one being the smaller.
"""

from __future__ import annotations

import math
import re

Value = bool | int | float | str | None

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1
_WHOLE = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)")
_HEXADECIMAL = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?")
_JAVA_SPACE = "".join(map(chr, range(33)))
_UNLIKE = -1


class NotComparable(Exception):
    """Two values that Java would raise on."""


class Long(int):
    """A whole number of 64 bits, where a plain int is one of 32."""

    __slots__ = ()


def whole_constant(text: str) -> int:
    """The number of a literal; raises ValueError beyond 64 bits."""
    number = int(text.rstrip("lL"))
    if number > LONG_MAX:
        raise ValueError(f"{text} does not fit 64 bits")
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
    """How the left value lies to the right one (<0, 0, >0) for < <= > >=; None when one is nothing."""
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
    """As Java: NaN is equal to itself and above all others, and minus zero lies below zero."""
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) - math.isnan(right)
    if left == right == 0.0:
        return int(math.copysign(1.0, left) - math.copysign(1.0, right))
    return (left > right) - (left < right)
