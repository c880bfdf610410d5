"""The one case of members in JSON: `queue_offset` of a value here is `queueOffset` in results, pages and commands."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

DATA = frozenset({"properties", "timers_by_topic", "rows", "scan"})
"""Members whose own keys are data: they stay as they are."""


def camel(found: Mapping[str, Any]) -> dict[str, Any]:
    """With the names of members in that case, also of members within."""
    return {_camel(name): each if name in DATA else _camel_value(each) for name, each in found.items()}


def camel_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The same of a row whose values are as a file has them."""
    return {_camel(name): each for name, each in row.items()}


def _camel_value(value: Any) -> Any:
    if isinstance(value, dict):
        return camel(value)
    return [_camel_value(each) for each in value] if isinstance(value, list | tuple) else value


@lru_cache(maxsize=1_024)
def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
