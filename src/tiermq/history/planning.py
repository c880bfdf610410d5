"""Plans a scan: from a catalogue and a request to tasks. Pure, except for the lookup of keys.

    request × queue ─► losses, ranges that can have wanted messages ─► cold and hot ─► tasks of about equal size

Ranges are pruned by topic, broker, queue and offsets, by the time entries of both sides, and by the times of cold
segments; tags and exact times are decided while reading. Keys become exact offsets through `lookup` (see `key_lookup`),
which returns what the index does not cover as ranges. Tasks are split at offsets that the time index knows, if one is
near.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Protocol

from tiermq.history.catalog import Catalog, QueueHistory, queue_filter
from tiermq.history.scan_values import (
    HistoryPlace,
    Loss,
    LossReason,
    OffsetBounds,
    RecordPlace,
    ScanBundle,
    ScanCounters,
    ScanPlan,
    ScanRequest,
    ScanTask,
    Side,
    data_loss,
)
from tiermq.history.time_ranges import LogPlaces, OffsetRange, intersect, narrow_by_entries, subtract, without_segments
from tiermq.tier.names import QueueKey

PARTITION_BYTES = 64 << 20
TASK_COST_BYTES = 256 << 10
"""The overhead of a task, in bytes that could be read meanwhile; so bundles of tiny tasks stay short too."""

PLACES_MAX = 16_384
"""The maximum number of exact offsets of a task: they are serialized with it."""

HOT_KEY_PLACES_MIN = 1024
"""Fewer messages of a key are always read by their offsets."""

PLACE_COST_BYTES = 2048
"""The overhead of a record that is read by offset, in bytes that a scan reads meanwhile."""

CUT_SLACK = 8
"""A split may move by one eighth of a task to an exactly known log offset."""


@dataclass(frozen=True, slots=True)
class FoundPlaces:
    """The wanted messages of a queue that an index has on one side, and the offsets that it does not cover."""

    places: tuple[RecordPlace, ...] = ()
    unknown: tuple[OffsetRange, ...] = ()


class KeyLookup(Protocol):
    """Exact log offsets by key: `key_lookup.KeyIndex`."""

    def find(self, queue: QueueHistory, side: Side, within: OffsetRange, counters: ScanCounters) -> FoundPlaces:
        """The log offsets of messages that may have a wanted key, ascending."""
        ...


@dataclass(slots=True)
class _Piece:
    """A part of a queue on one side, before it is cut into tasks."""

    queue: QueueHistory
    side: Side
    begin: int
    end: int
    log_bytes: int
    places: LogPlaces | None = None


@dataclass(slots=True)
class _Draft:
    pieces: list[_Piece] = field(default_factory=list)
    exact: list[ScanTask] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    counters: ScanCounters = field(default_factory=ScanCounters)
    partition_bytes: int = PARTITION_BYTES


def plan_scan(
    catalog: Catalog,
    request: ScanRequest,
    *,
    min_partitions: int = 0,
    max_bytes_per_partition: int = PARTITION_BYTES,
    loss_is_error: bool = True,
    lookup: KeyLookup | None = None,
) -> ScanPlan:
    """The tasks for a request, in the order of queues and offsets. Raises DataLoss when a loss is an error.

    `min_partitions` is the minimum number of tasks, as far as there are messages. Raises BadHistory for what
    cannot be read at all.
    """
    catalog.require_readable()
    draft = _Draft(partition_bytes=max(1, max_bytes_per_partition))
    wanted = queue_filter(request)
    task_request = replace(request, bounds={})
    queues = [queue for queue in catalog.queues() if wanted(queue.key)]
    known = {queue.key for queue in queues}
    draft.losses += [_vanished(key, bounds) for key, bounds in request.bounds.items() if key not in known]
    for queue in queues:
        draft.counters.queues += 1
        bounds = request.bounds.get(queue.key, OffsetBounds())
        whole, losses = bounded(queue, bounds)
        draft.losses += losses
        whole = _within(whole, request.only_offsets)
        _plan_queue(draft, catalog.place, queue, whole, task_request, loss_is_error, lookup)
    if loss_is_error and draft.losses:
        raise data_loss(draft.losses)
    target = max(1, max_bytes_per_partition)
    total = sum(piece.log_bytes for piece in draft.pieces)
    if min_partitions > 0:
        target = max(1, min(target, total // min_partitions))
    tasks = list(draft.exact)
    for piece in draft.pieces:
        tasks += _cut(piece, target, catalog.place, task_request, loss_is_error)
    tasks.sort(key=lambda task: (task.queue, task.from_offset))
    draft.counters.messages_lost += sum(loss.to_offset - loss.from_offset for loss in draft.losses)
    draft.counters.bytes_planned += sum(task.log_bytes for task in tasks)
    return ScanPlan(tuple(tasks), draft.counters, tuple(draft.losses))


def bundle_tasks(
    tasks: Sequence[ScanTask], *, max_bytes: int = PARTITION_BYTES, min_bundles: int = 0
) -> tuple[ScanBundle, ...]:
    """Neighbouring tasks joined until a bundle is large enough, in their order; a large task is a bundle of its own."""
    total = sum(task.log_bytes + TASK_COST_BYTES for task in tasks)
    target = max(1, min(max_bytes, total // min_bundles) if min_bundles > 0 else max_bytes)
    bundles: list[ScanBundle] = []
    some: list[ScanTask] = []
    size = 0
    for task in tasks:
        cost = task.log_bytes + TASK_COST_BYTES
        if some and size + cost > target + TASK_COST_BYTES:
            bundles.append(ScanBundle(tuple(some)))
            some, size = [], 0
        some.append(task)
        size += cost
    if some:
        bundles.append(ScanBundle(tuple(some)))
    return tuple(bundles)


def bounded(queue: QueueHistory, bounds: OffsetBounds) -> tuple[OffsetRange, list[Loss]]:
    """The offsets of a queue that a request wants and that may exist, and the losses among them."""
    low, high = queue.min_offset, queue.max_offset
    begin = low if bounds.from_offset is None else bounds.from_offset
    end = high if bounds.to_offset is None else bounds.to_offset
    losses: list[Loss] = []
    if bounds.from_offset is not None and bounds.to_offset is not None and begin >= end:
        return (low, low), losses
    if queue.is_deleted:
        detail = "the topic is being deleted from the tier"
        return (low, low), [Loss(queue.key, begin, max(begin, end), LossReason.DELETED, detail)]
    if begin > high or (bounds.to_offset is not None and end > high):
        detail = f"the queue ends at {high}"
        losses.append(Loss(queue.key, max(begin, high), max(begin, end), LossReason.BEYOND_END, detail))
    elif begin < low and bounds.from_offset is not None and begin < end:
        detail = f"the oldest message left is {low}"
        losses.append(Loss(queue.key, begin, min(low, end), LossReason.EXPIRED, detail))
    begin, end = max(begin, low), min(end, high)
    return ((begin, end) if begin < end else (begin, begin)), losses


def _within(whole: OffsetRange, only: tuple[int, int | None]) -> OffsetRange:
    begin, end = max(whole[0], only[0]), whole[1] if only[1] is None else min(whole[1], only[1])
    return (begin, end) if begin < end else (whole[0], whole[0])


def _vanished(key: QueueKey, bounds: OffsetBounds) -> Loss:
    begin = bounds.from_offset or 0
    detail = "there is no such queue (any more)"
    return Loss(key, begin, max(begin, bounds.to_offset or begin), LossReason.DELETED, detail)


def _plan_queue(
    draft: _Draft,
    place: HistoryPlace,
    queue: QueueHistory,
    whole: OffsetRange,
    request: ScanRequest,
    loss_is_error: bool,
    lookup: KeyLookup | None,
) -> None:
    cold = intersect([whole], (queue.cold_min, queue.cold_max)) if queue.has_cold else []
    hot = intersect([whole], (queue.hot_from, queue.hot_max))
    if cold:
        cold = [narrow_by_entries(queue.time_entries, request.begin_ms, request.end_ms, *cold[0])]
        cold = without_segments(intersect(cold, whole), queue.logs, request.begin_ms, request.end_ms)
    hot = [narrow_by_entries(queue.hot_time_entries, request.begin_ms, request.end_ms, *one) for one in hot]
    hot = intersect(hot, whole)
    if not request.keys:
        draft.losses += _gap_losses(queue, cold, whole)
    for gap in queue.gaps:
        cold = subtract(cold, (gap.from_offset, gap.to_offset))
    places = LogPlaces(queue) if queue.logs else None
    _count_segments(draft.counters, queue, cold, places)
    if request.keys and lookup is not None:
        cold, hot = _look_up(draft, place, queue, cold, hot, request, loss_is_error, lookup)
    for begin, end in cold:
        size = places.bytes_of(begin, end) if places is not None else 0
        draft.pieces.append(_Piece(queue, Side.COLD, begin, end, size, places))
    for begin, end in hot:
        draft.pieces.append(_Piece(queue, Side.HOT, begin, end, (end - begin) * queue.hot_record_bytes))


def _look_up(
    draft: _Draft,
    place: HistoryPlace,
    queue: QueueHistory,
    cold: Iterable[OffsetRange],
    hot: Iterable[OffsetRange],
    request: ScanRequest,
    loss_is_error: bool,
    lookup: KeyLookup,
) -> tuple[list[OffsetRange], list[OffsetRange]]:
    """Look up exact offsets in an index; what it does not cover stays as cold and hot ranges."""
    still_hot = (queue.hot_min, queue.hot_max)
    left: dict[Side, list[OffsetRange]] = {Side.COLD: [], Side.HOT: []}
    waiting = [(Side.HOT, one) for one in hot] + [(Side.COLD, one) for one in cold]
    while waiting:
        side, one = waiting.pop()
        found = lookup.find(queue, side, one, draft.counters)
        if _costs_more(queue, side, one, found.places):
            left[side].append(one)
            continue
        if found.places:
            draft.exact += _exact_tasks(draft, place, queue, side, one, found.places, request, loss_is_error)
        for unknown in found.unknown:
            if side is Side.COLD and queue.store is not None:
                # The store's index may cover what that of the tier does not, as long as the store has the messages.
                waiting += [(Side.HOT, each) for each in intersect([unknown], still_hot)]
                left[Side.COLD] += subtract([unknown], still_hot)
            else:
                left[side].append(unknown)
    return sorted(left[Side.COLD]), sorted(left[Side.HOT])


def _costs_more(queue: QueueHistory, side: Side, within: OffsetRange, places: Sequence[RecordPlace]) -> bool:
    """Whether reading these records one by one takes longer than a scan, as for a hot key."""
    if len(places) < HOT_KEY_PLACES_MIN:
        return False
    exact = sum(place.size + PLACE_COST_BYTES for place in places)
    if side is Side.HOT:
        return exact > (within[1] - within[0]) * queue.hot_record_bytes
    return exact > LogPlaces(queue).bytes_of(*within)


def _gap_losses(queue: QueueHistory, cold: Iterable[OffsetRange], whole: OffsetRange) -> list[Loss]:
    """Recorded gaps within the ranges, and messages that the store deleted before they were copied."""
    found = []
    ranges = list(cold)
    for gap in queue.gaps:
        for begin, end in intersect(ranges, (gap.from_offset, gap.to_offset)):
            found.append(Loss(queue.key, begin, end, LossReason.GAP, gap.reason))
    if queue.has_cold and queue.hot_max > queue.hot_from:
        for begin, end in intersect([whole], (queue.cold_max, queue.hot_from)):
            detail = "gone from the store before they were copied to the tier"
            found.append(Loss(queue.key, begin, end, LossReason.GAP, detail))
    return found


def _count_segments(
    counters: ScanCounters, queue: QueueHistory, ranges: Sequence[OffsetRange], places: LogPlaces | None
) -> None:
    for segment in queue.logs:
        known = 0 <= segment.begin_offset < segment.end_offset
        inside = intersect(ranges, (segment.begin_offset, segment.end_offset)) if known else list(ranges)
        if inside:
            counters.segments_planned += 1
        else:
            counters.segments_skipped += 1
    if places is not None:
        wanted = sum(places.bytes_of(begin, end) for begin, end in ranges)
        counters.bytes_skipped += max(0, queue.cold_bytes - wanted)


def _exact_tasks(
    draft: _Draft,
    place: HistoryPlace,
    queue: QueueHistory,
    side: Side,
    within: OffsetRange,
    places: Sequence[RecordPlace],
    request: ScanRequest,
    loss_is_error: bool,
) -> list[ScanTask]:
    """Tasks for exact offsets, split by bytes and number."""
    tasks = []
    first = size = 0
    for behind in range(1, len(places) + 1):
        size += places[behind - 1].size
        is_last = behind == len(places)
        if not is_last and size < draft.partition_bytes and behind - first < PLACES_MAX:
            continue
        some = tuple(places[first:behind])
        store = queue.store if side is Side.HOT else None
        logs = queue.log_spans_of(some) if side is Side.COLD else ()
        tasks.append(ScanTask(place, queue.key, side, *within, request, size, some, store, loss_is_error, (), logs))
        first, size = behind, 0
    return tasks


def _cut(piece: _Piece, target: int, place: HistoryPlace, request: ScanRequest, loss_is_error: bool) -> list[ScanTask]:
    """Tasks of about `target` bytes each, or as many as there are messages."""
    queue = piece.queue
    count = min(max(1, -(-piece.log_bytes // target)), piece.end - piece.begin)
    cuts = [piece.begin]
    for number in range(1, count):
        if piece.places is not None:
            begin = piece.places.place(piece.begin)
            step = piece.log_bytes / count
            at = piece.places.offset_at(begin + int(number * step), int(step) // CUT_SLACK)
        else:
            at = piece.begin + number * (piece.end - piece.begin) // count
        if cuts[-1] < at < piece.end:
            cuts.append(at)
    cuts.append(piece.end)
    tasks = []
    for begin, end in pairwise(cuts):
        if piece.side is Side.HOT:
            size = (end - begin) * queue.hot_record_bytes
            task = ScanTask(place, queue.key, Side.HOT, begin, end, request, size, None, queue.store, loss_is_error)
        else:
            size = piece.places.bytes_of(begin, end) if piece.places is not None else 0
            logs, units = queue.log_spans(begin, end), queue.unit_spans(begin, end)
            task = ScanTask(
                place, queue.key, Side.COLD, begin, end, request, size, None, None, loss_is_error, units, logs
            )
        tasks.append(task)
    return tasks
