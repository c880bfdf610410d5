"""A broker's tier around an index store: queues of committed records, a disk and a back end that fail anywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from tiermq.kernel import rearrange_index
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.index.index_coverage import QueueTail
from tiermq.tier.index.index_item import ITEM_BYTES, IndexItem, decode_run, distinct, index_hash
from tiermq.tier.index.index_query import Candidate, MessageKeys
from tiermq.tier.index.index_request import IndexRequest, PutOutcome
from tiermq.tier.index.index_store import IndexSettings, IndexStore
from tiermq.tier.index.index_upkeep import UpkeepRules
from tiermq.tier.metadata.metadata_values import Segment, SegmentStatus
from tiermq.tier.names import QueueKey, SegmentKey, SegmentType, index_queue

CLUSTER, BROKER = "DefaultCluster", "broker-a"
ROOT = "/store"
DIRECTORY = "/store/tiered_index_file"
NOW_MS = 1_700_000_000_000
EVER = (0, 2**63 - 1)
TINY = IndexSettings(slots=5, capacity=6, query_threads=0, upload_chunk_bytes=64)
HOUR_MS = 3_600_000

Hook = Callable[[str, str], None]


class PowerCut(BaseException):
    """Not an error that anybody may handle: the process is gone."""


class HookedDriver:
    """A memory driver that passes each call to a hook, before and after, and counts reads."""

    def __init__(self, inner: MemoryDriver, hook: Hook | None = None) -> None:
        self.inner = inner
        self.hook = hook
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)
        if not callable(method):
            return method

        def called(*values: Any, **named: Any) -> Any:
            self.calls[name] += 1
            if self.hook is not None:
                self.hook("before", name)
            answer = method(*values, **named)
            if self.hook is not None:
                self.hook("after", name)
            return answer

        return called


class MemoryRows:
    """Rows that are durable at once, as those of the metadata store are."""

    def __init__(self) -> None:
        self.rows: dict[SegmentKey, Segment] = {}
        self.hook: Hook | None = None

    def put_segment(self, segment: Segment) -> None:
        self._tell("before", "put_segment")
        self.rows[segment.key] = segment
        self._tell("after", "put_segment")

    def segments(self, queue: QueueKey, type: SegmentType | None = None) -> list[Segment]:  # noqa: A002
        live = [row for row in self.rows.values() if row.status is not SegmentStatus.DELETED and row.key.queue == queue]
        return sorted((row for row in live if type is None or row.key.type is type), key=lambda row: row.key)

    def segments_being_deleted(self) -> list[Segment]:
        return [row for row in self.rows.values() if row.status is SegmentStatus.DELETED]

    def mark_deleted(self, key: SegmentKey) -> None:
        row = self.rows[key]
        self._tell("before", "mark_deleted")
        self.rows[key] = Segment(key, row.size, SegmentStatus.DELETED, 0, row.begin_ms, row.end_ms)
        self._tell("after", "mark_deleted")

    def delete_segment(self, key: SegmentKey) -> bool:
        self._tell("before", "delete_segment")
        return self.rows.pop(key, None) is not None

    def _tell(self, when: str, name: str) -> None:
        if self.hook is not None:
            self.hook(when, name)


@dataclass
class World:
    """What survives: the disk (as a power cut leaves it), the tier, the rows, and the committed records."""

    access: SimulatedFileAccess = field(default_factory=SimulatedFileAccess)
    driver: HookedDriver = field(default_factory=lambda: HookedDriver(MemoryDriver()))
    rows: MemoryRows = field(default_factory=MemoryRows)
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW_MS))
    committed: dict[tuple[str, int], list[IndexRequest]] = field(default_factory=dict)
    kept_ms: dict[int, int] = field(default_factory=dict)  # topic id -> retention
    settings: IndexSettings = TINY
    delete_enabled: bool = True
    verify: bool = True

    def open(self, *, start: bool = True, with_thread: bool = False) -> IndexStore:
        store = IndexStore(
            self.access, ROOT, self.driver, self.rows, CLUSTER, BROKER,
            clock=self.clock, settings=self.settings, rebuild=self.rebuild,
            fetch_keys=self.fetch_keys if self.verify else None,
            retention_ms=self.retention_ms, is_delete_enabled=lambda: self.delete_enabled,
        )  # fmt: skip
        if start:
            store.start(self.tails(), with_thread=with_thread)
        return store

    # What the tier holds

    def commit(self, topic: str, queue_id: int, *keys: str, topic_id: int = 7, size: int = 100) -> IndexRequest:
        """Append a record to its queue's tier commit log; stored a second after the one before."""
        log = self.committed.setdefault((topic, queue_id), [])
        offset = log[-1].tier_offset + log[-1].size if log else 0
        self.clock.advance_ms(1000)
        log.append(IndexRequest(topic, topic_id, queue_id, keys, offset, size, self.clock.now_ms() - 500))
        return log[-1]

    def commit_and_put(self, store: IndexStore, topic: str, queue_id: int, *keys: str, **more: Any) -> IndexRequest:
        request = self.commit(topic, queue_id, *keys, **more)
        assert store.put_request(request) is PutOutcome.SUCCESS
        return request

    def tails(self) -> list[QueueTail]:
        return [
            QueueTail(topic, log[-1].topic_id, queue_id, log[-1].tier_offset + log[-1].size)
            for (topic, queue_id), log in self.committed.items()
            if log
        ]

    def rebuild(self, queue: QueueKey, from_offset: int) -> Iterator[IndexRequest]:
        assert (queue.cluster, queue.broker) == (CLUSTER, BROKER)
        log = self.committed.get((queue.topic, queue.queue_id), [])
        return (request for request in list(log) if request.tier_offset >= from_offset)

    def fetch_keys(self, topic: str, candidate: Candidate) -> MessageKeys | None:
        for request in self.committed.get((topic, candidate.queue_id), []):
            if request.tier_offset == candidate.tier_offset:
                return MessageKeys(request.keys, request.store_ms)
        return None

    def retention_ms(self, topic_ids: frozenset[int] | None) -> int:
        default = 72 * HOUR_MS
        known = self.kept_ms.values() if topic_ids is None else [self.kept_ms.get(one, default) for one in topic_ids]
        return max(known, default=default)

    # What the index holds

    def expected_items(self) -> Counter[tuple[int, int, int, int]]:
        return Counter(
            (index_hash(request.topic, key), request.topic_id, request.queue_id, request.tier_offset)
            for log in self.committed.values()
            for request in log
            for key in distinct(request.keys)
        )

    def indexed_items(self, store: IndexStore) -> Counter[tuple[int, int, int, int]]:
        return Counter((item.key_hash, *item[1:4]) for item in items_of(store))


def items_of(store: IndexStore) -> Iterator[IndexItem]:
    """Every item of every file, local or uploaded."""
    for entry in store._table.entries():
        if entry.remote is not None:
            segment = entry.remote.segment
            assert entry.remote._driver.size(segment.key) == segment.size
            whole = entry.remote._driver.read(segment.key, 0, segment.size)
        else:
            assert entry.local is not None
            whole = memoryview(rearrange_index(entry.local._buffer, entry.local.slots, entry.local.capacity))
        count = int.from_bytes(whole[24:28], "big") if len(whole) else 0
        yield from decode_run(whole[len(whole) - ITEM_BYTES * count :])


def run_until_idle(store: IndexStore) -> None:
    """Upkeep until there is nothing more to do at once."""
    while store.run_once() == 0.0:
        continue


def index_key(base: int = 0) -> SegmentKey:
    return index_queue(CLUSTER, BROKER).segment(SegmentType.INDEX, base)


__all__ = [
    "BROKER", "CLUSTER", "DIRECTORY", "EVER", "HOUR_MS", "NOW_MS", "ROOT", "TINY", "HookedDriver", "MemoryRows",
    "PowerCut", "UpkeepRules", "World", "index_key", "items_of", "run_until_idle",
]  # fmt: skip
