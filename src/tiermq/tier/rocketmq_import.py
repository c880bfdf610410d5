"""Take over a tier that RocketMQ wrote: its metadata file says what is meant, the tier says what is there.

From `tieredStoreMetadata.json`: topics with their ids and reserve times, and which id comes next. From the tier, as a
restore reads it: which segments there are, how long they are, which messages they hold and when those were stored;
RocketMQ's file does not say the one and is often behind with the other. Whatever the two disagree about is remarked.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from tiermq.clock import Clock
from tiermq.errors import TierError
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import Segment, SegmentStatus
from tiermq.tier.metadata.restore import restore
from tiermq.tier.metadata.restore_report import Finding, Remark, RestoreProgress
from tiermq.tier.metadata.rocketmq_json import RocketMQMetadata, decode_rocketmq_json
from tiermq.tier.names import INDEX_TOPIC, QueueKey, SegmentKey

_EXPECTED = frozenset({Finding.MISSING_MANIFEST, Finding.TOPIC_ID_ASSIGNED, Finding.UNKNOWN_TOPIC_IN_INDEX})
"""What a restore remarks upon and what is no wonder here: RocketMQ writes no manifests, and ids come from its file."""


@dataclass(slots=True)
class ImportReport:
    """What was taken over, and what is odd about it."""

    cluster: str
    broker: str
    topic_count: int = 0
    queue_count: int = 0
    segment_count: int = 0
    message_count: int = 0
    size_bytes: int = 0
    remarks: list[Remark] = field(default_factory=list)
    not_in_tier: list[str] = field(default_factory=list)
    not_in_file: list[str] = field(default_factory=list)
    index_file_count: int = 0

    @property
    def index_note(self) -> str:
        """What to expect of RocketMQ's key index; empty when there is none."""
        if not self.index_file_count:
            return ""
        return (
            f"{self.index_file_count} index files are RocketMQ's, which drops keys when one is full: queries by key "
            "say `complete=False` until `TieredStore.reindex()` has read those messages again"
        )


def import_rocketmq(
    driver: TierDriver,
    store: MetadataStore,
    data: bytes,
    *,
    cluster: str,
    broker: str | None = None,
    name: str = "tieredStoreMetadata.json",
    clock: Clock | None = None,
    progress: Callable[[RestoreProgress], None] | None = None,
) -> ImportReport:
    """Fill an empty store from RocketMQ's metadata file and the tier; all of it or nothing. The tier is only read.

    Raises StoreDamaged for a file that is none, TierError when the store is not empty or the broker is not certain,
    and what the driver raises.
    """
    if not store.is_empty():
        raise TierError(f"{store.path}: expected empty metadata to import {name} into, found some; give a new file")
    told = decode_rocketmq_json(data, cluster, name)
    broker = broker or _one_broker(told, name)
    with (
        tempfile.TemporaryDirectory(prefix="tiermq-import-") as directory,
        MetadataStore(Path(directory) / "found.db", clock=clock) as found,
    ):
        restored = restore(driver, found, progress, cluster=cluster, broker=broker, clock=clock)
        report = ImportReport(cluster, broker)
        report.remarks += [remark for remark in restored.remarks if remark.finding not in _EXPECTED]
        _fill(store, told, found, report)
    return report


def _one_broker(told: RocketMQMetadata, name: str) -> str:
    brokers = sorted({segment.key.broker for segment in told.segments} | {queue.key.broker for queue in told.queues})
    if len(brokers) != 1:
        raise TierError(f"{name}: expected the metadata of one broker, found {brokers or 'none'}; say which one")
    return brokers[0]


def _fill(store: MetadataStore, told: RocketMQMetadata, found: MetadataStore, report: ImportReport) -> None:
    by_key = {segment.key: segment for segment in told.segments}
    segments = found.all_segments()
    with store.transaction():
        for topic in told.topics:
            store.put_topic(topic)
        store.raise_topic_serial_number(told.topic_serial_number)
        for queue in found.queues():
            store.add_topic(queue.key.topic)  # One that only the tier knows gets the next id.
            store.put_queue(queue)
            store.add_time_entries(queue.key, found.time_entries(queue.key))
            for gap in found.gaps(queue.key):
                store.add_gap(queue.key, gap)
        for queue in told.queues:
            if queue.key.broker == report.broker and store.queue(queue.key) is None:
                store.put_queue(queue)
        for segment in segments:
            store.put_segment(_completed(segment, by_key.get(segment.key)))
        _keep_places(store, told, report.broker)
    _sum_up(store, segments, by_key, report)


def _completed(segment: Segment, row: Segment | None) -> Segment:
    """What the tier shows, and what only the file knows: when the segment was begun."""
    return segment if row is None else replace(segment, created_ms=row.created_ms)


def _keep_places(store: MetadataStore, told: RocketMQMetadata, broker: str) -> None:
    """A queue that got no message yet has segments without bytes: they say where its first message goes."""
    filled: set[QueueKey] = {segment.key.queue for segment in store.all_segments()}
    for row in told.segments:
        is_here = row.key.broker == broker and row.key.topic != INDEX_TOPIC
        if row.size == 0 and is_here and row.key.queue not in filled and row.status is not SegmentStatus.DELETED:
            store.put_segment(row)


def _sum_up(
    store: MetadataStore, segments: list[Segment], by_key: dict[SegmentKey, Segment], report: ImportReport
) -> None:
    there = {segment.key for segment in segments}
    report.not_in_tier = [row.key.path for row in by_key.values() if row.size and row.key not in there]
    report.not_in_file = [segment.key.path for segment in segments if segment.key not in by_key]
    report.topic_count = len(store.topics())
    report.queue_count = len(store.queues())
    report.segment_count = len(segments)
    report.index_file_count = sum(segment.key.topic == INDEX_TOPIC for segment in segments)
    report.size_bytes = sum(segment.size for segment in segments)
    report.message_count = sum(max(0, queue.max_offset - queue.min_offset) for queue in store.queues())
