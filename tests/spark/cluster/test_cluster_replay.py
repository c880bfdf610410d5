"""A replay on a cluster whose executors, tasks and drivers die: each message once, in the order of its queue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.replay.replay_world import ReplayWorld
from spark.cluster.cluster_worlds import happened
from spark.cluster.driver_process import DriverDied, DriverProcess

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.timeout(1_800)]
QUEUES = [("orders", 0), ("orders", 1), ("orders", 2), ("returns", 0)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ReplayWorld]:
    made = ReplayWorld(tmp_path)
    made.put(30, "orders", 2)
    made.flush_to_tier()
    made.put(20, "orders", 1)
    yield made
    made.bury()


def given(world: ReplayWorld) -> dict[str, Any]:
    """Many tasks, and many puts of a few messages each."""
    return {
        "name": "replay",
        "tier": world.url,
        "store": str(world.disk),
        "broker": "broker-a",
        "into": str(world.target),
        "record": str(world.record),
        "constants": {"BUNDLE_BYTES": 1_500, "PUT_AT_ONCE": 5},
    }


def check(world: ReplayWorld) -> None:
    """Every message once, in order, and a line of the record for each."""
    for topic, queue_id in QUEUES:
        assert world.found(topic, queue_id) == world.bodies(topic, queue_id)
    lines = [(each["sourceTopic"], int(each["sourceQueueId"]), int(each["sourceOffset"])) for each in world.lines()]
    assert sorted(lines) == [(topic, queue_id, offset) for topic, queue_id, offset, _ in world.wanted()]
    assert list((world.record / "staging").glob("*")) == []


def test_a_replay_whose_executors_and_drivers_die_puts_every_message_once(
    driver: DriverProcess, world: ReplayWorld, faults: Path
) -> None:
    for function, times in (("put", 1), ("put", 3)):
        with pytest.raises(DriverDied):
            driver.call("job", **given(world), death={"function": function, "times": times})
    kinds = ["executor", "twice", "worker", "executor"]
    report = driver.call("job", **given(world), folder=str(faults), kinds=kinds)
    assert happened(report["faults"], kinds)
    assert report["problems"] == []
    check(world)
    assert driver.call("job", **given(world))["done"]["messages"] == 0


def test_a_replay_with_two_copies_of_a_task_puts_every_message_once(
    driver: DriverProcess, world: ReplayWorld, faults: Path
) -> None:
    report = driver.call("job", **given(world), folder=str(faults), straggler=True)
    assert "copy-1" in report["faults"]
    assert report["problems"] == []
    check(world)
