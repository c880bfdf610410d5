"""The batch reader: a plan becomes partitions, and a partition the tasks that one worker reads, as Arrow batches.

What a damaged record becomes: with `fail_on_data_loss` an error; otherwise a row with the reason in `_corrupt` when
that column is wanted, and no row when it is not. What is requested and gives no row is counted in `messages_lost`
and logged by the worker, with its reason.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition

from tiermq.client.wire_history import open_place, read_placed_task, worker_place
from tiermq.history.arrow_batch import OnCorrupt, decode_run, is_known, known_rows
from tiermq.history.arrow_schema import CORRUPT
from tiermq.history.open_history import OpenHistory
from tiermq.history.planning import bundle_tasks
from tiermq.history.scan_values import Loss, ScanBundle, ScanCounters, ScanPlan, describe
from tiermq.pipeline.scan.scan_request import plan_batch
from tiermq.pipeline.scan.scan_spec import ScanSpec
from tiermq.spark.options import SourceOptions
from tiermq.spark.source.scan_meter import reporting
from tiermq.spark.spark_runner import freeze_once

KNOWN_PARTITIONS = 8
"""The approximate maximum of tasks when nothing is read: then a Spark task costs more than its work."""
_log = logging.getLogger(__name__)


class TierMQReader(DataSourceReader):  # type: ignore[misc] # PySpark is not followed by the checker.
    """Reads what options ask for, with the columns of the schema."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self.options = options
        self.columns = tuple(columns)

    def partitions(self) -> Sequence[InputPartition]:
        """Plan. Raises BadHistory, DataLoss, and what the tier raises."""
        spec = self.options.scan
        with open_place(spec.place) as history:
            return list(partitions_of(plan_batch(history, spec, self.columns), self.columns, spec))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return metered(partition, self.options.scan_meter)


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
    columns, drops_damage = list(partition.columns), False
    on_corrupt = OnCorrupt.RAISE if partition.fail_on_data_loss else OnCorrupt.ROW
    if on_corrupt is OnCorrupt.ROW and CORRUPT not in columns:
        columns.append(CORRUPT)
        drops_damage = True
    for task in partition.bundle.tasks:
        if is_known(partition.columns, task):
            for batch in known_rows(task, partition.columns):
                counters.rows_given += batch.num_rows
                yield batch
            continue
        opened = worker_place(task.place) if history is None else history
        for run in read_placed_task(opened, task, counters, on_loss=lambda loss: _count_loss(loss, counters)):
            for decoded in decode_run(
                run, columns, task.request, decompress=partition.decompress, on_corrupt=on_corrupt
            ):
                batch = _sound_rows(decoded) if drops_damage else decoded
                counters.messages_lost += decoded.num_rows - batch.num_rows
                counters.rows_given += batch.num_rows
                if batch.num_rows:
                    yield batch


def _count_loss(loss: Loss, counters: ScanCounters) -> None:
    counters.messages_lost += loss.to_offset - loss.from_offset
    _log.warning("lost while it was read: %s", describe(loss))


def _sound_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows without damage, and without the damage column, which is the last."""
    reasons = batch.column(batch.num_columns - 1)
    if reasons.null_count < batch.num_rows:
        batch = batch.filter(pc.is_null(reasons))
    return batch.select(range(batch.num_columns - 1))


def metered(partition: InputPartition, meter: str | None) -> Iterator[pa.RecordBatch]:
    """The rows of a partition in a worker; what it took is reported to the meter, if there is one."""
    freeze_once()
    counters = ScanCounters()
    with reporting(meter) as report:
        for batch in read_partition(partition, counters):
            report(counters)  # Before Spark has the rows: it may want no more of them.
            yield batch
        report(counters)
