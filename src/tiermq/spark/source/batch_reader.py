"""The batch reader: a plan becomes partitions, and a partition the tasks that one worker reads, as Arrow batches.

What becomes of damaged and lost messages: see `pipeline/scan/read_tasks`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from tiermq.client.wire_history import open_place, worker_place
from tiermq.history.arrow_batch import is_known
from tiermq.history.open_history import OpenHistory
from tiermq.history.planning import bundle_tasks
from tiermq.history.scan_values import ScanBundle, ScanCounters, ScanPlan
from tiermq.pipeline.scan.read_tasks import read_tasks
from tiermq.pipeline.scan.scan_request import plan_batch
from tiermq.pipeline.scan.scan_spec import ScanSpec
from tiermq.spark.options import SourceOptions
from tiermq.spark.source.scan_meter import reporting
from tiermq.spark.spark_runner import freeze_once

_log = logging.getLogger(__name__)

KNOWN_PARTITIONS = 8
"""The approximate maximum of tasks when nothing is read: then a Spark task costs more than its work."""


class TierMQReader(DataSourceReader):  # type: ignore[misc] # PySpark is not followed by the checker.
    """Reads what options ask for, with the columns of the schema."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self.options = options
        self.columns = tuple(columns)

    def partitions(self) -> Sequence[InputPartition]:
        """Plan. Raises BadHistory, DataLoss, and what the tier raises."""
        spec = self.options.scan
        if spec.snapshot is None and spec.is_of_everything:
            warn_of_everything()
        with open_place(spec.place) as history:
            return list(partitions_of(plan_batch(history, spec, self.columns), self.columns, spec))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return metered(partition, self.options.scan_meter)


@functools.cache
def warn_of_everything() -> None:
    """Of a plan that has no conditions of the rule of `query_pruning`, once in the process that plans."""
    _log.warning(
        "tiermq: this read takes all topics, whatever .where(…) and spark.sql ask for: the session lacks the rule of "
        "the optimizer that brings their conditions to the source. Call tiermq.spark.prune_queries(spark) once, or "
        "give options such as subscribe; over Spark Connect, messages(…, where=…)"
    )


@dataclass
class ScanPartition(InputPartition):  # type: ignore[misc] # PySpark is not followed by the checker.
    """Everything that a worker needs to know. `planned` is what planning counted: in one partition of a scan only."""

    bundle: ScanBundle
    columns: tuple[str, ...]
    decompress: bool = True
    fail_on_data_loss: bool = True
    planned: ScanCounters = field(default_factory=ScanCounters)


def partitions_of(plan: ScanPlan, columns: Sequence[str], spec: ScanSpec) -> list[ScanPartition]:
    """The partitions of a plan, in the order of its tasks."""
    largest = spec.partition_bytes
    if all(is_known(columns, task) for task in plan.tasks):
        largest = max(largest, sum(task.log_bytes for task in plan.tasks) // KNOWN_PARTITIONS + 1)
    bundles = bundle_tasks(plan.tasks, max_bytes=largest, min_bundles=spec.min_partitions)
    partitions = [ScanPartition(bundle, tuple(columns), spec.decompress, spec.fail_on_data_loss) for bundle in bundles]
    if partitions:
        partitions[0].planned = plan.counters
    return partitions


def read_partition(
    partition: InputPartition, counters: ScanCounters, history: OpenHistory | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition. `counters` grows by what was planned for it and by what is read."""
    if not isinstance(partition, ScanPartition):
        return  # Spark makes an empty one when there is nothing to read.
    counters += partition.planned
    yield from read_tasks(
        partition.bundle.tasks,
        partition.columns,
        counters,
        lambda task: worker_place(task.place) if history is None else history,
        decompress=partition.decompress,
        fail_on_data_loss=partition.fail_on_data_loss,
    )


def metered(partition: InputPartition, meter: str | None) -> Iterator[pa.RecordBatch]:
    """The rows of a partition in a worker; what it took is reported to the meter, if there is one."""
    freeze_once()
    counters = ScanCounters()
    with reporting(meter) as report:
        for batch in read_partition(partition, counters):
            report(counters)  # Before Spark has the rows: it may want no more of them.
            yield batch
        report(counters)
