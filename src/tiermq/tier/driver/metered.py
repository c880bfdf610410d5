"""MeteredDriver: RocketMQ's provider metrics, told truthfully, around any driver. Every try counts.

    rocketmq_tiered_store_provider_rpc_latency      histogram, milliseconds   operation, success, path, file_type
    rocketmq_tiered_store_provider_upload_bytes     histogram, bytes          operation=write, path, file_type
    rocketmq_tiered_store_provider_download_bytes   histogram, bytes          operation=read, path, file_type
    rocketmq_tiered_store_provider_failures_total   counter (ours)            operation, error, path, file_type

Every point also carries storage_type="tiered" and storage_medium (RocketMQ says "blob"). `path` is the logical path of
the queue, empty where a call concerns no queue. Bytes are counted when they were acknowledged, not when they were sent.
A refusal (conflict, sealed, missing) is an answer, so its call counts as one that failed and is told by its `error`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from tiermq.clock import Clock, SystemClock
from tiermq.errors import TierError
from tiermq.metrics import HistogramChild, Registry
from tiermq.tier.driver.contract import ANY, Buffer, Expected, SegmentInfo, StoredObject, TierDriver
from tiermq.tier.names import SegmentKey, SegmentType

PREFIX = "rocketmq_tiered_store_provider_"
LATENCY_MS = (1, 3, 5, 7, 10, 100, 200, 400, 600, 800, 1000, 1500, 3000)
SIZE_BYTES = (1 << 10, 10 << 10, 100 << 10, 1 << 20, 10 << 20, 32 << 20, 50 << 20, 100 << 20)
STORAGE_TYPE = "tiered"
_BASE = ("storage_type", "storage_medium")

Result = TypeVar("Result")


class ProviderMetrics:
    """The metrics themselves: one of these for a registry, shared by all drivers that report to it."""

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


class MeteredDriver:
    """Used from any thread."""

    def __init__(self, inner: TierDriver, metrics: ProviderMetrics, *, clock: Clock | None = None) -> None:
        self.inner = inner
        self._metrics = metrics
        self._clock = clock or SystemClock()
        self._reads: dict[tuple[str, str], tuple[HistogramChild, HistogramChild]] = {}

    @property
    def url(self) -> str:
        return self.inner.url

    def _call(self, operation: str, key: SegmentKey | None, call: Callable[[], Result]) -> Result:
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
        is_confirmed = self._call("write", key, lambda: self.inner.write(key, position, data))
        size = sum(memoryview(buffer).nbytes for buffer in data)
        self._metrics.upload.labels(*self._metrics.base, "write", *_labels(key)).observe(size)
        return is_confirmed

    def read(self, key: SegmentKey, position: int, length: int) -> memoryview:
        # What `_call` does, with the metrics of a read that is answered at hand: a key query has three reads.
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
        data = self._call("reread", key, lambda: self.inner.reread(key, position, length))
        self._metrics.download.labels(*self._metrics.base, "reread", *_labels(key)).observe(len(data))
        return data

    def rewrite(self, key: SegmentKey, position: int, data: Buffer) -> None:
        self._call("rewrite", key, lambda: self.inner.rewrite(key, position, data))
        self._metrics.upload.labels(*self._metrics.base, "rewrite", *_labels(key)).observe(len(data))

    def size(self, key: SegmentKey) -> int:
        return self._call("size", key, lambda: self.inner.size(key))

    def trim(self, key: SegmentKey, size: int) -> None:
        self._call("trim", key, lambda: self.inner.trim(key, size))

    def seal(self, key: SegmentKey, *, crc32: int | None = None) -> None:
        self._call("seal", key, lambda: self.inner.seal(key, crc32=crc32))

    def is_sealed(self, key: SegmentKey) -> bool:
        return self._call("is_sealed", key, lambda: self.inner.is_sealed(key))

    def delete(self, key: SegmentKey) -> None:
        self._call("delete", key, lambda: self.inner.delete(key))

    def replace(self, key: SegmentKey, pieces: Iterable[Buffer], aside: str) -> str | None:
        return self._call("replace", key, lambda: self.inner.replace(key, pieces, aside))

    def list_segments(self, prefix: str = "") -> Iterator[SegmentInfo]:
        return iter(self._call("list_segments", None, lambda: list(self.inner.list_segments(prefix))))

    def get_object(self, name: str) -> StoredObject | None:
        return self._call("get_object", None, lambda: self.inner.get_object(name))

    def put_object(self, name: str, data: bytes, *, expected: Expected = ANY) -> str:
        return self._call("put_object", None, lambda: self.inner.put_object(name, data, expected=expected))

    def delete_object(self, name: str) -> None:
        self._call("delete_object", None, lambda: self.inner.delete_object(name))

    def list_objects(self, prefix: str = "") -> list[str]:
        return self._call("list_objects", None, lambda: self.inner.list_objects(prefix))

    def close(self) -> None:
        self.inner.close()


_FILE_TYPES = {kind: kind.name.lower() for kind in SegmentType}


def _labels(key: SegmentKey) -> tuple[str, str]:
    return key.logical_path, _FILE_TYPES[key.type]
