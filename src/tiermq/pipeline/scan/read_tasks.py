"""The tasks of a plan as Arrow batches: what a worker of Spark does, and a Python program without Spark.

What a damaged record becomes: with `fail_on_data_loss` an error; otherwise a row with the reason in `_corrupt` when
that column is wanted, and no row when it is not. What is requested and gives no row is counted in `messages_lost`
and logged, with its reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tiermq.client.wire_history import read_placed_task
from tiermq.history.arrow_batch import OnCorrupt, decode_run, is_known, known_rows
from tiermq.history.arrow_schema import CORRUPT
from tiermq.history.open_history import OpenHistory
from tiermq.history.scan_values import Loss, ScanCounters, ScanTask, describe

_log = logging.getLogger(__name__)


def read_tasks(
    tasks: Iterable[ScanTask],
    columns: Sequence[str],
    counters: ScanCounters,
    opened: Callable[[ScanTask], OpenHistory],
    *,
    decompress: bool = True,
    fail_on_data_loss: bool = True,
) -> Iterator[pa.RecordBatch]:
    """The rows of tasks, in their order; no batch is empty. `counters` grows by what is read.

    `opened` gives the history of a task. Raises CorruptRecord, DataLoss, and what the tier raises.
    """
    wanted, drops_damage = list(columns), False
    on_corrupt = OnCorrupt.RAISE if fail_on_data_loss else OnCorrupt.ROW
    if on_corrupt is OnCorrupt.ROW and CORRUPT not in wanted:
        wanted.append(CORRUPT)
        drops_damage = True
    for task in tasks:
        if is_known(columns, task):
            for batch in known_rows(task, columns):
                counters.rows_given += batch.num_rows
                yield batch
            continue
        for run in read_placed_task(opened(task), task, counters, on_loss=lambda loss: _count_loss(loss, counters)):
            for decoded in decode_run(run, wanted, task.request, decompress=decompress, on_corrupt=on_corrupt):
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
