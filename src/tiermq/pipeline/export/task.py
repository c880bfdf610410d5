"""One task of an export: records of some queues become one Parquet file, and one more for rows that are bad.

Bytes go from the history's own buffers through Arrow into the file; Spark sees the task and its result, both small.
A file has a name of this attempt alone, so a task may run twice, also at once: the driver commits what the attempt that
counts has named. A task gives a row for each offset of its ranges, good or bad, or says which are lost or damaged;
otherwise it fails, so that nothing is left out in silence. Damaged messages are in neither file: their source may be
repaired, and then they are good rows.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tiermq.errors import DataLoss
from tiermq.history.arrow_batch import OnCorrupt, decode_run
from tiermq.history.arrow_schema import arrow_schema
from tiermq.history.losses import corrupt
from tiermq.history.open_history import OpenHistory, worker_history
from tiermq.history.reading import read_task
from tiermq.history.scan_values import Loss, LossReason, ScanBundle, ScanCounters
from tiermq.spark.tables.body_format import BodyFormat, decoder_of
from tiermq.spark.tables.data_place import DataPlace
from tiermq.spark.tables.exported_ranges import ExportedRanges
from tiermq.spark.tables.table_contract import ID_COLUMN, DataFile
from tiermq.spark.tables.table_files import RANGES

CORRUPT = "_corrupt"
PLACE_COLUMNS = ("topic", "brokerName", "queueId", "queueOffset", "storeTimestamp")
BAD_SCHEMA = pa.schema([*arrow_schema(PLACE_COLUMNS), pa.field("reason", pa.string()), pa.field("body", pa.binary())])
ROW_GROUP_BYTES = 64 << 20
_STATISTICS = (*PLACE_COLUMNS, "tags", "bornTimestamp")
_REPEATING = ("topic", "brokerName", "queueId", "tags", "bornHost", "storeHost", "flag", "sysFlag", "reconsumeTimes",
              "storeSize", "tagsCode", "transactionState", "tier", "segment", "properties.key_value.key")  # fmt: skip
"""Columns whose values come again and again: a dictionary of the others costs time and saves nothing."""


@dataclass(frozen=True, slots=True)
class ExportTask:
    """`columns` are those of messages; the body's own follow. `folder` is where files go, beneath the place."""

    bundle: ScanBundle
    place: DataPlace
    folder: str
    bad_folder: str
    stem: str
    columns: tuple[str, ...]
    body: BodyFormat | None = None
    row_group_bytes: int = ROW_GROUP_BYTES

    @property
    def schema(self) -> pa.Schema:
        return export_schema(self.columns, self.body)


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What an attempt has written. `file` is None when no row was good. `damaged` is in no file."""

    file: DataFile | None = None
    bad: DataFile | None = None
    rows: int = 0
    bad_rows: int = 0
    damaged: tuple[Loss, ...] = ()
    losses: tuple[Loss, ...] = ()
    counters: ScanCounters = field(default_factory=ScanCounters)
    reason: str = ""  # Of the first bad row.
    filled: frozenset[str] = frozenset()  # Columns of bodies that have a value in at least one row.


def export_schema(columns: tuple[str, ...], body: BodyFormat | None) -> pa.Schema:
    """The columns of a table: those of messages, then those of bodies. Every row has an id: damaged ones are apart."""
    own = [field.with_nullable(field.name != ID_COLUMN) for field in arrow_schema(columns)]
    return pa.schema([*own, *(body.columns if body is not None else ())])


def write_export(task: ExportTask, history: OpenHistory | None = None) -> ExportResult:
    """Do a task. Raises what reading raises, and DataLoss when a row is missing."""
    return _Export(task, history).run()


class _Export:
    """One attempt. Belongs to one thread."""

    def __init__(self, task: ExportTask, history: OpenHistory | None) -> None:
        self.task = task
        self.history = history
        self.counters = ScanCounters()
        self.losses: list[Loss] = []
        self.damaged: list[Loss] = []
        self.damaged_count = 0
        self._queue = task.bundle.tasks[0].queue  # Of the task that is read now; so are the next two.
        self._settled = ExportedRanges()
        self._reason = ""
        self.reason = ""
        self.filled: set[str] = set()
        extra = [name for name in PLACE_COLUMNS if name not in task.columns]
        if task.body is not None and "body" not in task.columns:
            extra.append("body")
        self.read_columns = [*task.columns, *extra, CORRUPT]

    def run(self) -> ExportResult:
        task = self.task
        name = f"{task.stem}-{uuid.uuid4().hex[:12]}.parquet"
        with ExitStack() as stack:
            good = _FileOfRows(stack, task.place, f"{task.folder}{name}", task.schema, task.row_group_bytes)
            bad = _FileOfRows(stack, task.place, f"{task.bad_folder}bad-{name}", BAD_SCHEMA, task.row_group_bytes)
            for batch in self._batches():
                self._sort_out(batch, good, bad)
            good.end(self._ranges())
            bad.end()
        self._require_all(good.rows + bad.rows)
        self.counters.rows_given = good.rows
        return ExportResult(
            good.written(), bad.written(), good.rows, bad.rows, tuple(self.damaged), tuple(self.losses), self.counters,
            self.reason, frozenset(self.filled),
        )  # fmt: skip

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for task in self.task.bundle.tasks:
            self._queue = task.queue
            history = worker_history(task.place) if self.history is None else self.history
            self._settled, self._reason = ExportedRanges(), ""
            for run in read_task(history, task, self.counters, self._lose):
                yield from decode_run(run, self.read_columns, task.request, on_corrupt=OnCorrupt.ROW)
            # A damaged record may not say which one it is: what is neither a row nor lost is damaged.
            for begin, end in self._settled.missing(task.queue, task.from_offset, task.to_offset):
                self.damaged.append(corrupt(task.queue, begin, end, self._reason))

    def _lose(self, loss: Loss) -> None:
        if loss.reason is LossReason.CORRUPT:
            self._note_damaged(loss.to_offset - loss.from_offset, loss.detail)
            return
        self.losses.append(loss)
        self._settled.add(loss.queue, loss.from_offset, loss.to_offset)

    def _ranges(self) -> dict[bytes, bytes]:
        """What the file has, for its footer: whoever reads many files can tell which comes first."""
        ranges = ExportedRanges()
        for task in self.task.bundle.tasks:
            ranges.add(task.queue, task.from_offset, task.to_offset)
        for loss in self.damaged:
            ranges.remove(loss.queue, loss.from_offset, loss.to_offset)
        return {RANGES: json.dumps(ranges.as_json()).encode()}

    def _sort_out(self, batch: pa.RecordBatch, good: _FileOfRows, bad: _FileOfRows) -> None:
        reasons = batch.column(batch.num_columns - 1)
        if reasons.null_count < batch.num_rows:
            self._note_damaged(batch.num_rows - reasons.null_count, reasons.drop_null()[0].as_py())
            batch = batch.filter(pc.is_null(reasons))
        self._settle(batch.column(self.read_columns.index("queueOffset")))
        columns = [batch.column(number) for number in range(len(self.task.columns))]
        if self.task.body is not None:
            decoded = decoder_of(self.task.body).decode(batch.column(self.read_columns.index("body")))
            columns += decoded.columns
            if decoded.reasons is not None:
                texts = pa.array(decoded.reasons, pa.string())
                wrong = pc.is_valid(texts)
                self._put_bad(batch.filter(wrong), texts.filter(wrong), bad)
                right = pc.invert(wrong)
                columns = [each.filter(right) for each in columns]
            for name, each in zip(self.task.schema.names, columns, strict=True):
                if each.null_count < len(each):
                    self.filled.add(name)
        good.add(pa.RecordBatch.from_arrays(columns, schema=self.task.schema))

    def _settle(self, offsets: pa.Array) -> None:
        """These are rows of the table, or of the bad ones."""
        if len(offsets):
            numbers = offsets.to_numpy()
            for run in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1):
                self._settled.add(self._queue, int(run[0]), int(run[-1]) + 1)

    def _note_damaged(self, count: int, reason: str) -> None:
        self.damaged_count += count
        self._reason = self._reason or reason

    def _put_bad(self, batch: pa.RecordBatch, reasons: pa.Array, bad: _FileOfRows) -> None:
        if not self.reason and len(reasons):
            self.reason = reasons[0].as_py()
        columns = [batch.column(self.read_columns.index(name)) for name in PLACE_COLUMNS]
        has_body = "body" in self.read_columns
        body = batch.column(self.read_columns.index("body")) if has_body else pa.nulls(batch.num_rows, pa.binary())
        bad.add(pa.RecordBatch.from_arrays([*columns, reasons, body], schema=BAD_SCHEMA))

    def _require_all(self, rows: int) -> None:
        wanted = sum(task.to_offset - task.from_offset for task in self.task.bundle.tasks)
        lost = sum(loss.to_offset - loss.from_offset for loss in self.losses) + self.damaged_count
        if rows + lost != wanted:
            first = self.task.bundle.tasks[0]
            raise DataLoss(
                f"{first.queue} from {first.from_offset} and {len(self.task.bundle.tasks) - 1} more ranges: expected "
                f"{wanted} messages, found {rows} and {lost} known to be lost or damaged; nothing was committed: "
                "verify the tier"
            )


class _FileOfRows:
    """A Parquet file that is made with its first row. Rows are gathered until they fill a row group."""

    def __init__(self, stack: ExitStack, place: DataPlace, name: str, schema: pa.Schema, group_bytes: int) -> None:
        self.name = name
        self.rows = 0
        self._stack = stack
        self._place = place
        self._schema = schema
        self._group_bytes = group_bytes
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._stream: Any = None
        self._writer: pq.ParquetWriter | None = None
        self._size = 0
        self._least: dict[str, Any] = {}
        self._most: dict[str, Any] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self.rows += batch.num_rows
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= self._group_bytes:
            self._write()

    def end(self, footer: dict[bytes, bytes] | None = None) -> None:
        if self._waiting:
            self._write()
        if self._writer is not None:
            self._writer.add_key_value_metadata(footer or {})
            self._writer.close()
            self._size = self._stream.tell()

    def written(self) -> DataFile | None:
        if self._writer is None:
            return None
        return DataFile(self.name, self._size, self.rows, _plain(self._least, up=False), _plain(self._most, up=True))

    def _write(self) -> None:
        table = pa.Table.from_batches(self._waiting, self._schema)
        self._waiting, self._waiting_bytes = [], 0
        if self._writer is None:
            self._stream = self._stack.enter_context(self._place.create(self.name))
            names = set(self._schema.names)
            self._writer = pq.ParquetWriter(
                self._stream,
                self._schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=[each for each in _REPEATING if each.split(".")[0] in names],
                write_statistics=[each for each in self._schema.names if self._has_statistics(each)],
            )
        self._writer.write_table(table, row_group_size=table.num_rows)
        for name in _STATISTICS:
            if name in self._schema.names:
                self._note(name, table.column(name))

    def _has_statistics(self, name: str) -> bool:
        kind = self._schema.field(name).type
        return name in _STATISTICS or pa.types.is_primitive(kind)

    def _note(self, name: str, column: pa.ChunkedArray) -> None:
        found = pc.min_max(column).as_py()
        if found["min"] is not None:
            self._least[name] = min(found["min"], self._least.get(name, found["min"]))
            self._most[name] = max(found["max"], self._most.get(name, found["max"]))


def _plain(values: dict[str, Any], *, up: bool) -> dict[str, Any]:
    """Times as texts of whole milliseconds, which is what Delta's statistics hold; the largest are rounded up."""
    made = {}
    for name, value in values.items():
        if isinstance(value, dt.datetime):
            ms = value.microsecond // 1000 * 1000
            moment = value.replace(microsecond=ms) + dt.timedelta(
                milliseconds=1 if up and ms != value.microsecond else 0
            )
            made[name] = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        else:
            made[name] = value
    return made
