"""A broker whose past lies in a tier with a URL and in a store directory, so that other processes can read both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scenarios.broker_world import HOUR_MS, BrokerWorld
from tiermq.history.scan_values import ScanCounters
from tiermq.spark.option_table import Use
from tiermq.spark.options import SourceOptions
from tiermq.spark.source.batch_reader import TierMQReader, read_partition
from tiermq.tier.driver.tier_url import open_driver


class SourceWorld(BrokerWorld):
    """Call `bury` at the end."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.url = f"file://{path}/tier"
        super().__init__(path, open_driver(self.url), **settings)
        self.open()

    @property
    def both(self) -> dict[str, str]:
        """Options for hot and cold as one table."""
        return {"tier": self.url, "store": str(self.disk), "brokerName": "broker-a"}

    @property
    def cold(self) -> dict[str, str]:
        return {"tier": self.url}

    @property
    def hot(self) -> dict[str, str]:
        return {"store": str(self.disk)}

    def flush_to_tier(self) -> None:
        self.store.flush_to_tier()

    def upload_index(self) -> None:
        index = self.store.tier.index
        assert index is not None
        index.seal()
        while not index.run_once():
            continue

    def evict_all(self) -> None:
        """Let local files go that the tier has."""
        self.clock.advance_ms(73 * HOUR_MS)
        self.evict()

    def expire(self) -> None:
        """Let the tier forget what is older than its retention."""
        self.clock.advance_ms(73 * HOUR_MS)
        self.store.expire_now()

    def wanted(self, *queues: tuple[str, int]) -> list[tuple[str, int, int, bytes]]:
        """What was put, as rows in the order of queues."""
        return sorted(
            (topic, queue_id, each.offset, each.body)
            for (topic, queue_id), sent in self.sent.items()
            for each in sent
            if not queues or (topic, queue_id) in queues
        )


def rows_of(options: dict[str, str], **more: str) -> list[tuple[str, int, int, bytes]]:
    """What a batch read gives, without Spark: planned and read by the same calls that Spark makes."""
    reader = batch_reader({**options, **more, "columns": "topic,queueId,queueOffset,body"})
    return [
        tuple(row.values())
        for partition in reader.partitions()
        for batch in read_partition(partition, ScanCounters())
        for row in batch.to_pylist()
    ]


def batch_reader(options: dict[str, str]) -> TierMQReader:
    read = SourceOptions.of(options, Use.BATCH)
    return TierMQReader(read, read.column_names)
