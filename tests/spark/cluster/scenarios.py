"""What tests let a driver on a cluster do. Each function gets the session first, and JSON values; it returns JSON."""

from __future__ import annotations

import os
from typing import Any

from spark.cluster.driver_process import die
from spark.cluster.faults import Fault, Straggler
from spark.jobs.offload_world import SMALL, TIER
from tiermq.spark.jobs.offload import OffloadJob, OffloadOptions
from tiermq.spark.jobs.offload_task import run_offload_task
from tiermq.spark.jobs.task_runner import run_tasks


def offload(
    spark: Any,
    *,
    place: str,
    tier: str,
    folder: str = "",
    kinds: list[str] | None = None,
    straggler: bool = False,
    kill_at: str = "",
    times: int = 1,
    with_jvm: bool = True,
) -> dict[str, Any]:
    """An offload with faults in its tasks (`kinds`), a slow copy of one, or the death of its driver at a step."""
    function: Any = run_offload_task
    if kinds:
        function = Fault(function, folder, kinds)
    if straggler:
        function = Straggler(function, folder)
    left = [times]

    def step(name: str) -> None:
        if name == kill_at:
            left[0] -= 1
            if left[0] == 0:
                die(with_jvm=with_jvm)

    options = OffloadOptions(settings=SMALL, config=TIER, step=step)
    job = OffloadJob([place], tier, options, spark, run=lambda tasks: run_tasks(spark, function, tasks))
    report = job.run()
    return {"problems": report.problems, "done": report.done, "faults": sorted(os.listdir(folder)) if folder else []}
