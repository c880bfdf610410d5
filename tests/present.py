"""A value that must be there."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def present(value: T | None) -> T:
    """The value itself, for a test in which it cannot be None."""
    assert value is not None
    return value
