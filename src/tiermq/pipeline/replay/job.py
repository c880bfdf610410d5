"""replay: a range of history, filtered and mapped, back into a topic of a store directory, at a chosen rate.

    plan (ranges are fixed at the start) ─► tasks read, filter, map, stage ─► the driver puts ─► flush ─► record

Messages of a queue keep their order. A store directory has one writer, so putting is the driver's; everything that
costs before it runs on executors, a few bundles ahead. A replay that is stopped or dies goes on where it was when it is
run again with the same record, and puts nothing twice.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiermq.errors import BadOption, ForeignCheckpoint, StoreError
from tiermq.history.key_lookup import plan_history
from tiermq.history.losses import describe
from tiermq.history.open_history import open_history
from tiermq.history.planning import bundle_tasks
from tiermq.history.scan_values import OffsetBounds, ScanPlan
from tiermq.spark.jobs.asked_history import require_queues
from tiermq.spark.jobs.job_report import JobReport
from tiermq.spark.jobs.job_tasks import JobTasks
from tiermq.spark.jobs.replay_record import Replayed, ReplayRecord
from tiermq.spark.jobs.replay_task import (
    ReplayTask,
    StagedMessage,
    StagedReplay,
    TableFile,
    read_staged_replay,
    stage_replay,
)
from tiermq.spark.jobs.replay_values import ROW_COLUMNS, ReplayMapping, function_of
from tiermq.spark.jobs.task_runner import Progress
from tiermq.spark.option_table import Use
from tiermq.spark.options import SinkOptions, SourceOptions
from tiermq.spark.sink.sink_store import open_sink_store
from tiermq.spark.source.builder import option_texts
from tiermq.spark.source.scan_request import NOTHING, base_request, bounded_request, open_catalog
from tiermq.spark.tables.exported_ranges import ExportedRanges, queue_text
from tiermq.spark.tables.table_files import table_files
from tiermq.store.local_store import LocalStore
from tiermq.tier.names import QueueKey

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUNDLE_BYTES = 32 << 20
PUT_AT_ONCE = 1000
RATE_STEPS_PER_SECOND = 10
Wait = Callable[[float], object]


@dataclass(frozen=True, slots=True)
class ReplayTarget:
    """Where messages go, and how fast: `rate` is messages per second, None for as fast as it goes."""

    store: str
    mapping: ReplayMapping
    rate: float | None = None


def replay(
    spark: SparkSession | None,
    *,
    into: str | Path,
    record: str | Path,
    topic: Any = None,
    to_topic: str | None = None,
    queue_count: int | None = None,
    properties: Mapping[str, str] | None = None,
    function: str | None = None,
    rate: float | None = None,
    table: str | None = None,
    catalog: str | None = None,
    allow_loss: bool = False,
    dry_run: bool = False,
    stop: threading.Event | None = None,
    progress: Progress | None = None,
    wait: Wait | None = None,
    **source: Any,
) -> JobReport:
    """Put messages of a history, or of an exported `table`, into the store directory `into`. Without `spark` here.

    `topic` and `source` (tier, store, keys, tags, since, until, offsets, queues) say which, as in `messages`.
    `function` is `module:function`: it takes a ReplayMessage and returns one, or None to leave it out. `record` is a
    directory of this replay's own; give it again to go on. Raises BadOption, BadHistory, ForeignCheckpoint and DataLoss
    before anything is put, StoreLocked when somebody has the store open.
    """
    low, high = source.get("offsets") or (None, None)
    if low is not None and high is not None and low > high:
        raise BadOption(f"expected offsets (from, to) with from before to, found ({low}, {high})")
    mapping = ReplayMapping(to_topic, queue_count, tuple(sorted((properties or {}).items())), function)
    check_mapping(mapping, rate)
    sink = SinkOptions.of({"store": str(into)})
    target = ReplayTarget(sink.store, mapping, rate)
    job = _Replay(JobTasks(spark, "replay"), target, Path(record).absolute(), stop or threading.Event(), progress)
    job.sink, job.wait = sink, wait or job.stop.wait
    job.report.dry_run = dry_run
    planning = _Planning(topic, source, table, catalog, allow_loss)
    with job.report.timed():
        job.run(planning)
    return job.report


def check_mapping(mapping: ReplayMapping, rate: float | None) -> None:
    """Raises BadOption."""
    if rate is not None and not rate > 0:
        raise BadOption(f"expected a rate of more than 0 messages per second, found {rate}")
    if mapping.queue_count is not None and mapping.queue_count < 1:
        raise BadOption(f"expected 1 queue or more, found {mapping.queue_count}")
    if mapping.function is not None:
        function_of(mapping.function)


@dataclass(frozen=True, slots=True)
class _Planning:
    """What is to be replayed, before it is known where it lies."""

    topic: Any
    source: dict[str, Any]
    table: str | None
    catalog: str | None
    allow_loss: bool

    @property
    def options(self) -> SourceOptions:
        place = {"tier": "memory://table"} if self.table is not None else {}
        return SourceOptions.of(option_texts(topic=self.topic, **{**self.source, **place}), Use.BATCH)

    @property
    def asked(self) -> dict[str, str]:
        texts = option_texts(topic=self.topic, **self.source)
        return {**texts, "table": self.table or ""}

    def plan(self, record: ReplayRecord | None) -> ScanPlan:
        """The scan; of what a record that is there has left. Raises BadHistory, DataLoss."""
        options = self.options
        request = base_request(options, ROW_COLUMNS)
        with open_history(options.place) as history:
            history_catalog = open_catalog(history, options, request)
            request = bounded_request(options, request, history_catalog)
            require_queues(history_catalog, options)
            if record is not None:
                bounds = {queue.key: NOTHING for queue in history_catalog.queues()} | left_of(record)
                request = dataclasses.replace(request, bounds=bounds)
            return plan_history(
                history_catalog, request, max_bytes_per_partition=BUNDLE_BYTES, loss_is_error=not self.allow_loss
            )


@dataclass(frozen=True, slots=True)
class _Work:
    """A task before it has a name, and how much it reads."""

    size: int
    given: dict[str, Any]


def left_of(record: ReplayRecord) -> dict[QueueKey, OffsetBounds]:
    """What is left of each queue: what went meanwhile and was replayed before is not missed."""
    left = {}
    for queue in record.ranges.queues():
        found = record.ranges.of(queue)
        begin, end = max(found[0][0], record.next_offset(queue)), found[-1][1]
        left[queue] = OffsetBounds(begin, end) if begin < end else NOTHING
    return left


class _Replay:
    """One run. Belongs to one thread."""

    sink: SinkOptions
    wait: Wait

    def __init__(
        self, tasks: JobTasks, target: ReplayTarget, record: Path, stop: threading.Event, progress: Progress | None
    ) -> None:
        self._tasks = tasks
        self._target = target
        self._record_path = record
        self.stop = stop
        self._progress = progress or (lambda _done, _total: None)
        self._bytes = 0  # What the bundles that are put have read: the progress.
        self.report = JobReport("replay", target.store, master=tasks.master)

    def run(self, planning: _Planning) -> None:
        asked = {**planning.asked, "into": self._target.store, "mapping": asdict(self._target.mapping)}
        record = ReplayRecord.find(self._record_path, asked)
        if record is not None:
            self.report.details |= {"record": str(record.path), "name": record.name}
            self.report.problems += record.problems
            self.report.add(messages_before=record.count)
        if record is not None and record.is_finished:
            self._note(f"this replay has ended: {record.count:,} messages were replayed; a new one has its own record")
            self.report.add(messages=0)
            return
        works, ranges = self._works(planning, record)
        self.report.planned |= {"bundles": len(works), "bytes": sum(work.size for work in works)}
        if not works and record is None:
            self._note("there is nothing in what was asked for: it has expired, or was never stored")
        if self.report.dry_run:
            return
        with open_sink_store(self.sink) as store:
            self._require_unchanged(record, asked)
            if record is None:
                ends = {(topic, queue): store.max_offset(topic, queue) for topic, queue in store.simple_queues()}
                files = [work.given["file"].name for work in works if "file" in work.given]
                record = ReplayRecord.begin(self._record_path, asked, ranges, ends, files)
                self.report.details |= {"record": str(record.path), "name": record.name}
            else:
                found = record.recover(store)
                self.report.done["messages_before"] = record.count
                self._note(f"{record.count:,} messages were replayed before; {found:,} of them had not been recorded")
            clear(record.staging)
            if self._put_all(store, record, works):
                clear(record.staging)
                record.finish()

    def _require_unchanged(self, record: ReplayRecord | None, asked: dict[str, Any]) -> None:
        """Raises ForeignCheckpoint: whoever had the store until now may have been this same replay."""
        again = ReplayRecord.find(self._record_path, asked)
        if (again is None) != (record is None) or (again and record and again.count != record.count):
            raise ForeignCheckpoint(
                f"{self._record_path}: expected to be the only one at this replay, found another at work; run it again "
                "when that one has ended"
            )

    def _works(self, planning: _Planning, record: ReplayRecord | None) -> tuple[list[_Work], ExportedRanges]:
        if planning.table is not None:
            return self._table_works(planning, record), ExportedRanges()
        plan = planning.plan(record)
        ranges = ExportedRanges()
        for task in plan.tasks:
            ranges.add(task.queue, task.from_offset, task.to_offset)
        for loss in plan.losses:
            self._note(f"lost, and left out: {describe(loss)}")
        self.report.planned["messages"] = ranges.messages
        self.report.details["queues"] = [
            {"queue": queue_text(queue), "ranges": [list(each) for each in ranges.of(queue)]}
            for queue in ranges.queues()
        ]
        bundles = bundle_tasks(plan.tasks, max_bytes=BUNDLE_BYTES)
        return [_Work(bundle.log_bytes, {"bundle": bundle}) for bundle in bundles], ranges

    def _table_works(self, planning: _Planning, record: ReplayRecord | None) -> list[_Work]:
        assert planning.table is not None
        if planning.source.get("tier") or planning.source.get("store"):
            raise BadOption("a replay reads a history or a table: leave out tier and store, or the table")
        request = base_request(planning.options, ROW_COLUMNS)
        low, high = planning.source.get("offsets") or (None, None)
        bounds: dict[str, Any] = {"from_offset": low or 0}
        if high is not None:
            bounds["to_offset"] = high
        place, files, notes = table_files(planning.table, planning.catalog, ROW_COLUMNS)
        for text in notes:
            self._note(text)
        if record is not None:
            by_name = {file.name: file for file in files}
            gone = next((name for name in record.files if name not in by_name), None)
            if gone is not None:
                raise ForeignCheckpoint(
                    f"{planning.table}: the table was rewritten since this replay began, {gone} is no part of it any "
                    "more; begin another one, with a record of its own and the offsets that are left"
                )
            files = [by_name[name] for name in record.files]
        return [_Work(file.size, {"file": TableFile(place, file.name), "request": request, **bounds}) for file in files]

    def _put_all(self, store: LocalStore, record: ReplayRecord, works: Sequence[_Work]) -> bool:
        """Whether everything was put; False when it was stopped."""
        pace = Pace(self._target.rate, self.wait)
        at_once = 2 * self._tasks.parallelism
        for at in range(0, len(works), at_once):
            some = works[at : at + at_once]
            tasks = [
                ReplayTask(record.name, str(record.staging), f"{at + n:06d}", self._target.mapping, **work.given)
                for n, work in enumerate(some)
            ]
            for work, staged in zip(some, self._tasks.run(stage_replay, tasks), strict=True):
                if not self.stop.is_set():
                    self._put_staged(store, record, staged, pace, work.size)
                if staged.path:
                    Path(staged.path).unlink(missing_ok=True)
            if self.stop.is_set():
                self._note("stopped; run it again with the same record to go on")
                return False
        return True

    def _put_staged(self, store: LocalStore, record: ReplayRecord, staged: StagedReplay, pace: Pace, size: int) -> None:
        record.tell(staged.problems)
        self.report.problems += [text for text in staged.problems if text not in self.report.problems]
        self.report.add(messages_read=staged.read_rows, bytes=staged.read_bytes, messages=0)
        total, before, rows = int(self.report.planned["bytes"]), self._bytes, 0
        for messages in read_staged_replay(staged):
            left = [each for each in messages if not record.is_done(each.source)]
            rows += len(messages) - len(left)
            for at in range(0, len(left), pace.at_once):
                if self.stop.is_set():
                    return
                some = left[at : at + pace.at_once]
                record.add(put(store, some))
                self.report.add(messages=len(some))
                rows += len(some)
                self._progress(before + size * rows // staged.rows, total)
                pace.after(len(some))
        self._bytes = before + size
        self._progress(self._bytes, total)

    def _note(self, text: str) -> None:
        self.report.details.setdefault("notes", []).append(text)


def clear(staging: Path) -> None:
    """Remove what tasks of a run that died have left, attempts that died, and second copies of tasks."""
    for file in staging.glob("*"):
        file.unlink(missing_ok=True)


def put(store: LocalStore, messages: Sequence[StagedMessage]) -> list[Replayed]:
    """Put messages and make them durable; where they are now. Raises StoreError, with those before it durable."""
    results = list(store.put_many([each.message for each in messages]))
    store.dispatch_now()
    store.flush()
    store.flush_queues()
    refused = next((at for at, result in enumerate(results) if not result.ok), None)
    if refused is not None:
        where = messages[refused]
        raise StoreError(
            f"{store.config.root_path}: expected to store {where.source.text} in topic {where.message.topic!r}, found "
            f"{results[refused].status.name}; what was put stays. Run the replay again with the same record to go on"
        )
    return [
        Replayed(each.source, each.message.topic, each.message.queue_id, result.queue_offset)
        for each, result in zip(messages, results, strict=True)
    ]


class Pace:
    """Waits so that on the average no more than `rate` messages per second go through."""

    def __init__(self, rate: float | None, wait: Wait, now_s: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._wait = wait
        self._now_s = now_s
        self._began_s: float | None = None
        self._count = 0
        steps = PUT_AT_ONCE if rate is None else int(rate / RATE_STEPS_PER_SECOND)
        self.at_once = max(1, min(PUT_AT_ONCE, steps))

    def after(self, count: int) -> None:
        """Wait until as many messages more are due."""
        if self._rate is None:
            return
        now_s = self._now_s()
        if self._began_s is None:
            self._began_s = now_s
        self._count += count
        due_s = self._began_s + self._count / self._rate
        if due_s > now_s:
            self._wait(due_s - now_s)
