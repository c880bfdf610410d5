"""The catalogue: which queues a history has, and where each of their messages is read.

    cold   [cold_min, cold_max)              what the tier has is read from the tier
    hot    [max(cold_max, hot_min), hot_max) the rest is read from the store's directory

So each message is read once, in the order of its queue. A queue of which the tier has nothing is read from the store
alone. Messages between the two, deleted by the store before they were copied, are lost.

A `Catalog` is refreshed in place, cheaply; the `QueueHistory`s that it returns never change.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from tiermq.clock import EVER_MS
from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.errors import BadHistory
from tiermq.history.cold_queues import ColdQueue, ColdQueues, require_one_broker
from tiermq.history.open_history import OpenHistory
from tiermq.history.scan_values import (
    DEFAULT_BROKER,
    DEFAULT_CLUSTER,
    HistoryPlace,
    RecordPlace,
    ScanCounters,
    ScanRequest,
    SegmentSpan,
    StorePlace,
)
from tiermq.history.store_broker import require_store_of_broker
from tiermq.message.topic_name import TABLE_LOG_TOPIC, is_light_queue
from tiermq.store.readonly.store import ReadOnlyStore
from tiermq.store.tier_continuation import recorded_names
from tiermq.tier.driver.contract import SegmentInfo
from tiermq.tier.metadata.metadata_values import Gap, Segment, TimeEntry
from tiermq.tier.names import QueueKey
from tiermq.tier.queue.unit_array import decode_units
from tiermq.tier.restore.restore_report import Remark

SAMPLES = 64
"""Units sampled to estimate the record size of a queue."""
TIME_STEPS = 512
TIME_STEP_MIN = 1024
"""A request by time samples this number of ranges of a hot queue, none shorter than this number of messages."""


@dataclass(frozen=True, slots=True)
class QueueHistory:
    """One queue: its messages on both sides. Bounds are [min, max); equal ones mean nothing there."""

    key: QueueKey
    cold_min: int = 0
    cold_max: int = 0
    hot_min: int = 0
    hot_max: int = 0
    hot_record_bytes: int = 0  # Of a record, on the average.
    hot_time_entries: tuple[TimeEntry, ...] = ()  # Only in a catalogue whose request is about a time.
    store: StorePlace | None = None
    gaps: tuple[Gap, ...] = ()
    logs: tuple[Segment, ...] = ()
    units: tuple[Segment, ...] = ()
    time_entries: tuple[TimeEntry, ...] = ()
    topic_id: int = -1
    is_deleted: bool = False

    @property
    def has_cold(self) -> bool:
        return self.cold_max > self.cold_min

    @property
    def hot_from(self) -> int:
        """Where reading from the store begins."""
        return max(self.cold_max, self.hot_min) if self.has_cold else self.hot_min

    @property
    def min_offset(self) -> int:
        return self.cold_min if self.has_cold else self.hot_min if self.hot_max > self.hot_min else self.max_offset

    @property
    def max_offset(self) -> int:
        return max(self.cold_max, self.hot_max)

    @property
    def cold_bytes(self) -> int:
        return sum(segment.size for segment in self.logs)

    def log_spans(self, from_offset: int, to_offset: int) -> tuple[SegmentSpan, ...]:
        """The log segments that hold records of [from, to), or may hold some."""
        return tuple(
            SegmentSpan.of(log)
            for log in self.logs
            if log.begin_offset < 0 or (log.begin_offset < to_offset and from_offset < log.end_offset)
        )

    def log_spans_of(self, places: Iterable[RecordPlace]) -> tuple[SegmentSpan, ...]:
        """The log segments in which these records begin."""
        bases = [log.key.base for log in self.logs]
        numbers = sorted({bisect_right(bases, place.log_offset) - 1 for place in places} - {-1})
        return tuple(SegmentSpan.of(self.logs[number]) for number in numbers)

    def unit_spans(self, from_offset: int, to_offset: int) -> tuple[SegmentSpan, ...]:
        """The segments that hold units of [from, to)."""
        begin, end = from_offset * UNIT_BYTES, to_offset * UNIT_BYTES
        return tuple(SegmentSpan.of(s) for s in self.units if s.key.base < end and begin < s.end)


@dataclass(slots=True)
class HotQueue:
    """What a store's directory holds of one queue."""

    place: StorePlace
    min_offset: int
    max_offset: int
    record_bytes: int = 0
    sampled_at: int = -1
    times: list[TimeEntry] = field(default_factory=list)


class Catalog:
    """The queues of a history that a request wants. `refresh` is called by one thread; others may read meanwhile."""

    def __init__(self, history: OpenHistory, request: ScanRequest | None = None) -> None:
        self.history = history
        self.place: HistoryPlace = history.place
        self._wanted = queue_filter(request or ScanRequest(), self.place.cluster)
        self._topics = request.topics if request is not None else frozenset()
        self._is_about_time = request is not None and (request.begin_ms > 0 or request.end_ms < EVER_MS)
        self._cold: ColdQueues | None = None
        if history.has_tier:
            self._cold = ColdQueues(history.tier, self._wanted, history.clock, history.pool, self._topics)
        self._hot: dict[QueueKey, HotQueue] = {}
        self._batches: dict[str, str] = {}  # Wanted topics with batch queues, and the store that has them.
        self._stores: list[StorePlace] | None = None
        self._queues: dict[QueueKey, QueueHistory] = {}
        self.counters = ScanCounters()
        self.refresh()

    def refresh(self) -> None:
        """See what came and went: one listing of the tier, and a few calls to the file system for each store."""
        before = (self.history.tier.requests, self.history.tier.bytes_read) if self._cold is not None else (0, 0)
        if self._cold is not None:
            self._cold.refresh()
        if self._stores is None:
            self._stores = self._named_stores()
        self._refresh_hot(self._stores)
        cold = self._cold.queues if self._cold is not None else {}
        self._queues = {key: _joined(key, cold.get(key), self._hot.get(key)) for key in sorted({*cold, *self._hot})}
        if self._cold is not None:
            self.counters.requests += self.history.tier.requests - before[0]
            self.counters.bytes_read += self.history.tier.bytes_read - before[1]

    def require_readable(self) -> None:
        """Raises BadHistory when a requested queue is a batch queue: they are never tiered, and not read here.

        Rows that are silently missing would be worse. The same for queues that only their cluster distinguishes: their
        rows would have the same ids.
        """
        require_distinct(self._queues)
        for topic, path in self._batches.items():
            raise BadHistory(
                f"expected topics with simple queues, found topic {topic!r} in {path}, whose messages are in batch "
                "queues (queue.type BatchCQ), which cannot be read as history: name the other topics that you want "
                "(subscribe or subscribePattern), and read this one with LocalStore"
            )

    def queues(self) -> list[QueueHistory]:
        """In the order of their keys."""
        return list(self._queues.values())

    def get(self, key: QueueKey) -> QueueHistory | None:
        return self._queues.get(key)

    def topics(self) -> list[str]:
        return sorted({key.topic for key in self._queues})

    @property
    def brokers(self) -> list[tuple[str, str]]:
        """(cluster, broker), also of those that have nothing of what is wanted."""
        named = {(store.cluster, store.broker) for store in self._stores or ()}
        return sorted(named | set(self._cold.brokers if self._cold is not None else ()))

    @property
    def has_empty_tier(self) -> bool:
        """Whether there is a tier without a single segment or object: a wrong URL, or a tier never uploaded to."""
        return self._cold is not None and not self._cold.brokers and not self._cold.has_objects

    def find(self, topic: str, queue_id: int, broker: str | None = None) -> QueueHistory:
        """The only queue that matches. Raises BadHistory without a match, or with one on several brokers."""
        found = [
            queue
            for key, queue in self._queues.items()
            if (key.topic, key.queue_id) == (topic, queue_id) and broker in (None, key.broker)
        ]
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(queue.key.broker for queue in found)
            raise BadHistory(f"queue {queue_id} of topic {topic!r} is on several brokers ({names}); name the broker")
        ids = sorted({key.queue_id for key in self._queues if key.topic == topic})
        there = f"it has queues {', '.join(map(str, ids))}" if ids else "there is no such topic"
        raise BadHistory(f"expected queue {queue_id} of topic {topic!r}, found none; {there}")

    def remarks(self, key: QueueKey) -> tuple[Remark, ...]:
        """What is not as it should be of a queue in the tier."""
        found = self._cold.queues.get(key) if self._cold is not None else None
        return found.remarks if found is not None else ()

    def index_segments(self) -> dict[tuple[str, str], list[SegmentInfo]]:
        """The uploaded index files of each broker, as the last listing showed them."""
        return self._cold.index_infos if self._cold is not None else {}

    @property
    def stored_bytes(self) -> int:
        """Everything that the tier holds, of all topics."""
        return self._cold.stored_bytes if self._cold is not None else 0

    def _named_stores(self) -> list[StorePlace]:
        """The stores with the names of their brokers, detected if not given."""
        stores = list(self.place.stores)
        unnamed = [store for store in stores if not store.broker]
        if len(unnamed) > 1 or (unnamed and len(stores) > 1):
            raise BadHistory(
                f"expected the broker's name of each of {len(stores)} stores, found none for {unnamed[0].path}; "
                "give cluster and broker of every store"
            )
        wanted = self.place.cluster
        known = [each for each in (self._cold.brokers if self._cold is not None else ()) if wanted in ("", each[0])]
        named = []
        for store in stores:
            recorded = recorded_names(store.path)
            if store.broker:
                named.append(replace(store, cluster=store.cluster or _cluster_of(store.broker, known)))
            elif len(recorded) == 1:
                named.append(replace(store, cluster=recorded[0][0], broker=recorded[0][1]))
            elif known and self._cold is not None:
                cluster, broker = require_one_broker(known, self.history.tier.url, store.path)
                opened = self.history.store(store.path)
                opened.refresh()
                of_broker = [
                    each for key, each in self._cold.queues.items() if (key.cluster, key.broker) == (cluster, broker)
                ]
                require_store_of_broker(self.history.tier, opened, of_broker)
                named.append(replace(store, cluster=cluster, broker=broker))
            else:
                named.append(replace(store, cluster=store.cluster or DEFAULT_CLUSTER, broker=DEFAULT_BROKER))
        for store in named:
            if wanted not in ("", store.cluster):
                raise BadHistory(
                    f"{store.path}: expected a store of cluster {wanted!r}, found one of {store.cluster!r}"
                )
        if len({(store.cluster, store.broker) for store in named}) < len(named):
            raise BadHistory("expected one store for each broker, found two stores of one; give each one's name")
        return named

    def _refresh_hot(self, stores: Iterable[StorePlace]) -> None:
        found: dict[QueueKey, HotQueue] = {}
        self._batches = {}
        for place in stores:
            store = self.history.store(place.path)
            store.refresh()
            for topic, queue_id in store.batch_queues():
                wanted = self._wanted(QueueKey(place.cluster, place.broker, topic, queue_id))
                if wanted and store.max_offset(topic, queue_id) > 0:
                    self._batches[topic] = place.path
            for topic, queue_id in store.queues():
                key = QueueKey(place.cluster, place.broker, topic, queue_id)
                # A light queue only points at messages of other queues, where they are read already; a broker's tables
                # are no messages. Both can be named.
                is_own = is_light_queue(topic) or topic == TABLE_LOG_TOPIC
                if self._wanted(key) and (topic in self._topics or not is_own):
                    low, high = store.bounds(topic, queue_id)
                    before = self._hot.get(key)
                    queue = _sampled(store, key, HotQueue(place, low, high), before)
                    if self._is_about_time:
                        queue.times = _times(store, key, queue, before.times if before is not None else [])
                    found[key] = queue
        self._hot = found


def read_catalog(history: OpenHistory, request: ScanRequest | None = None) -> Catalog:
    """Look at a history. Raises BadHistory, FutureManifest, and what the tier's driver raises."""
    return Catalog(history, request)


def require_distinct(keys: Iterable[QueueKey]) -> None:
    """Raises BadHistory for queues that only their cluster distinguishes: `recordId` has no cluster."""
    clusters: dict[tuple[str, str, int], str] = {}
    for key in keys:
        other = clusters.setdefault((key.broker, key.topic, key.queue_id), key.cluster)
        if other != key.cluster:
            raise BadHistory(
                f"expected one cluster, found queue {key.queue_id} of topic {key.topic!r} on a broker {key.broker!r} "
                f"of cluster {other!r} and of cluster {key.cluster!r}: rows of both would have the same recordId. "
                "Choose one (option clusterName, --cluster), and keep the other in a query or table of its own"
            )


def queue_filter(request: ScanRequest, cluster: str = "") -> Callable[[QueueKey], bool]:
    """Whether a queue is among those that a request names, in a cluster. Raises BadHistory for an invalid pattern."""
    try:
        pattern = re.compile(request.topic_pattern) if request.topic_pattern is not None else None
    except re.error as error:
        raise BadHistory(
            f"expected a regular expression for topics, found {request.topic_pattern!r}: {error}"
        ) from error

    def wanted(key: QueueKey) -> bool:
        return (
            cluster in ("", key.cluster)
            and (not request.topics or key.topic in request.topics)
            and (pattern is None or pattern.fullmatch(key.topic) is not None)
            and (not request.brokers or key.broker in request.brokers)
            and (not request.queue_ids or key.queue_id in request.queue_ids)
        )

    return wanted


def _cluster_of(broker: str, known: Iterable[tuple[str, str]]) -> str:
    clusters = sorted({cluster for cluster, name in known if name == broker})
    if len(clusters) > 1:
        raise BadHistory(f"broker {broker!r} is in several clusters of the tier ({', '.join(clusters)}); name it")
    return clusters[0] if clusters else DEFAULT_CLUSTER


def _sampled(store: ReadOnlyStore, key: QueueKey, queue: HotQueue, before: HotQueue | None) -> HotQueue:
    """How large its records are, about; looked at again only when the queue has doubled since."""
    count = queue.max_offset - queue.min_offset
    if before is not None and before.record_bytes and queue.max_offset < 2 * before.sampled_at:
        queue.record_bytes, queue.sampled_at = before.record_bytes, before.sampled_at
        return queue
    sizes: list[int] = []
    for number in range(min(SAMPLES, count)):
        offset = queue.min_offset + number * count // min(SAMPLES, count)
        for piece in store.unit_pieces(key.topic, key.queue_id, offset, offset + 1, 1):
            units = decode_units(piece.data, piece.first_offset)
            sizes += [int(size) for size in units.sizes[~units.is_blank]]
    queue.record_bytes = sum(sizes) // len(sizes) if sizes else 0
    queue.sampled_at = queue.max_offset
    return queue


def _times(store: ReadOnlyStore, key: QueueKey, queue: HotQueue, before: list[TimeEntry]) -> list[TimeEntry]:
    """Store times of some messages of the queue, a fixed range apart; known ones are not read again."""
    times = [entry for entry in before if queue.min_offset <= entry.queue_offset < queue.max_offset]
    step = max(TIME_STEP_MIN, (queue.max_offset - queue.min_offset) // TIME_STEPS)
    offset = times[-1].queue_offset + step if times else queue.min_offset
    while offset < queue.max_offset:
        store_ms = store.store_time_of(key.topic, key.queue_id, offset)
        if store_ms >= 0:
            times.append(TimeEntry(offset, store_ms, 0))
        offset += step
    return times


def _joined(key: QueueKey, cold: ColdQueue | None, hot: HotQueue | None) -> QueueHistory:
    queue = QueueHistory(key)
    if cold is not None:
        high = max(0, cold.max_offset)
        queue = replace(
            queue,
            cold_min=min(max(0, cold.min_offset), high),
            cold_max=high,
            gaps=cold.gaps,
            logs=cold.logs,
            units=cold.units,
            time_entries=cold.time_entries,
            topic_id=cold.topic_id,
            is_deleted=cold.is_deleted,
        )
    if hot is not None:
        queue = replace(
            queue,
            hot_min=hot.min_offset,
            hot_max=hot.max_offset,
            hot_record_bytes=hot.record_bytes,
            hot_time_entries=tuple(hot.times),
            store=hot.place,
        )
    return queue
