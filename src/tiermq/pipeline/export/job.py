"""export: topics into a Parquet directory, a Delta or an Iceberg table, each message once, also over many runs.

    1  recover   finish what the last commit of the table left to be moved
    2  plan      what history has and the table has not, by queue and offset range (the table's journal knows)
    3  write     tasks on executors write files under names of their own
    4  journal   a document says what the commit adds, and which ranges the table has with it
    5  commit    one transaction of the table adds the files and points to the document
    6  finish    staged files (bad rows; for plain Parquet all) get their places

A run that dies before 5 has added nothing, one that dies after it has added everything: the next run begins at 1, and
exports what is missing. Of two exports at once one loses at 5. Large exports are committed in waves.
Messages that are damaged in the history do not count as exported: every run tries them again, and adds them once they
were repaired.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tiermq.clock import Clock, SystemClock
from tiermq.errors import BadOption, BadSchema
from tiermq.history.arrow_schema import COLUMNS, check_columns
from tiermq.history.losses import describe
from tiermq.history.open_history import open_history
from tiermq.history.scan_values import Loss, ScanBundle, ScanCounters
from tiermq.spark.jobs.export_plan import FILE_BYTES, ExportPlan, plan_export
from tiermq.spark.jobs.export_task import ExportResult, ExportTask, export_schema, write_export
from tiermq.spark.jobs.job_report import JobReport
from tiermq.spark.jobs.job_tasks import JobTasks
from tiermq.spark.jobs.task_runner import Progress
from tiermq.spark.option_table import Use
from tiermq.spark.options import SourceOptions
from tiermq.spark.source.builder import option_texts
from tiermq.spark.tables.body_format import BodyFormat
from tiermq.spark.tables.commit_journal import STAGING, Commit, CommitJournal, Move, next_number
from tiermq.spark.tables.exported_ranges import ExportedRanges, queue_text
from tiermq.spark.tables.table_contract import ID_COLUMN, DataFile, ExportTable, require_same_schema
from tiermq.spark.tables.table_target import open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEFT_OUT = ("tier", "segment", "_corrupt")
"""Where a message lay when it was read says nothing about the message."""
WAVE_FILES_MIN = 32
BAD_SUFFIX = "_bad"
DAMAGED = "messages are damaged in the history"
Step = Callable[[str], None]
"""Told the name of each step before it is taken; for tests, which die there."""


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """How files are made. `max_bad`: more bad rows than this in a wave, and nothing of it is committed."""

    columns: tuple[str, ...]
    body: BodyFormat | None = None
    file_bytes: int = FILE_BYTES
    allow_loss: bool = False
    max_bad: int | None = None
    wave_files: int | None = None
    named: bool = False  # Whether columns were asked for by name.
    waits: bool = False  # For what comes later: nothing is there yet is no mistake.


def export(
    spark: SparkSession | None,
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
    wave_files: int | None = None,
    catalog: str | None = None,
    warehouse: str | None = None,
    trigger_s: float | None = None,
    stop: threading.Event | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    clock: Clock | None = None,
    step: Step | None = None,
    **options: Any,
) -> JobReport:
    """Export what the table at `to` has not yet. Without `spark` in this process.

    `to` is `parquet:PLACE`, `delta:PLACE` or `iceberg:NAMESPACE.TABLE` (with `catalog` and perhaps `warehouse`).
    `tier`, `store`, `topic`, `since`, `until` and `options` say which messages, as in `tiermq.spark.messages`.
    With `trigger_s` it looks again that often, until `stop` is set. Raises BadOption, BadBody, BadHistory, BadSchema,
    DataLoss, UnknownColumn before anything is written, and TableConflict when another export was faster.
    """
    given = option_texts(tier=tier, store=store, topic=topic, since=since, until=until, **options)
    for name in ("keys", "tags", "columns"):
        if name in given:
            raise BadOption(f"an export takes whole ranges of queues and no {name}; filter when the table is read")
    source = SourceOptions.of(given, Use.BATCH)
    names = (columns,) if isinstance(columns, str) else tuple(columns or ())
    settings = ExportSettings(
        chosen_columns(names, body, keep_body=keep_body), body, file_bytes, allow_loss, max_bad, wave_files,
        bool(names), trigger_s is not None,
    )  # fmt: skip
    table = open_table(to, catalog=catalog, warehouse=warehouse)
    job = _Export(JobTasks(spark, "export", progress), source, table, settings, clock or SystemClock(), step)
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
    damaged: list[Loss] = field(default_factory=list)


class _Export:
    """One job. Belongs to one thread."""

    def __init__(
        self,
        tasks: JobTasks,
        source: SourceOptions,
        table: ExportTable,
        settings: ExportSettings,
        clock: Clock,
        step: Step | None,
    ) -> None:
        self._tasks = tasks
        self._source = source
        self._table = table
        self._settings = settings
        self._clock = clock
        self._step = step or (lambda _name: None)
        self._schema = export_schema(settings.columns, settings.body)
        self._filled: set[str] = set()
        self.report = JobReport("export", "", master=tasks.master)

    def run(self) -> None:
        """Once: everything that is there now."""
        found = self._table.schema()
        if found is not None and not self._settings.named and ID_COLUMN not in found.names:
            # A table that was made before there was this column keeps the columns that it has.
            left = tuple(name for name in self._settings.columns if name != ID_COLUMN)
            self._settings = replace(self._settings, columns=left)
            self._schema = export_schema(left, self._settings.body)
        if found is not None:
            require_same_schema(found, self._schema, self._table.place.url)
        number = self._table.number()
        journal = CommitJournal(self._table.place) if number or not self.report.dry_run else None
        try:
            last = journal.read(number) if journal is not None and number else None
            if journal is not None and last is not None and not self.report.dry_run:
                self._recover(journal, last)
            run = self._look(number, ExportedRanges() if last is None else last.ranges)
            self._tell_plan(run.plan)
            if not self.report.dry_run and journal is not None and run.plan.bundles:
                self._work(run, journal)
        finally:
            if journal is not None:
                journal.close()

    def _look(self, number: int, exported: ExportedRanges) -> _Run:
        with open_history(self._source.place) as history:
            plan = plan_export(
                history,
                self._source,
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
        self._step("create")
        self._table.create(self._schema)
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
                staged if self._table.stages_files else "data/",
                staged,
                f"part-{number >> 31:08d}-{index:05d}",
                self._settings.columns,
                self._settings.body,
            )
            for index, bundle in enumerate(bundles)
        ]
        self._step("write")
        results = self._tasks.run(write_export, tasks)
        self._require_few_bad(results)
        run.damaged += [loss for result in results for loss in result.damaged]
        commit = self._commit_of(run, number, bundles, results, is_last=is_last)
        if commit.ranges == run.exported and not commit.files and not commit.moves:
            self._tell_done(run, results, commits=0)  # Nothing but damaged messages, as the last time.
            return
        self._step("journal")
        journal.write(commit)
        self._step("commit")
        files = [result.file for result in results if result.file is not None]
        self._table.commit(number, run.number, self._final(files), self._schema)
        self._step("finish")
        run.number, run.exported = number, commit.ranges
        finish_moves(self._table, commit)
        self._tell_done(run, results, commits=1)

    def _commit_of(
        self, run: _Run, number: int, bundles: Sequence[ScanBundle], results: Sequence[ExportResult], *, is_last: bool
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
        files = [result.file for result in results if result.file is not None]
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

    def _tell_done(self, run: _Run, results: Sequence[ExportResult], *, commits: int) -> None:
        report = self.report
        bad = sum(result.bad_rows for result in results)
        report.add(
            files=sum(result.file is not None for result in results),
            messages=sum(result.rows for result in results),
            bad=bad,
            bytes=sum(result.counters.hot_bytes_read + result.counters.cold_bytes_read for result in results),
            written_bytes=sum(result.file.size for result in results if result.file is not None),
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
                "exported: `tiermq tier verify` says what is damaged, and the run after a repair adds them"
            )

    def _note(self, texts: Iterable[str]) -> None:
        notes = self.report.details.setdefault("notes", [])
        notes.extend(text for text in texts if text not in notes)


def finish_moves(table: ExportTable, commit: Commit) -> None:
    """Give the staged files of a commit their places. May be repeated."""
    for move in commit.moves:
        target = bad_place(table) if move.is_bad else table.place
        table.place.move(move.staged, target, move.name)


def bad_place(table: ExportTable) -> Any:
    """Where rows are that did not fit: a directory of Parquet files beside the table."""
    return table.place.sibling(BAD_SUFFIX)


def _base(name: str) -> str:
    return name.rsplit("/", 1)[-1]
