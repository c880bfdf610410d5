"""Scans and streams on a cluster whose executors, workers and drivers die: each row once, and no row lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark.cluster.cluster_worlds import happened
from spark.cluster.driver_process import DriverDied, DriverProcess
from spark.source_world import SourceWorld

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.timeout(1_800)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SourceWorld]:
    """Some of the history only in the tier, some in both, some only in the store."""
    made = SourceWorld(tmp_path)
    for queue_id in range(3):
        made.put(120, "orders", queue_id)
    made.flush_to_tier()
    made.evict_all()
    made.put(60, "orders", 1)
    made.flush_to_tier()
    made.put(40, "orders", 0)
    yield made
    made.bury()


def wanted(world: SourceWorld) -> list[list[Any]]:
    return [[topic, queue_id, offset, body.hex()] for topic, queue_id, offset, body in world.wanted()]


def test_a_scan_gives_each_row_once_though_executors_die_and_a_task_fails_twice(
    driver: DriverProcess, world: SourceWorld, faults: Path
) -> None:
    kinds = ["executor", "twice", "worker", "executor"]
    assert driver.call("scan", options=world.both, folder=str(faults), kinds=kinds) == wanted(world)
    assert happened(faults, kinds)


def test_a_scan_with_two_copies_of_a_task_gives_each_row_once(
    driver: DriverProcess, world: SourceWorld, faults: Path
) -> None:
    rows = driver.call("scan", options=world.both, folder=str(faults), kinds=["slow"])
    assert rows == wanted(world)
    assert (faults / "copy-1").exists()


def test_a_stream_goes_on_where_it_was_when_its_driver_and_its_executors_are_killed(
    driver: DriverProcess, world: SourceWorld, faults: Path, tmp_path: Path
) -> None:
    given: dict[str, Any] = {
        "options": world.both,
        "checkpoint": str(tmp_path / "checkpoint"),
        "folder": str(faults),
        "parquet": str(tmp_path / "rows"),
        "kinds": ["executor", "", "", "driver", "worker", "", "driver"],
    }
    deaths = 0
    while True:
        try:
            driver.call("stream", **given)
            break
        except DriverDied:
            deaths += 1
            # What comes meanwhile is for later batches: one that was begun is repeated as it was.
            world.put(20, "orders", 2)
            world.flush_to_tier()
    assert deaths == 2
    assert driver.call("read_parquet", path=given["parquet"]) == wanted(world)


def test_a_stream_with_two_copies_of_a_task_gives_each_row_once(
    driver: DriverProcess, world: SourceWorld, faults: Path, tmp_path: Path
) -> None:
    places: dict[str, Any] = {"checkpoint": str(tmp_path / "checkpoint"), "parquet": str(tmp_path / "rows")}
    driver.call("stream", options=world.both, folder=str(faults), kinds=["slow"], **places)
    assert (faults / "copy-1").exists()
    assert driver.call("read_parquet", path=places["parquet"]) == wanted(world)
