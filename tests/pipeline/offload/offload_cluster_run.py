"""Run by a test in a process of its own: an offload on real executors, of which one is killed half way."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from spark.replacing_runner import ReplacingRunner
from tiermq.pipeline.offload import task as offload_task
from tiermq.pipeline.offload.job import OffloadJob, OffloadOptions
from tiermq.pipeline.offload.plan import OffloadSettings
from tiermq.spark.session import get_spark
from tiermq.tier.dispatch.dispatch_step import execute


class KillsItsExecutor:
    """A task's function; the first run of it takes the whole executor with it."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def __call__(self, task: Any) -> Any:
        try:
            os.close(os.open(self._mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return offload_task.run_offload_task(task)
        calls = [0]

        def killing(*arguments: Any) -> Any:
            calls[0] += 1
            if calls[0] > 2:
                daemon = os.getppid()
                executor = int(Path(f"/proc/{daemon}/stat").read_text().rsplit(")", 1)[1].split()[1])
                os.kill(executor, signal.SIGKILL)
            return execute(*arguments)

        vars(offload_task)["execute"] = killing
        return offload_task.run_offload_task(task)


def main(store: str, tier: str, mark: str) -> None:
    spark = get_spark(
        "local-cluster[2,1,1024]", conf={"spark.speculation": "true", "spark.speculation.quantile": "0.5"}
    )
    settings = OffloadSettings(task_bytes=10_000, chunk_bytes=4_000, chunk_messages=25)
    work = KillsItsExecutor(mark)
    options = OffloadOptions(settings=settings)
    job = OffloadJob([store], tier, options, ReplacingRunner.of_copies(spark, work))
    report = job.run()
    print(int(report.done["messages"]), report.problems, flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
