"""The manifest of a queue as the metadata on disk has it now. Pure reading; who writes it stamps epoch and writer."""

from __future__ import annotations

from tiermq.tier.metadata.manifest import QueueManifest
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import Queue, Topic
from tiermq.tier.names import QueueKey


def snapshot_manifest(store: MetadataStore, key: QueueKey) -> QueueManifest:
    """All that a restore needs of the queue, read in one transaction.

    Segments whose deletion is under way are in it with that mark, so that a restore does not take them for living.
    The index has no topic and no offsets; its manifest is its segments.
    """
    with store.transaction():
        queue = store.queue(key) or Queue(key)
        topic = store.topic(key.topic) or Topic(-1, key.topic)
        segments = store.segments(key) + [row for row in store.segments_being_deleted() if row.key.queue == key]
        return QueueManifest(
            key=key,
            epoch=queue.epoch,
            topic_id=topic.id,
            topic_serial_number=store.topic_serial_number(),
            topic_status=topic.status,
            reserve_time_hours=topic.reserve_time_hours,
            max_bytes=topic.max_bytes,
            min_offset=queue.min_offset,
            max_offset=queue.max_offset,
            segments=tuple(sorted(segments, key=lambda segment: segment.key)),
            time_index=tuple(store.time_entries(key)),
            gaps=tuple(store.gaps(key)),
        )
