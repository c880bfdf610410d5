"""Store statistics: counts per topic, rates over 10, 60 and 600 seconds, put latency.

    count   every put adds to its topic's messages and bytes; every get to found, missed and transferred
    sample  once a second the totals are noted; a rate is the difference of two notes over the time between them
    latency coarse buckets for ever (the table that RocketMQ prints), fine buckets for the last one to two minutes

Invariants: totals never go down; a rate needs two samples and uses the oldest one that is not older than its window;
a percentile is interpolated linearly within its bucket, and is 0 when nothing was put.
Counting may be called from any thread; one lock guards it, held for a few additions.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import threading
from collections import deque
from typing import NamedTuple

from tiermq.clock import Clock, SystemClock
from tiermq.commitlog.commit_log import CommitLog
from tiermq.message.topic_name import QueueName
from tiermq.metrics import HistogramChild
from tiermq.store.reader import Reader

SAMPLES_KEPT = 601  # Ten minutes of seconds, and their start.
SAMPLE_INTERVAL_MS = 1_000
FINE_RESET_MS = 60_000
RATE_WINDOWS_SECONDS = (10, 60, 600)

# Upper ends, exclusive, except that the first bucket is for puts that took no measurable time.
COARSE_NAMES = (
    "<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s",
    "1~2s", "2~3s", "3~4s", "4~5s", "5~10s", "10s~",
)  # fmt: skip
_COARSE_ENDS_MS = (0, 10, 50, 100, 200, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000)
assert len(COARSE_NAMES) == len(_COARSE_ENDS_MS) + 1

# (width in ms, how many buckets of it): fine where puts are fast.
_FINE_STEPS = ((1, 20), (2, 15), (5, 10), (10, 10), (50, 6), (100, 5), (1_000, 9))
FINE_ENDS_MS = tuple(itertools.accumulate(width for width, count in _FINE_STEPS for _ in range(count)))
assert FINE_ENDS_MS[-1] == 10_000


@dataclasses.dataclass(slots=True)
class TopicCounts:
    """Totals of one topic since the store was opened."""

    put_messages: int = 0
    put_bytes: int = 0


class Sample(NamedTuple):
    """Totals at one moment."""

    at_ms: int
    put_messages: int
    get_found: int
    get_missed: int
    get_transferred: int


class StoreStatistics:
    """Counts, rates and latencies of one store. Any thread may count; one thread calls `sample` each second."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._topics: dict[str, TopicCounts] = {}
        self._put_messages = 0
        self._put_bytes = 0
        self._put_failures = 0
        self._get_found = 0
        self._get_missed = 0
        self._get_transferred = 0
        self._latency_ms_max = 0.0
        self.put_seconds: HistogramChild | None = None
        """Gets what `record_latency` gets, for watchers."""
        self._coarse = [0] * len(COARSE_NAMES)
        self._fine = [0] * (len(FINE_ENDS_MS) + 1)
        self._fine_before = list(self._fine)
        self._fine_since_ms = self._clock.now_ms()
        self._started_ms = self._fine_since_ms
        self._samples: deque[Sample] = deque([Sample(self._started_ms, 0, 0, 0, 0)], maxlen=SAMPLES_KEPT)

    def record_latency(self, latency_ms: float) -> None:
        """Count how long one put call took; a store may time only a sample of its puts."""
        coarse = bisect.bisect_right(_COARSE_ENDS_MS, latency_ms) if latency_ms > 0 else 0
        fine = bisect.bisect_right(FINE_ENDS_MS, latency_ms)
        with self._lock:
            self._coarse[coarse] += 1
            self._fine[fine] += 1
            if latency_ms > self._latency_ms_max:
                self._latency_ms_max = latency_ms
        if self.put_seconds is not None:
            self.put_seconds.observe(latency_ms / 1000)

    def add_puts(self, topic: str, size_bytes: int, messages: int) -> None:
        """Count messages that were put without timing each of them (bulk puts, a replica's copy)."""
        with self._lock:
            self._add(topic, size_bytes, messages)

    def _add(self, topic: str, size_bytes: int, messages: int) -> None:
        counts = self._topics.get(topic)
        if counts is None:
            counts = self._topics[topic] = TopicCounts()
        counts.put_messages += messages
        counts.put_bytes += size_bytes
        self._put_messages += messages
        self._put_bytes += size_bytes

    def record_put_failures(self, messages: int = 1) -> None:
        """Count messages that the log refused."""
        with self._lock:
            self._put_failures += messages

    @property
    def put_failures(self) -> int:
        """Messages that the log refused since the store was opened."""
        return self._put_failures

    def add_gets(self, found: int, missed: int, messages: int) -> None:
        """Count get calls that were counted elsewhere first."""
        with self._lock:
            self._get_found += found
            self._get_missed += missed
            self._get_transferred += messages

    def sample(self) -> bool:
        """Note the totals if a second has passed since the last note; returns whether it did."""
        now_ms = self._clock.now_ms()
        with self._lock:
            if now_ms - self._samples[-1].at_ms < SAMPLE_INTERVAL_MS:
                return False
            self._samples.append(
                Sample(now_ms, self._put_messages, self._get_found, self._get_missed, self._get_transferred)
            )
            if now_ms - self._fine_since_ms >= FINE_RESET_MS:
                self._fine_before, self._fine = self._fine, [0] * len(self._fine)
                self._fine_since_ms = now_ms
            return True

    def puts_per_second(self, window_seconds: int) -> float:
        return self._rate("put_messages", window_seconds)

    def gets_found_per_second(self, window_seconds: int) -> float:
        return self._rate("get_found", window_seconds)

    def gets_missed_per_second(self, window_seconds: int) -> float:
        return self._rate("get_missed", window_seconds)

    def messages_transferred_per_second(self, window_seconds: int) -> float:
        return self._rate("get_transferred", window_seconds)

    def _rate(self, field: str, window_seconds: int) -> float:
        with self._lock:
            last = self._samples[-1]
            oldest_ms = last.at_ms - window_seconds * 1_000
            first = next(sample for sample in self._samples if sample.at_ms >= oldest_ms)
        if first.at_ms == last.at_ms:
            return 0.0
        grown: int = getattr(last, field) - getattr(first, field)
        return grown * 1_000 / (last.at_ms - first.at_ms)

    def latency_percentile_ms(self, percentile: float) -> float:
        """The put latency that `percentile` per cent of the recent puts did not exceed."""
        if not 0 <= percentile <= 100:
            raise ValueError(f"a percentile is between 0 and 100, found {percentile}")
        with self._lock:
            counts = [now + before for now, before in zip(self._fine, self._fine_before, strict=True)]
            latency_ms_max = self._latency_ms_max
        rank = sum(counts) * percentile / 100
        below = 0
        for at, count in enumerate(counts):
            if count and below + count >= rank:
                start_ms = FINE_ENDS_MS[at - 1] if at else 0
                end_ms = FINE_ENDS_MS[at] if at < len(FINE_ENDS_MS) else max(latency_ms_max, start_ms)
                return start_ms + (end_ms - start_ms) * (rank - below) / count
            below += count
        return 0.0

    def topics(self) -> dict[str, TopicCounts]:
        """A copy of the totals of every topic that had a put."""
        with self._lock:
            return {topic: dataclasses.replace(counts) for topic, counts in self._topics.items()}

    def snapshot(self) -> dict[str, object]:
        """Everything above as plain values, for a status page or a `--json` answer."""
        with self._lock:
            coarse = dict(zip(COARSE_NAMES, self._coarse, strict=True))
            values: dict[str, object] = {
                "running_seconds": (self._clock.now_ms() - self._started_ms) / 1_000,
                "put_messages": self._put_messages,
                "put_bytes": self._put_bytes,
                "put_bytes_average": self._put_bytes / self._put_messages if self._put_messages else 0.0,
                "put_failures": self._put_failures,
                "get_found": self._get_found,
                "get_missed": self._get_missed,
                "get_transferred": self._get_transferred,
                "put_latency_ms_max": self._latency_ms_max,
            }
        values["put_latency_distribution"] = coarse
        values["put_latency_ms_p99"] = self.latency_percentile_ms(99)
        values["put_latency_ms_p999"] = self.latency_percentile_ms(99.9)
        for name, rate in (
            ("put_tps", self.puts_per_second),
            ("get_found_tps", self.gets_found_per_second),
            ("get_missed_tps", self.gets_missed_per_second),
            ("get_transferred_tps", self.messages_transferred_per_second),
        ):
            values[name] = {f"{window}s": rate(window) for window in RATE_WINDOWS_SECONDS}
        return values


class Counting:
    """Adds the appender's and the reader's counts to the statistics. Used by the housekeeping thread alone."""

    def __init__(self, log: CommitLog, reader: Reader, statistics: StoreStatistics) -> None:
        self._log = log
        self._reader = reader
        self._statistics = statistics
        self._puts: dict[QueueName, tuple[int, int]] = {}
        self._gets = (0, 0, 0)

    def take_over(self) -> None:
        for handle in self._log.appender.handles():
            name = (handle.topic, handle.queue_id)
            puts, stored_bytes = self._puts.get(name, (0, 0))
            if handle.puts > puts:
                self._statistics.add_puts(handle.topic, handle.stored_bytes - stored_bytes, handle.puts - puts)
            self._puts[name] = (handle.puts, handle.stored_bytes)
        reader = self._reader
        gets = (reader.found_count, reader.missed_count, reader.transferred_count)
        self._statistics.add_gets(*(now - before for now, before in zip(gets, self._gets, strict=True)))
        self._gets = gets
        self._statistics.sample()
