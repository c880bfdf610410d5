"""Counters from workers to the driver, and as people read them."""

from __future__ import annotations

import contextlib
import json
import socket

import pytest
from pyspark.sql import SparkSession

from spark.source_world import SourceWorld
from tiermq.history.scan_values import ScanCounters
from tiermq.pipeline.job_report import size_text
from tiermq.pipeline.scan.explain import describe_counters
from tiermq.spark import ScanMeter, messages
from tiermq.spark.source.scan_meter import reporting


def test_without_a_meter_nothing_is_sent() -> None:
    with reporting(None) as report:
        report(ScanCounters(requests=1))


def test_take_and_limit_are_counted(spark: SparkSession, filled: SourceWorld) -> None:
    meter = ScanMeter(spark)
    frame = messages(spark, tier=filled.url, topic="orders", meter=meter)
    assert len(frame.take(1)) == 1
    taken = meter.counters
    assert taken.queues == 3
    assert taken.rows_given > 0
    assert taken.cold_bytes_read > 0
    assert len(frame.limit(2).collect()) == 2
    assert meter.counters.rows_given > taken.rows_given


def test_the_last_line_of_each_worker_counts_also_before_it_ends(spark: SparkSession) -> None:
    meter = ScanMeter(spark)
    with reporting(meter.option) as first, reporting(meter.option) as second:
        first(ScanCounters(requests=1))
        first(ScanCounters(requests=3, bytes_read=5))
        second(ScanCounters(requests=10))
        assert meter.counters == ScanCounters(requests=13, bytes_read=5)
    assert meter.counters == ScanCounters(requests=13, bytes_read=5)


@pytest.mark.parametrize("line", ["wrong 1 2\n", "{token} 1 2\n", "{token} " + "x " * 14 + "\n", "y" * 8192])
def test_who_is_no_worker_of_the_meter_is_hung_up_on_and_counts_nothing(spark: SparkSession, line: str) -> None:
    meter = ScanMeter(spark)
    host, port, token = json.loads(meter.option)
    with socket.create_connection((host, port)) as stranger:
        stranger.sendall(line.format(token=token).encode())
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    assert meter.counters == ScanCounters()


def test_a_scan_goes_on_when_its_meter_is_gone(filled: SourceWorld, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with reporting(json.dumps(["127.0.0.1", port, "token"])) as report:
        report(ScanCounters(requests=1))
    assert "cannot be reached" in caplog.text


def test_counters_are_reported_in_a_few_lines() -> None:
    text = describe_counters(
        ScanCounters(
            queues=2, segments_planned=1, segments_skipped=9, bytes_planned=1536, bytes_skipped=512, requests=7
        )
    )
    assert text.splitlines() == [
        "planned   2 queues, 1 of 10 segments, 1.5 KiB of 2.0 KiB",
        "skipped   9 segments, 512 B",
        "read      0 B in 7 requests",
    ]


def test_one_is_singular_and_what_did_not_happen_is_not_listed() -> None:
    text = describe_counters(
        ScanCounters(queues=1, requests=1, rows_read=1, rows_given=1, hot_bytes_read=5, bytes_read=5)
    )
    assert text.splitlines() == [
        "planned   1 queue",
        "read      5 B in 1 request (hot 5 B)",
        "rows      1 of 1 message read",
    ]


def test_sizes_have_units() -> None:
    assert [size_text(size) for size in (0, 1023, 1024, 5 << 20, 3 << 30, 2 << 40)] == [
        "0 B", "1023 B", "1.0 KiB", "5.0 MiB", "3.0 GiB", "2.0 TiB",
    ]  # fmt: skip
