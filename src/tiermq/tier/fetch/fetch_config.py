"""FetchConfig and FetchCounts: what the fetcher is told, and what it has counted."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class FetchConfig:
    """RocketMQ's read-ahead settings and transfer limits.

    readAheadCacheEnable, readAheadCacheExpireDuration, readAheadMessageCountThreshold, readAheadMessageSizeThreshold,
    and the local store's maxTransferBytesOnMessageInMemory and maxTransferCountOnMessageInMemory. The cache's size is
    in bytes: a share of a heap means nothing here.
    """

    cache_enable: bool = True
    cache_bytes: int = 256 * 1024 * 1024
    cache_expire_ms: int = 15_000
    message_count_threshold: int = 4_096
    message_size_threshold: int = 16_777_216
    transfer_bytes: int = 262_144
    transfer_count: int = 32


class ServedCounts(Protocol):
    """What is counted where it happens, for each reader."""

    hit_count: int
    miss_count: int
    served_count: int
    served_bytes: int


@dataclass(slots=True)
class FetchCounts:
    """Totals since the start. A hit is a window found in memory, a miss one that somebody had to wait for.

    Bytes are those of records.
    """

    hit_count: int = 0
    miss_count: int = 0
    served_count: int = 0
    served_bytes: int = 0
    fetch_count: int = 0
    fetched_bytes: int = 0
    corrupt_count: int = 0

    def add(self, served: ServedCounts) -> None:
        self.hit_count += served.hit_count
        self.miss_count += served.miss_count
        self.served_count += served.served_count
        self.served_bytes += served.served_bytes

    def as_dict(self) -> dict[str, int]:
        return asdict(self)
