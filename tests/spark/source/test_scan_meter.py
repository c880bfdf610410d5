"""Counters for people. The way from workers to the driver is tested with the builder."""

from __future__ import annotations

from tiermq.history.scan_values import ScanCounters
from tiermq.spark.source.scan_meter import CountersParam, accumulator_of, describe_counters, size_text


def test_counters_add_up() -> None:
    param = CountersParam()
    total = param.addInPlace(param.zero(ScanCounters(requests=9)), ScanCounters(requests=2, bytes_read=5))
    assert param.addInPlace(total, ScanCounters(requests=1)) == ScanCounters(requests=3, bytes_read=5)


def test_without_a_meter_nobody_counts() -> None:
    assert accumulator_of(None) is None


def test_counters_are_told_in_a_few_lines() -> None:
    text = describe_counters(
        ScanCounters(
            queues=2, segments_planned=1, segments_skipped=9, bytes_planned=1536, bytes_skipped=512, requests=7
        )
    )
    assert "planned   2 queues, 1 of 10 segments, 1.5 KiB of 2.0 KiB" in text
    assert "in 7 requests" in text


def test_sizes_have_units() -> None:
    assert [size_text(size) for size in (0, 1023, 1024, 5 << 20, 3 << 30, 2 << 40)] == [
        "0 B", "1023 B", "1.0 KiB", "5.0 MiB", "3.0 GiB", "2.0 TiB",
    ]  # fmt: skip
