"""A broker of small segments with its retention, and a spy in the place of its index."""

from __future__ import annotations

from pathlib import Path

from tier.tier_world import HOUR_MS, RECORD_BYTES, TierWorld
from tiermq.tier.metadata.manifest import ManifestCause
from tiermq.tier.retention.retention import Retention
from tiermq.tier.tier_config import TierConfig


class IndexSpy:
    """Stands for the index: how often it was asked to expire, and which queues it was asked to forget."""

    def __init__(self) -> None:
        self.expired = 0
        self.forgotten: list[tuple[str, int]] = []

    def expire(self) -> int:
        self.expired += 1
        return 2

    def forget_queue(self, topic: str, queue_id: int) -> None:
        self.forgotten.append((topic, queue_id))


class Broker:
    """A world of small segments (four messages of log, five units) with its retention."""

    def __init__(self, path: Path, **settings: object) -> None:
        self.world = TierWorld(path, log_bytes=4 * RECORD_BYTES, unit_bytes=100)
        self.settings = settings
        self.reported: list[tuple[str, ManifestCause]] = []
        self.index = IndexSpy()
        self.make()

    def make(self) -> None:
        self.retention = Retention(
            self.world.files,
            self.world.metadata,
            self.world.driver,
            self.index,
            TierConfig(**{"tiered_store_file_reserved_time": 72, **self.settings}),  # type: ignore[arg-type]
            self.world.clock,
            on_changed=lambda key, cause: self.reported.append((key.logical_path, cause)),
        )

    def later(self, hours: float) -> None:
        self.world.clock.advance_ms(int(hours * HOUR_MS))
