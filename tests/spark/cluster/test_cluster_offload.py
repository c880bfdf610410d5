"""An offload on a real cluster whose executors, workers, tasks and drivers die, and whose tasks run twice at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.offload.offload_world import OffloadWorld, fill
from spark.cluster.cluster_worlds import BACK_ENDS, Expectation, happened, world_on
from spark.cluster.driver_process import DriverDied, DriverProcess

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.timeout(1_800)]


def run(driver: DriverProcess, world: OffloadWorld, **options: Any) -> Any:
    return driver.call("offload", place=world.place(), tier=world.tier, **options)


@pytest.mark.parametrize("back_end", BACK_ENDS)
def test_executors_and_workers_that_are_killed_and_a_task_that_fails_twice_change_nothing(
    driver: DriverProcess, tmp_path: Path, back_end: str, request: pytest.FixtureRequest
) -> None:
    world = world_on(back_end, tmp_path, request)
    expected = Expectation(world, tmp_path / "engine")
    faults = tmp_path / "faults"
    faults.mkdir()
    kinds = ["executor", "twice", "worker", "executor"]
    report = run(driver, world, folder=str(faults), kinds=kinds)
    assert happened(report["faults"], kinds)
    assert (report["problems"], report["done"]["messages"]) == ([], 300)
    expected.check(world)


@pytest.mark.parametrize("back_end", BACK_ENDS)
def test_two_copies_of_a_task_that_write_at_the_same_time_change_nothing(
    driver: DriverProcess, tmp_path: Path, back_end: str, request: pytest.FixtureRequest
) -> None:
    world = world_on(back_end, tmp_path, request)
    expected = Expectation(world, tmp_path / "engine")
    marks = tmp_path / "marks"
    marks.mkdir()
    report = run(driver, world, folder=str(marks), straggler=True)
    assert {"copy-0", "copy-1"} <= set(report["faults"])
    assert (report["problems"], report["done"]["messages"]) == ([], 300)
    expected.check(world)


@pytest.mark.parametrize(
    ("back_end", "steps", "with_jvm"),
    [
        ("s3", ["tasks", "commit", "index sync"], True),
        ("files", ["validate", "manifests"], False),
    ],
    ids=["s3, its JVM too", "files, its JVM finds out"],
)
def test_drivers_that_are_killed_one_after_the_other_lose_and_double_nothing(
    driver: DriverProcess,
    tmp_path: Path,
    back_end: str,
    steps: list[str],
    with_jvm: bool,
    request: pytest.FixtureRequest,
) -> None:
    """Some steps only: the tests of the job itself, without a cluster, let drivers die at every one."""
    world = world_on(back_end, tmp_path, request, 0)
    for number, step in enumerate(steps):
        fill(world.store, 150, number, first=number * 1_000)
        with pytest.raises(DriverDied):
            run(driver, world, kill_at=step, with_jvm=with_jvm)
    expected = Expectation(world, tmp_path / "engine")
    report = run(driver, world)
    assert report["problems"] == []
    expected.check(world)
