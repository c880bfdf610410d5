"""LocalSource: the local store as the dispatcher sees it, and its implementation over a LocalStore.

Only what is durable locally may be copied: a record that a power cut can still take back must not stand in the tier
under a queue offset that the next message will get. Consume queues are built up to the confirm offset only, so nothing
beyond it is ever seen here.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from tiermq.consumequeue.unit import is_real
from tiermq.errors import CorruptSegment, ForkedHistory
from tiermq.kernel import Collected
from tiermq.store.durable_end import QueueUnits, durable_end, first_unit
from tiermq.store.local_store import LocalStore
from tiermq.store.readonly.store import ReadOnlyStore
from tiermq.tier.dispatch.plan import LocalState
from tiermq.tier.flat.flat_message_file import FlatMessageFile
from tiermq.tier.names import QueueName
from tiermq.tier.queue.records import CollectedRecords, derive_units
from tiermq.tier.queue.units import unit_at

_log = logging.getLogger(__name__)

SIZE_SAMPLES = 3

Arrival = Callable[[str, int, int], None]
"""(topic, queue id, offset behind the newest message). Called on the local dispatch thread: it must be quick."""


class RecordReader(Protocol):
    """Gives out records of queues, ready for the tier."""

    def collect(
        self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int, tier_offset: int
    ) -> CollectedRecords:
        """Copy records, rebased to `tier_offset`: one at least if there is one, none that is not durable."""
        ...


class RecordSource(RecordReader, Protocol):
    """Where messages come from: a local store, or a broker over the wire."""

    def queues(self) -> list[QueueName]:
        """Every queue whose messages can be copied."""
        ...

    def state(self, topic: str, queue_id: int, offset: int) -> LocalState | None:
        """The queue as it is now, for a tier that continues at `offset` (-1: not begun); None when there is none."""
        ...

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Behind the newest message of the queue, durable or not."""
        ...

    def settle(self) -> None:
        """Make everything that was put so far visible here, and durable locally."""


class LocalSource(RecordSource, Protocol):
    """The store of this process, or of another one on this machine. Any thread may call anything."""

    def first_message(self, topic: str, queue_id: int, offset: int) -> tuple[int, int] | None:
        """The first message at or behind `offset`: its queue offset, and where it is in the local log; None: none."""
        ...

    def log_bounds(self) -> tuple[int, int]:
        """Where the local log begins, and up to where its records have their units."""
        ...

    def on_arrival(self, arrival: Arrival) -> None:
        """Register a callback for arrivals of messages."""


@dataclass(frozen=True, slots=True)
class _Rewritten:
    """Collected records with other units."""

    data: bytes
    units: bytes
    count: int
    next_offset: int
    begin_ms: int
    end_ms: int


def with_derived_units(found: Collected, tier_offset: int, offset: int) -> CollectedRecords:
    """The same with units made from the records, where those of `found` have what means nothing elsewhere."""
    if found.has_ext_address:
        units = derive_units(found.data, tier_offset, offset)
        if len(units) == len(found.units):
            return _Rewritten(found.data, units, found.count, found.next_offset, found.begin_ms, found.end_ms)
    return found


class SourceStore(QueueUnits, Protocol):
    """The methods of a store directory that dispatch uses. The names are `LocalStore`'s."""

    @property
    def min_physical_offset(self) -> int: ...
    @property
    def dispatched_where(self) -> int: ...
    def simple_queues(self) -> list[QueueName]: ...
    def store_time_of(self, topic: str, queue_id: int, offset: int) -> int: ...
    def collect_for_tier(
        self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int, tier_offset: int
    ) -> Collected: ...


class StoreSource:
    """A store directory, live or read-only. Subclasses add `settle` and `on_arrival`."""

    def __init__(self, store: SourceStore) -> None:
        self._store = store

    def queues(self) -> list[QueueName]:
        return self._store.simple_queues()

    def state(self, topic: str, queue_id: int, offset: int) -> LocalState | None:
        store = self._store
        low, high = store.min_offset(topic, queue_id), durable_end(self._store, topic, queue_id)
        if high <= 0:
            return None
        start = max(low, offset)
        found = first_unit(self._store, topic, queue_id, start, high)
        if found is None:
            return LocalState(low, high)
        next_offset, physical, size = found
        next_ms = store.store_time_of(topic, queue_id, next_offset)
        if next_ms < 0 or physical < store.min_physical_offset:
            # Its file is being deleted or created: the next check decides.
            return LocalState(low, high)
        return LocalState(
            low, high, next_offset, next_ms, self._backlog_bytes(topic, queue_id, next_offset, high, size)
        )

    def max_offset(self, topic: str, queue_id: int) -> int:
        return self._store.max_offset(topic, queue_id)

    def _backlog_bytes(self, topic: str, queue_id: int, low: int, high: int, first_size: int) -> int:
        """About how many bytes wait, from a few sizes: counting thousands of them would cost more than it decides."""
        step = max(1, (high - low) // SIZE_SAMPLES)
        units = [self._store.unit_at(topic, queue_id, offset) for offset in range(low + step, high, step)]
        sizes = [first_size, *(unit[1] for unit in units if unit is not None)]
        return sum(sizes) * (high - low) // len(sizes)

    def collect(
        self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int, tier_offset: int
    ) -> CollectedRecords:
        most = min(max_count, max(0, durable_end(self._store, topic, queue_id) - offset))
        # An address in the local ext queue means nothing elsewhere; the record itself has its tag.
        found = self._store.collect_for_tier(topic, queue_id, offset, most, max_bytes, tier_offset)
        return with_derived_units(found, tier_offset, offset)

    def first_message(self, topic: str, queue_id: int, offset: int) -> tuple[int, int] | None:
        high = self._store.max_offset(topic, queue_id)
        found = first_unit(self._store, topic, queue_id, offset, high)
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


LOCAL_FORK_ADVICE = (
    "another process gave numbers out for this broker. Nothing more is written here: move the store away, restore into "
    "an empty directory, and put what is only in the old one again"
)


def require_same_history(file: FlatMessageFile, source: RecordSource, advice: str = LOCAL_FORK_ADVICE) -> None:
    """Check that another writer of the queue copied the same messages. Raises ForkedHistory if they differ.

    The newest message that both have is compared: the tier's newest, or the local one's where the tier is ahead. Only
    where it differs is the first one that does searched for: two reads of the tier for each halving of the queue.
    """
    state = source.state(*file.queue.name, -1)
    offset = min(file.commit_offset, file.commit_offset if state is None else state.max_offset) - 1
    begin = max(0, file.min_offset)
    both = _different(file, source, offset) if offset >= begin else None
    if both is None:
        return
    begin = max(begin, 0 if state is None else state.min_offset)
    shared = range(begin, offset)
    first = begin + bisect_left(shared, True, key=lambda each: _different(file, source, each) is not None)
    raise ForkedHistory(
        f"{file.queue.logical_path}: message {offset} in the tier is not the local one of that number, nor is any from "
        f"{first} on; {advice}",
        first,
        both,
    )


def _different(file: FlatMessageFile, source: RecordSource, offset: int) -> tuple[bytes, bytes] | None:
    """The record of that number in the tier and in the source, if both can be read and differ. Raises TierError."""
    try:
        _, log_offset, size, _ = unit_at(file.units.read_units(offset, 1), 0)
        if not is_real(log_offset, size) or log_offset < file.log.min_offset:
            return None
        there = file.log.read(log_offset, size)
    except CorruptSegment as error:
        # No sign of another history. The copies are compared, and repaired, before local files go.
        _log.error("%s: message %d is not compared with the local one: %s", file.queue.logical_path, offset, error)
        return None
    local = source.collect(*file.queue.name, offset, 1, size, log_offset)
    is_same = not local.count or local.next_offset != offset + 1 or local.data == there
    return None if is_same else (bytes(there), bytes(local.data))


# ReadOnlySource: the local store as a dispatcher sees it that runs in another process than the store.
#
#     settle    read the end of every queue, then sync the log: what was read is durable
#
# Between two calls of `settle` nothing changes, except that files may be deleted by their owner; then there is nothing
# to collect of them, which the next plan handles. Not safe to share between threads.

_EVERYTHING = (1 << 63) - 1


class ReadOnlySource(StoreSource):
    """See the module. `trusted`: the caller settled before, and reads only what was durable then."""

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
        """The size of the record at exactly that offset; None without a record."""
        found = self._store.unit_at(topic, queue_id, offset)
        return None if found is None else found[1]

    def on_arrival(self, arrival: Arrival) -> None:
        """There are no arrivals: the caller checks again from time to time."""


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
