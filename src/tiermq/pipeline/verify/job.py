"""verify: read every byte of a tier on executors, report problems, and repair what can be repaired.

    plan_verify (here) ──► run_verify_task in bundles, anywhere ──► join_verify (here) ──► report table
                                                          with repair: plan_repair ──► repair_broker, one task each
                                                                   ──► the same verification again

Tiered timers are read in this process: they are few small objects. A repair does not change them.

Verification changes nothing and takes no lease: a broker may be running. A repair is one task for each broker, which
holds its lease and works action by action, since each changes what the next one sees; every action may be repeated. A
broker that is in use does not keep others from being repaired. With a store directory repairs run in this process.
"""

from __future__ import annotations

import json
import os
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from tiermq.clock import Clock, SystemClock
from tiermq.delivery.tiered_timers.timer_discovery import discover_timers, verify_timers
from tiermq.errors import BadConfig, TierError, TierMQError, TierUnavailable
from tiermq.pipeline.job_report import JobReport
from tiermq.pipeline.leased_broker import BrokerResult, Home, Sleep, lease_broker, refusals
from tiermq.pipeline.store_directory import place_of
from tiermq.pipeline.task_runner import JobTasks, Progress, TaskRunner
from tiermq.pipeline.worker_cache import driver_of
from tiermq.store.readonly.store import ReadOnlyStore
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.names import QueueKey
from tiermq.tier.queue.segments import TierScope, list_tier
from tiermq.tier.repair.repair import run_repair
from tiermq.tier.repair.repair_plan import (
    RepairAction,
    RepairKind,
    RepairOutcome,
    lost_manifests,
    plan_repair,
    queue_at,
)
from tiermq.tier.tier_config import TierConfig
from tiermq.tier.tier_identity import open_known_metadata
from tiermq.tier.verify.verification_record import keep_run, run_of
from tiermq.tier.verify.verify import join_verify, missing_keys_tasks, run_verify_task
from tiermq.tier.verify.verify_plan import TASK_BYTES, QueueTask, VerifyPlan, VerifyResult, VerifyTask, plan_verify
from tiermq.tier.verify.verify_report import Finding, VerifyReport

# The table that a verification leaves: one row for each queue, and one for each problem, note and repair.
#
#     row         "queue", "problem", "note" or "repair"
#     cluster, broker, topic, queueId       whose it is; empty where a finding belongs to no queue
#     segments, records, units, bytes       of a queue: what was read
#     checksums   of a queue: segments whose checksum is known, and was compared: path, bytes that it covers, crc32
#     kind, place, text                     of a finding: its kind, location and text; of a repair: state and changes
#
# JSON lines or Parquet, by the name of the path. Written whole under another name first: a reader sees all of it or
# none.

JSON_SUFFIXES = (".jsonl", ".json")
COUNTED = ("records", "units", "index_items", "bytes")
Row = dict[str, Any]


def queue_rows(plan: VerifyPlan, results: Iterable[VerifyResult]) -> list[Row]:
    """One row for each queue of the plan, the key index among them. Without results: what would be read."""
    keys = {task.number: task.key for task in plan.tasks}
    counts: defaultdict[QueueKey, Counter[str]] = defaultdict(Counter)
    for result in {result.task: result for result in results if result.task in keys}.values():
        counts[keys[result.task]].update(result.counts)
    rows = []
    for key in sorted(set(keys.values())):
        tasks = [task for task in plan.tasks if task.key == key]
        infos = {info.key for task in tasks for info in _infos(task)}
        known = {(row.key, row.size): row for task in tasks for row in task.rows if row.crc32 is not None}
        rows.append(
            {
                **_names(key),
                "segments": len(infos),
                "planned_bytes": sum(task.size_bytes for task in tasks),
                **{name: counts[key][name] for name in COUNTED},
                "checksums": [
                    {"path": row.key.path, "size": row.size, "crc32": row.crc32} for _, row in sorted(known.items())
                ],
            }
        )
    return rows


def report_rows(
    plan: VerifyPlan, results: Sequence[VerifyResult], found: VerifyReport, outcomes: Iterable[RepairOutcome] = ()
) -> list[Row]:
    """All rows of the table."""
    rows = [{"row": "queue", **row} for row in queue_rows(plan, results)]
    rows += [_finding_row("problem", finding) for finding in found.problems]
    rows += [_finding_row("note", finding) for finding in found.notes]
    for outcome in outcomes:
        text = "; ".join([*outcome.changes, *outcome.not_possible])
        names = _names(outcome.action.queue)
        rows.append(
            {"row": "repair", **names, "kind": outcome.state.value, "place": outcome.action.where, "text": text}
        )
    return rows


def _finding_row(row: str, finding: Finding) -> Row:
    key = queue_at(finding.where)
    names = _names(key) if key is not None else {}
    return {"row": row, **names, "kind": finding.kind, "place": finding.where, "text": finding.text}


def _names(key: QueueKey) -> Row:
    return {"cluster": key.cluster, "broker": key.broker, "topic": key.topic, "queueId": key.queue_id}


def _infos(task: Any) -> Iterable[Any]:
    return (*task.logs, *task.units) if isinstance(task, QueueTask) else (task.info,)


def write_report(path: str, rows: Sequence[Row]) -> str:
    """Write the table, over one that is there already; where. Raises BadConfig when it cannot be written there."""
    target = Path(path).expanduser()
    try:
        if target.suffix in JSON_SUFFIXES:
            target.parent.mkdir(parents=True, exist_ok=True)
            staged = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
            staged.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        else:
            target.mkdir(parents=True, exist_ok=True)
            target = target / "part-0.parquet"
            staged = target.with_name(f".{uuid.uuid4().hex}.parquet")
            _write_parquet(staged, rows)
        os.replace(staged, target)
    except OSError as error:
        raise BadConfig(f"--report {path}: expected a place for a table, found {error}") from error
    return str(target)


def _write_parquet(path: Path, rows: Sequence[Row]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    text, number = pa.string(), pa.int64()
    checksum = pa.struct([("path", text), ("size", number), ("crc32", number)])
    fields = [("row", text), ("cluster", text), ("broker", text), ("topic", text), ("queueId", pa.int32())]
    fields += [(name, number) for name in ("segments", "planned_bytes", *COUNTED)]
    fields += [("checksums", pa.list_(checksum)), ("kind", text), ("place", text), ("text", text)]
    pq.write_table(pa.Table.from_pylist(list(rows), schema=pa.schema(fields)), path, compression="zstd")


BUNDLE_BYTES = 1024 * 1024 * 1024
"""A task costs Spark 20 to 30 ms, in which a core verifies a hundred megabytes."""
PROBLEMS_SHOWN_MAX = 100


@dataclass(frozen=True, slots=True)
class VerifyBundle:
    """Some tasks of a verification, for one executor: a queue alone is often not worth a task of Spark's."""

    tier: str
    tasks: tuple[VerifyTask, ...]


def run_verify_bundle(bundle: VerifyBundle) -> tuple[VerifyResult, ...]:
    """Read what the bundle names. Changes nothing; raises what the driver raises when the tier cannot be reached."""
    driver = driver_of(bundle.tier)
    return tuple(run_verify_task(driver, task) for task in bundle.tasks)


@dataclass(frozen=True, slots=True)
class RepairTask:
    """The repair of one broker: its actions, in their order."""

    tier: str
    home: Home
    actions: tuple[RepairAction, ...]
    dry_run: bool
    clock: Clock
    wait: Sleep | None = None


def repair_broker(
    task: RepairTask, metadata: MetadataStore | None = None, sources: Sequence[ReadOnlyStore] = ()
) -> BrokerResult[list[RepairOutcome]]:
    """Do a task. Raises TierUnavailable; other errors of the tier are in the result, with what was done before."""
    driver = driver_of(task.tier)
    outcomes: list[RepairOutcome] = []
    is_idle = task.dry_run or all(action.kind is RepairKind.NONE for action in task.actions)
    try:
        with lease_broker(
            driver, task.home, "verify --repair", dry_run=is_idle, with_rows=False, clock=task.clock, wait=task.wait
        ) as held:
            for action in task.actions:
                held.check()
                outcome = run_repair(
                    driver,
                    action,
                    sources=sources,
                    metadata=metadata,
                    lease=held.lease,
                    dry_run=task.dry_run,
                    clock=task.clock,
                )
                outcomes.append(outcome)
                if outcome.changes and not is_idle:
                    held.note(action.queue)
                    held.publish()
    except TierUnavailable:
        raise
    except TierMQError as error:
        return BrokerResult(task.home, outcomes, error)
    return BrokerResult(task.home, outcomes)


def verify(
    runner: TaskRunner | None,
    *,
    tier: str,
    cluster: str | None = None,
    broker: str | None = None,
    topic: str | None = None,
    store: str | None = None,
    with_index: bool = True,
    repair: bool = False,
    keep: bool = False,
    dry_run: bool = False,
    report_path: str | None = None,
    task_bytes: int = TASK_BYTES,
    progress: Progress | None = None,
    clock: Clock | None = None,
    wait: Sleep | None = None,
) -> JobReport:
    """Verify the tier at URL `tier`, or a part of it, and with `repair` repair it. Without a `runner` in this process.

    `store` is the directory of one broker (`DIR` or `DIR=cluster/broker`): its metadata are compared too, and a repair
    takes records from it. `report_path` is a table of what was found: JSON lines (`*.jsonl`, `*.json`), or a directory
    for Parquet. With `keep` the tier keeps the result. A dry run plans and reads nothing, but with `repair`, where it
    verifies and reports what it would repair. `wait`: a repair waits for the lease of a killed job (`LeaseWait`).
    Raises BadConfig, BadTierUrl, TierError when there is nothing to read, what the driver raises, and with `repair`
    LeaseHeld.
    """
    if keep and dry_run:
        raise BadConfig("expected keep or a dry run, found both: a dry run writes nothing")
    job = _Verify(runner, tier, store, repair, dry_run, progress, clock or SystemClock(), wait)
    job.scope = _scope(cluster, broker, topic, store)
    job.with_index, job.task_bytes, job.keep = with_index, task_bytes, keep
    return job.run(report_path)


def _scope(cluster: str | None, broker: str | None, topic: str | None, store: str | None) -> TierScope:
    if store is None:
        return TierScope(cluster, broker, topic)
    place = place_of(store)
    if (cluster or place.cluster, broker or place.broker) != (place.cluster, place.broker):
        raise BadConfig(
            f"{place.path} is the store of {place.cluster}/{place.broker}; leave out --cluster and --broker"
        )
    return TierScope(place.cluster, place.broker, topic)


class _Verify:
    """One run. Belongs to one thread."""

    scope: TierScope
    with_index: bool
    task_bytes: int
    keep: bool

    def __init__(
        self,
        runner: TaskRunner | None,
        tier: str,
        store: str | None,
        repair: bool,
        dry_run: bool,
        progress: Progress | None,
        clock: Clock,
        wait: Sleep | None,
    ) -> None:
        self._wait = wait
        self._tasks = JobTasks(runner, "verify", progress)
        self._tier, self._store, self._repair, self._clock = tier, store, repair, clock
        self._driver = driver_of(tier)
        self._report = JobReport("verify", self._driver.url, dry_run, self._tasks.master)

    def run(self, report_path: str | None) -> JobReport:
        report = self._report
        began_ms = self._clock.now_ms()
        with report.timed(), ExitStack() as stack:
            metadata = self._metadata(stack)
            plan = self._plan(metadata)
            if not plan.tasks and not discover_timers(self._driver, self.scope):
                self._require_history()
            report.planned |= {"tasks": len(plan.tasks), "bytes": plan.size_bytes}
            if report.dry_run and not self._repair:
                report.details["queues"] = queue_rows(plan, ())
                return report
            results, found = self._verified(plan)
            outcomes: list[RepairOutcome] = []
            actions = [*plan_repair(found), *lost_manifests(plan, found)] if self._repair else []
            if actions:
                report.details["problems_before"] = found.problem_count
                outcomes = self._repaired(actions, metadata)
                if not report.dry_run:
                    plan = self._plan(metadata)
                    results, found = self._verified(plan)
                    report.details["problems_after"] = found.problem_count
            self._tell(plan, results, found, outcomes)
            if self.keep:
                self._keep(found, began_ms)
            if report_path is not None:
                rows = report_rows(plan, results, found, outcomes)
                report.details["report"] = write_report(report_path, rows)
        return report

    def _keep(self, found: VerifyReport, began_ms: int) -> None:
        """Keep the result in the tier, if the account may write there."""
        try:
            keep_run(self._driver, run_of(found, self.scope, "pipeline verify", began_ms, self._clock.now_ms()))
        except TierError as error:
            self._report.details.setdefault("notes", []).append(
                f"consoles will not show this verification, since the tier does not keep it: {error}"
            )

    def _require_history(self) -> None:
        """Raises TierError when there is nothing at all: a wrong name must not look like a sound tier."""
        scope = self.scope
        if list_tier(self._driver, scope).objects:
            return  # Manifests: everything has expired.
        wanted = "/".join(part or "*" for part in (scope.cluster, scope.broker, scope.topic))
        queues = {info.key.queue for info in list_tier(self._driver, TierScope()).segments}
        there = sorted({f"{key.cluster}/{key.broker}/{key.topic}" for key in queues})
        raise TierError(
            f"{self._driver.url}: expected history of {wanted} (cluster/broker/topic), found none; there is "
            f"{', '.join(there[:20]) or 'nothing at all: check the address'}"
        )

    def _metadata(self, stack: ExitStack) -> MetadataStore | None:
        if self._store is None:
            return None
        root = place_of(self._store).path
        path = TierConfig(store_path_root_dir=root).metadata_path
        if not path.is_file():
            raise BadConfig(
                f"{path}: expected what the broker knows of its tier, found no such file; leave out --store"
            )
        return stack.enter_context(open_known_metadata(root, self._clock))

    def _plan(self, metadata: MetadataStore | None) -> VerifyPlan:
        return plan_verify(
            self._driver, self.scope, metadata=metadata, with_index=self.with_index, task_bytes=self.task_bytes
        )

    def _verified(self, plan: VerifyPlan) -> tuple[list[VerifyResult], VerifyReport]:
        results = self._results(plan.tasks)
        results += self._results(missing_keys_tasks(plan, results))
        found = join_verify(plan, results)
        for listing in discover_timers(self._driver, self.scope):
            verify_timers(self._driver, listing, found)
        return results, found

    def _results(self, tasks: Sequence[VerifyTask]) -> list[VerifyResult]:
        if not tasks:
            return []
        bundles = self._tasks.bundles(tasks, lambda task: task.size_bytes, BUNDLE_BYTES)
        sent = [VerifyBundle(self._tier, bundle) for bundle in bundles]
        return [result for some in self._tasks.run(run_verify_bundle, sent) for result in some]

    # Repair

    def _repaired(self, actions: Sequence[RepairAction], metadata: MetadataStore | None) -> list[RepairOutcome]:
        """Each broker under its own lease. A store is open for reading only, whatever its process does."""
        place = None if self._store is None else place_of(self._store)
        tasks = [
            RepairTask(self._tier, Home(*names, place), tuple(group), self._report.dry_run, self._clock, self._wait)
            for names, group in groupby(sorted(actions, key=_home), key=_home)
        ]
        if place is None:
            results = self._tasks.run(repair_broker, tasks)
        else:
            with ReadOnlyStore.open(place.path) as source:
                results = [repair_broker(task, metadata, (source,)) for task in tasks]
        self._report.problems += refusals(results)
        return [outcome for result in results for outcome in result.value]

    # Reports

    def _tell(
        self, plan: VerifyPlan, results: Iterable[VerifyResult], found: VerifyReport, outcomes: Sequence[RepairOutcome]
    ) -> None:
        report = self._report
        report.add(**{what: amount for what, amount in found.counts.items() if amount})
        report.add(problems=found.problem_count, notes=found.note_count)
        report.problems += [
            f"{problem.where}: {problem.text} ({problem.kind})" for problem in found.problems[:PROBLEMS_SHOWN_MAX]
        ]
        if found.problem_count > PROBLEMS_SHOWN_MAX:
            report.problems.append(f"and {found.problem_count - PROBLEMS_SHOWN_MAX} more; --report has them")
        report.details["queues"] = queue_rows(plan, results)
        if outcomes:
            report.details["repairs"] = [outcome.to_dict() for outcome in outcomes]
            report.add(
                repaired=sum(bool(outcome.changes) for outcome in outcomes if not report.dry_run),
                not_repaired=sum(bool(outcome.not_possible) for outcome in outcomes),
            )


def _home(action: RepairAction) -> tuple[str, str]:
    return action.queue.cluster, action.queue.broker
