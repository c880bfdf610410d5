"""The jobs that tend a tier and open it up, on a cluster whose executors, workers, tasks and drivers die."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark.cluster.cluster_worlds import Expectation, world_on
from spark.cluster.driver_process import SPECULATION, DriverDied, DriverProcess
from spark.jobs.offload_world import TIER, OffloadWorld
from spark.tables.table_world import TableWorld
from tiermq.spark.jobs.offload import offload
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.verify import verify_tier

pytestmark = [pytest.mark.slow, pytest.mark.crash]
KINDS = ["executor", "raise", "raise", "worker", "executor"]
SMALL_INDEX = TIER | {"tiered_store_index_file_max_index_num": 60}
LEASE_MS = 61_000
"""After so long the lease of a job that was killed has run out."""


@pytest.fixture
def faults(tmp_path: Path) -> Path:
    folder = tmp_path / "faults"
    folder.mkdir()
    return folder


def tiered(
    back_end: str, path: Path, request: pytest.FixtureRequest, **options: Any
) -> tuple[OffloadWorld, Expectation]:
    """A store, wholly in the tier, with an index of many small files."""
    world = world_on(back_end, path, request)
    expected = Expectation(world, path / "engine")
    assert offload([world.place()], world.tier, config=SMALL_INDEX, **options).is_clean
    return world, expected


@pytest.mark.parametrize("back_end", ["files", "s3"])
def test_a_verification_finds_the_same_though_executors_die(
    driver: DriverProcess, tmp_path: Path, faults: Path, back_end: str, request: pytest.FixtureRequest
) -> None:
    world, _ = tiered(back_end, tmp_path, request)
    given = {"name": "verify", "tier": world.tier, "store": world.place(), "task_bytes": 10_000}
    report = driver.call("job", **given, folder=str(faults), kinds=KINDS)
    assert len(report["faults"]) > len(KINDS)
    assert report["problems"] == []
    here = verify_tier(open_driver(world.tier))
    assert report["done"]["messages"] == here.counts["messages"] == 300


@pytest.mark.parametrize("back_end", ["objects", "s3"])
def test_a_compaction_whose_tasks_and_drivers_die_keeps_every_message_and_every_key(
    driver: DriverProcess, tmp_path: Path, faults: Path, back_end: str, request: pytest.FixtureRequest
) -> None:
    world, expected = tiered(back_end, tmp_path, request)
    given = {"name": "compact", "tier": world.tier, "store": world.place(), "small_items": 1_000}
    for number, step in enumerate(["merge", "row", "remove"]):
        with pytest.raises(DriverDied):
            driver.call("job", **given, kill_at=step, later_ms=number * LEASE_MS)
    report = driver.call("job", **given, folder=str(faults), kinds=KINDS, later_ms=3 * LEASE_MS)
    assert report["problems"] == []
    expected.check(world)


@pytest.mark.parametrize("back_end", ["files", "s3"])
def test_a_compaction_with_two_copies_of_a_task_keeps_every_message_and_every_key(
    driver: DriverProcess, tmp_path: Path, faults: Path, back_end: str, request: pytest.FixtureRequest
) -> None:
    world, expected = tiered(back_end, tmp_path, request)
    given = {"name": "compact", "tier": world.tier, "store": world.place(), "small_items": 1_000}
    report = driver.call("job", **given, folder=str(faults), straggler=True, conf=SPECULATION)
    assert "copy-1" in report["faults"]
    assert (report["problems"], report["done"]["merged_files"]) == ([], 1)
    expected.check(world)


@pytest.mark.parametrize("back_end", ["files", "s3"])
def test_an_index_that_is_built_while_executors_die_has_every_key_once(
    driver: DriverProcess, tmp_path: Path, faults: Path, back_end: str, request: pytest.FixtureRequest
) -> None:
    world, expected = tiered(back_end, tmp_path, request, index="later")
    given = {"name": "reindex", "tier": world.tier, "store": world.place(), "slots": 50, "stretch_bytes": 10_000}
    report = driver.call("job", **given, folder=str(faults), kinds=KINDS)
    assert len(report["faults"]) > len(KINDS)
    assert report["problems"] == []
    expected.check(world)


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_an_export_whose_executors_and_drivers_die_has_every_message_once(
    driver: DriverProcess, tmp_path: Path, faults: Path, kind: str
) -> None:
    world = TableWorld(tmp_path, kind)
    given: dict[str, Any] = {"name": "export", "store": str(world.store), **world.to, "file_bytes": 2_000}
    for number, step in enumerate(["write", "journal", "commit", "finish"]):
        world.put(60, queues=4)
        with pytest.raises(DriverDied):
            driver.call("job", **given, kill_at=step, times=1 + number % 2)
    world.put(60, queues=4)
    report = driver.call("job", **given, folder=str(faults), kinds=KINDS)
    assert len(report["faults"]) > len(KINDS)
    assert report["problems"] == []
    assert world.rows() == world.wanted()


def test_an_export_with_two_copies_of_a_task_has_every_message_once(
    driver: DriverProcess, tmp_path: Path, faults: Path
) -> None:
    world = TableWorld(tmp_path)
    world.put(200, queues=4)
    given: dict[str, Any] = {"name": "export", "store": str(world.store), **world.to, "file_bytes": 2_000}
    report = driver.call("job", **given, folder=str(faults), straggler=True, conf=SPECULATION)
    assert "copy-1" in report["faults"]
    assert world.rows() == world.wanted()
