"""The messages of the tier's works: 4 topics x 4 queues, records of 373 bytes, one key each.

Names, keys and chance are those of `java/rocketmq/TierData.java`: both sides must do the very same work.
"""

from __future__ import annotations

import itertools
import logging
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import workload
from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.store.local_store import LocalStore
from tiermq.tier.tier_config import TierConfig

TOPICS = [f"bench-tier-{number:03d}" for number in range(4)]
QUEUES = 4
QUEUE_COUNT = len(TOPICS) * QUEUES
RECORD_BYTES = workload.RECORD_BYTES
assert len(TOPICS[0]) == len(workload.TOPICS[0])
LOG_FILE_BYTES = 64 << 20
QUEUE_FILE_BYTES = 6_000_000
BROKER, CLUSTER = "broker-a", "DefaultCluster"
ITEMS_PER_SLOT = 4  # As RocketMQ's 20,000,000 items and 5,000,000 slots.
_MASK = (1 << 64) - 1


def key_of(number: int) -> str:
    """The one key of the n-th message."""
    return f"{number * 0x9E3779B97F4A7C15 & _MASK:016x}"


def place_of(number: int) -> tuple[str, int]:
    """Topic and queue id of the n-th message: every queue in turn."""
    return TOPICS[number % len(TOPICS)], number // len(TOPICS) % QUEUES


class Chance:
    """A row of numbers that Java makes, too."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def below(self, limit: int) -> int:
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) & _MASK
        return (self._state >> 33) % limit


@dataclass(frozen=True, slots=True)
class Amount:
    """How much there is: the same number of messages in every queue, and an index file that has room for all keys."""

    messages: int

    @classmethod
    def of(cls, log_bytes: int) -> Amount:
        return cls(max(1, log_bytes // RECORD_BYTES // QUEUE_COUNT) * QUEUE_COUNT)

    @property
    def bytes(self) -> int:
        return self.messages * RECORD_BYTES

    @property
    def per_queue(self) -> int:
        return self.messages // QUEUE_COUNT

    @property
    def capacity(self) -> int:
        return self.messages + 2

    @property
    def slots(self) -> int:
        return max(1, self.messages // ITEMS_PER_SLOT)

    def parameters(self, store: Path, tier: Path) -> dict[str, object]:
        """What both sides prepare."""
        return {
            "store": store,
            "tier": tier,
            "log_bytes": LOG_FILE_BYTES,
            "queue_bytes": QUEUE_FILE_BYTES,
            "slots": self.slots,
            "capacity": self.capacity,
            "topics": len(TOPICS),
            "queues": QUEUES,
            "messages": self.messages,
            "bytes": self.bytes,
        }

    def chunks(self) -> Iterator[int]:
        """What an upload writes, in order: records, then their units, in batches of both sides' default settings."""
        config = TierConfig()
        most = min(config.tiered_store_group_commit_count, config.tiered_store_group_commit_size // RECORD_BYTES)
        for start in range(0, self.per_queue, most):
            count = min(most, self.per_queue - start)
            for _ in range(QUEUE_COUNT):
                yield count * RECORD_BYTES
                yield count * UNIT_BYTES


def local_settings() -> dict[str, Any]:
    """The local store below: what waits is in its log and queues; its own key index is no part of these works."""
    return {
        "mapped_file_size_commit_log": LOG_FILE_BYTES,
        "mapped_file_size_consume_queue": QUEUE_FILE_BYTES,
        "disk_max_used_space_ratio": 95,
    }


def fill_store(directory: Path, amount: Amount) -> None:
    """A local store with all messages, closed cleanly; RocketMQ opens it as its own."""
    logging.getLogger("tiermq").setLevel(logging.ERROR)
    bodies = workload.bodies(42, workload.POOL_COUNT)
    with LocalStore.open(directory, message_index_enable=False, **local_settings()) as store:
        puts = [store.queue(*place_of(number)).put for number in range(QUEUE_COUNT)]
        rows = zip(itertools.cycle(puts), itertools.cycle(bodies), range(amount.messages), strict=False)
        for put, body, number in rows:
            put(body, workload.encode_properties(key_of(number).encode()))
        store.dispatch_now()
        store.flush()


def two_stores(parent: Path, amount: Amount) -> tuple[Path, Path]:
    """The same local store twice, to the byte: one for each side."""
    ours, theirs = parent / "tiermq", parent / "rocketmq"
    fill_store(ours, amount)
    shutil.copytree(ours, theirs)
    return ours, theirs
