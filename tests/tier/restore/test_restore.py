"""A lost disk: the bucket alone gives everything back, and says what it could not give back."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from simulation.manual_clock import ManualClock
from tier.metadata.metadata_samples import OTHER_QUEUE, QUEUE, index_key, log_key, units_key
from tier.metadata.tier_samples import TierQueue, time_of
from tiermq.errors import StaleWriter, TierError, TierUnavailable
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.broker_lease import BrokerLease
from tiermq.tier.metadata.document import seal_document
from tiermq.tier.metadata.manifest import manifest_name
from tiermq.tier.metadata.manifest_store import ManifestStore, snapshot_manifest
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import Gap, SegmentStatus
from tiermq.tier.names import QueueKey, SegmentType
from tiermq.tier.restore.restore import restore
from tiermq.tier.restore.restore_report import Finding, RestoreProgress


@pytest.fixture
def driver(manual_clock: ManualClock) -> MemoryDriver:
    return MemoryDriver(clock=manual_clock)


@pytest.fixture
def restored(tmp_path: Path, manual_clock: ManualClock) -> Iterator[MetadataStore]:
    with MetadataStore(tmp_path / "restored.db", clock=manual_clock) as opened:
        yield opened


def write_manifests(driver: TierDriver, store: MetadataStore, clock: ManualClock) -> None:
    manifests = ManifestStore(driver, "writer", clock=clock)
    for queue in store.queues():
        manifests.write(snapshot_manifest(store, queue.key))


def shape(store: MetadataStore) -> object:
    """Everything that must be the same after a restore; epochs and times of change may differ."""
    return (
        [(topic.id, topic.name, topic.reserve_time_hours, topic.max_bytes) for topic in store.topics()],
        [(queue.key, queue.min_offset, queue.max_offset) for queue in store.queues()],
        [replace(segment, created_ms=0, crc32=None) for segment in store.all_segments() if segment.size],
        [store.gaps(queue.key) for queue in store.queues()],
        store.topic_serial_number(),
    )


def write_history(driver: TierDriver, store: MetadataStore) -> list[TierQueue]:
    """Two queues with several segments each, and a topic that was deleted."""
    store.add_topic("deleted")
    store.delete_topic("deleted")
    store.add_topic("orders", reserve_time_hours=48, max_bytes=1 << 40)
    first = TierQueue(driver, QUEUE, store).begin(100).put(b"a", b"bb", b"ccc").put(b"d")
    first.roll_log().put(b"e", b"f").roll_units().put(b"g")
    second = TierQueue(driver, OTHER_QUEUE, store).begin(0).put(b"x", b"y", v6=True)
    return [first, second]


def test_with_fresh_manifests_everything_is_as_it_was(
    driver: MemoryDriver, store: MetadataStore, restored: MetadataStore, manual_clock: ManualClock
) -> None:
    write_history(driver, store)
    store.add_gap(QUEUE, Gap(90, 100, "deleted by an operator", 5))
    write_manifests(driver, store, manual_clock)
    report = restore(driver, restored, clock=manual_clock)
    assert report.remarks == []
    assert report.is_clean
    assert shape(restored) == shape(store)
    assert restored.time_entries(QUEUE) == store.time_entries(QUEUE)
    assert (report.topic_count, report.queue_count, report.segment_count, report.message_count) == (1, 2, 6, 9)
    assert report.size_bytes == store.size_of_topic("orders")
    assert (report.cluster, report.broker, report.epoch_max) == ("DefaultCluster", "broker-a", 1)
    assert restored.add_topic("new").id == 2  # The deleted topic's id is not given again.


def test_gap_03_without_any_manifest_the_records_show_everything_but_topic_attributes(
    driver: MemoryDriver, store: MetadataStore, restored: MetadataStore, manual_clock: ManualClock
) -> None:
    write_history(driver, store)
    report = restore(driver, restored, clock=manual_clock)
    assert {remark.finding for remark in report.remarks} == {Finding.MISSING_MANIFEST, Finding.TOPIC_ID_ASSIGNED}
    assert len(report.found(Finding.MISSING_MANIFEST)) == 2
    expected, found = shape(store), shape(restored)
    assert isinstance(expected, tuple)
    assert isinstance(found, tuple)
    assert found[1:4] == expected[1:4]
    assert [entry.store_ms for entry in restored.time_entries(QUEUE)] == [time_of(100)]
    topic = restored.topic("orders")
    assert topic is not None
    assert (topic.id, topic.reserve_time_hours) == (0, -1)


def test_parts_newer_than_the_manifest_are_found_with_their_times_and_offsets(
    driver: MemoryDriver, store: MetadataStore, restored: MetadataStore, manual_clock: ManualClock
) -> None:
    first, second = write_history(driver, store)
    write_manifests(driver, store, manual_clock)
    first.put(b"later").roll_log().put(b"last", b"very last")
    second.put(b"z", v6=True)
    report = restore(driver, restored, clock=manual_clock)
    assert [remark.finding for remark in report.remarks] == [Finding.BEYOND_MANIFEST] * 2
    assert report.is_clean
    assert shape(restored) == shape(store)


def test_a_directory_of_files_is_as_good_as_a_bucket(
    tmp_path: Path, store: MetadataStore, restored: MetadataStore, manual_clock: ManualClock
) -> None:
    driver = open_driver(f"file://{tmp_path / 'tier'}")
    first, _ = write_history(driver, store)
    write_manifests(driver, store, manual_clock)
    first.put(b"later")
    report = restore(driver, restored, clock=manual_clock)
    assert [remark.finding for remark in report.remarks] == [Finding.BEYOND_MANIFEST]
    assert shape(restored) == shape(store)
    driver.close()


def test_a_missing_and_a_damaged_manifest_cost_only_reading(
    driver: MemoryDriver, store: MetadataStore, restored: MetadataStore, manual_clock: ManualClock
) -> None:
    write_history(driver, store)
    write_manifests(driver, store, manual_clock)
    driver.put_object(manifest_name(QUEUE), b'{"version": 1, "body"')
    report = restore(driver, restored, clock=manual_clock)
    assert [(remark.finding, remark.where) for remark in report.remarks] == [
        (Finding.CORRUPT_MANIFEST, manifest_name(QUEUE))
    ]
    assert not report.is_clean
    assert shape(restored) == shape(store)  # The other queue's manifest knows the topic.


def test_a_future_manifest_keeps_its_queue_out_and_is_named(
    driver: MemoryDriver, store: MetadataStore, restored: MetadataStore, manual_clock: ManualClock
) -> None:
    write_history(driver, store)
    write_manifests(driver, store, manual_clock)
    driver.put_object(manifest_name(QUEUE), seal_document({"who": "knows"}, 99))
    report = restore(driver, restored, clock=manual_clock)
    (remark,) = report.remarks
    assert (remark.finding, remark.where) == (Finding.FUTURE_MANIFEST, manifest_name(QUEUE))
    assert re.search(r"nor overwrite it\. \d+ segments were left out\.$", remark.text)
    assert "4 segments were left out" in remark.text
    assert [queue.key for queue in restored.queues()] == [OTHER_QUEUE]
    assert restored.segments(QUEUE) == []


def test_a_manifest_that_was_copied_to_another_queue_is_not_believed(
    driver: MemoryDriver, store: MetadataStore, restored: MetadataStore, manual_clock: ManualClock
) -> None:
    write_history(driver, store)
    write_manifests(driver, store, manual_clock)
    stored = driver.get_object(manifest_name(OTHER_QUEUE))
    assert stored is not None
    driver.put_object(manifest_name(QUEUE), stored.data)
    report = restore(driver, restored, clock=manual_clock)
    assert [remark.finding for remark in report.remarks] == [Finding.MISPLACED_MANIFEST]
    assert shape(restored) == shape(store)


def test_a_queue_of_which_only_the_manifest_is_left_keeps_its_place_in_the_numbering(
    driver: MemoryDriver, store: MetadataStore, restored: MetadataStore, manual_clock: ManualClock
) -> None:
    write_history(driver, store)
    write_manifests(driver, store, manual_clock)
    for segment in store.segments(OTHER_QUEUE):
        driver.delete(segment.key)
    report = restore(driver, restored, clock=manual_clock)
    assert [remark.finding for remark in report.remarks] == [Finding.MISSING_SEGMENT] * 2
    queue = restored.queue(OTHER_QUEUE)
    assert queue is not None
    assert (queue.min_offset, queue.max_offset) == (2, 2)


def index_file(begin_ms: int, end_ms: int, topic_ids: list[int]) -> bytes:
    header = struct.pack(">Iqqii", 0xBCC50285, begin_ms, end_ms, 1, len(topic_ids))
    return header + bytes(8 * 3) + b"".join(struct.pack(">iiiqii", 1, topic, 0, 0, 100, 0) for topic in topic_ids)


def test_index_segments_have_the_times_of_their_headers(
    driver: MemoryDriver, store: MetadataStore, restored: MetadataStore, manual_clock: ManualClock
) -> None:
    write_history(driver, store)
    write_manifests(driver, store, manual_clock)
    data = index_file(1000, 5000, [1])
    driver.write(index_key(0), 0, [data])
    driver.write(index_key(len(data)), 0, [index_file(6000, 9000, [1, 1])])
    assert restore(driver, restored, clock=manual_clock).is_clean
    rows = restored.segments(index_key(0).queue, SegmentType.INDEX)
    assert [(row.key.base, row.begin_ms, row.end_ms) for row in rows] == [(0, 1000, 5000), (len(data), 6000, 9000)]


def test_a_new_id_is_above_all_that_index_entries_carry_and_those_are_reported(
    driver: MemoryDriver, store: MetadataStore, restored: MetadataStore, manual_clock: ManualClock
) -> None:
    write_history(driver, store)
    driver.write(index_key(0), 0, [index_file(1000, 5000, [7, 3, 7])])
    report = restore(driver, restored, clock=manual_clock)
    assert [(remark.where, remark.text) for remark in report.found(Finding.UNKNOWN_TOPIC_IN_INDEX)] == [
        ("topic id 3", "1 entries"),
        ("topic id 7", "2 entries"),
    ]
    assert [(topic.name, topic.id) for topic in restored.topics()] == [("orders", 8)]


def test_an_interrupted_deletion_is_finished_after_a_restore(
    driver: MemoryDriver, store: MetadataStore, restored: MetadataStore, manual_clock: ManualClock
) -> None:
    write_history(driver, store)
    head = store.segments(QUEUE, SegmentType.COMMIT_LOG)[0]
    store.mark_deleted(head.key)
    write_manifests(driver, store, manual_clock)
    report = restore(driver, restored, clock=manual_clock)
    assert [(remark.finding, remark.where) for remark in report.remarks] == [(Finding.ORPHAN, head.key.path)]
    assert [row.key for row in restored.segments_being_deleted()] == [head.key]
    assert shape(restored) == shape(store)
    queue = restored.queue(QUEUE)
    assert queue is not None
    assert queue.min_offset == 104


def test_a_tier_of_several_brokers_wants_to_know_which(
    driver: MemoryDriver, restored: MetadataStore, manual_clock: ManualClock
) -> None:
    for broker in ("broker-a", "broker-b"):
        TierQueue(driver, QueueKey("c", broker, "orders", 0)).begin(0).put(b"x")
    with pytest.raises(TierError, match="broker-a of c, broker-b of c"):
        restore(driver, restored)
    assert restored.is_empty()
    report = restore(driver, restored, cluster="c", broker="broker-b", clock=manual_clock)
    assert [queue.key.broker for queue in restored.queues()] == ["broker-b"]
    assert report.broker == "broker-b"


def test_an_empty_tier_gives_an_empty_store(driver: MemoryDriver, restored: MetadataStore) -> None:
    report = restore(driver, restored)
    assert (report.queue_count, report.is_clean, restored.is_empty()) == (0, True, True)


def test_a_restore_never_mixes_with_what_is_there(driver: MemoryDriver, restored: MetadataStore) -> None:
    restored.add_topic("mine")
    with pytest.raises(TierError, match="expected empty metadata"):
        restore(driver, restored)


def test_progress_is_reported_queue_by_queue(
    driver: MemoryDriver, store: MetadataStore, restored: MetadataStore
) -> None:
    write_history(driver, store)
    reported: list[RestoreProgress] = []
    restore(driver, restored, reported.append)
    assert [(step.done, step.total) for step in reported] == [(1, 2), (2, 2)]
    assert {step.where for step in reported} == {QUEUE.logical_path, OTHER_QUEUE.logical_path}


class FailingDriver(MemoryDriver):
    """A back end that goes away while it is being read."""

    def read(self, key: object, position: int, length: int) -> memoryview:
        raise TierUnavailable("gone")


def test_a_back_end_that_goes_away_leaves_the_store_empty(restored: MetadataStore) -> None:
    TierQueue(MemoryDriver("goes-away")).begin(0).put(b"x")
    with pytest.raises(TierUnavailable):
        restore(FailingDriver("goes-away"), restored)
    assert restored.is_empty()


def test_after_a_restore_the_old_writer_can_be_fenced(
    driver: MemoryDriver, store: MetadataStore, restored: MetadataStore, manual_clock: ManualClock
) -> None:
    write_history(driver, store)
    lease = BrokerLease(driver, "DefaultCluster", "broker-a", "old broker", clock=manual_clock)
    lease.acquire(epoch_min=5)
    old = ManifestStore(driver, "old broker", lease=lease, clock=manual_clock)
    old.write(snapshot_manifest(store, QUEUE))
    report = restore(driver, restored, clock=manual_clock)
    assert report.epoch_max == 5
    manual_clock.advance_ms(60_000)
    new = BrokerLease(driver, "DefaultCluster", "broker-a", "new broker", clock=manual_clock)
    assert new.acquire(epoch_min=report.epoch_max + 1) == 6
    with pytest.raises(StaleWriter, match="new broker"):
        old.write(snapshot_manifest(store, QUEUE))


def test_a_damaged_lease_is_named_and_does_not_stop_the_restore(
    driver: MemoryDriver, store: MetadataStore, restored: MetadataStore, manual_clock: ManualClock
) -> None:
    write_history(driver, store)
    write_manifests(driver, store, manual_clock)
    lease = BrokerLease(driver, "DefaultCluster", "broker-a", "x", clock=manual_clock)
    driver.put_object(lease.name, b"?")
    report = restore(driver, restored, clock=manual_clock)
    assert [(remark.finding, remark.where) for remark in report.remarks] == [(Finding.CORRUPT_MANIFEST, lease.name)]
    assert shape(restored) == shape(store)


def test_sealed_segments_are_sealed_again(
    driver: MemoryDriver, store: MetadataStore, restored: MetadataStore, manual_clock: ManualClock
) -> None:
    write_history(driver, store)
    write_manifests(driver, store, manual_clock)
    head = store.segments(QUEUE, SegmentType.COMMIT_LOG)[0]
    driver.seal(head.key)
    restore(driver, restored, clock=manual_clock)
    row = restored.segment(head.key)
    assert row is not None
    assert (row.status, row.size) == (SegmentStatus.SEALED, head.size)
    assert restored.segment(log_key(0)) == row
    assert restored.segment(units_key(2000)) is not None
