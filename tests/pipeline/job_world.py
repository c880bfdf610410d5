"""A broker's tier for the tests of jobs: in a directory, so that executors can open it too, or where a test says."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tier.tier_world import BROKER, CLUSTER, TierWorld
from tiermq import Message
from tiermq.pipeline import worker_cache
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.manifest_store import ManifestStore
from tiermq.tier.names import QueueKey, SegmentType, index_queue
from tiermq.tier.tiered_store import TieredStore

QUEUE = QueueKey(CLUSTER, BROKER, "orders", 0)
INDEX = index_queue(CLUSTER, BROKER)
LOG, UNITS = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE


class JobWorld:
    """`tier` is the URL, `store` a directory whose metadata are the world's: the broker that wrote it is stopped."""

    def __init__(
        self, path: Path, driver: TierDriver | None = None, *, log_bytes: int = 1600, unit_bytes: int = 200
    ) -> None:
        """With a driver of its own the tier is wherever that one has it, and jobs of this process find it there."""
        self.path = path
        self.root = path / "tier"
        self.tier = self.root.as_uri()
        self.driver: TierDriver = driver or open_driver(self.tier)
        if driver is not None:
            self.use(driver)
        (path / "world").mkdir()
        self.world = TierWorld(path / "world", self.driver, log_bytes=log_bytes, unit_bytes=unit_bytes)

    @classmethod
    def filled(cls, path: Path, **sizes: Any) -> JobWorld:
        """Two topics over several segments, all in manifests, and two index files with every key."""
        made = cls(path, **sizes)
        for _ in range(3):
            made.world.clock.advance_ms(1_000)
            made.world.write(10)
        made.world.write(5, "payments", 2)
        made.world.put_index()
        made.world.put_manifests()
        return made

    @property
    def store(self) -> str:
        """The store directory of the broker, as --store takes it."""
        config = self.path / "store" / "config"
        for name in ("config", "commitlog", "consumequeue"):
            (config.parent / name).mkdir(parents=True, exist_ok=True)
        target = config / "tieredStoreMetadata.db"
        if not target.exists():
            self.world.metadata.close()
            shutil.copy(self.path / "world" / "tier.db", target)
            self.world.reopen()
        return f"{self.path / 'store'}={CLUSTER}/{BROKER}"

    def use(self, driver: TierDriver) -> None:
        """Let jobs of this process go through another driver: one that fails, counts or dies."""
        worker_cache._drivers[self.tier] = driver

    def close(self) -> None:
        worker_cache._drivers.pop(self.tier, None)
        self.world.close()

    def damage(self, kind: SegmentType = LOG, number: int = 0, at: int = 60) -> Path:
        """Change one byte of a segment."""
        path = self.root / self.world.segments(kind)[number].key.path
        data = bytearray(path.read_bytes())
        data[at] ^= 0xFF
        path.write_bytes(data)
        return path

    def manifest(self, queue: QueueKey = QUEUE) -> Any:
        return ManifestStore(self.driver, "a test").read(queue)

    def index_bases(self) -> list[int]:
        return sorted(info.key.base for info in self.driver.list_segments() if info.key.type is SegmentType.INDEX)


HOT_SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 4_000,
    "max_hash_slot_num": 64,
    "max_index_num": 20_000,
}
"""File sizes of the store of `tiered`; the settings of a test that opens it again."""


def tiered(path: Path, count: int = 60, broker: str = BROKER) -> tuple[str, str]:
    """A real store with messages of two topics, all in a tier, closed: (tier, store). Brokers of a path share it."""
    settings = HOT_SIZES | {"tiered_store_commit_log_max_size": 4_000, "tiered_store_consume_queue_max_size": 400}
    settings |= {"tiered_store_index_file_max_hash_slot_num": 50, "tiered_store_index_file_max_index_num": 2_000}
    tier = (path / "cold").as_uri()
    names: dict[str, Any] = {"broker_name": broker, "broker_cluster_name": CLUSTER}
    directory = path / ("hot" if broker == BROKER else f"hot-{broker}")
    with TieredStore.open(directory, tier=tier, background=False, **settings, **names) as store:
        for number in range(count):
            topic = "orders" if number % 3 else "payments"
            store.put(Message(topic, b"body %d" % number, 0, keys=[f"key-{number}"]))
        assert store.flush_to_tier()
    return tier, f"{directory}={CLUSTER}/{broker}"
