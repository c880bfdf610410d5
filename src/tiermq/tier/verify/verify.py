"""Read every byte of a tier, or of one topic, and check that it is consistent.

* every record is sound, at its physical offset, of its queue, and has the next queue offset
* every unit points to its record, with its size and its tag; blank units are in recorded gaps
* segments follow each other, and have the sizes and checksums that manifests (and the broker's metadata) know
* manifests, leases and companions can be read; time indexes are true
* index files are whole, and every item leads to a message that has such a key
* every message with keys in what the index covers has an item of each (`missing_keys`)

Only the tier is needed; the metadata of a broker adds what it knows. Nothing is written. A writer may be at work: what
it adds or expires meanwhile is a note, not a problem.

`verify_tier` runs the tasks of a plan on threads; a job runs them on executors and joins the results.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from tiermq.errors import TierError
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.names import SegmentKey
from tiermq.tier.queue.segments import TierScope
from tiermq.tier.verify.checked_segment import CrcPiece, compare_pieces, known_checksums
from tiermq.tier.verify.index_verifier import IndexVerifier
from tiermq.tier.verify.missing_keys import KeyRange, KeySum, MissingKeysTask, find_missing, unequal
from tiermq.tier.verify.queue_verifier import QueueVerifier
from tiermq.tier.verify.verify_plan import (
    TASK_BYTES,
    IndexTask,
    QueueTask,
    VerifyPlan,
    VerifyResult,
    VerifyTask,
    plan_verify,
)
from tiermq.tier.verify.verify_report import Problem, VerifyReport

Progress = Callable[[int, int], None]
"""Called with (bytes read since the last call, bytes in all)."""

DEFAULT_THREADS = 4


def verify_tier(
    driver: TierDriver,
    scope: TierScope | None = None,
    *,
    metadata: MetadataStore | None = None,
    with_index: bool = True,
    threads: int = DEFAULT_THREADS,
    progress: Progress = lambda _done, _total: None,
    task_bytes: int = TASK_BYTES,
) -> VerifyReport:
    """Verify everything within `scope` (default: all). The index is a broker's: a topic alone is read without it.

    Raises what the driver raises when the tier cannot be reached; all else is in the report.
    """
    plan = plan_verify(driver, scope, metadata=metadata, with_index=with_index, task_bytes=task_bytes)
    return verify_plan(driver, plan, threads=threads, progress=progress)


def verify_plan(
    driver: TierDriver,
    plan: VerifyPlan,
    *,
    threads: int = DEFAULT_THREADS,
    progress: Progress = lambda _done, _total: None,
) -> VerifyReport:
    """Run all tasks of a plan on threads. Raises what the driver raises when the tier cannot be reached."""
    total = plan.size_bytes

    def report_progress(done: int) -> None:
        progress(done, total)

    with ThreadPoolExecutor(max_workers=max(1, threads), thread_name_prefix="tier-verify") as pool:

        def run(tasks: Iterable[VerifyTask]) -> list[VerifyResult]:
            jobs = [pool.submit(run_verify_task, driver, task, report_progress) for task in tasks]
            try:
                return [job.result() for job in jobs]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

        results = run(plan.tasks)
        results += run(missing_keys_tasks(plan, results))
    return join_verify(plan, results)


def run_verify_task(
    driver: TierDriver, task: VerifyTask, progress: Callable[[int], None] = lambda _bytes: None
) -> VerifyResult:
    """Run a task and return its findings. Changes nothing, so that it may be repeated, also in parallel.

    Raises what the driver raises when the tier cannot be reached.
    """
    report = VerifyReport(driver.url)
    if isinstance(task, QueueTask):
        return QueueVerifier(driver, task, report, progress).run()
    if isinstance(task, MissingKeysTask):
        return _missing_keys(driver, task, report)
    return IndexVerifier(driver, task, report, progress).run()


def _missing_keys(driver: TierDriver, task: MissingKeysTask, report: VerifyReport) -> VerifyResult:
    found = find_missing(driver, task)
    if not found.requests:
        return VerifyResult.of(task.number, report)
    report.count("missing_items", len(found.requests))
    first, last = found.requests[0].tier_offset, found.requests[-1].tier_offset
    behind = last + found.requests[-1].size
    report.problem(
        Problem.MISSING_ITEMS,
        task.key.directory,
        f"{len(found.requests):,} of {found.keyed_count:,} messages with keys, log offsets {first} to {last}; "
        "`tiermq tier repair` indexes them",
    )
    return VerifyResult.of(task.number, report, lost_keys=(task.range._replace(start=first, stop=behind),))


def missing_keys_tasks(plan: VerifyPlan, results: Iterable[VerifyResult]) -> tuple[MissingKeysTask, ...]:
    """Tasks for ranges whose sums differ after the tasks of a plan, numbered behind them."""
    by_number = {result.task: result for result in results}
    queues = [task for task in plan.tasks if isinstance(task, QueueTask)]
    files = [task for task in plan.tasks if isinstance(task, IndexTask)]

    def sums(tasks: Iterable[VerifyTask]) -> Iterable[KeySum]:
        return (each for task in tasks if task.number in by_number for each in by_number[task.number].key_sums)

    wanted = unequal(sums(queues), sums(files))
    owners = {each: task for task in queues for each in task.key_ranges}
    return tuple(
        missing_keys_task(number, each, owners[each], files) for number, each in enumerate(wanted, len(plan.tasks))
    )


def missing_keys_task(number: int, wanted: KeyRange, owner: QueueTask, files: Iterable[IndexTask]) -> MissingKeysTask:
    home = (wanted.queue.cluster, wanted.queue.broker)
    index = tuple(task.info for task in files if (task.key.cluster, task.key.broker) == home)
    return MissingKeysTask(number, wanted, owner.logs, owner.units, (owner.unit_from, owner.unit_to), index)


def join_verify(plan: VerifyPlan, results: Iterable[VerifyResult]) -> VerifyReport:
    """The report of a plan whose tasks have all been run; of a task that was run twice, one result counts.

    Checksums that cover several tasks are compared here. Raises TierError when a task's result is missing.
    """
    by_task = {result.task: result for result in results}
    again = missing_keys_tasks(plan, by_task.values())
    missing = [task.number for task in (*plan.tasks, *again) if task.number not in by_task]
    if missing:
        raise TierError(
            f"{plan.url}: expected a result for each of {len(plan.tasks) + len(again)} tasks, found none for "
            f"{missing[:10]}; run those tasks again and join then"
        )
    report = VerifyReport(plan.url)
    for result in (plan.found, *(by_task[task.number] for task in (*plan.tasks, *again))):
        report.add(result.counts, result.problems, result.problem_count, result.notes, result.note_count)
        report.lost_keys += result.lost_keys
    _compare_pieces(plan, by_task.values(), report)
    return report


def _compare_pieces(plan: VerifyPlan, results: Iterable[VerifyResult], report: VerifyReport) -> None:
    pieces: dict[SegmentKey, list[CrcPiece]] = defaultdict(list)
    for result in results:
        for piece in result.pieces:
            pieces[piece.key].append(piece)
    tasks = {task.key: task for task in plan.tasks if isinstance(task, QueueTask)}
    for key, found in pieces.items():
        task = tasks[key.queue]
        size = next(info.size for info in (*task.logs, *task.units) if info.key == key)
        compare_pieces(found, known_checksums((row for row in task.rows if row.key == key), size), report)
