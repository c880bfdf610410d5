"""What goes with a topic: everything below its name, known or not, and manifests last."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from servers.faulty_driver import Fault, FaultyDriver, ScriptedFaults
from tier.tier_world import BROKER, CLUSTER, TierWorld
from tiermq.errors import TierUnavailable
from tiermq.tier.metadata.manifest import manifest_name
from tiermq.tier.names import QueueKey
from tiermq.tier.retention.retention import delete_topic_objects


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TierWorld]:
    made = TierWorld(tmp_path, log_bytes=700, unit_bytes=100)
    made.write(9, queue_id=0)
    made.write(9, queue_id=1)
    made.put_manifests()
    yield made
    made.close()


def delete(world: TierWorld) -> list[QueueKey]:
    gone: list[QueueKey] = []

    def on_gone(key: QueueKey) -> None:
        assert world.listed() == []  # A restore now must not take the topic for a living one.
        world.driver.delete_object(manifest_name(key))
        gone.append(key)

    delete_topic_objects(world.files, world.metadata, world.driver, "orders", on_gone, lambda _key: None)
    return gone


def test_manifests_go_after_every_byte_of_the_topic(world: TierWorld) -> None:
    assert delete(world) == [QueueKey(CLUSTER, BROKER, "orders", number) for number in (0, 1)]
    assert world.driver.list_objects() == []
    assert len(world.files) == 0


def test_other_small_objects_of_the_topic_go_too(world: TierWorld) -> None:
    world.driver.put_object(QueueKey(CLUSTER, BROKER, "orders", 0).object_name("something-newer"), b"{}")
    delete(world)
    assert world.driver.list_objects() == []


@pytest.mark.parametrize("operation", ["delete", "list_segments", "list_objects"])
def test_it_goes_on_where_the_tier_interrupted_it(world: TierWorld, operation: str) -> None:
    world.reopen(
        FaultyDriver(
            world.driver, ScriptedFaults(operation, [None, Fault.AFTER] if operation == "delete" else [Fault.BEFORE])
        )
    )
    with pytest.raises(TierUnavailable):
        delete(world)
    delete(world)
    assert world.listed() == []
    assert world.driver.list_objects() == []
    assert world.metadata.all_segments() == world.metadata.segments_being_deleted() == []
