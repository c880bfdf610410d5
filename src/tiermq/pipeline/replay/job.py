"""replay: a range of history, filtered and mapped, back into topics, at a chosen rate.

    store directory   plan ─► tasks read, filter, map, stage ─► the driver puts ─► flush ─► record
    running brokers   plan ─► tasks read, filter, map, send ─► record; see `wire_job`

The ranges are fixed at the start, and messages of a queue keep their order. A store directory has one writer, so
putting is the driver's; everything that costs before it runs on executors, a few bundles ahead. A replay that is
stopped or dies resumes when it is run again with the same record. Into a directory it puts nothing twice.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tiermq.errors import BadOption, ForeignCheckpoint, StoreError
from tiermq.history.planning import bundle_tasks
from tiermq.pipeline.job_report import JobReport
from tiermq.pipeline.replay.message import ROW_COLUMNS, ReplayMapping, function_of
from tiermq.pipeline.replay.plan import Planning, RateLimiter, note, ranges_of, show_plan, table_bounds
from tiermq.pipeline.replay.record import Replayed, ReplayRecord
from tiermq.pipeline.replay.task import (
    ReplayTask,
    StagedMessage,
    StagedReplay,
    TableFile,
    read_staged_replay,
    stage_replay,
)
from tiermq.pipeline.replay.wire_job import WireReplay
from tiermq.pipeline.replay.wire_record import record_url
from tiermq.pipeline.replay.wire_task import WireTarget
from tiermq.pipeline.scan.scan_request import base_request
from tiermq.pipeline.scan.scan_spec import NOWHERE, scan_spec
from tiermq.pipeline.store_directory import open_store
from tiermq.pipeline.task_runner import JobTasks, Progress, TaskRunner
from tiermq.store.local_store import LocalStore
from tiermq.tables.commit_journal import ExportedRanges
from tiermq.tables.table_files import table_files

BUNDLE_BYTES = 32 << 20
PUT_AT_ONCE = 1000
Wait = Callable[[float], object]


@dataclass(frozen=True, slots=True)
class ReplayTarget:
    """Where messages go, and how fast: `rate` is messages per second, None for as fast as it goes."""

    store: str
    mapping: ReplayMapping
    rate: float | None = None


def replay(
    runner: TaskRunner | None,
    *,
    into: str | Path | None = None,
    namesrv: WireTarget | str | None = None,
    record: str | Path,
    topic: Any = None,
    to_topic: str | None = None,
    queue_count: int | None = None,
    create: int | None = None,
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
    """Put messages of a history, or of an exported `table`, into the store directory `into`, or send those of a history
    to the brokers of the name servers `namesrv`. Without a `runner` in this process.

    `topic` and `source` (tier, store, broker, keys, tags, since, until, offsets, queues) select messages, as in
    `scan_spec`. `function` is `module:function`: it takes a ReplayMessage and returns one, or None to leave it out.
    `record` is a directory of this replay's own, to brokers also a URL; pass it again to resume. `create`: topics that
    brokers do not have are created with this number of queues at each. Raises BadOption, BadHistory, ForeignCheckpoint
    and DataLoss before anything is put, StoreLocked when another process has the store open, RequestRefused when
    brokers do not permit sends, and RemotingError when they cannot be reached.
    """
    spec = scan_spec(topic=topic, **source)
    if table is None:
        spec.require_place()
    elif spec.place != NOWHERE:
        raise BadOption("a replay reads a history or a table: leave out tier and store, or the table")
    mapping = ReplayMapping(to_topic, queue_count, tuple(sorted((properties or {}).items())), function)
    check_mapping(mapping, rate)
    spec = dataclasses.replace(spec, partition_bytes=BUNDLE_BYTES, fail_on_data_loss=not allow_loss)
    planning = Planning(spec, table, catalog)
    tasks, stop = JobTasks(runner, "replay"), stop or threading.Event()
    job: _Replay | WireReplay
    if namesrv is not None:
        if into is not None or table is not None:
            raise BadOption("to brokers goes a history: leave out into and table, or namesrv")
        target = WireTarget(namesrv) if isinstance(namesrv, str) else namesrv
        job = WireReplay(tasks, target, mapping, rate, create, record_url(record), stop, progress)
    elif into is None or create is not None:
        raise BadOption("say where messages go: into (a store directory) or namesrv (brokers, which may have create)")
    else:
        store = ReplayTarget(os.path.abspath(os.path.expanduser(into)), mapping, rate)
        job = _Replay(tasks, store, Path(record).absolute(), stop, progress)
        job.wait = wait or stop.wait
    job.report.dry_run = dry_run
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
class _Work:
    """A task before it has a name, and how much it reads."""

    size: int
    given: dict[str, Any]


class _Replay:
    """One run. Belongs to one thread."""

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

    def run(self, planning: Planning) -> None:
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
        with open_store(self._target.store) as store:
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
        """Raises ForeignCheckpoint: the previous owner of the store may have been this same replay."""
        again = ReplayRecord.find(self._record_path, asked)
        if (again is None) != (record is None) or (again and record and again.count != record.count):
            raise ForeignCheckpoint(
                f"{self._record_path}: expected to be the only one at this replay, found another at work; run it again "
                "when that one has ended"
            )

    def _works(self, planning: Planning, record: ReplayRecord | None) -> tuple[list[_Work], ExportedRanges]:
        if planning.table is not None:
            return self._table_works(planning, record), ExportedRanges()
        plan = planning.plan(record)
        ranges = ranges_of(plan)
        show_plan(self.report, ranges, plan)
        bundles = bundle_tasks(plan.tasks, max_bytes=BUNDLE_BYTES)
        return [_Work(bundle.log_bytes, {"bundle": bundle}) for bundle in bundles], ranges

    def _table_works(self, planning: Planning, record: ReplayRecord | None) -> list[_Work]:
        assert planning.table is not None
        request = base_request(planning.spec, ROW_COLUMNS)
        bounds = table_bounds(planning.spec)
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
        limiter = RateLimiter(self._target.rate, at_once=PUT_AT_ONCE)
        at_once = 2 * self._tasks.parallelism
        for at in range(0, len(works), at_once):
            some = works[at : at + at_once]
            tasks = [
                ReplayTask(record.name, str(record.staging), f"{at + n:06d}", self._target.mapping, **work.given)
                for n, work in enumerate(some)
            ]
            for work, staged in zip(some, self._tasks.run(stage_replay, tasks), strict=True):
                if not self.stop.is_set():
                    self._put_staged(store, record, staged, limiter, work.size)
                if staged.path:
                    Path(staged.path).unlink(missing_ok=True)
            if self.stop.is_set():
                self._note("stopped; run it again with the same record to go on")
                return False
        return True

    def _put_staged(
        self, store: LocalStore, record: ReplayRecord, staged: StagedReplay, limiter: RateLimiter, size: int
    ) -> None:
        record.tell(staged.problems)
        self.report.problems += [text for text in staged.problems if text not in self.report.problems]
        self.report.add(messages_read=staged.read_rows, bytes=staged.read_bytes, messages=0)
        total, before, rows = int(self.report.planned["bytes"]), self._bytes, 0
        for messages in read_staged_replay(staged):
            left = [each for each in messages if not record.is_done(each.source)]
            rows += len(messages) - len(left)
            for at in range(0, len(left), limiter.at_once):
                if self.stop.is_set():
                    return
                some = left[at : at + limiter.at_once]
                record.add(put(store, some))
                self.report.add(messages=len(some))
                rows += len(some)
                self._progress(before + size * rows // staged.rows, total)
                if (rest_s := limiter.after(len(some))) > 0:
                    self.wait(rest_s)
        self._bytes = before + size
        self._progress(self._bytes, total)

    def _note(self, text: str) -> None:
        note(self.report, text)


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
