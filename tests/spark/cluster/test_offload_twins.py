"""Copies of offload tasks that live on: beside each other, and beside the next driver. Without Spark, step by step.

A driver that is killed may leave tasks that go on writing, until they are notified. So here a task that is
older than the driver takes one more step of its writing before each step of the new driver's, and never looks at the
lease again: no clock can promise that a process does not stop for a while between looking and writing.
"""

from __future__ import annotations

import multiprocessing
import pickle
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.offload.offload_world import OffloadWorld
from spark.cluster.cluster_worlds import BACK_ENDS, Expectation, world_on
from tiermq.pipeline import worker_cache
from tiermq.pipeline.offload import task as offload_task
from tiermq.pipeline.offload.plan import OffloadTask, TaskResult
from tiermq.pipeline.offload.task import run_offload_task
from tiermq.tier.driver.tier_url import open_driver

pytestmark = pytest.mark.crash
KILLED_DRIVER = """
import os, pickle, sys
from pathlib import Path
from pipeline.offload.offload_world import OffloadWorld

root, tier, waves, kept = sys.argv[1:]
world = OffloadWorld(Path(root))
world.tier = tier
left = [int(waves)]

def run(tasks):
    left[0] -= 1
    if left[0] < 0:
        Path(kept).write_bytes(pickle.dumps(tasks))
        os._exit(9)
    from tiermq.pipeline.offload.task import run_offload_task
    return [run_offload_task(task) for task in tasks]

world.offload(run=run)
"""


def twins(tasks: Sequence[OffloadTask]) -> list[TaskResult]:
    """Every task by two processes at once; the results are now one's, now the other's."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as one, context.Pool(2) as other:
        answers = [pool.map_async(run_offload_task, tasks, 1) for pool in (one, other)]
        results = [answer.get() for answer in answers]
    chance = random.Random(7)
    assert [[c.to_offset for c in r.commits] for r in results[0]] == [
        [c.to_offset for c in r.commits] for r in results[1]
    ]
    return [chance.choice(pair) for pair in zip(*results, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("back_end", BACK_ENDS)
def test_two_processes_that_run_every_task_at_the_same_time_change_nothing(
    tmp_path: Path, back_end: str, request: pytest.FixtureRequest
) -> None:
    world = world_on(back_end, tmp_path, request)
    expected = Expectation(world, tmp_path / "engine")
    report = world.offload(run=twins)
    assert report.problems == []
    expected.check(world)


def killed_before_tasks(world: OffloadWorld, waves: int) -> list[OffloadTask]:
    """What a driver would have let tasks do, had it not been killed at that moment, after so many waves."""
    kept = world.root / "tasks"
    command = [sys.executable, "-c", KILLED_DRIVER, str(world.root), world.tier, str(waves), str(kept)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 9, done.stderr.decode()
    tasks: list[OffloadTask] = pickle.loads(kept.read_bytes())
    return tasks


class OldTasks:
    """Tasks of a dead driver, in a thread that writes once for each `step`, through a driver of its own."""

    def __init__(self, tasks: Sequence[OffloadTask], world: OffloadWorld, patch: pytest.MonkeyPatch) -> None:
        self._may = threading.Semaphore(0)
        self._did = threading.Semaphore(0)
        self._over = False
        self.writes = 0
        self.refused: list[str] = []
        self.driver = open_driver(world.tier)
        patch.setattr(self.driver, "write", self._gated(self.driver.write))
        patch.setattr(self.driver, "put_chunk", self._gated(self.driver.put_chunk))
        patch.setattr(offload_task, "LEASE_CHECK_S", 1e9)
        self._thread = threading.Thread(target=self._run, args=(tasks,), name="old-tasks")
        patch.setattr(offload_task, "driver_of", self._driver_of(worker_cache.driver_of))
        self._thread.start()

    def step(self) -> None:
        """Let it write once more, and wait until it has."""
        if not self._over:
            self._may.release()
            self._did.acquire()

    def finish(self) -> None:
        while not self._over:
            self.step()
        self._thread.join()

    def _driver_of(self, real: Callable[[str], Any]) -> Callable[[str], Any]:
        return lambda url: self.driver if threading.current_thread() is self._thread else real(url)

    def _gated(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def write(*arguments: Any) -> Any:
            self._may.acquire()
            try:
                written = real(*arguments)
                self.writes += 1
                return written
            finally:
                self._did.release()

        return write

    def _run(self, tasks: Sequence[OffloadTask]) -> None:
        try:
            for task in tasks:
                for commit in run_offload_task(task).commits:
                    if commit.error:
                        self.refused.append(commit.error)
        finally:
            self._over = True
            self._did.release()


class Beside:
    """A driver that lets old tasks take a step, now and then, before it does anything."""

    CALLS = ("write", "read", "size", "trim", "seal", "is_sealed", "list_segments", "put_object", "get_object")

    def __init__(self, driver: Any, old: OldTasks, chance: random.Random, odds: float) -> None:
        self._driver = driver
        self._old = old
        self._chance = chance
        self._odds = odds

    def __getattr__(self, name: str) -> Any:
        is_ours = threading.current_thread() is threading.main_thread()  # Steps are taken one at a time.
        if is_ours and name in self.CALLS and self._chance.random() < self._odds:
            self._old.step()
        return getattr(self._driver, name)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
@pytest.mark.parametrize("back_end", ["files", "objects"])
def test_tasks_of_a_dead_driver_that_go_on_writing_beside_the_next_one_change_nothing(
    tmp_path: Path, back_end: str, seed: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_on(back_end, tmp_path, request, 200)
    expected = Expectation(world, tmp_path / "engine")
    chance = random.Random(seed)
    old = OldTasks(killed_before_tasks(world, seed % 3), world, monkeypatch)
    for _ in range(chance.randrange(4)):
        old.step()
    monkeypatch.setitem(worker_cache._drivers, world.tier, Beside(open_driver(world.tier), old, chance, 0.2))
    report = world.offload(step=lambda _name: old.step())
    old.finish()
    assert old.writes > 0
    assert report.problems == []
    monkeypatch.undo()
    expected.check(world)
