"""The jobs that tend a tier and open it up, on a cluster whose executors, workers, tasks and drivers die."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.offload.offload_world import TIER, OffloadWorld
from spark.cluster.cluster_worlds import Expectation, happened, world_on
from spark.cluster.driver_process import DriverDied, DriverProcess
from tables.table_world import TableWorld
from tiermq.pipeline.expire.job import expire
from tiermq.pipeline.offload.broker import OffloadBroker
from tiermq.pipeline.offload.job import offload
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.verify.verify import verify_tier

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.timeout(1_800)]
KINDS = ["executor", "twice", "worker", "executor"]
SMALL_INDEX = TIER | {"tiered_store_index_file_max_index_num": 60}
LEASE_MS = 61_000
"""After so long the lease of a job that was killed has run out."""


def tiered(
    back_end: str, path: Path, request: pytest.FixtureRequest, **options: Any
) -> tuple[OffloadWorld, Expectation]:
    """A store, wholly in the tier, with an index of many small files."""
    world = world_on(back_end, path, request)
    expected = Expectation(world, path / "engine")
    assert offload([world.place()], world.tier, config=SMALL_INDEX, **options).is_clean
    return world, expected


def damage(world: OffloadWorld, number: int) -> None:
    """Change a byte of a segment's middle, where a message's body is."""
    files = (world.root / "t").rglob("COMMIT_LOG/*")
    path = sorted(file for file in files if file.is_file() and not file.suffix)[number]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("back_end", ["files", "s3"])
def test_a_verification_finds_the_same_though_executors_die(
    driver: DriverProcess, tmp_path: Path, faults: Path, back_end: str, request: pytest.FixtureRequest
) -> None:
    world, _ = tiered(back_end, tmp_path, request)
    given: dict[str, Any] = {"name": "verify", "tier": world.tier, "store": world.place(), "task_bytes": 10_000}
    given["constants"] = {"BUNDLE_BYTES": 20_000}
    report = driver.call("job", **given, folder=str(faults), kinds=KINDS)
    assert happened(report["faults"], KINDS)
    assert report["problems"] == []
    here = verify_tier(open_driver(world.tier))
    assert report["done"]["records"] == here.counts["records"] == 300
    assert report["done"]["bytes"] == here.counts["bytes"]


def test_a_verification_with_two_copies_of_a_task_counts_each_message_once(
    driver: DriverProcess, tmp_path: Path, faults: Path, request: pytest.FixtureRequest
) -> None:
    world, _ = tiered("files", tmp_path, request)
    given: dict[str, Any] = {"name": "verify", "tier": world.tier, "constants": {"BUNDLE_BYTES": 20_000}}
    report = driver.call("job", **given, folder=str(faults), straggler=True)
    assert "copy-1" in report["faults"]
    assert (report["problems"], report["done"]["records"]) == ([], 300)


def test_a_repair_whose_executors_and_drivers_die_mends_the_tier(
    driver: DriverProcess, tmp_path: Path, faults: Path, request: pytest.FixtureRequest
) -> None:
    world, expected = tiered("files", tmp_path, request)
    damage(world, 0)
    damage(world, 2)
    given: dict[str, Any] = {
        "name": "verify",
        "tier": world.tier,
        "store": world.place(),
        "repair": True,
        "task_bytes": 10_000,
    }
    given["constants"] = {"BUNDLE_BYTES": 20_000}
    for number, changes in enumerate([1, 2]):
        with pytest.raises(DriverDied):
            driver.call("job", **given, death={"changes": changes}, later_ms=number * LEASE_MS)
    report = driver.call("job", **given, folder=str(faults), kinds=KINDS, later_ms=2 * LEASE_MS)
    assert happened(report["faults"], KINDS)
    assert (report["problems"], report["done"]["repaired"]) == ([], 1)
    expected.check(world)


@pytest.mark.parametrize("back_end", ["files", "objects"])
def test_an_expiry_whose_drivers_die_ends_as_one_without_disturbance(
    driver: DriverProcess, tmp_path: Path, back_end: str, request: pytest.FixtureRequest
) -> None:
    """With a store it has no tasks: all of it is done by the driver."""
    world, _ = tiered(back_end, tmp_path / "a", request)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    other = OffloadWorld(tmp_path / "b", "?driver=object" if back_end == "objects" else "")
    assert expire(None, tier=other.tier, store=other.place(), max_bytes_per_topic=30_000).done["segments"] > 2
    given: dict[str, Any] = {
        "name": "expire",
        "tier": world.tier,
        "store": world.place(),
        "max_bytes_per_topic": 30_000,
    }
    deaths = [1, 4] if back_end == "files" else [2]
    for number, changes in enumerate(deaths):
        with pytest.raises(DriverDied):
            driver.call("job", **given, death={"changes": changes}, later_ms=number * LEASE_MS)
    report = driver.call("job", **given, later_ms=len(deaths) * LEASE_MS)
    assert report["problems"] == []
    assert world.segments() == other.segments()
    assert world.messages() == other.messages()
    assert verify_tier(open_driver(world.tier)).problems == []


@pytest.mark.parametrize(("back_end", "steps"), [("objects", ["rows", "remove"]), ("s3", ["row"])])
def test_a_compaction_whose_tasks_and_drivers_die_keeps_every_message_and_every_key(
    driver: DriverProcess,
    tmp_path: Path,
    faults: Path,
    back_end: str,
    steps: list[str],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The offload before it ended before it sealed anything, so that there is something to seal and to merge."""
    monkeypatch.setattr(OffloadBroker, "_seal", lambda _self: None)
    world, expected = tiered(back_end, tmp_path, request)
    given: dict[str, Any] = {"name": "compact", "tier": world.tier, "store": world.place(), "small_items": 1_000}
    given["constants"] = {"BUNDLE_BYTES": 20_000}
    for number, step in enumerate(steps):
        dying: dict[str, Any] = {"death": {"step": step}, "later_ms": number * LEASE_MS}
        with pytest.raises(DriverDied):
            driver.call("job", **given, folder=str(faults), kinds=KINDS, **dying)
    assert happened(faults, KINDS)
    report = driver.call("job", **given, later_ms=len(steps) * LEASE_MS)
    assert report["problems"] == []
    ended = [info for info in open_driver(world.tier).list_segments() if info.part_count]
    assert len(ended) == sum(not info.sealed for info in ended) > 0
    expected.check(world)


@pytest.mark.parametrize("back_end", ["files", "s3"])
def test_a_compaction_with_two_copies_of_a_task_keeps_every_message_and_every_key(
    driver: DriverProcess, tmp_path: Path, faults: Path, back_end: str, request: pytest.FixtureRequest
) -> None:
    world, expected = tiered(back_end, tmp_path, request)
    given: dict[str, Any] = {"name": "compact", "tier": world.tier, "store": world.place(), "small_items": 1_000}
    report = driver.call("job", **given, folder=str(faults), straggler=True)
    assert "copy-1" in report["faults"]
    assert (report["problems"], report["done"]["merged_files"]) == ([], 1)
    expected.check(world)


@pytest.mark.parametrize("back_end", ["files", "s3"])
def test_an_index_that_is_built_while_executors_and_drivers_die_has_every_key_once(
    driver: DriverProcess, tmp_path: Path, faults: Path, back_end: str, request: pytest.FixtureRequest
) -> None:
    world, expected = tiered(back_end, tmp_path, request, index="later")
    given: dict[str, Any] = {
        "name": "reindex",
        "tier": world.tier,
        "store": world.place(),
        "slots": 50,
        "chunk_bytes": 10_000,
    }
    given["constants"] = {"BUNDLE_BYTES": 10_000}
    steps = ["build", "rows"] if back_end == "files" else ["cover"]
    for number, step in enumerate(steps):
        with pytest.raises(DriverDied):
            driver.call("job", **given, death={"step": step}, later_ms=number * LEASE_MS)
    report = driver.call("job", **given, folder=str(faults), kinds=KINDS, later_ms=len(steps) * LEASE_MS)
    assert report["problems"] == []
    assert happened(report["faults"], KINDS)
    expected.check(world)


def test_an_index_with_two_copies_of_a_task_has_every_key_once(
    driver: DriverProcess, tmp_path: Path, faults: Path, request: pytest.FixtureRequest
) -> None:
    world, expected = tiered("files", tmp_path, request, index="later")
    given: dict[str, Any] = {
        "name": "reindex",
        "tier": world.tier,
        "store": world.place(),
        "slots": 50,
        "chunk_bytes": 10_000,
    }
    given["constants"] = {"BUNDLE_BYTES": 10_000}
    report = driver.call("job", **given, folder=str(faults), straggler=True)
    assert "copy-1" in report["faults"]
    assert report["problems"] == []
    expected.check(world)


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_an_export_whose_executors_and_drivers_die_has_every_message_once(
    driver: DriverProcess, tmp_path: Path, faults: Path, kind: str
) -> None:
    world = TableWorld(tmp_path, kind)
    given: dict[str, Any] = {"name": "export", "store": str(world.store), **world.to, "file_bytes": 2_000}
    for step in ["journal", "finish"] if kind == "parquet" else ["commit"]:
        world.put(60, queues=4)
        with pytest.raises(DriverDied):
            driver.call("job", **given, death={"step": step})
    world.put(60, queues=4)
    report = driver.call("job", **given, folder=str(faults), kinds=KINDS)
    assert happened(report["faults"], KINDS)
    assert report["problems"] == []
    assert world.rows() == world.wanted()


def test_an_upsert_whose_executors_and_drivers_die_has_the_last_write_of_each_key(
    driver: DriverProcess, tmp_path: Path, faults: Path
) -> None:
    world = TableWorld(tmp_path, "delta")
    given: dict[str, Any] = {"name": "export", "store": str(world.store), **world.to, "upsert": True, "buckets": 4}
    for step in ("merge", "commit", "finish"):
        world.put(60, queues=1)  # The same sixty keys each time.
        with pytest.raises(DriverDied):
            driver.call("job", **given, death={"step": step})
    world.put(60, queues=1)
    report = driver.call("job", **given, folder=str(faults), kinds=KINDS, file_bytes=2_000)
    assert happened(report["faults"], KINDS)
    assert report["problems"] == []
    assert world.rows() == [("orders", 0, offset) for offset in range(180, 240)]
    assert sorted(world.table().column("messageKey").to_pylist()) == sorted(f"k{number}" for number in range(60))


def test_an_export_with_two_copies_of_a_task_has_every_message_once(
    driver: DriverProcess, tmp_path: Path, faults: Path
) -> None:
    world = TableWorld(tmp_path)
    world.put(200, queues=4)
    given: dict[str, Any] = {"name": "export", "store": str(world.store), **world.to, "file_bytes": 2_000}
    report = driver.call("job", **given, folder=str(faults), straggler=True)
    assert "copy-1" in report["faults"]
    assert world.rows() == world.wanted()
