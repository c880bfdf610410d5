"""Counters of scans, from the workers that read to the driver that asks.

    meter = ScanMeter(spark)
    messages(spark, tier=..., topic="orders", meter=meter).count()
    print(meter)                      # queues, segments and bytes planned, read, skipped; requests; rows
    meter.show_in(registry)           # the same as Prometheus counters

A worker counts in an accumulator of Spark. A task that Spark runs again counts again: these are numbers of work done,
not of rows in a result. Spark Connect has no accumulators; there, and in plain SQL, `explain_scan` tells the plan.
"""

from __future__ import annotations

import base64
import pickle
from typing import TYPE_CHECKING, Any

from pyspark.accumulators import Accumulator, AccumulatorParam

from tiermq.errors import BadOption
from tiermq.history.scan_values import ScanCounters

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiermq.metrics import Registry

METER_OPTION = "scanMeter"
_HELP = {
    "queues": "Queues that scans planned to read.",
    "segments_planned": "Segments that plans read.",
    "segments_skipped": "Segments that plans left out.",
    "bytes_planned": "Bytes of messages that plans read.",
    "bytes_skipped": "Bytes of messages that plans left out.",
    "index_files_asked": "Index files in which keys were looked up.",
    "index_bytes_read": "Bytes read of index files.",
    "requests": "Requests to the tier.",
    "bytes_read": "Bytes read, of messages and of everything else.",
    "rows_read": "Messages read.",
    "rows_given": "Messages given as rows.",
    "hot_bytes_read": "Bytes of messages read from stores.",
    "cold_bytes_read": "Bytes of messages read from the tier.",
    "messages_lost": "Messages that were asked for and are not there: expired, gaps, deleted, corrupt.",
}
assert set(_HELP) == set(ScanCounters.__slots__)


class CountersParam(AccumulatorParam):  # type: ignore[misc] # PySpark is not followed by the checker.
    """How Spark adds counters up."""

    def zero(self, value: ScanCounters) -> ScanCounters:  # noqa: ARG002 - the signature is Spark's
        return ScanCounters()

    def addInPlace(self, value1: ScanCounters, value2: ScanCounters) -> ScanCounters:  # noqa: N802
        value1 += value2
        return value1


class ScanMeter:
    """One set of counters for any number of scans. Lives on the driver."""

    def __init__(self, spark: SparkSession) -> None:
        context = getattr(spark, "_sc", None)
        if context is None:
            raise BadOption("Spark Connect has no accumulators, so there is no meter; explain_scan tells the plan")
        self._accumulator: Accumulator[ScanCounters] = context.accumulator(ScanCounters(), CountersParam())

    @property
    def counters(self) -> ScanCounters:
        """What all scans with this meter have done so far, as far as their tasks have ended."""
        copy = ScanCounters()
        copy += self._accumulator.value
        return copy

    @property
    def option(self) -> str:
        """The value of the option `scanMeter`, by which workers find the accumulator."""
        return base64.b64encode(pickle.dumps(self._accumulator)).decode()

    def show_in(self, registry: Registry) -> None:
        """Register each counter as `tiermq_scan_<name>_total`."""
        for name, help_text in _HELP.items():
            metric = registry.counter(f"tiermq_scan_{name}_total", help_text)
            metric.labels().set_function(self._reader(name))

    def _reader(self, name: str) -> Any:
        return lambda: float(getattr(self._accumulator.value, name))

    def __str__(self) -> str:
        return describe_counters(self.counters)


def accumulator_of(option: str | None) -> Accumulator[ScanCounters] | None:
    """In a worker: the accumulator that an option stands for."""
    return None if option is None else pickle.loads(base64.b64decode(option))  # noqa: S301 - made by ScanMeter


def describe_counters(counters: ScanCounters) -> str:
    """Counters in a few lines for people."""
    segments = counters.segments_planned + counters.segments_skipped
    stored = counters.bytes_planned + counters.bytes_skipped
    lines = [
        (
            f"planned   {counters.queues:,} queues, {counters.segments_planned:,} of {segments:,} segments, "
            f"{size_text(counters.bytes_planned)} of {size_text(stored)}"
        ),
        f"skipped   {counters.segments_skipped:,} segments, {size_text(counters.bytes_skipped)}",
        (
            f"read      {size_text(counters.bytes_read)} in {counters.requests:,} requests "
            f"(hot {size_text(counters.hot_bytes_read)}, cold {size_text(counters.cold_bytes_read)})"
        ),
        f"index     {counters.index_files_asked:,} files asked, {size_text(counters.index_bytes_read)}",
        f"rows      {counters.rows_given:,} of {counters.rows_read:,} that were read",
    ]
    if counters.messages_lost:
        lines.append(f"lost      {counters.messages_lost:,} messages; a worker's log tells which and why")
    return "\n".join(lines)


def size_text(count: int) -> str:
    """1536 -> 1.5 KiB."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
