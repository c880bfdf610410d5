"""What a scan would read: its plan as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiermq.client.wire_history import open_place
from tiermq.history.planning import bundle_tasks
from tiermq.history.scan_values import ScanCounters, ScanPlan, describe
from tiermq.pipeline.job_report import counted_noun, size_text
from tiermq.pipeline.scan.scan_request import plan_batch
from tiermq.pipeline.scan.scan_spec import ScanSpec


@dataclass(frozen=True, slots=True)
class ScanExplanation:
    """What a scan would do. `counters` has no reads of messages in it: only what planning needs was read."""

    plan: ScanPlan
    partitions: int

    @property
    def counters(self) -> ScanCounters:
        return self.plan.counters

    def __str__(self) -> str:
        lines = [f"tasks     {len(self.plan.tasks):,} in {counted_noun(self.partitions, 'partition')}"]
        lines += [line for line in describe_counters(self.counters).splitlines() if not line.startswith("rows")]
        lines += [f"lost      {describe(loss)}" for loss in self.plan.losses]
        return "\n".join(lines)


def explain(spec: ScanSpec, columns: Sequence[str]) -> ScanExplanation:
    """Plan a scan and read nothing of it. Raises BadHistory, DataLoss, and what the tier raises."""
    with open_place(spec.place) as history:
        plan = plan_batch(history, spec, columns)
    bundles = bundle_tasks(plan.tasks, max_bytes=spec.partition_bytes, min_bundles=spec.min_partitions)
    return ScanExplanation(plan, len(bundles))


def describe_counters(counters: ScanCounters) -> str:
    """Counters in a few lines for people. What did not happen is not listed."""
    segments = counters.segments_planned + counters.segments_skipped
    stored = counters.bytes_planned + counters.bytes_skipped
    planned = f"planned   {counted_noun(counters.queues, 'queue')}"
    if segments:
        planned += f", {counters.segments_planned:,} of {counted_noun(segments, 'segment')}"
    if stored:
        planned += f", {size_text(counters.bytes_planned)} of {size_text(stored)}"
    lines = [planned]
    if counters.segments_skipped or counters.bytes_skipped:
        lines.append(
            f"skipped   {counted_noun(counters.segments_skipped, 'segment')}, {size_text(counters.bytes_skipped)}"
        )
    sides = {"hot": counters.hot_bytes_read, "cold": counters.cold_bytes_read}
    each = ", ".join(f"{side} {size_text(size)}" for side, size in sides.items() if size)
    read = f"read      {size_text(counters.bytes_read)} in {counted_noun(counters.requests, 'request')}"
    lines.append(f"{read} ({each})" if each else read)
    if counters.index_files_asked:
        files = counted_noun(counters.index_files_asked, "file")
        lines.append(f"index     {files} queried, {size_text(counters.index_bytes_read)}")
    if counters.rows_given and not counters.rows_read:
        lines.append(f"rows      {counters.rows_given:,}, known without reading a message")
    if counters.rows_read:
        lines.append(f"rows      {counters.rows_given:,} of {counted_noun(counters.rows_read, 'message')} read")
    if counters.messages_lost:
        lines.append(
            f"lost      {counted_noun(counters.messages_lost, 'message')}; the log of the worker has the reasons"
        )
    return "\n".join(lines)
