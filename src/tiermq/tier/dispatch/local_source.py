"""LocalSource: the local store as the dispatcher sees it, and its implementation over a LocalStore.

Only what is durable locally may be copied: a record that a power cut can still take back must not stand in the tier
under a queue offset that the next message will get. Consume queues are built up to the confirm offset only, so nothing
beyond it is ever seen here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from tiermq.kernel import Collected
from tiermq.store.local_store import LocalStore
from tiermq.tier.dispatch.plan import LocalState
from tiermq.tier.flat.record_batch import CollectedRecords
from tiermq.tier.flat.segment_recovery import adopt_records

SIZE_SAMPLES = 3

Arrival = Callable[[str, int, int], None]
"""(topic, queue id, offset behind the newest message). Called on the local dispatch thread: it must be quick."""


class LocalSource(Protocol):
    """Where messages come from. Any thread may call anything."""

    def queues(self) -> list[tuple[str, int]]:
        """Every queue whose messages can be copied."""
        ...

    def state(self, topic: str, queue_id: int, offset: int) -> LocalState | None:
        """The queue as it is now, for a tier that goes on at `offset` (-1: not begun); None when there is none."""
        ...

    def collect(
        self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int, tier_offset: int
    ) -> CollectedRecords:
        """Copy records, rebased to `tier_offset`: one at least if there is one, none that is not durable."""
        ...

    def first_message(self, topic: str, queue_id: int, offset: int) -> tuple[int, int] | None:
        """The first message at or behind `offset`: its queue offset, and where it is in the local log; None: none."""
        ...

    def log_bounds(self) -> tuple[int, int]:
        """Where the local log begins, and up to where its records have their units."""
        ...

    def settle(self) -> None:
        """Make everything that was put so far visible here, and durable locally."""

    def on_arrival(self, arrival: Arrival) -> None:
        """Be told whenever a queue got messages."""


@dataclass(frozen=True, slots=True)
class _Rewritten:
    """Collected records with other units."""

    data: bytes
    units: bytes
    count: int
    next_offset: int
    begin_ms: int
    end_ms: int


class SourceStore(Protocol):
    """What is asked of a store directory, whoever has it open. The names are `LocalStore`'s."""

    @property
    def min_physical_offset(self) -> int: ...
    @property
    def flushed_where(self) -> int: ...
    @property
    def dispatched_where(self) -> int: ...
    def simple_queues(self) -> list[tuple[str, int]]: ...
    def min_offset(self, topic: str, queue_id: int) -> int: ...
    def max_offset(self, topic: str, queue_id: int) -> int: ...
    def unit_at(self, topic: str, queue_id: int, offset: int) -> tuple[int, int] | None: ...
    def units_between(self, topic: str, queue_id: int, low: int, high: int) -> Iterator[tuple[int, int, int]]: ...
    def store_time_of(self, topic: str, queue_id: int, offset: int) -> int: ...
    def collect_for_tier(
        self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int, tier_offset: int
    ) -> Collected: ...


class StoreSource:
    """A store directory, in whatever way it is open. Those who know how add `settle` and `on_arrival`."""

    def __init__(self, store: SourceStore) -> None:
        self._store = store

    def queues(self) -> list[tuple[str, int]]:
        return self._store.simple_queues()

    def state(self, topic: str, queue_id: int, offset: int) -> LocalState | None:
        store = self._store
        low, high = store.min_offset(topic, queue_id), self._durable_end(topic, queue_id)
        if high <= 0:
            return None
        start = max(low, offset)
        found = self._first_unit(topic, queue_id, start, high)
        if found is None:
            return LocalState(low, high)
        next_offset, physical, size = found
        next_ms = store.store_time_of(topic, queue_id, next_offset)
        if next_ms < 0 or physical < store.min_physical_offset:
            # Its file is on its way out, or not here yet: the next look will tell.
            return LocalState(low, high)
        return LocalState(
            low, high, next_offset, next_ms, self._backlog_bytes(topic, queue_id, next_offset, high, size)
        )

    def _durable_end(self, topic: str, queue_id: int) -> int:
        """Behind the newest message whose record survives a power cut."""
        store = self._store
        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        durable = store.flushed_where
        if self._is_durable(topic, queue_id, high - 1, high, durable):
            return high
        while low < high:
            middle = (low + high) // 2
            if self._is_durable(topic, queue_id, middle, high, durable):
                low = middle + 1
            else:
                high = middle
        return low

    def _is_durable(self, topic: str, queue_id: int, offset: int, high: int, durable: int) -> bool:
        """Whether the first message at or behind `offset` is; without one there is nothing to wait for."""
        found = self._first_unit(topic, queue_id, offset, high)
        return found is None or found[1] + found[2] <= durable

    def _first_unit(self, topic: str, queue_id: int, low: int, high: int) -> tuple[int, int, int] | None:
        """(queue offset, physical offset, size) of the first message in [low, high). Nearly always it is at `low`."""
        if low >= high:
            return None
        unit = self._store.unit_at(topic, queue_id, low)
        return next(self._store.units_between(topic, queue_id, low, high), None) if unit is None else (low, *unit)

    def _backlog_bytes(self, topic: str, queue_id: int, low: int, high: int, first_size: int) -> int:
        """About how many bytes wait, from a few sizes: counting thousands of them would cost more than it decides."""
        step = max(1, (high - low) // SIZE_SAMPLES)
        units = [self._store.unit_at(topic, queue_id, offset) for offset in range(low + step, high, step)]
        sizes = [first_size, *(unit[1] for unit in units if unit is not None)]
        return sum(sizes) * (high - low) // len(sizes)

    def collect(
        self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int, tier_offset: int
    ) -> CollectedRecords:
        most = min(max_count, max(0, self._durable_end(topic, queue_id) - offset))
        found = self._store.collect_for_tier(topic, queue_id, offset, most, max_bytes, tier_offset)
        if found.has_ext_address:
            # An address in the local ext queue means nothing elsewhere; the record itself says which tag it has.
            units = adopt_records(found.data, tier_offset, offset)
            if len(units) == len(found.units):
                return _Rewritten(found.data, units, found.count, found.next_offset, found.begin_ms, found.end_ms)
        return found

    def first_message(self, topic: str, queue_id: int, offset: int) -> tuple[int, int] | None:
        high = self._store.max_offset(topic, queue_id)
        found = self._first_unit(topic, queue_id, offset, high)
        return None if found is None else found[:2]

    def log_bounds(self) -> tuple[int, int]:
        return max(0, self._store.min_physical_offset), self._store.dispatched_where


class LocalStoreSource(StoreSource):
    """A LocalStore of this process."""

    def __init__(self, store: LocalStore) -> None:
        super().__init__(store)
        self._local = store

    def settle(self) -> None:
        self._local.dispatch_now()
        self._local.flush()

    def on_arrival(self, arrival: Arrival) -> None:
        self._local.add_arrival_listener(lambda topic, queue_id, offset, _record: arrival(topic, queue_id, offset))
