"""Whose store is it, which queues are there, and where does each side of a queue begin and end."""

from __future__ import annotations

from pathlib import Path

import pytest

from history.history_world import HistoryWorld, as_sent, read_all, sent_of
from tier.tier_world import record
from tiermq.consumequeue.unit import UNIT
from tiermq.errors import BadHistory
from tiermq.history.catalog import QueueHistory, queue_filter, read_catalog
from tiermq.history.open_history import open_history
from tiermq.history.scan_values import HistoryPlace, ScanRequest, StorePlace
from tiermq.store.local_store import LocalStore
from tiermq.tier.names import QueueKey, SegmentType

KEY = QueueKey("DefaultCluster", "broker-a", "orders", 0)


def add_broker(world: HistoryWorld, broker: str, cluster: str = "DefaultCluster") -> None:
    queue = QueueKey(cluster, broker, "orders", 0)
    data = record("orders", 0, 0, 5)
    world.driver.write(queue.segment(SegmentType.COMMIT_LOG, 0), 0, [data])
    world.driver.write(queue.segment(SegmentType.CONSUME_QUEUE, 0), 0, [UNIT.pack(0, len(data), 0)])


def test_a_store_without_a_name_is_that_of_the_tiers_only_broker(world: HistoryWorld) -> None:
    world.put(10)
    world.flush_to_tier()
    world.put(5)
    catalog = world.catalog()
    assert [(queue.key.broker, queue.min_offset, queue.max_offset) for queue in catalog.queues()] == [
        ("broker-a", 0, 15)
    ]


def test_a_store_that_does_not_know_its_name_must_be_named_beside_a_tier_of_two_brokers(
    world: HistoryWorld, tmp_path: Path
) -> None:
    world.put(10)
    world.flush_to_tier()
    add_broker(world, "broker-b")
    LocalStore.open(tmp_path / "unknown", background=False).close()
    place = HistoryPlace(None, (StorePlace(str(tmp_path / "unknown")),))
    with (
        open_history(place, driver=world.driver) as history,
        pytest.raises(BadHistory, match=r"2 brokers.*broker-a of DefaultCluster, broker-b of DefaultCluster"),
    ):
        read_catalog(history)
    assert {queue.key.broker for queue in world.catalog().queues()} == {"broker-a", "broker-b"}
    catalog = world.catalog(broker="broker-a")
    assert [(queue.key.broker, queue.max_offset) for queue in catalog.queues()] == [("broker-a", 10), ("broker-b", 1)]
    assert catalog.brokers == [("DefaultCluster", "broker-a"), ("DefaultCluster", "broker-b")]
    with pytest.raises(BadHistory, match="several brokers"):
        catalog.find("orders", 0)
    assert catalog.find("orders", 0, "broker-b").max_offset == 1


def test_several_clusters_share_a_bucket_and_are_read_as_one_unless_a_broker_has_the_same_name(
    world: HistoryWorld,
) -> None:
    world.put(2)
    world.flush_to_tier()
    add_broker(world, "broker-b", "other")
    found = read_all(world.catalog(store=False))
    assert len(found["orders", 0]) == 3
    add_broker(world, "broker-a", "third")
    with pytest.raises(BadHistory, match="'DefaultCluster' and of cluster 'third': rows of both would have the same"):
        read_all(world.catalog(store=False))


def test_stores_without_names_are_refused_when_there_are_several(world: HistoryWorld, tmp_path: Path) -> None:
    place = HistoryPlace(None, (StorePlace(str(world.disk)), StorePlace(str(world.disk), "", "b")))
    with open_history(place) as history, pytest.raises(BadHistory, match="every store"):
        read_catalog(history)
    twice = HistoryPlace(None, (StorePlace(str(world.disk), "", "b"), StorePlace(str(world.disk), "", "b")))
    with open_history(twice) as history, pytest.raises(BadHistory, match="two stores of one"):
        read_catalog(history)


def test_a_store_alone_has_the_default_names(world: HistoryWorld) -> None:
    world.put(3)
    assert [queue.key for queue in world.catalog(tier=False).queues()] == [KEY]


def test_a_refresh_sees_what_was_put_since(world: HistoryWorld) -> None:
    world.put(10)
    catalog = world.catalog()
    world.put(10)
    world.put(1, "payments", 4)
    assert catalog.find("orders", 0).max_offset == 10
    catalog.refresh()
    assert catalog.find("orders", 0).max_offset == 20
    assert catalog.find("payments", 4).max_offset == 1
    world.flush_to_tier()
    catalog.refresh()
    queue = catalog.find("orders", 0)
    assert (queue.cold_max, queue.hot_from) == (20, 20)
    assert as_sent(read_all(catalog)["orders", 0]) == sent_of(world.sent["orders", 0])


def test_an_unknown_queue_is_named_with_those_that_are_there(world: HistoryWorld) -> None:
    world.put(1, "orders", 2)
    catalog = world.catalog()
    with pytest.raises(BadHistory, match="it has queues 2"):
        catalog.find("orders", 0)
    with pytest.raises(BadHistory, match="no such topic"):
        catalog.find("nothing", 0)
    assert catalog.get(KEY) is None


@pytest.mark.parametrize(
    ("bounds", "low", "hot_from", "high"),
    [
        ((0, 0, 0, 0), 0, 0, 0),
        ((0, 10, 0, 0), 0, 10, 10),
        ((0, 0, 4, 9), 4, 4, 9),
        ((2, 10, 5, 20), 2, 10, 20),
        ((2, 10, 15, 20), 2, 15, 20),  # The store lost [10, 15) before it was copied.
        ((10, 10, 5, 20), 5, 5, 20),  # All of the tier expired.
        ((2, 30, 5, 20), 2, 30, 30),
        ((7, 7, 7, 7), 7, 7, 7),
    ],
)
def test_each_message_is_on_one_side(bounds: tuple[int, int, int, int], low: int, hot_from: int, high: int) -> None:
    queue = QueueHistory(KEY, *bounds)
    assert (queue.min_offset, queue.hot_from, queue.max_offset) == (low, hot_from, high)


def test_queues_are_chosen_by_every_restriction_at_once() -> None:
    wanted = queue_filter(ScanRequest(topic_pattern="ord.*", brokers=frozenset({"broker-a"}), queue_ids=frozenset({0})))
    assert wanted(KEY)
    assert not wanted(QueueKey("c", "broker-a", "reorders", 0))
    assert not wanted(QueueKey("c", "broker-b", "orders", 0))
    assert not wanted(QueueKey("c", "broker-a", "orders", 1))
    with pytest.raises(BadHistory, match="regular expression"):
        queue_filter(ScanRequest(topic_pattern="("))
