"""Topics and retention over both stores: listed, deleted, expired, and right after any failure."""

from __future__ import annotations

from typing import Any

import pytest

from scenarios.broker_world import HOUR_MS, BrokerWorld
from servers.faulty_driver import Down, Fault, ScriptedFaults
from tier.tiered_world import bodies, sent
from tiermq.errors import (
    BadConfig,
    TierError,
    TierUnavailable,
)
from tiermq.tier.names import QueueKey

T = "orders"
QUEUE = QueueKey("DefaultCluster", "broker-a", T, 0)


# Topics


def test_topics_are_those_of_both_stores(world: BrokerWorld) -> None:
    world.open()
    world.put(3)
    world.put(3, T, 2)
    assert world.store.flush_to_tier()
    world.erase_disk()
    world.open(restore=True)
    world.put(1, "new")
    assert world.store.topics() == {"new": [0], T: [0, 2]}


def test_a_deleted_topic_is_gone_from_both_stores_and_begins_again(world: BrokerWorld) -> None:
    world.open()
    world.put(50)
    world.put(5, "other")
    assert world.store.flush_to_tier()
    first = world.sent[T, 0][0]
    assert world.store.delete_topics([T, "unknown"]) == 1
    assert world.store.topics() == {"other": [0]}
    assert world.store.tier.metadata.topic(T) is None
    assert world.store.tier.metadata.queue(QUEUE) is None
    assert world.driver.list_objects("212d6b50_DefaultCluster/broker-a/orders") == []
    assert list(world.driver.list_segments("212d6b50_DefaultCluster/broker-a/orders")) == []
    assert world.store.tier.index is not None
    assert world.store.tier.index.query(T, first.keys[0], 5, 0, world.clock.now_ms()).hits == []
    assert (world.store.min_offset(T, 0), world.store.max_offset(T, 0)) == (0, 0)
    world.sent.clear()
    world.put(7)
    assert world.store.flush_to_tier()
    assert bodies(world) == sent(world)
    assert [m.body for m in world.store.query(T, world.sent[T, 0][3].keys[0]).messages] == [sent(world)[3]]
    world.kill()
    world.open()
    assert bodies(world) == sent(world)


@pytest.mark.parametrize("ending", ["reopen", "kill"])
def test_a_topic_that_could_not_be_deleted_stays_hidden_and_goes_when_the_tier_is_back(
    world: BrokerWorld, ending: str
) -> None:
    world.open()
    world.put(50)
    assert world.store.flush_to_tier()
    world.driver.plan = Down()
    with pytest.raises(TierUnavailable):
        world.store.delete_topics([T])
    assert world.store.topics() == {}
    assert world.store.get(T, 0, 0).count == 0
    world.sent.clear()
    world.put(4)
    assert bodies(world) == sent(world)
    assert world.store.max_offset(T, 0) == 4
    if ending == "kill":
        world.kill()
    else:
        world.close()
    world.open()
    assert bodies(world) == sent(world)
    assert (world.store.min_offset(T, 0), world.store.max_offset(T, 0)) == (0, 4)
    tier: Any = world.store.status()["tier"]
    assert tier["deleting"] == [T]
    assert not world.store.flush_to_tier()
    world.driver.plan = None
    world.clock.advance_ms(120_000)
    assert world.store.expire_now().topics == [T]
    assert world.store.flush_to_tier()
    file = world.store.tier.files.find(T, 0)
    assert file is not None
    assert (file.min_offset, file.commit_offset) == (0, 4)
    assert bodies(world) == sent(world)


@pytest.mark.parametrize("operation", ["delete", "delete_object", "list_segments", "list_objects", "get_object"])
def test_a_deletion_that_fails_at_any_step_is_finished_by_the_next_call(world: BrokerWorld, operation: str) -> None:
    world.open()
    world.put(100)
    assert world.store.flush_to_tier()
    world.driver.plan = ScriptedFaults(operation, [Fault.BEFORE])
    with pytest.raises(TierError):
        world.store.delete_topics([T])
    assert world.store.topics() == {}
    world.driver.plan = None
    world.store.delete_topics([T])
    assert list(world.driver.list_segments()) == []
    world.sent.clear()
    world.put(3)
    assert world.store.flush_to_tier()
    assert bodies(world) == sent(world)


def test_unused_topics_are_cleaned_from_both_stores(world: BrokerWorld) -> None:
    world.open()
    for topic in (T, "kept", "rmq_sys_own"):
        world.put(3, topic)
    assert world.store.flush_to_tier()
    assert world.store.clean_unused_topics(["kept"]) == 1
    assert world.store.topics() == {"kept": [0], "rmq_sys_own": [0]}


# Retention


def test_a_topics_own_retention_is_kept_to_and_outlives_the_disk(world: BrokerWorld) -> None:
    world.open()
    world.put(100)
    world.put(100, "short")
    world.store.set_retention(T, hours=1_000)
    world.store.set_retention("short", hours=1)
    assert world.store.flush_to_tier()
    assert world.store.flush_to_tier()  # Nothing to upload; the manifests are due.
    world.erase_disk()
    world.open(restore=True)
    topics = {topic.name: topic.reserve_time_hours for topic in world.store.tier.metadata.topics()}
    assert topics == {T: 1_000, "short": 1}
    world.clock.advance_ms(100 * HOUR_MS)
    report = world.store.expire_now()
    assert report.failures == []
    assert {segment.key.topic for segment in report.segments} == {"short"}
    assert world.store.min_offset(T, 0) == 0
    assert (world.store.min_offset("short", 0), world.store.max_offset("short", 0)) == (100, 100)
    assert bodies(world) == sent(world)
    world.put(3, "short")
    assert world.store.flush_to_tier()
    assert [m.queue_offset for m in world.read("short")] == [100, 101, 102]


@pytest.mark.parametrize("bad", [{"hours": 0}, {"hours": -2}, {"max_bytes": 0}])
def test_a_retention_that_means_nothing_is_refused(world: BrokerWorld, bad: dict[str, int]) -> None:
    world.open()
    with pytest.raises(BadConfig):
        world.store.set_retention(T, **bad)


def test_what_expired_is_not_restored(world: BrokerWorld) -> None:
    world.open()
    world.put(100)
    world.store.set_retention(T, max_bytes=6_000)
    assert world.store.flush_to_tier()
    assert world.store.expire_now().segments
    file = world.store.tier.files.find(T, 0)
    assert file is not None
    low = file.min_offset
    assert low > 0
    world.erase_disk()
    world.open(restore=True)
    assert world.store.min_offset(T, 0) == low
    assert bodies(world) == sent(world)[low:]


@pytest.mark.parametrize("manifest", ["after", "before"])
def test_numbering_goes_on_when_everything_had_expired_before_the_disk_was_lost(
    world: BrokerWorld, manifest: str
) -> None:
    """Also when the manifest was not written any more since the expiry."""
    world.open()
    world.put(100)
    assert world.store.flush_to_tier()
    while world.store.tier.engine.step():
        continue
    world.clock.advance_ms(100 * HOUR_MS)
    assert world.store.expire_now().segments
    if manifest == "after":
        while world.store.tier.engine.step():
            continue
    world.erase_disk()
    world.open(restore=True)
    assert (world.store.min_offset(T, 0), world.store.max_offset(T, 0)) == (100, 100)
    del world.sent[T, 0][:]
    world.put(30)
    assert world.store.flush_to_tier()
    assert world.sent[T, 0][0].offset == 100
    assert bodies(world) == sent(world)
    world.erase_disk()
    world.open(restore=True)
    assert bodies(world) == sent(world)
    assert [m.queue_offset for m in world.store.query(T, world.sent[T, 0][7].keys[0]).messages] == [107]
