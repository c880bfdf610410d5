"""Running a job's tasks: the contract of a runner, the runner in this process, and a job's use of it.

    plan ─► tasks ── TaskRunner.run(function, tasks) ──► results, in the order of the tasks ─► commit

A task and its result are small values that can be pickled; message bytes never pass through here. A task is pure: the
same task run twice, at once or after a failure, has one effect. `tiermq.spark.SparkRunner` puts tasks on executors.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from tiermq.errors import BadOption

T = TypeVar("T")
R = TypeVar("R")
Progress = Callable[[int, int], None]
"""Called with (tasks done, tasks in all), perhaps from another thread, whenever the number has changed."""


@runtime_checkable
class TaskRunner(Protocol):
    """`parallelism` is how many tasks run at a time; `master` is where, as text for reports."""

    @property
    def parallelism(self) -> int: ...

    @property
    def master(self) -> str: ...

    def run(
        self, function: Callable[[T], R], tasks: Sequence[T], *, name: str = "tiermq", progress: Progress | None = None
    ) -> list[R]:
        """What `function` makes of each task, in the order of the tasks. Raises what a task raised."""
        ...


class LocalRunner:
    """In this process, one task after the other."""

    parallelism = 1
    master = ""

    def run(
        self, function: Callable[[T], R], tasks: Sequence[T], *, name: str = "tiermq", progress: Progress | None = None
    ) -> list[R]:
        del name
        results = []
        for number, task in enumerate(tasks, 1):
            results.append(function(task))
            if progress is not None:
                progress(number, len(tasks))
        return results


def runner_or_local(runner: TaskRunner | None) -> TaskRunner:
    """The runner that a job was given, or one of this process. Raises BadOption for a session, or else."""
    if runner is None:
        return LocalRunner()
    if not isinstance(runner, TaskRunner):
        raise BadOption(
            f"expected a runner of tasks, or None to run them here, found {type(runner).__name__}; with a session of "
            "Spark give tiermq.spark.SparkRunner(spark)"
        )
    return runner


class JobTasks:
    """The tasks of one job, under its name."""

    def __init__(self, runner: TaskRunner | None, job: str, progress: Progress | None = None) -> None:
        self._runner = runner_or_local(runner)
        self._name = f"tiermq {job}"
        self._progress = progress
        self.parallelism = self._runner.parallelism
        self.master = self._runner.master

    def run(self, function: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        """What the function makes of each task, in their order."""
        return self._runner.run(function, tasks, name=self._name, progress=self._progress)

    def bundles(self, works: Sequence[T], weight: Callable[[T], int], bundle_bytes: int) -> list[tuple[T, ...]]:
        """The works in bundles of about the same weight: enough of them for every processor, none too small."""
        total = sum(map(weight, works))
        fair = 2 * self.parallelism if self.parallelism > 1 else 1
        count = max(1, min(len(works), max(-(-total // bundle_bytes), min(fair, total >> 22))))
        bins: list[list[T]] = [[] for _ in range(count)]
        lightest = [(0, number) for number in range(count)]
        for work in sorted(works, key=weight, reverse=True):
            load, number = heapq.heappop(lightest)
            bins[number].append(work)
            heapq.heappush(lightest, (load + weight(work) + 1, number))
        return [tuple(each) for each in bins if each]
