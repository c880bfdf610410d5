"""A RocketMQ broker under load while an offload copies it: what producers notice, and when a message is a row in SQL.

    python -m benchmarks.offload_live_side producer          rate and p99 of sends, beside a job and alone
    python -m benchmarks.offload_live_side freshness         from a message's acknowledgement to its row, once job and
                                                             Spark have started

The load is RocketMQ's own client (`interop/java/SteadyLoad.java`), which reports how long each send took. The job is
`tiermq pipeline offload --trigger 5s` in a process of its own, with its tasks in it, into a tier of files. For rounds
alone it is stopped by a signal and goes on afterwards, so that it always has something to copy. All share the machine:
with few processors what the job takes of them is what producers notice.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import broker_side, harness
from benchmarks.broker_side import QUEUES, TOPIC
from benchmarks.report import Report
from campaign.fleets.load import Acknowledged, Queue, SteadyLoad
from interop.rocketmq import BROKER_NAME, Cluster, fetch

RATE_RATIO, P99_RATIO = "producer_rate_beside_copy_vs_alone", "producer_p99_alone_vs_beside_copy"
FRESH_RATIO = "ack_to_sql_allowed_vs_p99"
TRIGGER_S, SETTLE_S = 5, 2
ALLOWED_S = 10
"""Beside the settle time."""
RATE = "2M"
THREADS, PAUSE_MS = 8, 2
SLOW_THREADS, SLOW_PAUSE_MS = 4, 20
ROUND_S, FRESH_S = 8.0, 45.0
BYTES = 64 << 20
_POLL_S = 0.1


def p99(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]


@contextlib.contextmanager
def job(name_server: str, directory: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """The offload, from its first wave on."""
    metrics = directory / "offload.prom"
    words = ["pipeline", "offload", "--namesrv", name_server, "--tier", (directory / "tier").as_uri()]
    words += ["--master", "here", "--trigger", f"{TRIGGER_S}s", "--settle", f"{SETTLE_S}s", "--metrics", str(metrics)]
    with (directory / "job.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tiermq.cli", *words, *options], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        while not metrics.exists():
            if process.poll() is not None:
                raise RuntimeError(f"the job ended: {(directory / 'job.log').read_text()[-2000:]}")
            time.sleep(_POLL_S)
        yield process
        if process.poll() is not None:
            raise RuntimeError(f"the job ended: {(directory / 'job.log').read_text()[-2000:]}")
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait()


def copied_bytes(directory: Path) -> int:
    lines = (directory / "offload.prom").read_text().splitlines()
    return sum(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith("tiermq_offload_bytes{"))


@contextlib.contextmanager
def loaded_broker(directory: Path) -> Iterator[tuple[str, SteadyLoad]]:
    """A RocketMQ broker, run as a server is, and a load for it."""
    store = directory / "store"
    broker_side.make_topics(store)
    settings = {"flushDiskType": "ASYNC_FLUSH"}
    with Cluster(broker_side.distribution(), store, directory / "broker", settings) as cluster:
        cluster.await_registered()
        load = SteadyLoad(fetch(), cluster.name_server, directory)
        try:
            yield cluster.name_server, load
        finally:
            load.close()


# Producers


@dataclass(frozen=True, slots=True)
class Sends:
    """One round of a load."""

    rate: float
    p99_ms: float
    failed: int


def _sends(load: SteadyLoad, name: str, seconds: float) -> Sends:
    load.start(TOPIC, name, [BROKER_NAME] * THREADS, queues=QUEUES, pause_ms=PAUSE_MS)
    load.wait(THREADS)
    began_s = time.monotonic()
    time.sleep(seconds)
    done = load.stop()
    sent_s = time.monotonic() - began_s
    return Sends(done.count / sent_s, p99([took / 1e6 for took in done.took_ns]), done.failed)


def measure_producer(directory: Path, *, rounds: int, warmup: int, seconds: float = ROUND_S) -> dict[str, Any]:
    """Rounds alone and beside the job, in turn; what the job copied a second in the latter."""
    found: dict[str, list[Sends]] = {"alone": [], "beside": []}
    with loaded_broker(directory) as (name_server, load), job(name_server, directory, "--rate", RATE) as copying:
        copied, copied_s = 0, 0.0
        for number in range(warmup + rounds):
            for side in ("alone", "beside") if number % 2 == 0 else ("beside", "alone"):
                os.kill(copying.pid, signal.SIGSTOP if side == "alone" else signal.SIGCONT)
                before, began_s = copied_bytes(directory), time.monotonic()
                sends = _sends(load, f"{side}{number}", seconds)
                if side == "beside":
                    copied, copied_s = copied + copied_bytes(directory) - before, copied_s + time.monotonic() - began_s
                if number < warmup:
                    continue  # The client may not know the broker yet.
                if sends.failed:
                    raise RuntimeError(f"{sends.failed} sends failed {side}")
                found[side].append(sends)
    return {**found, "copied_bytes_a_second": copied / copied_s}


def add_producer_to(made: Report, measured: dict[str, Any]) -> None:
    pairs = list(zip(measured["beside"], measured["alone"], strict=True))
    made.ratios[RATE_RATIO] = round(statistics.median(beside.rate / alone.rate for beside, alone in pairs), 4)
    made.ratios[P99_RATIO] = round(statistics.median(alone.p99_ms / beside.p99_ms for beside, alone in pairs), 4)
    for side in ("alone", "beside"):
        made.rates[f"producer_{side}_sends_a_second"] = round(statistics.median(s.rate for s in measured[side]), 1)
        made.rates[f"producer_{side}_p99_ms"] = round(statistics.median(s.p99_ms for s in measured[side]), 3)
    made.rates["copied_beside_producer_bytes_a_second"] = round(measured["copied_bytes_a_second"])


# Rows


class Timed(Acknowledged):
    """A load that notes when each message was acknowledged."""

    def __init__(self, topic: str, name: str) -> None:
        super().__init__(topic, name)
        self.at_s: dict[Queue, dict[int, float]] = {}

    def note(self, line: str) -> None:
        super().note(line)
        broker, queue, offset, *_ = line.split()
        self.at_s.setdefault((broker, int(queue)), {})[int(offset)] = time.monotonic()


def measure_freshness(directory: Path, *, seconds: float = FRESH_S) -> dict[str, list[float]]:
    """How long after its acknowledgement each message was in the answer of a query, and how long queries took.

    A query follows another at once, so a query's own time is in it. Messages count from the first query's end on: it
    waits for the job's first commit, and takes seconds in which Spark loads and compiles what all others use.
    """
    from tiermq.spark.attached_history import attach
    from tiermq.spark.session import get_spark

    spark = get_spark("local[1]", app="bench freshness")
    timed = Timed(TOPIC, "fresh")
    late: list[float] = []
    queries: list[float] = []
    uncounted = 0
    with loaded_broker(directory) as (name_server, load), job(name_server, directory):
        load.start(TOPIC, "fresh", [BROKER_NAME] * SLOW_THREADS, queues=QUEUES, pause_ms=SLOW_PAUSE_MS, into=timed)
        ends: dict[Queue, int] = {}
        while not list((directory / "tier").rglob("manifest*")):
            time.sleep(_POLL_S)
        history = attach(spark, tier=(directory / "tier").as_uri())
        counted_from_s, is_over = math.inf, False
        while not is_over or len(late) + uncounted < timed.count:
            if not is_over and time.monotonic() - counted_from_s >= seconds:
                load.stop()
                is_over = True
            asked_s = time.monotonic()
            rows = history.sql(f"select queueId, max(queueOffset) as last from {TOPIC} group by queueId").collect()
            seen_s = time.monotonic()
            if counted_from_s < math.inf:
                queries.append(seen_s - asked_s)
            counted_from_s = min(counted_from_s, seen_s)
            for row in rows:
                queue = (BROKER_NAME, int(row["queueId"]))
                acknowledged = timed.at_s.get(queue, {})
                new = range(ends.get(queue, 0), int(row["last"]) + 1)
                at_s = [acknowledged[offset] for offset in new if offset in acknowledged]
                late += [seen_s - each for each in at_s if each >= counted_from_s]
                uncounted += sum(each < counted_from_s for each in at_s)
                ends[queue] = new.stop
    spark.stop()
    return {"late_s": late, "query_s": queries}


def add_freshness_to(made: Report, measured: dict[str, list[float]]) -> None:
    late, queries = measured["late_s"], measured["query_s"]
    made.ratios[FRESH_RATIO] = round((ALLOWED_S + SETTLE_S) / p99(late), 4)
    made.rates["ack_to_sql_p50_s"] = round(statistics.median(late), 2)
    made.rates["ack_to_sql_p99_s"] = round(p99(late), 2)
    made.rates["ack_to_sql_most_s"] = round(max(late), 2)
    made.rates["ack_to_sql_messages"] = len(late)
    made.rates["ack_to_sql_query_s"] = round(statistics.median(queries), 2)


def _main(names: list[str]) -> None:
    made = Report("offload, live")
    with harness.work_directory(None, BYTES) as place:
        for name in names:
            with harness.part_directory(place) as directory:
                if name == "producer":
                    add_producer_to(made, measure_producer(directory, rounds=3, warmup=1))
                else:
                    add_freshness_to(made, measure_freshness(directory))
    print(json.dumps({"ratios": made.ratios, "rates": made.rates}, indent=1))


if __name__ == "__main__":
    _main(sys.argv[1:] or ["producer", "freshness"])
