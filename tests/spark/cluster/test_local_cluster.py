"""The one test of this directory that is always run: an offload whose executor, worker and tasks die.

Executors are processes of their own, master and workers are not: this takes a third of what a whole cluster takes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from spark.cluster.cluster_worlds import Expectation, happened, world_on
from spark.cluster.driver_process import DriverProcess

pytestmark = [pytest.mark.crash, pytest.mark.timeout(1_200), pytest.mark.xdist_group("spark-cluster")]


def test_an_offload_whose_executor_and_worker_are_killed_and_a_task_of_which_fails_twice_changes_nothing(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    world = world_on("files", tmp_path, request, 150)
    expected = Expectation(world, tmp_path / "engine")
    faults = tmp_path / "faults"
    faults.mkdir()
    kinds = ["executor", "twice", "worker"]
    driver = DriverProcess("local-cluster[2,1,512]", tmp_path / "driver")
    try:
        report = driver.call("offload", place=world.place(), tier=world.tier, folder=str(faults), kinds=kinds)
    finally:
        driver.stop()
    assert happened(report["faults"], kinds)
    assert (report["problems"], report["done"]["messages"]) == ([], 150)
    expected.check(world)
