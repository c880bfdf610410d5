"""export: topics into a Parquet directory, a Delta or an Iceberg table, each message once, also over many runs.

    1  recover   finish what the last commit of the table left to be moved
    2  plan      what history has and the table has not, by queue and offset range (the table's journal knows)
    3  write     tasks on executors write files under names of their own
       merge     of an upsert: tasks merge what was written into the table's files, bucket by bucket
    4  journal   a document with what the commit adds, and the ranges of the table after it
    5  commit    one transaction of the table adds the files (and removes merged ones) and points to the document
    6  finish    staged files (bad rows; for plain Parquet all) are moved into the table

A run that dies before 5 has added nothing, one that dies after it has added everything: the next run begins at 1, and
exports what is missing. Of two exports at once one loses at 5. Large exports are committed in waves.
Messages that are damaged in the history do not count as exported: every run tries them again, and adds them once they
were repaired.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from tiermq.clock import Clock, SystemClock
from tiermq.errors import BadOption, BadSchema
from tiermq.history.arrow_schema import COLUMNS, check_columns
from tiermq.history.open_history import open_history
from tiermq.history.scan_values import Loss, ScanBundle, ScanCounters, describe
from tiermq.pipeline.export.merge_plan import (
    Merged,
    UpsertState,
    agreed_rule,
    plan_merges,
    require_one_topic,
    require_rule_fits,
    upsert_rule,
)
from tiermq.pipeline.export.merge_task import merge_bucket
from tiermq.pipeline.export.plan import FILE_BYTES, ExportPlan, plan_export
from tiermq.pipeline.export.task import ExportResult, ExportTask, export_schema, write_export
from tiermq.pipeline.job_report import JobReport
from tiermq.pipeline.scan.scan_spec import ScanSpec, scan_spec
from tiermq.pipeline.task_runner import JobTasks, Progress, TaskRunner
from tiermq.tables.body_format import BodyFormat
from tiermq.tables.commit_journal import STAGING, Commit, CommitJournal, ExportedRanges, Move, next_number, queue_text
from tiermq.tables.schema_change import differ, fitting_schema
from tiermq.tables.table_contract import ID_COLUMN, DataFile, ExportTable
from tiermq.tables.table_files import open_table
from tiermq.tables.upsert_rule import UpsertRule

LEFT_OUT = ("tier", "segment", "_corrupt")
"""Columns about where a message was read, not about the message."""
WAVE_FILES_MIN = 32
BAD_SUFFIX = "_bad"
DAMAGED = "messages are damaged in the history"
BAD_ROWS = "messages did not fit the table and are beside it"
Step = Callable[[str], None]
"""Called with the name of each step before it; for crash tests."""


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """How files are made. `max_bad`: more bad rows than this in a wave, and nothing of it is committed."""

    columns: tuple[str, ...]
    body: BodyFormat | None = None
    file_bytes: int = FILE_BYTES
    allow_loss: bool = False
    max_bad: int | None = None
    wave_files: int | None = None
    upsert: UpsertRule | None = None
    merge_schema: bool = False
    fail_on_bad: bool = False
    named: bool = False  # Whether columns were asked for by name.
    waits: bool = False  # For what comes later: nothing is there yet is no mistake.


def export(
    runner: TaskRunner | None,
    *,
    to: str,
    tier: str | None = None,
    store: Any = None,
    topic: Any = None,
    since: Any = None,
    until: Any = None,
    columns: Iterable[str] | str | None = None,
    body: BodyFormat | None = None,
    keep_body: bool = False,
    file_bytes: int = FILE_BYTES,
    allow_loss: bool = False,
    max_bad: int | None = None,
    fail_on_bad: bool = False,
    upsert: bool = False,
    key: str | None = None,
    tombstone: str | None = None,
    buckets: int | None = None,
    merge_schema: bool = False,
    wave_files: int | None = None,
    catalog: str | None = None,
    warehouse: str | None = None,
    trigger_s: float | None = None,
    stop: threading.Event | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    clock: Clock | None = None,
    step: Step | None = None,
    **source: Any,
) -> JobReport:
    """Export what the table at `to` has not yet. Without a `runner` in this process.

    `to` is `parquet:PLACE`, `delta:PLACE` or `iceberg:NAMESPACE.TABLE` (with `catalog` and perhaps `warehouse`).
    `tier`, `store`, `topic`, `since`, `until` and `source` (broker, cluster, queues, offsets) select messages: they
    are the arguments of `scan_spec`.
    With `upsert` the table has the last write of each key: of messages' first key, or of the column `key`; `tombstone`
    (`empty`, `none`, `tag:TAG`, `column:NAME=VALUE`) selects the messages that delete.
    `merge_schema` adds columns of bodies.
    With `trigger_s` it looks again that often, until `stop` is set. Raises BadOption, BadBody, BadHistory, BadSchema,
    DataLoss, UnknownColumn before anything is written, and TableConflict when another export was faster.
    """
    spec = scan_spec(tier=tier, store=store, topic=topic, since=since, until=until, **source)
    for name in ("keys", "tags"):
        if getattr(spec, name):
            raise BadOption(f"an export takes whole ranges of queues and no {name}; filter when the table is read")
    spec.require_place()
    names = (columns,) if isinstance(columns, str) else tuple(columns or ())
    settings = ExportSettings(
        chosen_columns(names, body, keep_body=keep_body), body, file_bytes, allow_loss, max_bad, wave_files,
        upsert_rule(upsert, key, tombstone, buckets), merge_schema, fail_on_bad, bool(names), trigger_s is not None,
    )  # fmt: skip
    table = open_table(to, catalog=catalog, warehouse=warehouse)
    job = _Export(JobTasks(runner, "export", progress), spec, table, settings, clock or SystemClock(), step)
    job.report.dry_run = dry_run
    job.report.place = to
    stop = stop or threading.Event()
    with job.report.timed():
        job.run()
        while trigger_s is not None and not dry_run and not stop.wait(trigger_s):
            job.run()
    return job.report


def chosen_columns(names: Sequence[str], body: BodyFormat | None, *, keep_body: bool = False) -> tuple[str, ...]:
    """The columns of messages that a table has. Raises UnknownColumn, and BadSchema when a body's are the same."""
    left_out = {*LEFT_OUT} | ({"body"} if body is not None and not keep_body else set())
    columns = check_columns(names) if names else tuple(name for name in COLUMNS if name not in left_out)
    if "_corrupt" in columns:
        raise BadSchema("damaged messages are kept apart, so that _corrupt would always be null; leave it out")
    same = sorted({name.lower() for name in columns} & {name.lower() for name in (body.columns.names if body else ())})
    if same:
        raise BadSchema(
            f"messages and bodies both have a column {same[0]}; give the body's a prefix (--prefix body_), or leave "
            "that column of messages out"
        )
    return columns


@dataclass(slots=True)
class _Run:
    """One look at table and history."""

    number: int
    exported: ExportedRanges
    plan: ExportPlan
    upsert: UpsertState | None = None
    damaged: list[Loss] = field(default_factory=list)


class _Export:
    """One job. Belongs to one thread."""

    def __init__(
        self,
        tasks: JobTasks,
        spec: ScanSpec,
        table: ExportTable,
        settings: ExportSettings,
        clock: Clock,
        step: Step | None,
    ) -> None:
        self._tasks = tasks
        self._spec = spec
        self._table = table
        self._settings = settings
        self._clock = clock
        self._step = step or (lambda _name: None)
        self._schema = export_schema(settings.columns, settings.body, settings.upsert)
        self._evolves = False
        self._filled: set[str] = set()
        self.report = JobReport("export", "", master=tasks.master)

    def run(self) -> None:
        """Once: everything that is there now."""
        found = self._table.schema()
        if found is not None and not self._settings.named and ID_COLUMN not in found.names:
            # A table that was made before there was this column keeps the columns that it has.
            left = tuple(name for name in self._settings.columns if name != ID_COLUMN)
            self._settings = replace(self._settings, columns=left)
        wanted = export_schema(self._settings.columns, self._settings.body, self._settings.upsert)
        if self._settings.upsert is not None:
            require_rule_fits(self._settings.upsert, wanted, self._table)
        number = self._table.number()
        journal = CommitJournal(self._table.place) if number or not self.report.dry_run else None
        try:
            last = journal.read(number) if journal is not None and number else None
            rule = agreed_rule(self._settings.upsert, last, self._table.place.url)
            self._schema = wanted if found is None else self._fitting(found, wanted)
            self._evolves = found is not None and differ(found, self._schema)
            if journal is not None and last is not None and not self.report.dry_run:
                self._recover(journal, last)
            run = self._look(number, ExportedRanges() if last is None else last.ranges)
            if rule is not None:
                require_one_topic(run.exported, run.plan.wanted)
                run.upsert = UpsertState.of(rule, last)
            self._tell_plan(run.plan)
            if not self.report.dry_run and journal is not None and run.plan.bundles:
                self._work(run, journal)
            elif not self.report.dry_run and self._evolves:
                self._table.evolve(self._schema)  # Without messages, too: that is what --merge-schema was given for.
                new = [name for name in self._schema.names if found is not None and name not in found.names]
                self._note([f"the table has new columns: {', '.join(new)}"] if new else [])
        finally:
            if journal is not None:
                journal.close()

    def _fitting(self, found: pa.Schema, wanted: pa.Schema) -> pa.Schema:
        return fitting_schema(
            found,
            wanted,
            self._table.place.url,
            merge=self._settings.merge_schema,
            refusals=self._table.refusals,
        )

    def _look(self, number: int, exported: ExportedRanges) -> _Run:
        with open_history(self._spec.place) as history:
            plan = plan_export(
                history,
                self._spec,
                (*self._settings.columns, *(["body"] if self._settings.body else [])),
                exported,
                file_bytes=self._settings.file_bytes,
                parallelism=self._tasks.parallelism,
                allow_loss=self._settings.allow_loss,
                may_be_empty=self._settings.waits,
                one_topic_per_file=self._table.one_topic_per_file,
            )
        return _Run(number, exported.copy(), plan)

    def _work(self, run: _Run, journal: CommitJournal) -> None:
        size = self._settings.wave_files or max(WAVE_FILES_MIN, 4 * self._tasks.parallelism)
        waves = [run.plan.bundles[at : at + size] for at in range(0, len(run.plan.bundles), size)]
        for wave in waves:
            self._wave(run, wave, journal, is_last=wave is waves[-1])
        self._tell_empty_columns()
        journal.sweep(run.number, self._clock.now_ms())

    def _wave(self, run: _Run, bundles: Sequence[ScanBundle], journal: CommitJournal, *, is_last: bool) -> None:
        number = next_number(run.number)
        staged = f"{STAGING}/"
        tasks = [
            ExportTask(
                bundle,
                self._table.place,
                staged if self._table.stages_files or run.upsert is not None else "data/",
                staged,
                f"part-{number >> 31:08d}-{index:05d}",
                self._settings.columns,
                self._settings.body,
                upsert=None if run.upsert is None else run.upsert.rule,
                table_schema=self._schema,
            )
            for index, bundle in enumerate(bundles)
        ]
        self._step("write")
        results = self._tasks.run(write_export, tasks)
        try:
            self._require_few_bad(results)
            self._require_some_good(run, results)
        except BadSchema:
            for file in (each for result in results for each in (result.file, result.bad) if each is not None):
                self._table.place.remove(file.name)
            raise
        self._prepare_table()
        run.damaged += [loss for result in results for loss in result.damaged]
        merged = None if run.upsert is None else self._merge(run.upsert, number, results)
        written = [result.file for result in results if result.file is not None] if merged is None else merged.added
        commit = self._commit_of(run, number, bundles, results, written, is_last=is_last)
        if merged is not None:
            commit.details.update(merged.state.details())
        if commit.ranges == run.exported and not commit.files and not commit.moves:
            self._tell_done(run, results, written, commits=0)  # Nothing but damaged messages, as the last time.
            return
        self._step("journal")
        journal.write(commit)
        self._step("commit")
        removed = () if merged is None else merged.removed
        self._table.commit(number, run.number, self._final(written), self._schema, removed)
        self._step("finish")
        run.number, run.exported = number, commit.ranges
        finish_moves(self._table, commit)
        if merged is not None:
            self._clear_merged(run, merged, results)
        self._tell_done(run, results, written, commits=1)

    def _prepare_table(self) -> None:
        """The table with its columns; after the first files, so that bodies that do not fit leave nothing behind."""
        self._step("create")
        rule = self._settings.upsert
        self._table.create(self._schema, ID_COLUMN if rule is None else rule.key)
        if self._evolves:
            self._table.evolve(self._schema)
            self._evolves = False

    def _merge(self, state: UpsertState, number: int, results: Sequence[ExportResult]) -> Merged:
        self._step("merge")
        tasks, mixed = plan_merges(
            self._table,
            self._schema,
            state,
            results,
            stem=f"part-{number >> 31:08d}",
            file_bytes=self._settings.file_bytes,
        )
        return Merged.of(state, self._tasks.run(merge_bucket, tasks) if tasks else [], mixed)

    def _clear_merged(self, run: _Run, merged: Merged, results: Sequence[ExportResult]) -> None:
        """Delete what the commit has replaced outside the table; a later sweep finds what a crash leaves."""
        assert run.upsert is not None
        kept = set(merged.state.deleted_keys.values())
        names = {result.file.name for result in results if result.file is not None}
        for name in sorted(names | (set(run.upsert.deleted_keys.values()) - kept)):
            self._table.place.remove(name)
        run.upsert = merged.state
        self.report.add(**merged.counts)

    def _commit_of(
        self,
        run: _Run,
        number: int,
        bundles: Sequence[ScanBundle],
        results: Sequence[ExportResult],
        files: Sequence[DataFile],
        *,
        is_last: bool,
    ) -> Commit:
        ranges = run.exported.copy()
        for bundle in bundles:
            for task in bundle.tasks:
                ranges.add(task.queue, task.from_offset, task.to_offset)
        if is_last:
            # With what is lost between tasks: it is never asked for again.
            for queue in run.plan.wanted.queues():
                for begin, end in run.plan.wanted.of(queue):
                    ranges.add(queue, begin, end)
        for loss in run.damaged:
            ranges.remove(loss.queue, loss.from_offset, loss.to_offset)
        moves = [Move(file.name, _base(file.name)) for file in files] if self._table.stages_files else []
        moves += [Move(result.bad.name, _base(result.bad.name), True) for result in results if result.bad is not None]
        return Commit(
            number,
            ranges,
            self._schema,
            tuple(file.name for file in self._final(files)),
            tuple(moves),
            sum(result.rows for result in results),
            sum(result.bad_rows for result in results),
            self._clock.now_ms(),
        )

    def _final(self, files: Sequence[DataFile]) -> list[DataFile]:
        """Files under the names that they have at the end."""
        return [replace(file, name=_base(file.name)) for file in files] if self._table.stages_files else list(files)

    def _recover(self, journal: CommitJournal, last: Commit) -> None:
        if journal.place.files(STAGING):
            finish_moves(self._table, last)

    def _require_few_bad(self, results: Sequence[ExportResult]) -> None:
        bad = sum(result.bad_rows for result in results)
        if self._settings.max_bad is not None and bad > self._settings.max_bad:
            reason = next(result.reason for result in results if result.bad_rows)
            raise BadSchema(
                f"expected at most {self._settings.max_bad} bad rows, found {bad}, such as: {reason}. Nothing of them "
                "was committed; is it the right schema for these bodies?"
            )

    def _require_some_good(self, run: _Run, results: Sequence[ExportResult]) -> None:
        """Raises BadSchema when a new table would begin with bad rows alone: its schema is more often wrong than right.

        A table that exists goes on: its schema fits, and a message that is bad may come alone.
        """
        bad = sum(result.bad_rows for result in results)
        if not bad or run.number or self._settings.max_bad is not None or any(result.rows for result in results):
            return
        reason = next(result.reason for result in results if result.bad_rows)
        raise BadSchema(
            f"not one of {bad} bodies could be decoded, such as: {reason}. Nothing was committed, and there is no "
            "table; is it the right schema? --max-bad accepts them as bad rows"
        )

    def _tell_plan(self, plan: ExportPlan) -> None:
        report = self.report
        numbers = {"files": len(plan.bundles), "messages": plan.messages, "bytes": plan.log_bytes}
        for name, value in numbers.items():
            report.planned[name] = report.planned.get(name, 0) + value
        if report.dry_run:
            report.details["queues"] = [
                {"queue": queue_text(queue), "ranges": [list(each) for each in plan.wanted.of(queue)]}
                for queue in plan.wanted.queues()
            ]
        self._note(plan.notes)
        self._note(f"lost, and left out: {describe(loss)}" for loss in plan.losses)

    def _tell_done(
        self, run: _Run, results: Sequence[ExportResult], written: Sequence[DataFile], *, commits: int
    ) -> None:
        report = self.report
        bad = sum(result.bad_rows for result in results)
        report.add(
            files=len(written),
            messages=sum(result.rows for result in results),
            bad=bad,
            bytes=sum(result.counters.hot_bytes_read + result.counters.cold_bytes_read for result in results),
            written_bytes=sum(file.size for file in written),
            commits=commits,
        )
        read = ScanCounters()
        for result in results:
            read += result.counters
            self._note(f"lost while it was read, and left out: {describe(loss)}" for loss in result.losses)
        report.add(requests=read.requests)
        if bad:
            reason = next(result.reason for result in results if result.bad_rows)
            self._note([f"bad rows are in {bad_place(self._table).url}, such as: {reason}"])
        self._tell_damaged(run.damaged)
        if bad and not any(result.rows for result in results):
            report.problems.append("not one body could be decoded; is it the right schema?")
        elif bad and self._settings.fail_on_bad:
            report.problems[:] = [problem for problem in report.problems if BAD_ROWS not in problem]
            report.problems.append(f"{report.done['bad']} {BAD_ROWS}")
        self._filled.update(*(result.filled for result in results))

    def _tell_empty_columns(self) -> None:
        """A column of bodies without a single value is more often a slip of the pen than news."""
        body = self._settings.body
        names = [] if body is None or not self.report.done.get("messages") else body.columns.names
        empty = [name for name in names if name not in self._filled]
        if empty and len(empty) == len(names):
            text = f"not one body has a value for any column ({', '.join(empty)}); is it the right schema?"
            self.report.problems += [text] if text not in self.report.problems else []
        elif empty:
            self._note([f"no body has a value for {', '.join(empty)}: each row has null there"])

    def _tell_damaged(self, damaged: Sequence[Loss]) -> None:
        """Of this look at the history; one before it may have found others."""
        report = self.report
        report.problems[:] = [problem for problem in report.problems if DAMAGED not in problem]
        count = sum(loss.to_offset - loss.from_offset for loss in damaged)
        if count or "damaged" in report.done:
            report.done["damaged"] = count
        if count:
            report.problems.append(
                f"{count} {DAMAGED}, such as {describe(damaged[0])}. They are not in the table and do not count as "
                "exported: `tiermq tier verify` reports what is damaged, and the run after a repair adds them"
            )

    def _note(self, texts: Iterable[str]) -> None:
        notes = self.report.details.setdefault("notes", [])
        notes.extend(text for text in texts if text not in notes)


def finish_moves(table: ExportTable, commit: Commit) -> None:
    """Move the staged files of a commit into the table. May be repeated."""
    for move in commit.moves:
        target = bad_place(table) if move.is_bad else table.place
        table.place.move(move.staged, target, move.name)


def bad_place(table: ExportTable) -> Any:
    """Where rows are that did not fit: a directory of Parquet files beside the table."""
    return table.place.sibling(BAD_SUFFIX)


def _base(name: str) -> str:
    return name.rsplit("/", 1)[-1]
