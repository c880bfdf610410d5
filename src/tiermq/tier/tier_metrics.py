"""Metrics of reads from the tier, by RocketMQ's names.

    rocketmq_tiered_store_api_latency                  histogram, ms    operation, topic, group
    rocketmq_tiered_store_messages_out_total           counter          topic, group
    rocketmq_tiered_store_get_message_fallback_total   counter          operation, topic, group
    rocketmq_tiered_store_read_ahead_cache_count       gauge            windows in memory
    rocketmq_tiered_store_read_ahead_cache_bytes       gauge            their bytes, overhead included
    rocketmq_tiered_store_read_ahead_cache_access_total, …_hit_total    counters
    rocketmq_tiered_storage_size                       gauge, bytes     topic, file_type
    rocketmq_tiered_storage_message_reserve_time       gauge, ms        topic, queue_id

The last two are RocketMQ's `rocketmq_storage_size` and `rocketmq_storage_message_reserve_time` of the tier; the names
without `tiered` belong to the local store here, so that both can be seen at once.
Gauges are computed at each rendering.

`DispatchMetrics`: RocketMQ's metrics of the tier's dispatcher, with its labels, and ours. `dispatch_latency` is in
seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from tiermq.clock import Clock
from tiermq.metrics import Registry
from tiermq.tier.driver.provider_metrics import LATENCY_MS
from tiermq.tier.fetch.fetcher import FetchCounts
from tiermq.tier.fetch.window_cache import WindowCache
from tiermq.tier.flat.flat_file_store import FlatFileStore
from tiermq.tier.names import SegmentType

COMMON = {"storage_type": "tiered", "storage_medium": "blob"}
_LABELS = (*COMMON, "topic", "queue_id", "file_type")


class DispatchMetrics:
    """Made once per registry. The engine adds to counters; gauges are computed when they are rendered."""

    def __init__(self, registry: Registry) -> None:
        self._behind = registry.gauge(
            "rocketmq_tiered_store_dispatch_behind", "Messages of a queue that are not in the tier yet.", _LABELS
        )
        self._latency = registry.gauge(
            "rocketmq_tiered_store_dispatch_latency", "Age of the oldest message not in the tier, in seconds.", _LABELS
        )
        self._messages = registry.counter(
            "rocketmq_tiered_store_messages_dispatch_total", "Messages committed to the tier.", _LABELS
        )
        self._failures = registry.counter("tiermq_dispatch_failures_total", "Dispatch steps that failed.", ("kind",))
        self.bytes = registry.counter("tiermq_dispatch_bytes_total", "Bytes of records committed to the tier.").labels()
        self.gaps = registry.counter("tiermq_dispatch_gaps_total", "Gaps recorded in the tier.").labels()
        self.gap_messages = registry.counter(
            "tiermq_dispatch_gap_messages_total", "Messages that were gone before they could be copied."
        ).labels()
        self._proofs = registry.counter(
            "tiermq_tier_proven_bytes_total",
            "Bytes whose copy in the tier was proven before local files went, by the back end's checksum or read back.",
            ("how",),
        )
        self.proof_failures = registry.counter(
            "tiermq_tier_proof_failures_total", "Ranges of the tier that were not what had been sent."
        ).labels()
        self.tier_repairs = registry.counter(
            "tiermq_tier_proof_repairs_total", "Of those, ranges that were written again and are right now."
        ).labels()
        self._registry = registry

    def watch_queue(self, topic: str, queue_id: int, behind: Callable[[], float], age_s: Callable[[], float]) -> None:
        """Register the lag gauges of a queue."""
        self._behind.labels(*COMMON.values(), topic, queue_id, "consume_queue").set_function(behind)
        self._latency.labels(*COMMON.values(), topic, queue_id, "consume_queue").set_function(age_s)

    def watch_engine(self, figures: dict[str, tuple[str, Callable[[], float]]]) -> None:
        for name, (text, read) in figures.items():
            self._registry.gauge(name, text, function=read)

    def dispatched(self, topic: str, queue_id: int, messages: int, size: int) -> None:
        self._messages.labels(*COMMON.values(), topic, queue_id, "commit_log").add(messages)
        self.bytes.add(size)

    def proven(self, how: str, size: int) -> None:
        self._proofs.labels(how).add(size)

    def failed(self, kind: str) -> None:
        self._failures.labels(kind).add()

    def failures(self, kind: str) -> float:
        return self._failures.labels(kind).value


PREFIX = "rocketmq_tiered_store_"


class CountedFetcher(Protocol):
    """The fetcher's part that metrics read."""

    @property
    def cache(self) -> WindowCache: ...

    def counts(self) -> FetchCounts: ...


class TierMetrics:
    """Made once per registry. Any thread may count."""

    def __init__(self, registry: Registry, files: FlatFileStore, clock: Clock) -> None:
        labels = (*COMMON, "operation", "topic", "group")
        self._latency = registry.histogram(
            PREFIX + "api_latency", "How long calls to the tier took, in milliseconds.", labels, LATENCY_MS
        )
        self._out = registry.counter(
            PREFIX + "messages_out_total", "Messages served from the tier.", (*COMMON, "topic", "group")
        )
        self._fallback = registry.counter(
            PREFIX + "get_message_fallback_total", "Gets that the local store answered instead of the tier.", labels
        )
        self._size = registry.gauge(
            "rocketmq_tiered_storage_size", "Bytes of a topic in the tier.", (*COMMON, "topic", "file_type")
        )
        self._reserve = registry.gauge(
            "rocketmq_tiered_storage_message_reserve_time",
            "Age of the oldest message of a queue in the tier, in milliseconds.",
            (*COMMON, "topic", "queue_id"),
        )
        self._registry = registry
        self._files = files
        self._clock = clock
        registry.add_collector(self._collect)

    def watch_fetcher(self, fetcher: CountedFetcher) -> None:
        """Add the metrics of the window cache."""
        gauge, counter, cache = self._registry.gauge, self._registry.counter, fetcher.cache
        gauge(PREFIX + "read_ahead_cache_count", "Windows in memory.", function=lambda: cache.count)
        gauge(PREFIX + "read_ahead_cache_bytes", "Bytes of windows in memory.", function=lambda: cache.bytes)
        name = PREFIX + "read_ahead_cache_"
        counter(name + "access_total", "Gets that needed a window.", function=lambda: _accesses(fetcher.counts()))
        counter(name + "hit_total", "Gets whose window was there.", function=lambda: fetcher.counts().hit_count)
        counter("tiermq_tier_served_bytes_total", "Bytes served.", function=lambda: fetcher.counts().served_bytes)
        counter("tiermq_tier_fetched_bytes_total", "Bytes fetched.", function=lambda: fetcher.counts().fetched_bytes)
        counter("tiermq_tier_corrupt_total", "Damaged messages met.", function=lambda: fetcher.counts().corrupt_count)

    @contextmanager
    def timed(self, operation: str, topic: str, group: str = "") -> Iterator[None]:
        """Time one call to the tier."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.took(operation, topic, group, time.perf_counter() - started)

    def took(self, operation: str, topic: str, group: str, seconds: float) -> None:
        """One call to the tier that its caller timed."""
        self._latency.labels(*COMMON.values(), operation, topic, group).observe(seconds * 1000)

    def served(self, topic: str, group: str, messages: int) -> None:
        if messages:
            self._out.labels(*COMMON.values(), topic, group).add(messages)

    def fell_back(self, operation: str, topic: str, group: str = "") -> None:
        self._fallback.labels(*COMMON.values(), operation, topic, group).add()

    def _collect(self) -> None:
        """Update the gauges of topics and queues before a rendering."""
        metadata = self._files.metadata
        for topic in metadata.topics():
            for kind in (SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE):
                size = metadata.size_of_topic(topic.name, kind)
                self._size.labels(*COMMON.values(), topic.name, kind.name.lower()).set(size)
        now_ms = self._clock.now_ms()
        for file in self._files:
            begin_ms = file.begin_ms
            age_ms = max(0, now_ms - begin_ms) if begin_ms >= 0 else 0
            self._reserve.labels(*COMMON.values(), *file.queue.name).set(age_ms)


def _accesses(counts: FetchCounts) -> int:
    return counts.hit_count + counts.miss_count
