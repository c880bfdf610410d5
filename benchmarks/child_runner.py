"""A runner whose tasks run in other processes, without Spark: what is measured is the job, not the start of a JVM."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

CGROUPS = Path("/sys/fs/cgroup/cpu")
CGROUP = "tiermq-bench-{}"


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


def can_limit() -> bool:
    """Whether processes can be limited to a share of a processor here: by control groups, version 1, as root."""
    return (CGROUPS / "cpu.cfs_quota_us").exists() and os.access(CGROUPS, os.W_OK)


def _limit(parent: int, share: float) -> None:
    """Give the calling process no more than that share of one processor."""
    group = CGROUPS / CGROUP.format(f"{parent}-{os.getpid()}")
    group.mkdir()
    period_us = int((group / "cpu.cfs_period_us").read_text())
    (group / "cpu.cfs_quota_us").write_text(str(int(share * period_us)))
    (group / "cgroup.procs").write_text(str(os.getpid()))


@contextlib.contextmanager
def child_runner(parallelism: int, share: float | None = None) -> Iterator[ChildRunner]:
    """A runner whose processes end with the context. `share`: each has no more than that of one processor."""
    limit = {} if share is None else {"initializer": _limit, "initargs": (os.getpid(), share)}
    try:
        with ProcessPoolExecutor(parallelism, multiprocessing.get_context("spawn"), **limit) as pool:  # type: ignore[call-overload]
            yield ChildRunner(pool, parallelism)
    finally:
        for group in CGROUPS.glob(CGROUP.format(f"{os.getpid()}-*")):
            with contextlib.suppress(OSError):  # Another pool of this process still uses it.
                group.rmdir()
