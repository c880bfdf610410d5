"""What a micro-batch of a stream costs that has next to nothing to do: one message, to a sink that drops it.

Run it alone for a look:  python -m benchmarks.spark_idle_side
Two things are measured, warm: a batch with one message (offsets, plan, one task, Spark's two logs), by Spark's own
account of its trigger; and a trigger that finds nothing new, for which Spark runs no batch at all. The checkpoint lies
in the same directory as the store. Making a message readable is not counted: the stream starts when it is there.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import harness
from benchmarks.report import Report
from tiermq import Message
from tiermq.pipeline.offload.job import offload
from tiermq.spark.source.data_source import FORMAT, TierMQDataSource
from tiermq.store.local_store import LocalStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

RATIO = "idle_batch_half_second_vs_taken"
ALLOWED_SECONDS = 0.5
QUEUES, OLD_MESSAGES = 16, 10_000
BROKER = "DefaultCluster/broker-a"


class IdleStream:
    """A running stream over a tier and a store that single messages are put into."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._store = LocalStore.open(directory / "store", mapped_file_size_commit_log=16 << 20)
        self._put(OLD_MESSAGES)
        self._store.close()
        offload([f"{directory / 'store'}={BROKER}"], (directory / "tier").as_uri(), index="later")
        self._store = LocalStore.open(directory / "store", mapped_file_size_commit_log=16 << 20)
        spark.dataSource.register(TierMQDataSource)
        frame = (
            spark.readStream.format(FORMAT)
            .option("tier", (directory / "tier").as_uri())
            .option("store", str(directory / "store"))
            .option("brokerName", "broker-a")
            .option("subscribe", "orders")
            .option("startingOffsets", "latest")
            .load()
        )
        writing = frame.writeStream.format("noop").option("checkpointLocation", str(directory / "checkpoint"))
        self._query: StreamingQuery = writing.start()
        self._query.processAllAvailable()

    def _put(self, count: int) -> None:
        self._store.put_many(Message("orders", b"x" * 100, number % QUEUES) for number in range(count))
        self._store.dispatch_now()

    def batch_seconds(self, count: int) -> list[float]:
        """So many batches of one message each, one after the other: what each trigger took."""
        taken = []
        for _ in range(count):
            before = self._seen()
            self._put(1)
            self._query.processAllAvailable()
            found = [each for each in _progress(self._query) if each["batchId"] > before and each["numInputRows"]]
            if [each["numInputRows"] for each in found] != [1]:
                raise RuntimeError(f"expected one batch of one message, found {found!r:.500}")
            taken.append(found[0]["durationMs"]["triggerExecution"] / 1000)
        return taken

    def idle_seconds(self) -> list[float]:
        """What triggers took that found nothing, as far as Spark reports them."""
        idle = [each for each in _progress(self._query) if not each["numInputRows"]]
        return [each["durationMs"]["triggerExecution"] / 1000 for each in idle[1:]]

    def _seen(self) -> int:
        """The number of the last batch that had anything in it; -1 before the first."""
        return max((each["batchId"] for each in _progress(self._query) if each["numInputRows"]), default=-1)

    def close(self) -> None:
        self._query.stop()
        self._store.close()


def _progress(query: StreamingQuery) -> list[dict[str, Any]]:
    return [json.loads(each.json) for each in query.recentProgress]


def measure(
    spark: SparkSession, directory: Path, *, rounds: int = 9, warmup: int = 5
) -> tuple[Sequence[float], Sequence[float]]:
    """What warm batches of one message took, and triggers that found nothing."""
    stream = IdleStream(spark, directory)
    try:
        stream.batch_seconds(warmup)
        return stream.batch_seconds(rounds), stream.idle_seconds()
    finally:
        stream.close()


def measure_in_child(directory: Path, *, rounds: int, warmup: int) -> tuple[Sequence[float], Sequence[float]]:
    """The same in a process of its own, with all cores."""
    command = [sys.executable, "-m", "benchmarks.spark_idle_side", "--child", str(directory), str(rounds), str(warmup)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    batches, idle = json.loads(done.stdout.splitlines()[-1])
    return batches, idle


def add_to(made: Report, batches: Sequence[float], idle: Sequence[float]) -> None:
    """Put what was measured and its ratio into a report: above 1, a batch costs less than half a second."""
    typical = statistics.median(batches)
    made.ratios[RATIO] = round(ALLOWED_SECONDS / typical, 4)
    made.rates["idle_batch_seconds"] = round(typical, 3)
    made.spread["idle_batch"] = round((max(batches) - min(batches)) / 2 / typical, 4)
    if idle:
        made.rates["idle_trigger_without_batch_seconds"] = round(statistics.median(idle), 3)


def _serve(directory: str, rounds: str, warmup: str) -> None:
    from tiermq.spark.session import get_spark

    spark = get_spark("local[2]", app="bench idle")
    print(json.dumps(measure(spark, Path(directory), rounds=int(rounds), warmup=int(warmup))))
    spark.stop()


def main() -> None:
    made = Report("spark idle")
    with harness.work_directory(None, 64 << 20) as directory:
        add_to(made, *measure_in_child(directory, rounds=9, warmup=5))
    print(made.ratios, made.rates, made.spread)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _serve(*sys.argv[2:])
    else:
        main()
