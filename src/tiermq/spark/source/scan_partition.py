"""A partition: the tasks that one worker reads one after the other, as Arrow batches. Runs without Spark.

What a damaged record becomes: with `fail_on_data_loss` an error; otherwise a row that says so in `_corrupt` when that
column is wanted, and no row when it is not. Whatever is asked for and gives no row is counted in `messages_lost` and
told in the worker's log, with its reason.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from tiermq.client.wire_history import worker_place
from tiermq.client.wire_reading import read_placed_task
from tiermq.history.arrow_batch import OnCorrupt, decode_run, is_known, known_rows
from tiermq.history.losses import describe
from tiermq.history.open_history import OpenHistory
from tiermq.history.planning import bundle_tasks
from tiermq.history.scan_values import Loss, ScanBundle, ScanCounters, ScanPlan
from tiermq.spark.options import SourceOptions

CORRUPT = "_corrupt"
KNOWN_PARTITIONS = 8
"""So many at most, about, where nothing is read: a task of Spark costs more than it has to do then."""
_log = logging.getLogger(__name__)


@dataclass
class ScanPartition(InputPartition):  # type: ignore[misc] # PySpark is not followed by the checker.
    """Everything that a worker needs to know. `planned` is what planning counted: in one partition of a scan only."""

    bundle: ScanBundle
    columns: tuple[str, ...]
    decompress: bool = True
    fail_on_data_loss: bool = True
    planned: ScanCounters = field(default_factory=ScanCounters)


def partitions_of(plan: ScanPlan, columns: Sequence[str], options: SourceOptions) -> list[ScanPartition]:
    """The partitions of a plan, in the order of its tasks."""
    largest = options.partition_bytes
    if all(is_known(columns, task) for task in plan.tasks):
        largest = max(largest, sum(task.log_bytes for task in plan.tasks) // KNOWN_PARTITIONS + 1)
    bundles = bundle_tasks(plan.tasks, max_bytes=largest, min_bundles=options.min_partitions)
    partitions = [
        ScanPartition(bundle, tuple(columns), options.decompress, options.fail_on_data_loss) for bundle in bundles
    ]
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
    """The rows without damage, and without the column that tells of it, which is the last one."""
    reasons = batch.column(batch.num_columns - 1)
    if reasons.null_count < batch.num_rows:
        batch = batch.filter(pc.is_null(reasons))
    return batch.select(range(batch.num_columns - 1))
