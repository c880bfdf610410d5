"""Queues: offsets that are always right, gaps, and the sparse time index."""

from __future__ import annotations

from simulation.manual_clock import ManualClock
from tier.metadata.metadata_samples import OTHER_QUEUE, QUEUE, log_key, units_key
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import Gap, Queue, TimeEntry
from tiermq.tier.names import QueueKey


def offsets(store: MetadataStore) -> tuple[int, int]:
    queue = store.queue(QUEUE)
    assert queue is not None
    return queue.min_offset, queue.max_offset


def test_an_unknown_queue_is_none(store: MetadataStore) -> None:
    assert store.queue(QUEUE) is None
    assert store.queues() == []


def test_a_new_queue_has_no_offsets_yet(store: MetadataStore, manual_clock: ManualClock) -> None:
    assert store.add_queue(QUEUE, -1) == Queue(QUEUE, -1, -1, 0, manual_clock.now_ms())
    assert store.add_queue(QUEUE, 100) == store.queue(QUEUE)  # An existing queue stays as it is.
    assert offsets(store) == (-1, -1)


def test_an_update_changes_offsets_and_time(store: MetadataStore, manual_clock: ManualClock) -> None:
    store.add_queue(QUEUE, 100)
    manual_clock.advance_ms(10)
    assert store.update_queue(QUEUE, max_offset=120)
    assert store.update_queue(QUEUE, epoch=4)
    assert store.queue(QUEUE) == Queue(QUEUE, 100, 120, 4, manual_clock.now_ms())
    assert not store.update_queue(OTHER_QUEUE, max_offset=1)


def test_queues_come_in_the_order_of_their_ids(store: MetadataStore) -> None:
    keys = [QueueKey("c", "b", topic, number) for topic in ("b", "a") for number in (10, 9, 0)]
    for key in keys:
        store.add_queue(key)
    assert [queue.key.queue_id for queue in store.queues("a")] == [0, 9, 10]
    assert [queue.key for queue in store.queues()] == sorted(keys, key=lambda key: (key.topic, key.queue_id))


def test_a_deleted_queue_takes_its_gaps_and_times_along(store: MetadataStore) -> None:
    store.add_queue(QUEUE)
    store.add_queue(OTHER_QUEUE)
    store.add_gap(QUEUE, Gap(0, 5, "lost", 1))
    store.add_time_entries(QUEUE, [TimeEntry(0, 1, 0)])
    store.delete_queue(QUEUE)
    assert (store.queue(QUEUE), store.gaps(QUEUE), store.time_entries(QUEUE)) == (None, [], [])
    assert store.queue(OTHER_QUEUE) is not None


def test_gap_09_offsets_follow_the_segments_of_the_queue(store: MetadataStore) -> None:
    store.add_queue(QUEUE)
    store.add_segment(log_key(0))
    store.add_segment(units_key(2000))
    assert offsets(store) == (100, 100)
    store.update_size(log_key(0), 500, 1, 2, begin_offset=100, end_offset=105)
    store.update_size(units_key(2000), 100, 1, 2)
    assert offsets(store) == (100, 105)
    store.add_segment(units_key(2100))
    store.update_size(units_key(2100), 40, 3, 4)
    assert offsets(store) == (100, 107)


def test_the_minimum_follows_whatever_expires_first(store: MetadataStore) -> None:
    store.add_queue(QUEUE)
    for base, begin in ((0, 100), (500, 105)):
        store.add_segment(log_key(base))
        store.update_size(log_key(base), 500, 1, 2, begin_offset=begin, end_offset=begin + 5)
    for base in (2000, 2160):
        store.add_segment(units_key(base))
        store.update_size(units_key(base), 160 if base == 2000 else 40, 1, 2)
    assert offsets(store) == (100, 110)
    store.mark_deleted(log_key(0))  # The records of 100..104 are gone, although their units are there.
    assert offsets(store) == (105, 110)
    store.mark_deleted(units_key(2000))
    assert offsets(store) == (108, 110)


def test_an_emptied_queue_begins_where_it_ended(store: MetadataStore) -> None:
    store.add_queue(QUEUE)
    store.add_segment(units_key(2000))
    store.update_size(units_key(2000), 100, 1, 2)
    store.mark_deleted(units_key(2000))
    store.delete_segment(units_key(2000))
    assert offsets(store) == (105, 105)


def test_gaps_are_kept_in_order_and_a_longer_one_wins(store: MetadataStore) -> None:
    store.add_gap(QUEUE, Gap(50, 60, "local files were deleted", 7))
    store.add_gap(QUEUE, Gap(10, 20, "segment missing", 5))
    store.add_gap(QUEUE, Gap(50, 55, "shorter", 8))
    store.add_gap(QUEUE, Gap(10, 30, "longer", 9))
    assert store.gaps(QUEUE) == [Gap(10, 30, "longer", 9), Gap(50, 60, "local files were deleted", 7)]
    assert store.gaps(OTHER_QUEUE) == []


def test_time_entries_are_kept_in_order_and_trimmed_with_the_queue(store: MetadataStore) -> None:
    entries = [TimeEntry(offset, offset * 10, offset * 100) for offset in range(0, 50, 10)]
    store.add_time_entries(QUEUE, reversed(entries))
    assert store.time_entries(QUEUE) == entries
    assert store.last_time_entry(QUEUE) == entries[-1]
    assert store.trim_time_entries(QUEUE, 20) == 2
    assert store.time_entries(QUEUE) == entries[2:]
    assert store.last_time_entry(OTHER_QUEUE) is None
