"""ProviderMetrics: RocketMQ's metrics of a tier's back end, filled by `RetryingDriver`. Every try counts.

    rocketmq_tiered_store_provider_rpc_latency      histogram, milliseconds   operation, success, path, file_type
    rocketmq_tiered_store_provider_upload_bytes     histogram, bytes          operation=write, path, file_type
    rocketmq_tiered_store_provider_download_bytes   histogram, bytes          operation=read, path, file_type
    rocketmq_tiered_store_provider_failures_total   counter (ours)            operation, error, path, file_type

Every point also carries storage_type="tiered" and storage_medium ("blob" in RocketMQ). `path` is the logical path of
the queue, empty where a call concerns no queue. Bytes are counted when they were acknowledged, not when they were sent.
A refusal (conflict, sealed, missing) counts as a failed call, labelled by its `error`.
"""

from __future__ import annotations

from tiermq.errors import TierError
from tiermq.metrics import HistogramChild, Registry
from tiermq.tier.names import SegmentKey, SegmentType

PREFIX = "rocketmq_tiered_store_provider_"
LATENCY_MS = (1, 3, 5, 7, 10, 100, 200, 400, 600, 800, 1000, 1500, 3000)
SIZE_BYTES = (1 << 10, 10 << 10, 100 << 10, 1 << 20, 10 << 20, 32 << 20, 50 << 20, 100 << 20)
STORAGE_TYPE = "tiered"
_BASE = ("storage_type", "storage_medium")


class ProviderMetrics:
    """The metrics of one registry, shared by all drivers that report to it. Used from any thread.

    The series of successful calls are cached: a key query has three reads.
    """

    def __init__(self, registry: Registry, *, storage_medium: str = "blob") -> None:
        self.base = (STORAGE_TYPE, storage_medium)
        self._latencies: dict[tuple[str, tuple[str, str]], HistogramChild] = {}
        self._downloads: dict[tuple[str, tuple[str, str]], HistogramChild] = {}
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

    def answered(self, operation: str, key: SegmentKey | None, took_ms: float) -> None:
        labels = _labels(key)
        latency = self._latencies.get((operation, labels))
        if latency is None:
            latency = self.latency.labels(*self.base, operation, "true", *labels)
            self._latencies[operation, labels] = latency
        latency.observe(took_ms)

    def failed(self, operation: str, key: SegmentKey | None, took_ms: float, error: BaseException) -> None:
        labels = _labels(key)
        if isinstance(error, TierError):
            self.failures.labels(*self.base, operation, type(error).__name__, *labels).add()
        self.latency.labels(*self.base, operation, "false", *labels).observe(took_ms)

    def uploaded(self, operation: str, key: SegmentKey, size: int) -> None:
        self.upload.labels(*self.base, operation, *_labels(key)).observe(size)

    def downloaded(self, operation: str, key: SegmentKey, size: int) -> None:
        labels = _labels(key)
        download = self._downloads.get((operation, labels))
        if download is None:
            download = self._downloads[operation, labels] = self.download.labels(*self.base, operation, *labels)
        download.observe(size)


_FILE_TYPES = {kind: kind.name.lower() for kind in SegmentType}


def _labels(key: SegmentKey | None) -> tuple[str, str]:
    return ("", "object") if key is None else (key.logical_path, _FILE_TYPES[key.type])
