"""A runner whose tasks run in other processes, without Spark: what is measured is the job, not the start of a JVM."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any


class ChildRunner:
    """`parallelism` processes, one task at a time each. `seconds`: how long the caller waited for tasks."""

    master = "child processes"

    def __init__(self, pool: ProcessPoolExecutor, parallelism: int) -> None:
        self._pool = pool
        self.parallelism = parallelism
        self.seconds = 0.0

    def run(
        self, function: Callable[[Any], Any], tasks: Sequence[Any], *, name: str = "", progress: Any = None
    ) -> list[Any]:
        del name, progress
        began_s = time.perf_counter()
        results = list(self._pool.map(function, tasks))
        self.seconds += time.perf_counter() - began_s
        return results


@contextlib.contextmanager
def child_runner(parallelism: int) -> Iterator[ChildRunner]:
    """A runner whose processes end with the context."""
    with ProcessPoolExecutor(parallelism, multiprocessing.get_context("spawn")) as pool:
        yield ChildRunner(pool, parallelism)
