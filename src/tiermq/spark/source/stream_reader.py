"""The stream reader: offsets by queue, as many messages per micro-batch as limits allow.

One long-lived process of Spark beside the driver asks it, one question at a time; `read` runs in workers on another
instance, which knows nothing but the partition.

* A batch is [start, end) of each queue and is planned again when Spark repeats it, so it has the same rows.
* A queue that appears while the stream runs is read from its beginning.
* A queue that a changed `subscribe` leaves out keeps its offset in the checkpoint.
* What is lost (expired, a gap, a deleted topic, a queue that starts over) ends the stream with its reasons, or is
  skipped with `failOnDataLoss=false`; a queue that starts over is then read from its new beginning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tiermq.client.wire_history import WireHistory, open_place
from tiermq.history.catalog import Catalog, QueueHistory, queue_filter
from tiermq.history.open_history import OpenHistory
from tiermq.history.planning import plan_scan
from tiermq.history.scan_values import Loss, LossReason, OffsetBounds, data_loss
from tiermq.history.time_ranges import LogPlaces
from tiermq.pipeline.scan.scan_request import (
    NOTHING,
    assigned_queues,
    base_request,
    open_catalog,
    plan_with,
    starting_offsets,
)
from tiermq.spark.option_table import DEFAULT_TRIGGER_DELAY_MS
from tiermq.spark.options import SourceOptions
from tiermq.spark.source.batch_reader import metered, partitions_of
from tiermq.spark.source.stream_offset import StreamOffset, source_name
from tiermq.tier.names import QueueKey

REMOTE_LOOK_S = 1.0
"""Spark asks a hundred times a second when nothing comes; a bucket is listed at most this often."""

BROKER_LOOK_S = 0.1
"""The same for brokers, which have better things to do, too."""

Offsets = dict[QueueKey, int]


class TierMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc] # As elsewhere.
    """One stream. Everything but `read` belongs to the planning process."""

    def __init__(
        self, options: SourceOptions, columns: Sequence[str], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.options = options
        self.scan = options.scan
        self.columns = tuple(columns)
        self.source = source_name(options.scan.place)
        self.request = base_request(options.scan, columns)
        self.target: Offsets | None = None
        self._now_s = now_s
        self._history: OpenHistory | None = None
        self._catalog: Catalog | None = None
        self._looked_s = 0.0
        self._moved_s = now_s()

    # What Spark asks

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """The start of a stream without a checkpoint: the end of the queues, unless set by options."""
        catalog = self._fresh()
        begins = {queue.key: queue.max_offset for queue in catalog.queues()}
        if self.scan.starting_ms is not None:
            # Everything stored from that time on is at or after the first task of its queue.
            plan = plan_scan(catalog, replace(self.request, keys=frozenset()), loss_is_error=False)
            for task in reversed(plan.tasks):
                begins[task.queue] = task.from_offset
        begins |= starting_offsets(self.scan, catalog)
        return self._as_json({key: begins[key] for key in self._chosen(catalog)})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self.options.max_offsets is not None:
            return ReadMaxRows(self.options.max_offsets)
        return ReadAllAvailable() if self.options.max_bytes is None else ReadMaxBytes(self.options.max_bytes)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch; its start if there is nothing to do."""
        before = self._of_json(start)
        catalog = self._seen()
        begins = self._begins(before, catalog)
        ends = self._ends(catalog)
        available = {key: ends[key] - begins[key] for key in begins if ends.get(key, 0) > begins[key]}
        total = sum(available.values())
        if total and self._waits_for_more(total):
            return self._as_json(before)
        # A trigger that reads everything once overrides the options' limits; Spark signals it by its limit.
        if not isinstance(limit, ReadAllAvailable):
            rows = rows_within(self.options.max_offsets, self.options.max_bytes, total, self._bytes(begins, ends))
            if rows is not None:
                available = fair_shares(available, rows, turn=sum(begins.values()))
        # Queues that lost everything up to their end move on without a row.
        skipped = {key: begin for key, begin in begins.items() if begin > before.get(key, begin)}
        moved = {key: begins[key] + count for key, count in available.items()}
        if moved:
            self._moved_s = self._now_s()
        started = {key: begin for key, begin in begins.items() if key not in before and key not in moved}
        return self._as_json({**before, **started, **skipped, **moved})

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The end of everything, for Spark's report of the stream's lag."""
        if self._catalog is None:
            return None
        return self._as_json(self._ends(self._catalog, cap=False))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """From here on nothing is read that comes after now."""
        catalog = self._fresh()
        self.target = {queue.key: queue.max_offset for queue in catalog.queues()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan a batch. Raises DataLoss with reasons, unless that is no error."""
        begins, ends = self._of_json(start), self._of_json(end)
        wanted = queue_filter(self.request)
        moved = {key: value for key, value in ends.items() if begins.get(key) != value and wanted(key)}
        if not moved:
            return []
        catalog = self._covering(moved)
        bounds = {queue.key: NOTHING for queue in catalog.queues()}
        for key, to_offset in moved.items():
            from_offset = begins.get(key)
            starts_over = from_offset is not None and from_offset > to_offset
            bounds[key] = OffsetBounds(None if starts_over else from_offset, to_offset)
        plan = plan_with(catalog, self.scan, replace(self.request, bounds=bounds))
        return list(partitions_of(plan, self.columns, self.scan))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return metered(partition, self.options.scan_meter)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the checkpoint is Spark's, and nothing here is deleted because a stream has read it."""

    def stop(self) -> None:
        if self._history is not None:
            self._history.close()
            self._history = self._catalog = None

    # What there is

    def _fresh(self) -> Catalog:
        """The catalogue as things are now."""
        if self._history is None:
            self._history = open_place(self.scan.place)
        if self._catalog is None:
            self._catalog = open_catalog(self._history, self.scan, self.request)
        else:
            self._catalog.refresh()
        self._looked_s = self._now_s()
        return self._catalog

    def _seen(self) -> Catalog:
        """The catalogue, looked at again unless that would ask a bucket too often."""
        if self._catalog is None or self._history is None:
            return self._fresh()
        pause_s = 0.0
        if isinstance(self._history, WireHistory):
            pause_s = BROKER_LOOK_S
        elif self._history.has_tier and self._history.reads_ahead:
            pause_s = REMOTE_LOOK_S
        return self._fresh() if self._now_s() - self._looked_s >= pause_s else self._catalog

    def _covering(self, ends: Offsets) -> Catalog:
        """A catalogue that has everything up to these ends, if anyone has: a repeated batch comes before any look."""
        catalog = self._catalog or self._fresh()
        known = self._ends(catalog, cap=False)
        return catalog if all(known.get(key, 0) >= end for key, end in ends.items()) else self._fresh()

    def _chosen(self, catalog: Catalog) -> set[QueueKey]:
        return assigned_queues(self.scan, catalog)

    def _ends(self, catalog: Catalog, *, cap: bool = True) -> Offsets:
        chosen = self._chosen(catalog)
        ends = {queue.key: queue.max_offset for queue in catalog.queues() if queue.key in chosen}
        if cap and self.target is not None:
            return {key: min(end, self.target[key]) for key, end in ends.items() if key in self.target}
        return ends

    def _begins(self, before: Offsets, catalog: Catalog) -> Offsets:
        """The next offset of each queue. Raises DataLoss for queues that were deleted or start over."""
        queues = {queue.key: queue for queue in catalog.queues() if queue.key in self._chosen(catalog)}
        wanted = queue_filter(self.request)
        named = {(each.topic, each.queue_id) for each in self.scan.assigned or ()}
        losses = []
        for key, offset in before.items():
            is_named = not named or (key.topic, key.queue_id) in named
            if key not in queues and wanted(key) and is_named:
                losses.append(Loss(key, offset, offset, LossReason.DELETED, "there is no such queue any more"))
        begins = {}
        for key, queue in queues.items():
            begins[key] = max(before.get(key, queue.min_offset), queue.min_offset)
            if begins[key] > queue.max_offset:
                detail = f"the queue ends at {queue.max_offset}"
                losses.append(Loss(key, begins[key], begins[key], LossReason.BEYOND_END, detail))
                begins[key] = queue.min_offset
        if losses and self.scan.fail_on_data_loss:
            raise data_loss(losses)
        if not self.scan.fail_on_data_loss:
            return begins
        # Where a loss is an error, what expired stays within the batch: planning it reports the reasons.
        return {key: min(begin, before.get(key, begin)) for key, begin in begins.items()}

    def _bytes(self, begins: Offsets, ends: Offsets) -> int:
        """How large everything is that could be read now, about. Only asked for when there is a limit by bytes."""
        if self.options.max_bytes is None or self._catalog is None:
            return 0
        found = (self._catalog.get(key) for key in begins)
        return sum(_size(queue, begins[queue.key], ends.get(queue.key, 0)) for queue in found if queue is not None)

    def _waits_for_more(self, total: int) -> bool:
        minimum = self.options.min_offsets
        if minimum is None or total >= minimum or self.target is not None:
            return False
        delay_ms = self.options.trigger_delay_ms
        delay_ms = DEFAULT_TRIGGER_DELAY_MS if delay_ms is None else delay_ms
        return (self._now_s() - self._moved_s) * 1000 < delay_ms

    def _as_json(self, queues: Offsets) -> dict[str, Any]:
        return StreamOffset(self.source, queues).as_json()

    def _of_json(self, document: dict[str, Any]) -> Offsets:
        return dict(StreamOffset.of_json(document, self.source).queues)


def rows_within(max_rows: int | None, max_bytes: int | None, rows: int, size_bytes: int) -> int | None:
    """Both limits as a number of messages, given how many there are and how large they are together."""
    limits = [] if max_rows is None else [max_rows]
    if max_bytes is not None and size_bytes > max_bytes:
        # A message that is larger than the limit must still pass.
        limits.append(max(1, rows * max_bytes // size_bytes))
    return min(limits, default=None)


def fair_shares(available: Mapping[QueueKey, int], limit: int, turn: int = 0) -> dict[QueueKey, int]:
    """How many messages of each queue are taken; together `limit`, or all. `turn` selects the first queue.

    In proportion to what each queue has, so that queues which are equally far behind in time stay so. A queue that has
    anything gets at least one message when the limit allows one for each; otherwise the queues alternate.
    """
    queues = sorted(key for key, count in available.items() if count > 0)
    total = sum(available[key] for key in queues)
    if total <= limit:
        return {key: available[key] for key in queues}
    if limit <= len(queues):
        first = turn % len(queues)
        return dict.fromkeys((queues[first:] + queues[:first])[:limit], 1)
    # One for each, the rest in proportion, and the remainder to the queues with the largest rounding loss.
    rest, left = limit - len(queues), total - len(queues)
    shares, remainders = {}, {}
    for key in queues:
        more, remainders[key] = divmod((available[key] - 1) * rest, left)
        shares[key] = 1 + more
    over = limit - sum(shares.values())
    for key in sorted(queues, key=lambda each: -remainders[each])[:over]:
        shares[key] += 1
    return shares


def _size(queue: QueueHistory, begin: int, end: int) -> int:
    cold = (
        LogPlaces(queue).bytes_of(begin, min(end, queue.cold_max)) if queue.has_cold and begin < queue.cold_max else 0
    )
    return cold + max(0, end - max(begin, queue.hot_from)) * queue.hot_record_bytes
