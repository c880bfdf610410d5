"""What a query is about, as far as its text tells: which views it names and which columns it can need. No Spark.

Every guess is on the safe side: a word that only looks like a column costs a column, never a wrong answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tiermq.history.arrow_schema import ALIASES, COLUMNS

ALL_TOPICS = "messages"
_WORD = re.compile(r"[A-Za-z_]\w*")
_COUNT_STAR = re.compile(r"\bcount\s*\(\s*\*\s*\)", re.IGNORECASE)
_STAR = re.compile(r"(?:\b(?:select|distinct|all)\b|[,.(])\s*(?:/\*.*?\*/\s*)*\*", re.IGNORECASE | re.DOTALL)
# Statements that take every column of a table without a star.
_WHOLE = re.compile(r"^\s*desc\b|\b(?:table|describe|natural|pivot|unpivot)\b|\|>", re.IGNORECASE)
_FROM_BEHIND_WITH = re.compile(r"^\s*with\b.*\)\s*from\b", re.IGNORECASE | re.DOTALL)
_CHEAPEST = "queueId"


def columns_needed(query: str) -> tuple[str, ...] | None:
    """The columns whose names are in the text, in their order; None when the query may want all of them."""
    text = _COUNT_STAR.sub("count(1)", query)
    if _STAR.search(text) or _WHOLE.search(text):
        return None
    listed = [word.lower() for word in _WORD.findall(text)]
    if listed.count("from") > listed.count("select") or _FROM_BEHIND_WITH.search(text):
        return None  # A `from` without a `select` takes every column.
    words = set(listed)
    needed = tuple(name for name in (*COLUMNS, *ALIASES) if name.lower() in words)
    return needed or (_CHEAPEST,)


def views_of(topics: Iterable[str]) -> dict[str, str]:
    """A legal name for each topic: `%RETRY%group` is `_retry_group`. Names are told apart by numbers."""
    views: dict[str, str] = {}
    for topic in sorted(topics):
        name = re.sub(r"\W+", "_", topic, flags=re.ASCII).lower()
        name = f"t_{name}" if name[:1].isdigit() or name.strip("_") == "" else name
        number, free = 2, name
        while free in views or free == ALL_TOPICS:
            free, number = f"{name}_{number}", number + 1
        views[free] = topic
    return views


def views_named(query: str, views: Iterable[str]) -> list[str]:
    """Those views whose names are in the text."""
    words = {word.lower() for word in _WORD.findall(query)}
    return [name for name in views if name.lower() in words]
