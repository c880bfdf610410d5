"""What an export has to do: the messages that history has and the table has not, as bundles, one per file. No Spark.

Times become offsets first: a table has ranges of offsets, whole, so that its contents are known exactly and a later
export with other times fills what is left, and nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tiermq.clock import EVER_MS
from tiermq.errors import DataLoss
from tiermq.history.catalog import Catalog, QueueHistory, require_distinct
from tiermq.history.open_history import OpenHistory
from tiermq.history.planning import bundle_tasks, plan_scan
from tiermq.history.scan_values import (
    Loss,
    LossReason,
    OffsetBounds,
    ScanBundle,
    ScanCounters,
    ScanPlan,
    ScanRequest,
    ScanTask,
    describe,
)
from tiermq.history.time_ranges import OffsetRange
from tiermq.pipeline.scan.scan_request import (
    NOTHING,
    base_request,
    bounded_request,
    first_offset_at,
    open_catalog,
    require_queues,
)
from tiermq.pipeline.scan.scan_spec import ScanSpec
from tiermq.tables.commit_journal import ExportedRanges
from tiermq.tier.names import QueueKey

FILE_BYTES = 128 << 20
FILE_BYTES_MIN = 8 << 20
"""A file is not made smaller than this only to give every processor one."""


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """`wanted` are the ranges that the bundles cover; what of them is lost is in `losses`."""

    bundles: tuple[ScanBundle, ...]
    wanted: ExportedRanges
    losses: tuple[Loss, ...]
    counters: ScanCounters
    notes: tuple[str, ...] = ()

    @property
    def messages(self) -> int:
        return sum(task.to_offset - task.from_offset for bundle in self.bundles for task in bundle.tasks)

    @property
    def log_bytes(self) -> int:
        return sum(bundle.log_bytes for bundle in self.bundles)


def plan_export(
    history: OpenHistory,
    spec: ScanSpec,
    columns: Iterable[str],
    exported: ExportedRanges,
    *,
    file_bytes: int = FILE_BYTES,
    parallelism: int = 1,
    allow_loss: bool = False,
    may_be_empty: bool = False,
    one_topic_per_file: bool = False,
) -> ExportPlan:
    """Plan what is missing in the table. Raises BadHistory, and DataLoss unless losses are allowed.

    `may_be_empty`: a tier without any history is no error, since the job waits for messages.
    """
    request = base_request(spec, tuple(columns))
    catalog = open_catalog(history, spec, request, may_be_empty=may_be_empty)
    if not may_be_empty:
        require_queues(catalog, spec)
    request = _by_offsets(bounded_request(spec, request, catalog), catalog)
    missing, losses, notes = _missing(catalog, request, exported)
    require_distinct({*exported.queues(), *missing})
    if losses and not allow_loss:
        more = f", and {len(losses) - 1} more" if len(losses) > 1 else ""
        raise DataLoss(
            f"{describe(losses[0])}{more}; these messages went before they were exported. Allow losses (--allow-loss) "
            "to go on behind them"
        )
    scan = _scan(catalog, request, missing, file_bytes, allow_loss)
    count = _file_count(scan.tasks, parallelism, file_bytes)
    size = max(1, -(-sum(task.log_bytes for task in scan.tasks) // count))
    if any(task.log_bytes > size for task in scan.tasks):
        # Few large tasks would leave processors without work.
        scan = _scan(catalog, request, missing, size, allow_loss)
    losses += scan.losses
    wanted = ExportedRanges(missing)
    for loss in losses:
        wanted.add(loss.queue, loss.from_offset, loss.to_offset)
    bundles = _bundles(scan.tasks, file_bytes, count, one_topic_per_file=one_topic_per_file)
    return ExportPlan(bundles, wanted, tuple(losses), scan.counters, tuple(notes))


def _bundles(
    tasks: Sequence[ScanTask], file_bytes: int, count: int, *, one_topic_per_file: bool
) -> tuple[ScanBundle, ...]:
    if not one_topic_per_file:
        return bundle_tasks(tasks, max_bytes=file_bytes, min_bundles=count)
    total = sum(task.log_bytes for task in tasks) or 1
    bundles: list[ScanBundle] = []
    for topic in sorted({task.queue.topic for task in tasks}):
        own = [task for task in tasks if task.queue.topic == topic]
        share = count * sum(task.log_bytes for task in own) // total
        bundles += bundle_tasks(own, max_bytes=file_bytes, min_bundles=share)
    return tuple(bundles)


def _scan(
    catalog: Catalog, request: ScanRequest, missing: dict[QueueKey, list[OffsetRange]], max_bytes: int, allow_loss: bool
) -> ScanPlan:
    """One plan for all missing ranges."""
    tasks: list[ScanTask] = []
    losses: list[Loss] = []
    counters = ScanCounters()
    for bounds in _rounds(missing):
        named = {queue.key: bounds.get(queue.key, NOTHING) for queue in catalog.queues()}
        asked = replace(request, bounds=named)
        plan = plan_scan(catalog, asked, max_bytes_per_partition=max_bytes, loss_is_error=not allow_loss)
        tasks += plan.tasks
        losses += plan.losses
        counters += plan.counters
    return ScanPlan(tuple(tasks), counters, tuple(losses))


def _by_offsets(request: ScanRequest, catalog: Catalog) -> ScanRequest:
    """The same request with times made offsets."""
    if request.begin_ms <= 0 and request.end_ms == EVER_MS:
        return request
    bounds = dict(request.bounds)
    for queue in catalog.queues():
        given = bounds.get(queue.key, OffsetBounds())
        if given == NOTHING:
            continue
        begin, end = given.from_offset, given.to_offset
        if request.begin_ms > 0:
            begin = max(begin or 0, first_offset_at(catalog, queue, request.begin_ms))
        if request.end_ms < EVER_MS:
            last = first_offset_at(catalog, queue, request.end_ms + 1)
            end = last if end is None else min(end, last)
        bounds[queue.key] = OffsetBounds(begin, end)
    return replace(request, bounds=bounds, begin_ms=0, end_ms=EVER_MS)


def _missing(
    catalog: Catalog, request: ScanRequest, exported: ExportedRanges
) -> tuple[dict[QueueKey, list[OffsetRange]], list[Loss], list[str]]:
    """What the table has not of each queue, and what it can never get."""
    missing: dict[QueueKey, list[OffsetRange]] = {}
    losses: list[Loss] = []
    notes: list[str] = []
    for queue in catalog.queues():
        bounds = request.bounds.get(queue.key, OffsetBounds())
        low = queue.min_offset if bounds.from_offset is None else bounds.from_offset
        high = queue.max_offset if bounds.to_offset is None else min(bounds.to_offset, queue.max_offset)
        losses += _lost(queue, bounds, exported)
        end = exported.end(queue.key)
        if end is not None and end > queue.max_offset and bounds != NOTHING:
            notes.append(
                f"{queue.key.topic}-{queue.key.queue_id}: the table has messages up to {end}, this history ends at "
                f"{queue.max_offset}; was it exported from the store as well, or from another history?"
            )
        found = exported.missing(queue.key, max(low, queue.min_offset), high)
        if found:
            missing[queue.key] = found
    return missing, losses, notes


def _lost(queue: QueueHistory, bounds: OffsetBounds, exported: ExportedRanges) -> list[Loss]:
    """Messages between what the table has and what is left: they went before they were exported."""
    last = bounds.to_offset if bounds.to_offset is not None else queue.min_offset
    if bounds.from_offset is not None:
        begin = bounds.from_offset
    else:
        behind = [end for _, end in exported.of(queue.key) if end < queue.min_offset]
        if not behind:
            return []
        begin = max(behind)
    return [
        Loss(queue.key, low, high, LossReason.EXPIRED, f"the oldest message left is {queue.min_offset}")
        for low, high in exported.missing(queue.key, begin, min(last, queue.min_offset))
    ]


def _rounds(missing: dict[QueueKey, list[OffsetRange]]) -> Iterable[dict[QueueKey, OffsetBounds]]:
    """The ranges so that each round has one of a queue at most: a plan has one range per queue."""
    for number in range(max((len(ranges) for ranges in missing.values()), default=0)):
        yield {key: OffsetBounds(*ranges[number]) for key, ranges in missing.items() if number < len(ranges)}


def _file_count(tasks: Sequence[ScanTask], parallelism: int, file_bytes: int) -> int:
    total = sum(task.log_bytes for task in tasks)
    return max(1, -(-total // file_bytes), min(parallelism, total // FILE_BYTES_MIN))
