"""A manifest taken from the metadata."""

from __future__ import annotations

from dataclasses import replace

from tier.metadata.metadata_samples import QUEUE, index_key, log_key, units_key
from tier.metadata.tier_samples import TierQueue
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.metadata.database import IN_MEMORY
from tiermq.tier.metadata.manifest_store import snapshot_manifest, take_manifest
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import Gap, SegmentStatus


def test_a_snapshot_has_everything_of_the_queue_and_of_its_topic(store: MetadataStore) -> None:
    store.add_topic("other")
    store.add_topic("orders", 48, 1 << 40)
    TierQueue(MemoryDriver(), QUEUE, store).begin(100).put(b"a", b"b").roll_log().put(b"c")
    store.add_gap(QUEUE, Gap(1, 2, "why", 3))
    store.update_queue(QUEUE, epoch=5)
    manifest = snapshot_manifest(store, QUEUE)
    assert (manifest.topic_id, manifest.topic_serial_number) == (1, 1)
    assert (manifest.reserve_time_hours, manifest.max_bytes, manifest.epoch) == (48, 1 << 40, 5)
    assert (manifest.min_offset, manifest.max_offset) == (100, 103)
    assert list(manifest.segments) == store.segments(QUEUE)
    assert list(manifest.time_index) == store.time_entries(QUEUE)
    assert manifest.gaps == (Gap(1, 2, "why", 3),)


def test_segments_that_are_being_deleted_are_marked(store: MetadataStore) -> None:
    TierQueue(MemoryDriver(), QUEUE, store).begin(0).put(b"a")
    store.mark_deleted(log_key(0))
    statuses = {segment.key: segment.status for segment in snapshot_manifest(store, QUEUE).segments}
    assert statuses == {log_key(0): SegmentStatus.DELETED, units_key(0): SegmentStatus.NEW}


def test_metadata_that_take_a_manifest_have_all_of_it_and_nothing_else_of_the_queue(store: MetadataStore) -> None:
    store.add_topic("orders", 48, 1 << 40)
    queue = TierQueue(MemoryDriver(), QUEUE, store).begin(100).put(b"a", b"b").roll_log().put(b"c")
    store.add_gap(QUEUE, Gap(1, 2, "why", 3))
    store.update_queue(QUEUE, epoch=5)
    before = snapshot_manifest(store, QUEUE)
    queue.roll_log().put(b"d")
    after = snapshot_manifest(store, QUEUE)
    with MetadataStore(IN_MEMORY) as other:
        other.add_topic("never named in the tier")
        for manifest in (before, after, before):
            take_manifest(other, manifest)
            assert replace(snapshot_manifest(other, QUEUE), topic_serial_number=0) == replace(
                manifest, topic_serial_number=0
            )
        assert {topic.name: topic.id for topic in other.topics()} == {"orders": 0, "never named in the tier": 1}


def test_the_index_has_a_manifest_of_its_segments(store: MetadataStore) -> None:
    store.add_segment(index_key(0))
    manifest = snapshot_manifest(store, index_key(0).queue)
    assert (manifest.topic_id, manifest.min_offset, len(manifest.segments)) == (-1, -1, 1)
