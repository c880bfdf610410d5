"""One task of an upsert: the changes of one bucket are merged into the table's files of that bucket.

    staged row groups of the bucket ─┐
    files with keys among them       ├─► the last write of each key ─► new files, and the keys that are deleted now
    deleted keys of the bucket      ─┘

A large file without any of the changed keys is left as it is. New files have names of this attempt alone, and the
driver commits the removal of the old ones and the addition of the new ones in one transaction. A task holds the changes
and the rows of the files that it merges in memory: a bucket's share of the table at most.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tiermq.tables.commit_journal import GRAVES
from tiermq.tables.data_place import DataPlace
from tiermq.tables.file_of_rows import ROW_GROUP_BYTES, FileOfRows
from tiermq.tables.table_contract import DataFile
from tiermq.tables.upsert_rule import DELETED, UpsertRule, fitted, last_per_key

_ORIGIN = "_origin"
_TABLE, _CHANGE, _GRAVE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class MergeTask:
    """`changes` are staged files with the row groups to read. `mixed` files have keys of other buckets as well."""

    place: DataPlace
    schema: pa.Schema
    rule: UpsertRule
    bucket: int
    changes: tuple[tuple[str, tuple[int, ...]], ...]
    files: tuple[tuple[str, int], ...]  # Names and sizes.
    mixed: tuple[str, ...]
    graves: tuple[str, ...]  # Files of deleted keys; after a change of the number of buckets, of others too.
    stem: str
    file_bytes: int


@dataclass(frozen=True, slots=True)
class MergeResult:
    """`graves` is the bucket's file of deleted keys now. `late` changes were older than what the table had."""

    bucket: int
    removed: tuple[str, ...]
    added: tuple[DataFile, ...]
    graves: str | None
    upserted: int
    deleted: int
    late: int


def merge_bucket(task: MergeTask) -> MergeResult:
    """Do a task."""
    changes = last_per_key(_changes(task), task.rule.key)
    keys = changes.column(task.rule.key).combine_chunks()
    merged = [name for name, size in task.files if size < task.file_bytes // 2 or _has_any(task, name, keys)]
    old = [_read(task, name) for name in merged]
    old += [_of_bucket(task, _read(task, name)) for name in task.mixed]
    graves, buried = _graves(task)
    all_rows = pa.concat_tables([*_marked(old, _TABLE), *_marked([graves], _GRAVE), *_marked([changes], _CHANGE)])
    last = last_per_key(all_rows, task.rule.key)
    origin = last.column(_ORIGIN).to_numpy()
    is_dead = last.column(DELETED).to_numpy()
    upserted = int(np.sum((origin == _CHANGE) & ~is_dead))
    deleted = int(np.sum((origin == _CHANGE) & is_dead))
    counts = (upserted, deleted, changes.num_rows - upserted - deleted)
    dead = last.filter(pa.array(is_dead))
    is_same = not deleted and len(task.graves) == 1 and dead.num_rows == buried
    left = task.graves[0] if is_same else _write_graves(task, dead)
    if not upserted and not deleted and not task.mixed:
        return MergeResult(task.bucket, (), (), left, *counts)
    live = last.filter(pa.array(~is_dead)).select(task.schema.names)
    return MergeResult(task.bucket, tuple(merged), tuple(_write(task, live)), left, *counts)


def _changes(task: MergeTask) -> pa.Table:
    schema = task.schema.append(pa.field(DELETED, pa.bool_()))
    parts = [schema.empty_table()]
    for name, groups in task.changes:
        with task.place.open(name) as stream:
            parts.append(fitted(pq.ParquetFile(stream).read_row_groups(list(groups)), schema))
    return pa.concat_tables(parts)


def _has_any(task: MergeTask, name: str, keys: pa.Array) -> bool:
    with task.place.open(name) as stream:
        found = pq.ParquetFile(stream).read([task.rule.key]).column(0)
    return bool(pc.any(pc.is_in(found.cast(keys.type), value_set=keys)).as_py())


def _read(task: MergeTask, name: str) -> pa.Table:
    with task.place.open(name) as stream:
        rows = fitted(pq.ParquetFile(stream).read(), task.schema)
    return rows.append_column(pa.field(DELETED, pa.bool_()), pa.repeat(False, rows.num_rows))


def _of_bucket(task: MergeTask, rows: pa.Table) -> pa.Table:
    return rows.filter(pa.array(task.rule.bucket_numbers(rows.column(task.rule.key)) == task.bucket))


def _graves(task: MergeTask) -> tuple[pa.Table, int]:
    """The deleted keys of the bucket, and how many its files have."""
    schema = _nullable(task.schema.append(pa.field(DELETED, pa.bool_())))
    parts = [schema.empty_table()]
    for name in task.graves:
        with task.place.open(name) as stream:
            found = pq.ParquetFile(stream).read()
        parts.append(fitted(found.append_column(DELETED, pa.repeat(True, found.num_rows)), schema))
    all_graves = pa.concat_tables(parts)
    return _of_bucket(task, all_graves), all_graves.num_rows


def _marked(tables: Sequence[pa.Table], origin: int) -> list[pa.Table]:
    """With a column for the source of each row; a deleted row has nulls."""
    marked = []
    for table in tables:
        numbers = pa.array(np.full(table.num_rows, origin, np.int8))
        marked.append(table.cast(_nullable(table.schema)).append_column(_ORIGIN, numbers))
    return marked


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([each.with_nullable(True) for each in schema])


def _write_graves(task: MergeTask, dead: pa.Table) -> str | None:
    if not dead.num_rows:
        return None
    name = f"{GRAVES}/{task.rule.prefix(task.bucket)}{uuid.uuid4().hex[:12]}.parquet"
    rows = fitted(dead, task.rule.graves_schema(task.schema))
    with task.place.create(name) as stream:
        pq.write_table(rows, stream, compression="zstd")
    return name


def _write(task: MergeTask, live: pa.Table) -> list[DataFile]:
    """In files of about the wanted size, each sorted by key."""
    count = max(1, -(-live.nbytes // max(1, task.file_bytes)))
    step = max(1, -(-live.num_rows // count))
    added = []
    for number, at in enumerate(range(0, live.num_rows, step)):
        name = f"data/{task.rule.prefix(task.bucket)}{task.stem}-{number:03d}-{uuid.uuid4().hex[:12]}.parquet"
        with ExitStack() as stack:
            file = FileOfRows(stack, task.place, name, task.schema, ROW_GROUP_BYTES, task.rule.key)
            for batch in fitted(live.slice(at, step), task.schema).to_batches():
                file.add(batch)
            file.end()
        written = file.written()
        assert written is not None, "a slice has a row"
        added.append(written)
    return added
