"""What the tier holds, and how little it costs to look again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from history.history_world import HistoryWorld, as_sent, read_all, sent_of
from tier.tier_world import TierWorld, record
from tiermq.consumequeue.unit import UNIT
from tiermq.errors import FutureManifest
from tiermq.history.catalog import read_catalog
from tiermq.history.cold_queues import find_cold_queue
from tiermq.history.open_history import open_history
from tiermq.history.scan_values import HistoryPlace, ScanRequest
from tiermq.tier.driver.tier_url import bare_driver
from tiermq.tier.metadata.document import seal_document
from tiermq.tier.metadata.manifest import manifest_name
from tiermq.tier.names import QueueKey, SegmentType

ORDERS = QueueKey("DefaultCluster", "broker-a", "orders", 0)


def test_an_idle_refresh_is_one_listing(world: HistoryWorld) -> None:
    for queue_id in range(30):
        world.put(3, "orders", queue_id)
    world.flush_to_tier()
    catalog = world.catalog(store=False)
    before = catalog.counters.requests
    catalog.refresh()
    assert catalog.counters.requests - before == 1
    assert len(catalog.queues()) == 30


def test_a_refresh_looks_only_at_queues_that_changed(world: HistoryWorld) -> None:
    for queue_id in range(30):
        world.put(20, "orders", queue_id)
    world.flush_to_tier()
    catalog = world.catalog(store=False)
    world.put(5, "orders", 7)
    world.flush_to_tier()
    before = catalog.counters.requests
    catalog.refresh()
    assert catalog.find("orders", 7).max_offset == 25
    assert catalog.counters.requests - before <= 8
    assert as_sent(read_all(catalog)["orders", 7]) == sent_of(world.sent["orders", 7])


def test_hundreds_of_queues_in_a_directory_are_looked_at_again_with_one_listing(tmp_path: Path) -> None:
    driver = bare_driver(f"file://{tmp_path}/tier", {})
    for queue_id in range(300):
        queue = QueueKey("DefaultCluster", "broker-a", "orders", queue_id)
        data = record("orders", queue_id, 0, 5)
        driver.write(queue.segment(SegmentType.COMMIT_LOG, 0), 0, [data])
        driver.write(queue.segment(SegmentType.CONSUME_QUEUE, 0), 0, [UNIT.pack(0, len(data), 0)])
    with open_history(HistoryPlace(f"file://{tmp_path}/tier")) as history:
        catalog = read_catalog(history)
        assert len(catalog.queues()) == 300
        requests = catalog.counters.requests
        for _ in range(5):
            catalog.refresh()
        assert catalog.counters.requests - requests == 5


@pytest.mark.parametrize("url", ["memory://?driver=object", "file://{}/tier?driver=object"])
def test_parts_that_wait_to_be_merged_are_history_like_any(tmp_path: Path, url: str) -> None:
    world = HistoryWorld(tmp_path, bare_driver(url.format(tmp_path), {}))
    world.open()
    try:
        for _ in range(4):
            world.put(30)
            world.flush_to_tier()
        catalog = world.catalog(store=False)
        assert as_sent(read_all(catalog, max_bytes_per_partition=2000)["orders", 0]) == sent_of(world.sent["orders", 0])
    finally:
        world.bury()


def test_a_tier_without_manifests_is_read_like_one_with_them(world: HistoryWorld) -> None:
    world.put(100)
    world.put(10, "payments", 3)
    world.flush_to_tier()
    with_them = world.catalog(store=False)
    for name in world.driver.list_objects():
        world.driver.delete_object(name)
    without = world.catalog(store=False)
    assert [(q.key, q.cold_min, q.cold_max) for q in without.queues()] == [
        (q.key, q.cold_min, q.cold_max) for q in with_them.queues()
    ]
    assert as_sent(read_all(without)["orders", 0]) == sent_of(world.sent["orders", 0])


def test_a_queue_that_grows_behind_its_manifest_grows_in_the_catalogue(tmp_path: Path) -> None:
    world = TierWorld(tmp_path, log_bytes=1000)
    world.write(10)
    world.put_manifests()
    world.write(7)
    with open_history(HistoryPlace(), clock=world.clock, driver=world.driver) as history:
        catalog = read_catalog(history)
        assert catalog.find("orders", 0).max_offset == 17
        world.write(9)
        catalog.refresh()
        assert catalog.find("orders", 0).max_offset == 26
        assert [m.queue_offset for m in read_all(catalog)["orders", 0]] == list(range(26))
    world.close()


def test_a_topic_that_was_deleted_and_made_again_is_another_one(world: HistoryWorld) -> None:
    world.put(100)
    world.flush_to_tier()
    catalog = world.catalog(store=False)
    world.store.delete_topics(["orders"])
    world.sent.clear()
    catalog.refresh()
    assert [queue.max_offset for queue in catalog.queues() if not queue.is_deleted] == []
    world.put(3)
    world.flush_to_tier()
    catalog.refresh()
    assert as_sent(read_all(catalog)["orders", 0]) == sent_of(world.sent["orders", 0])


def test_a_manifest_of_a_newer_version_is_refused(world: HistoryWorld) -> None:
    world.put(3)
    world.flush_to_tier()
    stored = world.driver.get_object(manifest_name(ORDERS))
    world.driver.put_object(manifest_name(ORDERS), seal_document(json.loads(stored.data)["body"], 99))
    with pytest.raises(FutureManifest):
        world.catalog(store=False)


@pytest.mark.parametrize("version", [b"", b'"version":99'], ids=["no document", "a bad version digit"])
def test_a_manifest_that_is_damaged_is_done_without(world: HistoryWorld, version: bytes) -> None:
    world.put(30)
    world.flush_to_tier()
    stored = world.driver.get_object(manifest_name(ORDERS))
    damaged = stored.data.replace(b'"version":1', version) if version else b"{}"
    world.driver.put_object(manifest_name(ORDERS), damaged)
    assert as_sent(read_all(world.catalog(store=False))["orders", 0]) == sent_of(world.sent["orders", 0])


def test_only_wanted_queues_are_looked_at(world: HistoryWorld) -> None:
    for queue_id in range(10):
        world.put(3, "orders", queue_id)
    world.put(3, "payments")
    world.flush_to_tier()
    catalog = world.catalog(ScanRequest(topics=frozenset({"payments"})), store=False)
    assert catalog.topics() == ["payments"]
    assert catalog.counters.requests <= 4


def test_a_refresh_lists_the_wanted_topic_only_and_sees_a_new_queue_of_it(world: HistoryWorld) -> None:
    world.put(3, "payments")
    world.put(3, "orders", 0)
    world.flush_to_tier()
    catalog = world.catalog(ScanRequest(topics=frozenset({"orders"})), store=False)
    world.put(3, "orders", 5)
    world.flush_to_tier()
    catalog.refresh()
    assert [queue.key.queue_id for queue in catalog.queues()] == [0, 5]
    assert read_all(catalog).keys() == {("orders", 0), ("orders", 5)}


def test_an_idle_refresh_of_an_object_store_is_one_list_request(tmp_path: Path) -> None:
    driver = bare_driver("memory://?driver=object", {})
    world = HistoryWorld(tmp_path, driver)
    world.open()
    try:
        for queue_id in range(20):
            world.put(3, "orders", queue_id)
        world.flush_to_tier()
        requests = driver.requests  # type: ignore[attr-defined]
        before = requests.counts
        catalog = world.catalog(store=False)
        looked = {kind: count - before.get(kind, 0) for kind, count in requests.counts.items()}
        # Two listings and a manifest of each queue; parts have to be listed where units are read.
        assert sum(looked.values()) <= 2 + 20 * 2
        before = requests.counts
        for _ in range(3):
            catalog.refresh()
        after = {kind: count - before.get(kind, 0) for kind, count in requests.counts.items()}
        assert sum(after.values()) == 3
    finally:
        world.bury()


def test_one_queue_can_be_looked_up_alone(world: HistoryWorld) -> None:
    world.put(30)
    world.flush_to_tier()
    tier = world.history(store=False).tier
    found = find_cold_queue(tier, ORDERS, 0)
    assert found is not None
    assert (found.min_offset, found.max_offset, found.is_empty) == (0, 30, False)
    assert find_cold_queue(tier, replace(ORDERS, queue_id=9), 0) is None
