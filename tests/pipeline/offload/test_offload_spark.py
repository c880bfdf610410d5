"""An offload on real Spark: tasks in other processes, which die, fail and are run again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from pipeline.offload.offload_world import SMALL, TIER, OffloadWorld, fill
from pipeline.offload.test_offload import assert_whole, by_engine
from pipeline.offload.wire_world import CLUSTER, wire_world
from pipeline.offload.wire_world import fill as fill_broker
from spark.replacing_runner import ReplacingRunner
from tiermq.pipeline.offload import task as offload_task
from tiermq.pipeline.offload.job import offload
from tiermq.pipeline.offload.plan import OffloadSettings
from tiermq.spark import SparkRunner
from tiermq.spark.attached_history import attach
from tiermq.tier.dispatch.dispatch_step import execute
from tiermq.tier.driver.contract import BundleUpkeep
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.names import BUNDLES_DIRECTORY, broker_directory


@pytest.fixture(autouse=True)
def by_value() -> Iterator[None]:
    """Executors do not have this file: what tasks need of it travels with them."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


class Faulty:
    """Runs tasks, but ends the first ones half way: by an error, or by the death of the worker."""

    def __init__(self, folder: Path, faults: int, *, dies: bool) -> None:
        self._folder = str(folder)
        self._faults = faults
        self._dies = dies

    def __call__(self, task: Any) -> Any:
        attempt = self._count()
        if attempt < self._faults:
            calls = [0]

            def failing(*arguments: Any) -> Any:
                calls[0] += 1
                if calls[0] > 2:
                    if self._dies:
                        os._exit(1)
                    raise RuntimeError("this task fails")
                return execute(*arguments)

            vars(offload_task)["execute"] = failing
        try:
            return offload_task.run_offload_task(task)
        finally:
            vars(offload_task)["execute"] = execute

    def _count(self) -> int:
        """How many attempts there were before this one, of any task, in any process."""
        number = 0
        while True:
            try:
                os.close(os.open(os.path.join(self._folder, f"{number}"), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                number += 1
            else:
                return number


@pytest.mark.parametrize("suffix", ["", "?driver=object"], ids=["files", "objects"])
def test_executors_copy_running_brokers_and_leave_the_same_bytes(
    spark: SparkSession, tmp_path: Path, suffix: str
) -> None:
    with wire_world(tmp_path, 2, suffix) as world:
        for broker in world.brokers:
            fill_broker(broker, 200)
        report = world.offload(runner=SparkRunner(spark))
        assert (report.problems, report.done["messages"]) == ([], 400)
        assert report.master.startswith("local[2")
        wire = world.segments()
        other = world.tier = (tmp_path / "other").as_uri()
        stores = [f"{broker.directory}={CLUSTER}/broker-{number}" for number, broker in enumerate(world.brokers)]
        offload(stores, other, settings=SMALL, config=TIER)
        assert world.segments() == wire


def test_spark_reads_the_bundles_that_executors_wrote_and_that_others_merged(
    spark: SparkSession, tmp_path: Path
) -> None:
    with wire_world(tmp_path, 1, "?driver=object") as world:
        for turn in range(2):
            fill_broker(world.broker, 100, seed=turn, first=100 * turn)
            assert world.offload(runner=SparkRunner(spark), settings=OffloadSettings()).problems == []
        assert list((tmp_path / "t").glob(f"*/*/{BUNDLES_DIRECTORY}/chunk-*"))
        history = attach(spark, tier=world.tier)
        for _ in range(2):
            (row,) = history.sql("select count(*) as n, count(distinct body) as bodies from orders").collect()
            (other,) = history.sql("select count(*) as n from payments").collect()
            assert row["n"] + other["n"] == 200
            driver: Any = open_driver(world.tier)
            directory = broker_directory(CLUSTER, "broker-0")
            driver.fence_bundles(directory, create=True)
            driver.tend_bundles(directory, BundleUpkeep((0, len(bundles_in(tmp_path)) - 1), ()))
        history.detach()
        assert any("-" in name for name in bundles_in(tmp_path))


def bundles_in(path: Path) -> list[str]:
    return [found.name for found in (path / "t").glob(f"*/*/{BUNDLES_DIRECTORY}/0*")]


def test_spark_and_the_embedded_engine_leave_the_same_bytes(spark: SparkSession, tmp_path: Path) -> None:
    world = OffloadWorld(tmp_path)
    fill(world.store, 300)
    expected = world.messages()
    other = by_engine(world, tmp_path / "engine")
    report = offload([world.place()], world.tier, runner=SparkRunner(spark), settings=SMALL, config=TIER)
    assert (report.problems, report.done["messages"]) == ([], 300)
    assert report.master.startswith("local[2")
    assert world.segments() == other.segments()
    assert_whole(world, expected)


@pytest.mark.parametrize("dies", [False, True], ids=["a task fails twice", "workers die"])
def test_tasks_that_end_half_way_are_run_again_and_change_nothing(
    spark: SparkSession, tmp_path: Path, dies: bool
) -> None:
    world = OffloadWorld(tmp_path)
    fill(world.store, 200)
    expected = world.messages()
    other = by_engine(world, tmp_path / "engine")
    marks = tmp_path / "marks"
    marks.mkdir()
    work = Faulty(marks, 2, dies=dies)
    report = world.offload(runner=ReplacingRunner.of_copies(spark, work))
    assert len(list(marks.iterdir())) > 2
    assert report.problems == []
    assert world.segments() == other.segments()
    assert_whole(world, expected)


def test_a_wave_that_spark_gives_up_is_adopted_by_the_next_run(spark: SparkSession, tmp_path: Path) -> None:
    world = OffloadWorld(tmp_path)
    fill(world.store, 120)
    expected = world.messages()
    marks = tmp_path / "marks"
    marks.mkdir()
    work = Faulty(marks, 1_000, dies=False)
    with pytest.raises(Exception, match="this task fails"):
        world.offload(runner=ReplacingRunner.of_copies(spark, work))
    report = offload([world.place()], world.tier, runner=SparkRunner(spark), settings=SMALL, config=TIER)
    assert report.done["adopted"] > 0
    assert_whole(world, expected)


@pytest.mark.slow
@pytest.mark.crash
def test_an_executor_that_is_killed_half_way_loses_and_doubles_nothing(tmp_path: Path) -> None:
    world = OffloadWorld(tmp_path)
    fill(world.store, 300)
    expected = world.messages()
    script = Path(__file__).with_name("offload_cluster_run.py")
    words = [sys.executable, str(script), world.place(), world.tier, str(tmp_path / "mark")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "300 []" in done.stdout, done.stdout + done.stderr[-3_000:]
    assert (tmp_path / "mark").exists()
    assert_whole(world, expected)
