"""The open loop: times are counted from when a message was to be sent, and rows become ratios and a table."""

from __future__ import annotations

import itertools
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench_latency, latency_side
from benchmarks.broker_side import Loaded
from benchmarks.compare.network_works import topic_request
from benchmarks.latency_side import QUANTILES, Row
from benchmarks.official_load import begin_at_the_beginning
from benchmarks.report import Report
from interop.java_client import JavaClient
from interop.rocketmq import Unavailable, fetch
from servers.serving import Serving
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from waiting import until

STOPPED_S = 1.0
ROW = Row("async", "tiermq", 2_000, dict.fromkeys(QUANTILES, 2.0), dict.fromkeys(QUANTILES, 3.0), 0.1, 100.0)


def test_rounds_become_their_medians_and_the_greatest_of_their_greatest_times() -> None:
    rounds = [replace(ROW, send=dict.fromkeys(QUANTILES, value), beside_mb=value) for value in (1.0, 9.0, 2.0)]
    found = latency_side.middle(rounds)
    assert found.send == {"p50": 2.0, "p99": 2.0, "p999": 2.0, "max": 9.0}
    assert (found.beside_mb, found.end_to_end, found.name) == (2.0, ROW.end_to_end, "tiermq_async_2000")


def test_a_ratio_is_rocketmqs_time_over_ours_where_both_were_measured() -> None:
    made = Report("latency")
    theirs = replace(ROW, side="rocketmq", send={"p50": 1.0, "p99": 4.0, "p999": 5.0, "max": 8.0})
    bench_latency.add_rows_to(made, [ROW, theirs, replace(ROW, condition="cold")])
    assert made.ratios == {
        "cpu_100_us_vs_used_2000": 1.0,
        "send_p50_async_2000_rocketmq_vs_tiermq": 0.5,
        "send_p99_async_2000_rocketmq_vs_tiermq": 2.0,
        "send_max_async_2000_rocketmq_vs_tiermq": 4.0,
    }
    assert made.rates["rocketmq_async_2000_send_p999_ms"] == 5.0
    assert made.rates["tiermq_cold_2000_end_to_end_max_ms"] == 3.0


def test_a_row_of_the_table_has_as_many_cells_as_its_head() -> None:
    head, line, row = *bench_latency.HEAD.splitlines(), bench_latency.line_of(replace(ROW, beside_mb=1234.5))
    assert head.count("|") == line.count("|") == row.count("|")
    assert row.endswith("| 100 µs | 1,234 MB |")
    assert bench_latency.line_of(replace(ROW, beside_mb=9.0, beside_ended=True)).endswith("| 9 MB, ended |")


def test_a_backlog_that_was_uploaded_before_the_round_ended_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = itertools.chain([1.0, 1.0], itertools.repeat(2.0))
    now_s = iter(range(100))
    monkeypatch.setattr(latency_side, "stored_mb", lambda _: next(sizes))
    monkeypatch.setattr("benchmarks.latency_side.time.monotonic", lambda: float(next(now_s)))
    monkeypatch.setattr("benchmarks.latency_side.time.sleep", lambda _: None)
    assert latency_side.is_growing(tmp_path, 3.0)
    assert not latency_side.is_growing(tmp_path, 1.0)
    monkeypatch.setattr(latency_side, "BEGINS_S", 0.1)
    with pytest.raises(RuntimeError, match="the backlog was uploaded before this round"):
        latency_side.require_growing(tmp_path)
    assert latency_side.middle([ROW, replace(ROW, beside_ended=True)]).beside_ended


def test_a_message_that_fails_ends_the_benchmark() -> None:
    reported = {"failed": 1, "late": {"p99": 0.0}}
    with pytest.raises(SystemExit, match="1 of 20 messages failed"):
        latency_side.measure_round(Loaded("tiermq", lambda **_job: reported, 1, "127.0.0.1:1", 1), 100, 0.2, "async")


@pytest.fixture
def jars() -> Any:
    try:
        return fetch()
    except Unavailable as reason:
        pytest.skip(f"no real RocketMQ here: {reason}")


@pytest.mark.bench
@pytest.mark.slow
@pytest.mark.interop
def test_a_broker_that_stands_still_is_charged_for_all_that_was_due(tmp_path: Path, jars: Any) -> None:
    """A closed loop would send nothing while it waits, and count one slow message."""
    with (
        Serving(tmp_path / "store") as served,
        JavaClient(jars, served.name_server, tmp_path).loading() as load,
        ThreadPoolExecutor(1) as pool,
        BlockingClient("127.0.0.1", served.port) as client,
    ):
        assert served.process is not None
        client.request(topic_request("T", queues=1))
        job = {"kind": "open", "topic": "T", "threads": 1, "messages": 2_000, "bytes": 100, "rate": 500, "group": "G"}
        begin_at_the_beginning(served.port, "G", "T", 1)
        end_of_queue = RemotingCommand(RequestCode.GET_MAX_OFFSET, ext={"topic": "T", "queueId": "0"})
        reported = pool.submit(load, **job)
        until(lambda: int(client.request(end_of_queue).ext["offset"]) > 300)
        served.process.send_signal(signal.SIGSTOP)
        continues_s = time.monotonic() + STOPPED_S
        until(lambda: time.monotonic() > continues_s)
        served.process.send_signal(signal.SIGCONT)
        found = reported.result()
    assert found["failed"] == 0
    for kind in ("send", "endToEnd"):
        times = [found[kind][quantile] for quantile in QUANTILES]
        assert times == sorted(times)
        assert times[1] > 500 * STOPPED_S


@pytest.mark.bench
@pytest.mark.slow
@pytest.mark.interop
@pytest.mark.timeout(1_200)
def test_every_condition_has_a_row_of_each_broker(tmp_path: Path, jars: Any) -> None:
    words = ["--quick", "--rate", "200", "--seconds", "1", "--size", "64M", "--dir", str(tmp_path), "--table"]
    result = bench_latency.run(words)
    rows = {name.removesuffix("_cpu_us") for name in result["rates"] if name.endswith("_cpu_us")}
    both = {
        f"{side}_{condition}_200"
        for side in ("tiermq", "rocketmq")
        for condition in ("async", "sync", "tier", "topics")
    }
    assert rows == both | {"tiermq_cold_200"}
