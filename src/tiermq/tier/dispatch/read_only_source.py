"""ReadOnlySource: the local store as a dispatcher sees it that runs in another process than the store.

    settle    look at every queue, then sync the log: what was seen is durable, whoever wrote it

Between two calls of `settle` nothing changes, except that files may be deleted by their owner; then there is nothing to
collect of them, and the next plan says so. Not safe to share between threads.
"""

from __future__ import annotations

from collections.abc import Iterator

from tiermq.kernel import Collected
from tiermq.store.read_only_store import ReadOnlyStore
from tiermq.tier.dispatch.local_source import Arrival, StoreSource

_EVERYTHING = (1 << 63) - 1


class ReadOnlySource(StoreSource):
    """See the module. `trusted`: somebody has settled already, and asks only for what was durable then."""

    def __init__(self, store: ReadOnlyStore, *, trusted: bool = False) -> None:
        super().__init__(_Asked(store, trusted))
        self._seen = store

    def settle(self) -> None:
        self._seen.require_recovered()
        self._seen.refresh()
        for name in self._seen.queues():
            self._seen.queue(*name)
        self._seen.flush()

    def size_at(self, topic: str, queue_id: int, offset: int) -> int | None:
        """The size of the record at exactly that place; None when there is none."""
        found = self._store.unit_at(topic, queue_id, offset)
        return None if found is None else found[1]

    def on_arrival(self, arrival: Arrival) -> None:
        """Nobody tells us: whoever uses this looks again from time to time."""


class _Asked:
    """A ReadOnlyStore by the names of `SourceStore`."""

    def __init__(self, store: ReadOnlyStore, trusted: bool) -> None:
        self._store = store
        self._trusted = trusted
        self.simple_queues = store.queues
        self.min_offset = store.min_offset
        self.max_offset = store.max_offset
        self.store_time_of = store.store_time_of

    @property
    def min_physical_offset(self) -> int:
        return self._store.min_physical_offset

    @property
    def flushed_where(self) -> int:
        return _EVERYTHING if self._trusted else self._store.flushed_where

    @property
    def dispatched_where(self) -> int:
        return self._store.seen_end

    def unit_at(self, topic: str, queue_id: int, offset: int) -> tuple[int, int] | None:
        queue = self._store.queue(topic, queue_id)
        if queue is None or not queue.min_offset(self._store.min_physical_offset) <= offset < queue.max_offset:
            return None
        unit = queue.unit_at(offset)
        return None if unit is None else (unit.physical_offset, unit.size)

    def units_between(self, topic: str, queue_id: int, low: int, high: int) -> Iterator[tuple[int, int, int]]:
        queue = self._store.queue(topic, queue_id)
        if queue is None or queue.is_batch:
            return
        low, high = max(low, queue.min_offset(self._store.min_physical_offset)), min(high, queue.max_offset)
        while (found := queue.next_real(low, high)) is not None:
            offset, unit = found
            yield offset, unit.physical_offset, unit.size
            low = offset + 1

    def collect_for_tier(
        self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int, tier_offset: int
    ) -> Collected:
        return self._store.collect_for_tier(topic, queue_id, offset, max_count, max_bytes, tier_offset)
