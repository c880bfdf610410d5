"""maintain: small files of an exported table become large ones, and files of old versions are deleted.

    1  plan      small files that follow each other, by the offsets in their footers
    2  compact   tasks on executors copy the rows of a group into one file, in their order
    3  commit    one transaction of the table replaces the files; its rows, and what exports know of it, stay the same
    4  expire    the format's own library drops versions older than `keep` and their files

An export may commit meanwhile. If another program has replaced one of the files, nothing is committed. Queries that
read an older version than `keep` fail afterwards, so less than a week must be forced. An upserted table is not
compacted: each of its merges does that.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tiermq.clock import Clock, SystemClock
from tiermq.errors import BadOption
from tiermq.pipeline.export.plan import FILE_BYTES
from tiermq.pipeline.job_report import JobReport
from tiermq.pipeline.task_runner import JobTasks, Progress, TaskRunner
from tiermq.tables.commit_journal import UPSERT, CommitJournal, ExportedRanges
from tiermq.tables.data_place import DataPlace
from tiermq.tables.file_of_rows import ROW_GROUP_BYTES, FileOfRows
from tiermq.tables.table_contract import DataFile, ExportTable
from tiermq.tables.table_files import RANGES, READ_THREADS, in_order, open_table, ranges_of
from tiermq.tables.upsert_rule import fitted

KEEP_HOURS = 7 * 24
"""Less than this must be forced: it is Delta's own limit."""
WAVE_GROUPS = 64
_BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class CompactTask:
    """Files of a table, in their order, that become one."""

    place: DataPlace
    names: tuple[str, ...]
    schema: pa.Schema
    bytes: int


def compact_files(task: CompactTask) -> DataFile:
    """Do a task. The file has a name of this attempt alone, which sorts as the first of those it replaces."""
    stem = task.names[0].rsplit("/", 1)[-1].removesuffix(".parquet")[:40]
    name = f"data/{stem}-{uuid.uuid4().hex[:12]}.parquet"
    ranges = ExportedRanges()
    with ExitStack() as stack:
        made = FileOfRows(stack, task.place, name, task.schema, ROW_GROUP_BYTES)
        for each in task.names:
            with task.place.open(each) as stream:
                file = pq.ParquetFile(stream)
                found = ranges_of(file.metadata)
                for queue in found.queues():
                    for begin, end in found.of(queue):
                        ranges.add(queue, begin, end)
                for batch in file.iter_batches(_BATCH_ROWS):
                    for part in fitted(pa.Table.from_batches([batch]), task.schema).to_batches():
                        made.add(part)
        made.end({RANGES: json.dumps(ranges.as_json()).encode()})
    written = made.written()
    assert written is not None, "files of a table have rows"
    return written


def maintain(
    runner: TaskRunner | None,
    *,
    table: str,
    catalog: str | None = None,
    warehouse: str | None = None,
    file_bytes: int = FILE_BYTES,
    keep_hours: int = KEEP_HOURS,
    compact: bool = True,
    expire: bool = True,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> JobReport:
    """Compact a table and delete versions older than `keep_hours`. Without a `runner` in this process.

    Raises BadOption for a table that no export made, a Parquet directory, and too short a time without `force`;
    TableConflict when another program has replaced files meanwhile.
    """
    if keep_hours < KEEP_HOURS and expire and not force:
        raise BadOption(
            f"expected to keep {KEEP_HOURS} hours of versions at least, found {keep_hours}: a running query or export "
            "may need their files. With force (--force) no query and no export of this table may be running"
        )
    opened = open_table(table, catalog=catalog, warehouse=warehouse)
    if "maintain" in opened.refusals:
        raise BadOption(f"{table}: {opened.refusals['maintain']}")
    if not opened.number():
        raise BadOption(
            f"{table}: expected a table that was exported, found none; maintain others with their own tools"
        )
    report = JobReport("maintain", table, dry_run=dry_run)
    tasks = JobTasks(runner, "maintain", progress)
    report.master = tasks.master
    with report.timed():
        if compact:
            _compact(opened, tasks, report, file_bytes)
        if expire:
            now_ms = (clock or SystemClock()).now_ms()
            _expire(opened, report, keep_hours, now_ms)
    return report


def _compact(table: ExportTable, tasks: JobTasks, report: JobReport, file_bytes: int) -> None:
    journal = CommitJournal(table.place)
    try:
        is_upserted = UPSERT in journal.read(table.number()).details
    finally:
        journal.close()
    if is_upserted:
        report.details["notes"] = [
            "the table is upserted, and its merges keep few files: only old versions are deleted"
        ]
        return
    schema = table.schema()
    assert schema is not None, "the table has a commit"
    groups = plan_groups(table, file_bytes)
    files = sum(len(group) for group in groups)
    report.planned |= {"small_files": files, "bytes": sum(size for group in groups for _, size in group)}
    report.details["compact"] = [[name for name, _ in group] for group in groups]
    if report.dry_run:
        return
    for at in range(0, len(groups), WAVE_GROUPS):
        wave = groups[at : at + WAVE_GROUPS]
        works = [
            CompactTask(table.place, tuple(name for name, _ in group), schema, sum(size for _, size in group))
            for group in wave
        ]
        made = tasks.run(compact_files, works)
        table.replace(made, [name for group in wave for name, _ in group], schema)
        report.add(
            small_files=sum(len(group) for group in wave),
            files=len(made),
            rows=sum(file.rows for file in made),
            bytes=sum(work.bytes for work in works),
            written_bytes=sum(file.size for file in made),
        )


def plan_groups(table: ExportTable, file_bytes: int) -> list[list[tuple[str, int]]]:
    """Small files of one partition that follow each other, as many as make a file of the wanted size."""
    sizes = table.files()
    groups: list[list[tuple[str, int]]] = []
    for names in table.partitions():
        with ThreadPoolExecutor(READ_THREADS, thread_name_prefix="table-footers") as pool:
            ranges = dict(zip(names, pool.map(lambda name: _ranges(table.place, name), names), strict=True))
        groups += _runs([(name, sizes[name]) for name in in_order(ranges)[0]], file_bytes)
    return groups


def _runs(files: Sequence[tuple[str, int]], file_bytes: int) -> list[list[tuple[str, int]]]:
    """A file of at least half the wanted size ends a run: those behind it must stay behind it."""
    runs: list[list[tuple[str, int]]] = [[]]
    for name, size in files:
        if size >= file_bytes // 2:
            runs.append([])
        elif sum(each for _, each in runs[-1]) + size > file_bytes:
            runs.append([(name, size)])
        else:
            runs[-1].append((name, size))
    return [run for run in runs if len(run) > 1]


def _ranges(place: DataPlace, name: str) -> ExportedRanges:
    with place.open(name) as stream:
        return ranges_of(pq.read_metadata(stream))


def _expire(table: ExportTable, report: JobReport, keep_hours: int, now_ms: int) -> None:
    found: Any = table.expire(keep_hours, now_ms, dry_run=report.dry_run)
    numbers = report.planned if report.dry_run else report.done
    numbers |= {"old_versions": found.versions, "old_files": len(found.files)}
    report.details["expired"] = sorted(found.files)
