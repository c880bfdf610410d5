"""What the index is asked to put, and what a query gives back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IndexRequest:
    """One record of the commit log, as far as the index needs to know it.

    `keys` come from `index_keys`, always in the same order: a record that is dispatched again continues where a crash
    stopped it, which is known by counting.
    """

    topic: str
    keys: tuple[str, ...]
    physical_offset: int
    store_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class QueryOffsets:
    """Candidates for a key, newest first, and how far the index reaches.

    The offsets contain hash collisions and records up to a second outside the asked time range.
    """

    offsets: list[int]
    last_update_timestamp_ms: int
    last_update_physical_offset: int


def index_keys(unique_key: str | None, keys: str | None) -> tuple[str, ...]:
    """The keys that are indexed of a record: its unique key first, then each piece of its KEYS property."""
    pieces = [piece for piece in keys.split(" ") if piece] if keys else []
    return (unique_key, *pieces) if unique_key else tuple(pieces)
