"""durable_end: up to where the messages of a queue survive a power cut.

Messages behind it can be lost in a crash, and their queue offsets given to others: they are neither uploaded nor
offered to jobs that copy a broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class QueueUnits(Protocol):
    """The units of a store's queues, live or read-only. The names are `LocalStore`'s."""

    @property
    def flushed_where(self) -> int: ...
    def min_offset(self, topic: str, queue_id: int) -> int: ...
    def max_offset(self, topic: str, queue_id: int) -> int: ...
    def unit_at(self, topic: str, queue_id: int, offset: int) -> tuple[int, int] | None: ...
    def units_between(self, topic: str, queue_id: int, low: int, high: int) -> Iterator[tuple[int, int, int]]: ...


def durable_end(store: QueueUnits, topic: str, queue_id: int) -> int:
    """The offset behind the newest message whose record survives a power cut."""
    low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    durable = store.flushed_where
    if _is_durable(store, topic, queue_id, high - 1, high, durable):
        return high
    while low < high:
        middle = (low + high) // 2
        if _is_durable(store, topic, queue_id, middle, high, durable):
            low = middle + 1
        else:
            high = middle
    return low


def first_unit(store: QueueUnits, topic: str, queue_id: int, low: int, high: int) -> tuple[int, int, int] | None:
    """(queue offset, physical offset, size) of the first message in [low, high). Nearly always it is at `low`."""
    if low >= high:
        return None
    unit = store.unit_at(topic, queue_id, low)
    return next(store.units_between(topic, queue_id, low, high), None) if unit is None else (low, *unit)


def _is_durable(store: QueueUnits, topic: str, queue_id: int, offset: int, high: int, durable: int) -> bool:
    """Whether the first message at or behind `offset` is durable; without one there is nothing to wait for."""
    found = first_unit(store, topic, queue_id, offset, high)
    return found is None or found[1] + found[2] <= durable
