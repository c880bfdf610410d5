"""Running a job's tasks where the job runs: on Spark's executors, or here when there is no session."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from tiermq.spark.jobs.task_runner import Progress, run_here, run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")


class JobTasks:
    """`spark` None: in this process, one task after the other. `parallelism` is how many run at a time."""

    def __init__(self, spark: SparkSession | None, job: str, progress: Progress | None = None) -> None:
        self._spark = spark
        self._name = f"tiermq {job}"
        self._progress = progress
        context = getattr(spark, "_sc", None)
        self.parallelism = 1 if spark is None else int(context.defaultParallelism) if context is not None else 8
        self.master = "" if spark is None else str(spark.conf.get("spark.master", "") or "")

    def run(self, function: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        """What the function makes of each task, in their order."""
        if self._spark is None:
            return run_here(function, tasks, progress=self._progress)
        return run_tasks(self._spark, function, tasks, name=self._name, progress=self._progress)

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
