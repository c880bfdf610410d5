"""What is to be replayed, a scan of a history or of what a record that is there has left of it, and how fast."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tiermq.errors import BadOption
from tiermq.history.open_history import open_history
from tiermq.history.scan_values import OffsetBounds, ScanPlan, describe
from tiermq.pipeline.job_report import JobReport
from tiermq.pipeline.replay.message import ROW_COLUMNS
from tiermq.pipeline.scan.queue_offsets import EveryQueue
from tiermq.pipeline.scan.scan_request import (
    NOTHING,
    base_request,
    bounded_request,
    open_catalog,
    plan_with,
    require_queues,
)
from tiermq.pipeline.scan.scan_spec import ScanSpec
from tiermq.tables.commit_journal import ExportedRanges, queue_text
from tiermq.tier.names import QueueKey

AT_ONCE = 1000
RATE_STEPS_PER_SECOND = 10


class Remembered(Protocol):
    """The record of a replay, as far as a plan depends on it."""

    ranges: ExportedRanges

    def next_offset(self, queue: QueueKey) -> int: ...


@dataclass(frozen=True, slots=True)
class Planning:
    """What is to be replayed, before it is known where it is stored: a part of a history, or of an exported table."""

    spec: ScanSpec
    table: str | None
    catalog: str | None

    @property
    def asked(self) -> dict[str, str]:
        """What the record of a replay remembers."""
        return {**self.spec.as_texts(), "table": self.table or ""}

    def plan(self, record: Remembered | None) -> ScanPlan:
        """The scan; of what a record that is there has left. Raises BadHistory, DataLoss."""
        spec = self.spec
        request = base_request(spec, ROW_COLUMNS)
        with open_history(spec.place) as history:
            history_catalog = open_catalog(history, spec, request)
            request = bounded_request(spec, request, history_catalog)
            require_queues(history_catalog, spec)
            if record is not None:
                bounds = {queue.key: NOTHING for queue in history_catalog.queues()} | left_of(record)
                request = dataclasses.replace(request, bounds=bounds)
            return plan_with(history_catalog, spec, request)


def table_bounds(spec: ScanSpec) -> dict[str, int]:
    """The offsets that are wanted of an exported table, as a task takes them. Raises BadOption."""
    bounds = {}
    for name, edge in (("from_offset", spec.starting_offsets), ("to_offset", spec.ending_offsets)):
        if isinstance(edge, EveryQueue):
            bounds[name] = edge.number
        elif edge is not None:
            raise BadOption("of a table offsets are (from, to), the same for every queue")
    return bounds


def left_of(record: Remembered) -> dict[QueueKey, OffsetBounds]:
    """What is left of each queue: what went meanwhile and was replayed before is not missed."""
    left = {}
    for queue in record.ranges.queues():
        found = record.ranges.of(queue)
        begin, end = max(found[0][0], record.next_offset(queue)), found[-1][1]
        left[queue] = OffsetBounds(begin, end) if begin < end else NOTHING
    return left


def ranges_of(plan: ScanPlan) -> ExportedRanges:
    """The offsets that a plan reads, by queue."""
    ranges = ExportedRanges()
    for task in plan.tasks:
        ranges.add(task.queue, task.from_offset, task.to_offset)
    return ranges


def show_plan(report: JobReport, ranges: ExportedRanges, plan: ScanPlan) -> None:
    """Add to a report what a plan reads and what it cannot."""
    for loss in plan.losses:
        note(report, f"lost, and left out: {describe(loss)}")
    report.planned["messages"] = ranges.messages
    report.details["queues"] = [
        {"queue": queue_text(queue), "ranges": [list(each) for each in ranges.of(queue)]} for queue in ranges.queues()
    ]


def note(report: JobReport, text: str) -> None:
    """Add a remark to a report."""
    report.details.setdefault("notes", []).append(text)


class RateLimiter:
    """Waits so that on the average no more than `rate` messages per second go through; None is no limit."""

    def __init__(
        self, rate: float | None, now_s: Callable[[], float] = time.monotonic, *, at_once: int = AT_ONCE
    ) -> None:
        self._rate = rate
        self._now_s = now_s
        self._began_s: float | None = None
        self._count = 0
        steps = at_once if rate is None else int(rate / RATE_STEPS_PER_SECOND)
        self.at_once = max(1, min(at_once, steps))

    def after(self, count: int) -> float:
        """How long to wait after `count` messages more, in seconds; 0 if they are due already."""
        if self._rate is None:
            return 0.0
        now_s = self._now_s()
        if self._began_s is None:
            self._began_s = now_s
        self._count += count
        return max(0.0, self._began_s + self._count / self._rate - now_s)
