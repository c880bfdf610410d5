"""MeteredDriver: RocketMQ's provider metrics around any driver. Every try counts.

    rocketmq_tiered_store_provider_rpc_latency      histogram, milliseconds   operation, success, path, file_type
    rocketmq_tiered_store_provider_upload_bytes     histogram, bytes          operation=write, path, file_type
    rocketmq_tiered_store_provider_download_bytes   histogram, bytes          operation=read, path, file_type
    rocketmq_tiered_store_provider_failures_total   counter (ours)            operation, error, path, file_type

Every point also carries storage_type="tiered" and storage_medium ("blob" in RocketMQ). `path` is the logical path of
the queue, empty where a call concerns no queue. Bytes are counted when they were acknowledged, not when they were sent.
A refusal (conflict, sealed, missing) counts as a failed call, labelled by its `error`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tiermq.clock import Clock, SystemClock
from tiermq.errors import TierError
from tiermq.metrics import HistogramChild, Registry
from tiermq.tier.driver.contract import Buffer, ForwardingDriver, TierDriver
from tiermq.tier.names import SegmentKey, SegmentType

PREFIX = "rocketmq_tiered_store_provider_"
LATENCY_MS = (1, 3, 5, 7, 10, 100, 200, 400, 600, 800, 1000, 1500, 3000)
SIZE_BYTES = (1 << 10, 10 << 10, 100 << 10, 1 << 20, 10 << 20, 32 << 20, 50 << 20, 100 << 20)
STORAGE_TYPE = "tiered"
_BASE = ("storage_type", "storage_medium")

Result = TypeVar("Result")


class ProviderMetrics:
    """The metrics of one registry, shared by all drivers that report to it."""

    def __init__(self, registry: Registry, *, storage_medium: str = "blob") -> None:
        self.base = (STORAGE_TYPE, storage_medium)
        self.latency = registry.histogram(
            PREFIX + "rpc_latency",
            "Milliseconds that a call to the tier's back end took.",
            (*_BASE, "operation", "success", "path", "file_type"),
            LATENCY_MS,
        )
        self.upload = registry.histogram(
            PREFIX + "upload_bytes",
            "Bytes of each acknowledged write.",
            (*_BASE, "operation", "path", "file_type"),
            SIZE_BYTES,
        )
        self.download = registry.histogram(
            PREFIX + "download_bytes",
            "Bytes of each read that was answered.",
            (*_BASE, "operation", "path", "file_type"),
            SIZE_BYTES,
        )
        self.failures = registry.counter(
            PREFIX + "failures_total",
            "Calls to the tier's back end that did not succeed, by error.",
            (*_BASE, "operation", "error", "path", "file_type"),
        )


class MeteredDriver(ForwardingDriver):
    """Used from any thread."""

    def __init__(self, inner: TierDriver, metrics: ProviderMetrics, *, clock: Clock | None = None) -> None:
        super().__init__(inner)
        self._metrics = metrics
        self._clock = clock or SystemClock()
        self._reads: dict[tuple[str, str], tuple[HistogramChild, HistogramChild]] = {}

    def forward(self, operation: str, key: SegmentKey | None, call: Callable[[], Result]) -> Result:
        labels = ("", "object") if key is None else _labels(key)
        began_s = self._clock.monotonic()
        try:
            result = call()
        except BaseException as error:
            self._tell_failure(operation, labels, began_s, error)
            raise
        took_ms = (self._clock.monotonic() - began_s) * 1000
        self._metrics.latency.labels(*self._metrics.base, operation, "true", *labels).observe(took_ms)
        return result

    def _tell_failure(self, operation: str, labels: tuple[str, str], began_s: float, error: BaseException) -> None:
        base, took_ms = self._metrics.base, (self._clock.monotonic() - began_s) * 1000
        if isinstance(error, TierError):
            self._metrics.failures.labels(*base, operation, type(error).__name__, *labels).add()
        self._metrics.latency.labels(*base, operation, "false", *labels).observe(took_ms)

    def write(self, key: SegmentKey, position: int, data: Sequence[Buffer]) -> bool:
        is_confirmed = super().write(key, position, data)
        size = sum(memoryview(buffer).nbytes for buffer in data)
        self._metrics.upload.labels(*self._metrics.base, "write", *_labels(key)).observe(size)
        return is_confirmed

    def read(self, key: SegmentKey, position: int, length: int) -> memoryview:
        # As `forward`, with the metrics of a successful read cached: a key query has three reads.
        labels = _labels(key)
        meters = self._reads.get(labels)
        if meters is None:
            base = self._metrics.base
            latency = self._metrics.latency.labels(*base, "read", "true", *labels)
            meters = self._reads[labels] = latency, self._metrics.download.labels(*base, "read", *labels)
        latency, download = meters
        began_s = self._clock.monotonic()
        try:
            data = self.inner.read(key, position, length)
        except BaseException as error:
            self._tell_failure("read", labels, began_s, error)
            raise
        latency.observe((self._clock.monotonic() - began_s) * 1000)
        download.observe(len(data))
        return data

    def reread(self, key: SegmentKey, position: int, length: int) -> memoryview:
        data = super().reread(key, position, length)
        self._metrics.download.labels(*self._metrics.base, "reread", *_labels(key)).observe(len(data))
        return data

    def rewrite(self, key: SegmentKey, position: int, data: Buffer) -> None:
        super().rewrite(key, position, data)
        self._metrics.upload.labels(*self._metrics.base, "rewrite", *_labels(key)).observe(len(data))


_FILE_TYPES = {kind: kind.name.lower() for kind in SegmentType}


def _labels(key: SegmentKey) -> tuple[str, str]:
    return key.logical_path, _FILE_TYPES[key.type]
