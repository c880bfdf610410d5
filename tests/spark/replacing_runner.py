"""A runner on Spark that changes the function of tasks: faults and deaths come in there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import SparkSession

from tiermq.pipeline.offload.task import run_offload_task
from tiermq.spark import SparkRunner


class ReplacingRunner(SparkRunner):
    """Runs what `replace` makes of the function that a job gives."""

    def __init__(self, spark: SparkSession, replace: Callable[[Any], Any]) -> None:
        super().__init__(spark)
        self._replace = replace

    @classmethod
    def of_copies(cls, spark: SparkSession, work: Callable[[Any], Any]) -> ReplacingRunner:
        """Only the tasks of an offload that copy are run by `work`."""
        return cls(spark, lambda function: work if function is run_offload_task else function)

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any], **options: Any) -> list[Any]:
        return super().run(self._replace(function), tasks, **options)
