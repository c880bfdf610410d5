"""The objects within a scope of a tier."""

from __future__ import annotations

from pathlib import Path

import pytest

from tier.tier_world import BROKER, CLUSTER
from tier.verify_world import sound_world
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.metadata.manifest import manifest_name
from tiermq.tier.names import QueueKey, SegmentType
from tiermq.tier.queue.segments import TierScope, list_brokers, list_tier


@pytest.mark.parametrize(
    ("scope", "prefix"),
    [
        (TierScope(), ""),
        (TierScope(broker="b", topic="t"), ""),
        (TierScope("DefaultCluster"), "212d6b50_DefaultCluster/"),
        (TierScope("DefaultCluster", topic="t"), "212d6b50_DefaultCluster/"),
        (TierScope("DefaultCluster", "b", "t"), "212d6b50_DefaultCluster/b/t/"),
        (TierScope("DefaultCluster", "b", "t", 0), "212d6b50_DefaultCluster/b/t/0/"),
    ],
)
def test_a_listing_asks_for_no_more_than_it_must(scope: TierScope, prefix: str) -> None:
    assert scope.prefix == prefix


def test_segments_and_objects_are_those_of_the_scope(tmp_path: Path) -> None:
    world = sound_world(tmp_path)
    other = QueueKey("Other", "broker-b", "orders", 0)
    world.driver.write(other.segment(SegmentType.COMMIT_LOG, 0), 0, [b"theirs"])
    everything = list_tier(world.driver, TierScope())
    assert everything.brokers == [(CLUSTER, BROKER), ("Other", "broker-b")]
    assert any(name.endswith("lease.tiermq.json") for name in everything.objects)
    for scope in (TierScope(CLUSTER), TierScope(broker=BROKER)):
        found = list_tier(world.driver, scope)
        assert found.brokers == [(CLUSTER, BROKER)]
        assert found.objects == everything.objects
    payments = list_tier(world.driver, TierScope(topic="payments"))
    assert {info.key.topic for info in payments.segments} == {"payments"}
    assert [name.split("/")[2] for name in payments.objects] == ["payments"]
    assert list_tier(world.driver, TierScope(topic="payments", queue_id=0)).segments == []
    world.close()


def test_brokers_are_those_that_have_small_objects(tmp_path: Path) -> None:
    world = sound_world(tmp_path)
    world.driver.put_object(manifest_name(QueueKey("Other", "broker-c", "orders", 0)), b"{}")
    world.driver.put_object(f"00000000_{CLUSTER}/foreign/orders/0/manifest.tiermq.json", b"{}")
    assert list_brokers(world.driver) == [(CLUSTER, BROKER), ("Other", "broker-c")]
    assert list_brokers(world.driver, "Other") == [("Other", "broker-c")]
    assert list_brokers(world.driver, "Unknown") == []
    world.close()


def test_an_empty_tier_has_nothing() -> None:
    found = list_tier(MemoryDriver(), TierScope())
    assert (found.segments, found.objects, found.brokers) == ([], [], [])
