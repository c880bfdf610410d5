"""Segments: their life from the first byte to the deletion that a crash must not confuse."""

from __future__ import annotations

import pytest

from simulation.manual_clock import ManualClock
from tier.metadata.metadata_samples import OTHER_QUEUE, QUEUE, index_key, log_key, units_key
from tiermq.errors import IllegalTransition, SegmentConflict, SegmentMissing
from tiermq.tier.metadata.metadata_store import MetadataStore, SegmentSize
from tiermq.tier.metadata.metadata_values import NEVER_MS, Segment, SegmentStatus
from tiermq.tier.names import QueueKey, SegmentType


def test_a_new_segment_is_empty_and_has_no_times(store: MetadataStore, manual_clock: ManualClock) -> None:
    segment = store.add_segment(log_key(0))
    assert segment == Segment(log_key(0), 0, SegmentStatus.NEW, manual_clock.now_ms(), NEVER_MS, NEVER_MS)
    assert store.segment(log_key(0)) == segment
    manual_clock.advance_ms(1)
    assert store.add_segment(log_key(0)) == segment  # Adding it again changes nothing.


def test_a_commit_is_kept_with_size_times_checksum_and_offsets(store: MetadataStore) -> None:
    store.add_segment(log_key(0))
    store.update_size(log_key(0), 4096, 100, 200, 0xFFFFFFFF, begin_offset=6, end_offset=10)
    store.update_size(log_key(0), 5000, 100, 250, 0x1234, end_offset=12)  # The beginning stays what it was.
    segment = store.segment(log_key(0))
    assert segment is not None
    assert (segment.size, segment.begin_ms, segment.end_ms, segment.crc32) == (5000, 100, 250, 0x1234)
    assert (segment.begin_offset, segment.end_offset) == (6, 12)


def test_a_commit_to_a_segment_that_was_not_announced_is_refused(store: MetadataStore) -> None:
    with pytest.raises(SegmentMissing, match=log_key(0).path):
        store.update_size(log_key(0), 1, 1, 1)


def test_sealing_marks_status_and_time_once(store: MetadataStore, manual_clock: ManualClock) -> None:
    store.add_segment(log_key(0))
    sealed = store.seal_segment(log_key(0))
    assert (sealed.status, sealed.sealed_ms) == (SegmentStatus.SEALED, manual_clock.now_ms())
    manual_clock.advance_ms(10)
    assert store.seal_segment(log_key(0)) == sealed
    with pytest.raises(SegmentMissing):
        store.seal_segment(log_key(1))


def test_only_queues_with_one_segment_of_each_kind_have_an_unrolled_end(store: MetadataStore) -> None:
    def segment(topic: str, kind: SegmentType, base: int, size: int) -> None:
        key = QueueKey("c", "b", topic, 0).segment(kind, base)
        store.add_segment(key)
        store.record_commit(key.queue, [SegmentSize(key, size, 1, 2)])

    for topic in ("plain", "rolled", "many units", "gone"):
        segment(topic, SegmentType.COMMIT_LOG, 0, 1000)
        segment(topic, SegmentType.CONSUME_QUEUE, 40, 60)
    segment("no records", SegmentType.CONSUME_QUEUE, 20, 20)
    segment("no units", SegmentType.COMMIT_LOG, 0, 100)
    segment("rolled", SegmentType.COMMIT_LOG, 1000, 10)
    segment("many units", SegmentType.CONSUME_QUEUE, 100, 20)
    store.delete_topic("gone")
    found = {queue.topic: end for queue, end in store.unrolled_ends().items()}
    assert found == {"plain": 100, "no records": 40}


def test_segments_come_by_type_and_base(store: MetadataStore) -> None:
    for key in (log_key(2000), units_key(0), log_key(0), log_key(100), log_key(7, OTHER_QUEUE)):
        store.add_segment(key)
    assert [segment.key for segment in store.segments(QUEUE)] == [log_key(0), log_key(100), log_key(2000), units_key(0)]
    assert [segment.key.base for segment in store.segments(QUEUE, SegmentType.COMMIT_LOG)] == [0, 100, 2000]
    assert [segment.key for segment in store.all_segments()][-1] == log_key(7, OTHER_QUEUE)
    assert (store.segment_count(), store.segment_count(QUEUE)) == (5, 4)


def test_sizes_add_up_per_topic(store: MetadataStore) -> None:
    for key, size in ((log_key(0), 10), (log_key(10), 20), (units_key(0), 40), (log_key(0, OTHER_QUEUE), 5)):
        store.add_segment(key)
        store.update_size(key, size, 1, 1)
    assert store.size_of_topic("orders") == 75
    assert store.size_of_topic("orders", SegmentType.CONSUME_QUEUE) == 40
    assert store.size_of_topic("nothing") == 0
    store.mark_deleted(log_key(0))
    assert store.size_of_topic("orders") == 65


def test_bug_17_a_deletion_that_was_interrupted_is_known_after_a_crash(store: MetadataStore) -> None:
    store.add_segment(log_key(0))
    store.add_segment(log_key(100))
    store.mark_deleted(log_key(0))
    # Here the process dies: before or after the object went, the row still says what is to be done.
    assert [segment.key for segment in store.segments_being_deleted()] == [log_key(0)]
    assert [segment.key for segment in store.segments(QUEUE)] == [log_key(100)]
    assert store.delete_segment(log_key(0))
    assert store.segments_being_deleted() == []
    assert not store.delete_segment(log_key(0))


def test_a_segment_that_is_being_deleted_takes_no_bytes_and_lends_its_name_to_no_other(store: MetadataStore) -> None:
    store.add_segment(log_key(0))
    store.mark_deleted(log_key(0))
    with pytest.raises(SegmentMissing):
        store.update_size(log_key(0), 10, 1, 1)
    with pytest.raises(IllegalTransition):
        store.seal_segment(log_key(0))
    with pytest.raises(SegmentConflict, match="deletion is not finished"):
        store.add_segment(log_key(0))


def test_an_index_segment_does_not_touch_any_queue(store: MetadataStore) -> None:
    store.add_queue(QUEUE, 5)
    store.add_segment(index_key(0))
    store.update_size(index_key(0), 600, 1, 2)
    assert [segment.key for segment in store.segments(index_key(0).queue)] == [index_key(0)]
    assert [(queue.min_offset, queue.max_offset) for queue in store.queues()] == [(5, 5)]
