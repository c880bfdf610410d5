"""One task of an export: records of some queues become one Parquet file, and one more for rows that are bad.

Bytes go from the history's own buffers through Arrow into the file; Spark sees the task and its result, both small.
A file has a name of this attempt alone, so a task may run twice, also at once: the driver commits what the attempt that
counts has named. A task gives a row for each offset of its ranges, good or bad, or reports it as lost or damaged;
otherwise it fails, so that nothing is left out in silence. Damaged messages are in neither file: their source may be
repaired, and then they are good rows.
For an upsert the file is not part of the table: it has the last write of each key, one row group for each bucket, and
`merge_task` merges the buckets into the table.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tiermq.errors import DataLoss
from tiermq.history.arrow_batch import OnCorrupt, decode_run
from tiermq.history.arrow_schema import CORRUPT, arrow_schema
from tiermq.history.open_history import OpenHistory, worker_history
from tiermq.history.reading import read_task
from tiermq.history.scan_values import Loss, LossReason, ScanBundle, ScanCounters, corrupt
from tiermq.tables.body_format import BodyFormat, decoder_of
from tiermq.tables.commit_journal import ExportedRanges
from tiermq.tables.data_place import DataPlace
from tiermq.tables.file_of_rows import PLACE_COLUMNS, ROW_GROUP_BYTES, FileOfRows
from tiermq.tables.table_contract import ID_COLUMN, DataFile
from tiermq.tables.table_files import RANGES
from tiermq.tables.upsert_rule import DELETED, KEY_COLUMN, UpsertRule, last_per_key

BAD_SCHEMA = pa.schema([*arrow_schema(PLACE_COLUMNS), pa.field("reason", pa.string()), pa.field("body", pa.binary())])


@dataclass(frozen=True, slots=True)
class ExportTask:
    """`columns` are those of messages; the body's own follow. Files are written to `folder`, below the table."""

    bundle: ScanBundle
    place: DataPlace
    folder: str
    bad_folder: str
    stem: str
    columns: tuple[str, ...]
    body: BodyFormat | None = None
    row_group_bytes: int = ROW_GROUP_BYTES
    upsert: UpsertRule | None = None
    table_schema: pa.Schema | None = None  # Of the table, if it has more or wider columns.

    @property
    def schema(self) -> pa.Schema:
        made = self.table_schema or export_schema(self.columns, self.body, self.upsert)
        return made if self.upsert is None else made.append(pa.field(DELETED, pa.bool_()))


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The result of an attempt. `file` is None when no row was good. `damaged` is in no file."""

    file: DataFile | None = None
    bad: DataFile | None = None
    rows: int = 0
    bad_rows: int = 0
    damaged: tuple[Loss, ...] = ()
    losses: tuple[Loss, ...] = ()
    counters: ScanCounters = field(default_factory=ScanCounters)
    reason: str = ""  # Of the first bad row.
    filled: frozenset[str] = frozenset()  # Columns of bodies that have a value in at least one row.
    buckets: tuple[int, ...] = ()  # Of an upsert: the bucket of each row group of the file.


def export_schema(columns: tuple[str, ...], body: BodyFormat | None, upsert: UpsertRule | None = None) -> pa.Schema:
    """The columns of a table: those of messages, then those of bodies. Every row has an id: damaged ones are apart.

    A table of upserts has a key in every row.
    """
    never_null = {ID_COLUMN, upsert.key if upsert is not None else None}
    own = list(arrow_schema(columns))
    if upsert is not None and upsert.is_of_keys:
        own.append(pa.field(KEY_COLUMN, pa.string()))
    fields = [*own, *(body.columns if body is not None else ())]
    return pa.schema([field.with_nullable(field.name not in never_null) for field in fields])


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
        needed = [*task.columns, *PLACE_COLUMNS]
        deletes = "none" if task.upsert is None else task.upsert.tombstone.kind
        if task.body is not None or deletes == "empty":
            needed.append("body")
        if task.upsert is not None and (task.upsert.is_of_keys or deletes == "empty"):
            needed.append("keys")
        if deletes == "tag":
            needed.append("tags")
        self.read_columns = [*dict.fromkeys(needed), CORRUPT]

    def run(self) -> ExportResult:
        task = self.task
        name = f"{task.stem}-{uuid.uuid4().hex[:12]}.parquet"
        with ExitStack() as stack:
            good = self._file(stack, f"{task.folder}{name}")
            bad = FileOfRows(stack, task.place, f"{task.bad_folder}bad-{name}", BAD_SCHEMA, task.row_group_bytes)
            for batch in self._batches():
                self._sort_out(batch, good, bad)
            good.end(self._ranges())
            bad.end()
        self._require_all(good.rows + bad.rows)
        self.counters.rows_given = good.rows
        return ExportResult(
            good.written(), bad.written(), good.rows, bad.rows, tuple(self.damaged), tuple(self.losses), self.counters,
            self.reason, frozenset(self.filled), tuple(good.buckets),
        )  # fmt: skip

    def _file(self, stack: ExitStack, name: str) -> FileOfRows:
        task = self.task
        if task.upsert is None:
            return FileOfRows(stack, task.place, name, task.schema, task.row_group_bytes)
        return _FileOfChanges(stack, task.place, name, task.schema, task.row_group_bytes, task.upsert)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for task in self.task.bundle.tasks:
            self._queue = task.queue
            history = worker_history(task.place) if self.history is None else self.history
            self._settled, self._reason = ExportedRanges(), ""
            for run in read_task(history, task, self.counters, self._lose):
                yield from decode_run(run, self.read_columns, task.request, on_corrupt=OnCorrupt.ROW)
            # A damaged record may not show its offset: what is neither a row nor lost is damaged.
            for begin, end in self._settled.missing(task.queue, task.from_offset, task.to_offset):
                self.damaged.append(corrupt(task.queue, begin, end, self._reason))

    def _lose(self, loss: Loss) -> None:
        if loss.reason is LossReason.CORRUPT:
            self._note_damaged(loss.to_offset - loss.from_offset, loss.detail)
            return
        self.losses.append(loss)
        self._settled.add(loss.queue, loss.from_offset, loss.to_offset)

    def _ranges(self) -> dict[bytes, bytes]:
        """The file's ranges, for its footer: readers of many files can order them."""
        ranges = ExportedRanges()
        for task in self.task.bundle.tasks:
            ranges.add(task.queue, task.from_offset, task.to_offset)
        for loss in self.damaged:
            ranges.remove(loss.queue, loss.from_offset, loss.to_offset)
        return {RANGES: json.dumps(ranges.as_json()).encode()}

    def _sort_out(self, batch: pa.RecordBatch, good: FileOfRows, bad: FileOfRows) -> None:
        reasons = batch.column(batch.num_columns - 1)
        if reasons.null_count < batch.num_rows:
            self._note_damaged(batch.num_rows - reasons.null_count, reasons.drop_null()[0].as_py())
            batch = batch.filter(pc.is_null(reasons))
        self._settle(batch.column(self.read_columns.index("queueOffset")))
        if self.task.upsert is None:
            batch, columns = self._decode(batch, bad)
            good.add(self._fitted(columns, batch.num_rows))
        else:
            self._sort_changes(batch, self.task.upsert, good, bad)

    def _decode(self, batch: pa.RecordBatch, bad: FileOfRows) -> tuple[pa.RecordBatch, dict[str, pa.Array]]:
        """The rows whose body fits, and the columns of the table that they have."""
        body = self.task.body
        made: dict[str, pa.Array] = {}
        if body is not None:
            decoded = decoder_of(body).decode(self._column(batch, "body"))
            made = dict(zip(body.columns.names, decoded.columns, strict=True))
            if decoded.reasons is not None:
                batch, made = self._set_aside(batch, made, pa.array(decoded.reasons, pa.string()), bad)
            self.filled.update(name for name, each in made.items() if each.null_count < len(each))
        return batch, {name: self._column(batch, name) for name in self.task.columns} | made

    def _sort_changes(self, batch: pa.RecordBatch, rule: UpsertRule, good: FileOfRows, bad: FileOfRows) -> None:
        """Versions of rows, and tombstones; a message without a key is a bad row."""
        if rule.tombstone.kind == "empty":
            is_empty = pc.fill_null(pc.equal(pc.binary_length(self._column(batch, "body")), 0), True)
            gone = batch.filter(is_empty)
            columns = {name: self._column(gone, name) for name in self.task.columns}
            columns[rule.key] = first_keys(self._column(gone, "keys"), self.task.schema.field(rule.key).type)
            columns[DELETED] = pa.repeat(True, gone.num_rows)
            self._put_keyed(gone, columns, "KEYS", good, bad)
            batch = batch.filter(pc.invert(is_empty))
        batch, columns = self._decode(batch, bad)
        if rule.is_of_keys:
            columns[rule.key] = first_keys(self._column(batch, "keys"), pa.string())
        columns[DELETED] = pa.repeat(False, batch.num_rows)
        if rule.tombstone.kind in ("tag", "column"):
            name = rule.tombstone.name
            columns[DELETED] = rule.tombstone.marks(columns[name] if name in columns else self._column(batch, name))
        self._put_keyed(batch, columns, "KEYS" if rule.is_of_keys else f"column {rule.key}", good, bad)

    def _put_keyed(
        self, batch: pa.RecordBatch, columns: dict[str, pa.Array], where: str, good: FileOfRows, bad: FileOfRows
    ) -> None:
        assert self.task.upsert is not None
        keys = columns[self.task.upsert.key]
        if keys.null_count:
            reasons = pc.if_else(pc.is_valid(keys), pa.scalar(None, pa.string()), f"no key in {where}")
            batch, columns = self._set_aside(batch, columns, reasons, bad)
        good.add(self._fitted(columns, batch.num_rows))

    def _set_aside(
        self, batch: pa.RecordBatch, columns: dict[str, pa.Array], reasons: pa.Array, bad: FileOfRows
    ) -> tuple[pa.RecordBatch, dict[str, pa.Array]]:
        """Put the rows that have a reason among the bad ones; returns the rest."""
        wrong = pc.is_valid(reasons)
        self._put_bad(batch.filter(wrong), reasons.filter(wrong), bad)
        right = pc.invert(wrong)
        return batch.filter(right), {name: each.filter(right) for name, each in columns.items()}

    def _fitted(self, columns: dict[str, pa.Array], count: int) -> pa.RecordBatch:
        """A batch of the table's columns: absent ones are null, narrower ones are cast."""
        arrays = []
        for wanted in self.task.schema:
            found = columns.get(wanted.name)
            if found is None:
                found = pa.nulls(count, wanted.type)
            arrays.append(found if found.type == wanted.type else found.cast(wanted.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.task.schema)

    def _column(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        return batch.column(self.read_columns.index(name))

    def _settle(self, offsets: pa.Array) -> None:
        """These are rows of the table, or of the bad ones."""
        if len(offsets):
            numbers = offsets.to_numpy()
            for run in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1):
                self._settled.add(self._queue, int(run[0]), int(run[-1]) + 1)

    def _note_damaged(self, count: int, reason: str) -> None:
        self.damaged_count += count
        self._reason = self._reason or reason

    def _put_bad(self, batch: pa.RecordBatch, reasons: pa.Array, bad: FileOfRows) -> None:
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


class _FileOfChanges(FileOfRows):
    """The last writes of a file's messages, with a row group for each bucket that they are in."""

    def __init__(
        self, stack: ExitStack, place: DataPlace, name: str, schema: pa.Schema, group_bytes: int, rule: UpsertRule
    ) -> None:
        super().__init__(stack, place, name, schema, group_bytes)
        self._rule = rule

    def _groups(self, table: pa.Table) -> Iterator[pa.Table]:
        last = last_per_key(table, self._rule.key)
        numbers = self._rule.bucket_numbers(last.column(self._rule.key))
        for bucket in np.unique(numbers):
            self.buckets.append(int(bucket))
            yield last.filter(pa.array(numbers == bucket))


def first_keys(keys: pa.Array, kind: pa.DataType) -> pa.Array:
    """The first of each message's keys, as a type; null where there is none, or none of that type."""
    starts = pc.if_else(pc.greater(pc.fill_null(pc.list_value_length(keys), 0), 0), keys.offsets[:-1], None)
    texts = pc.take(keys.values, starts)
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:  # One of them is no number: find it, and keep the rest.
        return pa.array([_number(text, kind) for text in texts.to_pylist()], kind)


def _number(text: str | None, kind: pa.DataType) -> Any:
    try:
        return None if text is None else pa.scalar(text).cast(kind).as_py()
    except pa.ArrowInvalid:
        return None
