"""One key among many segments: exact places by the index, everything else by a scan, and never a message missed."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from history.history_world import HistoryWorld, as_sent, read_plan, sent_of
from scenarios.broker_world import HOUR_MS
from tier.tier_world import record
from tiermq.consumequeue.unit import UNIT
from tiermq.files.os_file_access import OsFileAccess
from tiermq.history.catalog import Catalog, read_catalog
from tiermq.history.key_lookup import KEYS_LOOKED_UP, KeyIndex, plan_history
from tiermq.history.open_history import open_history
from tiermq.history.scan_values import HistoryPlace, Loss, LossReason, ScanCounters, ScanPlan, ScanRequest, Side
from tiermq.message.java_hash import tags_code
from tiermq.message.stored_message import StoredMessage
from tiermq.tier.block_sums import BLOCK_BYTES_MIN
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.index.compacted_index import companion_name
from tiermq.tier.index.index_coverage import Coverage, CoverageRecord, QueueCoverage
from tiermq.tier.index.index_item import index_hash
from tiermq.tier.index.index_write_file import IndexWriteFile
from tiermq.tier.metadata.manifest import QueueManifest, encode_manifest, manifest_name
from tiermq.tier.metadata.metadata_values import Segment, SegmentStatus
from tiermq.tier.names import OBJECT_SUFFIX, QueueKey, SegmentType, index_queue


def find(catalog: Catalog, *keys: str, **more: Any) -> tuple[ScanPlan, list[StoredMessage], ScanCounters]:
    """The plan for keys, and the messages that have one, as the row filter would leave them."""
    plan = plan_history(catalog, ScanRequest(keys=frozenset(keys), **more))
    counters = ScanCounters()
    rows = [message for found in read_plan(catalog.history, plan, counters).values() for message in found]
    return plan, [row for row in rows if set(keys) & {*row.keys, row.unique_key}], counters


def test_a_key_in_the_tier_is_found_by_exact_places(world: HistoryWorld) -> None:
    world.put(200)
    world.flush_to_tier()
    world.upload_index()
    plan, found, counters = find(world.catalog(store=False), "key-77")
    assert as_sent(found) == sent_of(world.sent["orders", 0][76:77])
    assert [task.places is not None for task in plan.tasks] == [True]
    assert counters.rows_read == 1
    assert plan.counters.index_files_asked == 1
    assert plan.counters.index_bytes_read < 3 * BLOCK_BYTES_MIN, "a slot and an item, each in its block"


def test_more_keys_than_a_scan_takes_are_scanned_for(world: HistoryWorld) -> None:
    world.put(200)
    world.flush_to_tier()
    world.upload_index()
    catalog = world.catalog(store=False)
    keys = [f"key-{number}" for number in range(1, KEYS_LOOKED_UP + 1)]
    plan, found, counters = find(catalog, *keys)
    assert (len(found), counters.rows_read, plan.counters.index_files_asked) == (KEYS_LOOKED_UP, KEYS_LOOKED_UP, 1)
    requests = catalog.history.tier.requests
    plan, found, _ = find(catalog, *keys, "key-150")
    assert as_sent(found) == sent_of([*world.sent["orders", 0][:KEYS_LOOKED_UP], world.sent["orders", 0][149]])
    assert [task.places for task in plan.tasks] == [None]
    assert plan.counters.index_files_asked == 0
    assert catalog.history.tier.requests - requests < KEYS_LOOKED_UP


def test_what_the_uploaded_index_does_not_cover_is_scanned(world: HistoryWorld) -> None:
    world.put(100)
    world.flush_to_tier()
    world.upload_index()
    world.put(100)
    world.flush_to_tier()
    catalog = world.catalog(store=False)
    for number in (5, 100, 101, 199):
        _, found, _ = find(catalog, f"key-{number}")
        assert as_sent(found) == sent_of(world.sent["orders", 0][number - 1 : number])
    plan, found, _ = find(catalog, "all-orders")
    assert as_sent(found) == sent_of(world.sent["orders", 0])
    assert {task.places is None for task in plan.tasks} == {True, False}


def test_what_the_tiers_index_does_not_cover_is_looked_up_in_the_stores(world: HistoryWorld) -> None:
    world.put(50)
    world.flush_to_tier()
    world.upload_index()
    world.put(50)
    world.flush_to_tier()
    world.put(50)
    catalog = world.catalog()
    for number in (5, 50, 51, 99, 101, 149):
        plan, found, _ = find(catalog, f"key-{number}")
        assert as_sent(found) == sent_of(world.sent["orders", 0][number - 1 : number])
        scanned = sum(task.to_offset - task.from_offset for task in plan.tasks if task.places is None)
        assert scanned <= 1
    _, found, _ = find(catalog, "all-orders")
    assert as_sent(found) == sent_of(world.sent["orders", 0])


def test_a_store_alone_is_asked_by_its_own_index(world: HistoryWorld) -> None:
    world.put(60, "orders", 0)
    world.put(60, "orders", 1)
    plan, found, _ = find(world.catalog(tier=False), "key-70")
    assert as_sent(found) == sent_of(world.sent["orders", 1][9:10])
    assert {task.side for task in plan.tasks} == {Side.HOT}
    _, found, _ = find(world.catalog(tier=False), "all-orders")
    assert sorted(as_sent(found)) == sorted(sent_of(world.sent["orders", 0]) + sent_of(world.sent["orders", 1]))


def test_places_whose_file_the_broker_deletes_are_found_in_the_tier_instead(world: HistoryWorld) -> None:
    world.put(400)
    catalog = world.catalog()
    plan = plan_history(catalog, ScanRequest(keys=frozenset({"key-3", "key-399"})))
    assert {task.side for task in plan.tasks if task.places} == {Side.HOT}
    world.flush_to_tier()
    assert world.evict_old() > 0
    rows = [row for found in read_plan(world.history(), plan).values() for row in found]
    found = [row for row in rows if {"key-3", "key-399"} & set(row.keys)]
    assert as_sent(found) == sent_of([world.sent["orders", 0][2], world.sent["orders", 0][398]])


def test_an_index_that_outlives_its_records_is_still_exact(world: HistoryWorld) -> None:
    world.put(400)
    world.flush_to_tier()
    assert world.evict_old() > 0
    world.put(3)
    plan, found, _ = find(world.catalog(tier=False), "all-orders")
    left = world.store.local.min_offset("orders", 0)
    assert as_sent(found) == sent_of(world.sent["orders", 0][left:])
    assert sum(task.to_offset - task.from_offset for task in plan.tasks if task.places is None) == 1


def test_messages_that_go_between_catalogue_and_lookup_are_found_in_the_tier(world: HistoryWorld) -> None:
    world.put(400)
    catalog = world.catalog()
    world.flush_to_tier()
    assert world.evict_old() > 0
    plan, found, _ = find(catalog, "all-orders")
    assert as_sent(found) == sent_of(world.sent["orders", 0])
    assert all(task.side is Side.HOT for task in plan.tasks)


def test_places_in_a_segment_that_expires_are_a_loss_and_the_others_come_once(world: HistoryWorld) -> None:
    world.put(100)
    world.flush_to_tier()
    world.clock.advance_ms(100 * HOUR_MS)
    world.put(100)
    world.flush_to_tier()
    world.upload_index()
    catalog = world.catalog(store=False)
    plan = plan_history(catalog, ScanRequest(keys=frozenset({"all-orders"})), loss_is_error=False)
    assert [task.places is not None for task in plan.tasks] == [True]
    world.store.expire_now()
    losses: list[Loss] = []
    found = read_plan(catalog.history, plan, losses=losses)["orders", 0]
    left = found[0].queue_offset
    assert as_sent(found) == sent_of(world.sent["orders", 0][left:])
    assert 0 < left <= 100
    assert [(loss.from_offset, loss.to_offset, loss.reason) for loss in losses] == [(0, left, LossReason.EXPIRED)]


def test_an_index_without_companions_covers_nothing(world: HistoryWorld) -> None:
    world.put(100)
    world.flush_to_tier()
    world.upload_index()
    for name in world.driver.list_objects():
        if "INDEX" in name:
            world.driver.delete_object(name)
    plan, found, _ = find(world.catalog(store=False), "key-9")
    assert as_sent(found) == sent_of(world.sent["orders", 0][8:9])
    assert all(task.places is None for task in plan.tasks)


@pytest.mark.parametrize("damage", ["start", "companion"])
def test_a_damaged_index_costs_time_and_no_message(world: HistoryWorld, damage: str) -> None:
    world.put(100)
    world.flush_to_tier()
    world.upload_index()
    key = next(info.key for info in world.driver.list_segments() if "INDEX" in info.key.path)
    if damage == "start":
        world.driver.inner._place.segments[key].data[1] ^= 1
    else:
        world.driver.put_object(key.path + OBJECT_SUFFIX, b"{")
    _, found, _ = find(world.catalog(store=False), "key-9")
    assert as_sent(found) == sent_of(world.sent["orders", 0][8:9])


def test_a_key_without_a_message_reads_no_record(world: HistoryWorld) -> None:
    world.put(100)
    world.flush_to_tier()
    world.upload_index()
    plan, found, counters = find(world.catalog(store=False), "absent")
    assert (found, plan.tasks, counters.bytes_read) == ([], (), 0)


def _many_segments(path: Path, driver: MemoryDriver, queues: int, segments: int) -> None:
    """A tier as a broker leaves it, written by hand: each message in a segment of its own, all of them indexed."""
    items = IndexWriteFile.create(OsFileAccess(), str(path), 1_000_000, 32_768, 2 * queues * segments + 10)
    coverage = Coverage()
    for queue_id in range(queues):
        queue = QueueKey("DefaultCluster", "broker-a", "orders", queue_id)
        rows, units, base = [], bytearray(), 0
        for number in range(segments):
            data = bytearray(record("orders", queue_id, number, 1_000_000, size=900, keys=f"q{queue_id}n{number}"))
            struct.pack_into(">q", data, 28, base)
            key = queue.segment(SegmentType.COMMIT_LOG, base)
            driver.write(key, 0, [bytes(data)])
            hashes = [index_hash("orders", name) for name in (f"u-orders-{queue_id}-{number}", f"q{queue_id}n{number}")]
            assert items.put(hashes, 3, queue_id, base, len(data), 1_000_000)
            units += UNIT.pack(base, len(data), tags_code(f"t{number % 3}"))
            rows.append(
                Segment(key, len(data), SegmentStatus.SEALED, 0, 1_000_000, 1_000_000, 0, None, number, number + 1)
            )
            base += len(data)
        key = queue.segment(SegmentType.CONSUME_QUEUE, 0)
        driver.write(key, 0, [bytes(units)])
        rows.append(Segment(key, len(units), begin_ms=1_000_000, end_ms=1_000_000))
        manifest = QueueManifest(
            queue, "a test", 1, topic_id=3, min_offset=0, max_offset=segments, segments=tuple(rows)
        )
        driver.put_object(manifest_name(queue), encode_manifest(manifest))
        coverage.queues["orders", queue_id] = QueueCoverage(3, base)
    key = index_queue("DefaultCluster", "broker-a").segment(SegmentType.INDEX, 0)
    driver.write(key, 0, [items.compact()])
    driver.put_object(companion_name(key), CoverageRecord.of(coverage, [items.facts()]).encode())
    items.destroy()


def test_one_key_among_ten_thousand_segments_reads_a_thousandth_of_the_bytes(tmp_path: Path) -> None:
    driver = MemoryDriver()
    _many_segments(tmp_path, driver, 50, 200)
    with open_history(HistoryPlace(), driver=driver) as history:
        catalog = read_catalog(history)
        assert sum(len(queue.logs) for queue in catalog.queues()) == 10_000
        before = history.tier.bytes_read
        plan, found, counters = find(catalog, "q37n123")
        read_bytes = history.tier.bytes_read - before
        assert [(message.queue_id, message.queue_offset) for message in found] == [(37, 123)]
        assert read_bytes <= catalog.stored_bytes // 1000
        assert read_bytes == plan.counters.index_bytes_read + counters.bytes_read


def test_the_lookup_is_shared_by_the_queues_of_a_topic(world: HistoryWorld) -> None:
    for queue_id in range(8):
        world.put(10, "orders", queue_id)
    world.flush_to_tier()
    world.upload_index()
    catalog = world.catalog(store=False)
    index = KeyIndex(catalog, ScanRequest(keys=frozenset({"key-3"})))
    counters = ScanCounters()
    for queue in catalog.queues():
        index.find(queue, Side.COLD, (queue.cold_min, queue.cold_max), counters)
    assert counters.requests <= 5
