"""What the index is asked to put."""

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


def index_keys(unique_key: str | None, keys: str | None) -> tuple[str, ...]:
    """The keys that are indexed of a record: its unique key first, then each piece of its KEYS property."""
    pieces = [piece for piece in keys.split(" ") if piece] if keys else []
    return (unique_key, *pieces) if unique_key else tuple(pieces)
