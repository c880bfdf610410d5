"""What queries cost that name no option: the same rows by conditions and by SQL against the source's own options.

Run it alone for a look:  python -m benchmarks.spark_query_side 64M
A tier has many topics, a rare one of a few messages, and one with a hot key: a quarter of its only queue has it. The
ways take turns, `local[2]` in a process of its own. `option` is the yardstick of the rare topic; of the hot key it is a
scan of the topic with a filter, since that is what a plan falls back to. Each way must give the same messages.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import harness
from benchmarks.report import Report
from benchmarks.spark_scan_side import Bodies
from tiermq import Message
from tiermq.pipeline.offload.job import offload
from tiermq.pipeline.reindex.job import reindex
from tiermq.spark.attached_history import attach
from tiermq.spark.source.builder import messages
from tiermq.store.local_store import LocalStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OPTION, SCAN = "query_option", "query_hot_scan"
WAYS: Mapping[str, str] = {
    "query_where": OPTION,
    "query_view": OPTION,
    "query_attached": OPTION,
    "query_hot_key": SCAN,
}
"""Each way, and what it is compared with."""
RATIOS = tuple(f"{way}_vs_{other.removeprefix('query_')}" for way, other in WAYS.items())
RARE, RARE_COUNT = "rare", 200
HOT, HOT_KEY, HOT_SHARE = "hot", "the-hot-one", 4
TOPICS, QUEUES = 8, 8
MESSAGE_BYTES, BATCH = 350, 4_000
LOG_FILE_BYTES = 64 << 20
BROKER = "DefaultCluster/broker-a"
Times = Mapping[str, Sequence[float]]


class QueriedTier:
    """A tier with a rare topic and a hot key, and what each way must find."""

    def __init__(self, directory: Path, log_bytes: int) -> None:
        self.url = (directory / "tier").as_uri()
        self.count = log_bytes // MESSAGE_BYTES
        self._sums = {RARE: 0, HOT: 0}
        with LocalStore.open(directory / "store", mapped_file_size_commit_log=LOG_FILE_BYTES) as store:
            made = list(self._messages())
            for begin in range(0, len(made), BATCH):
                store.put_many(made[begin : begin + BATCH])
            store.dispatch_now()
        offload([f"{directory / 'store'}={BROKER}"], self.url, index="later")
        reindex(None, tier=self.url, slots=100_000)

    def _messages(self) -> Iterator[Message]:
        bodies, hot_count = Bodies(), self.count // HOT_SHARE
        for number in range(self.count):
            body = bodies.make(number)
            if number < hot_count:
                is_hot = number % HOT_SHARE == 0
                self._sums[HOT] += len(body) * is_hot
                yield Message(HOT, body, 0, keys=[HOT_KEY if is_hot else f"key-{number}"])
            else:
                yield Message(f"topic-{number % TOPICS}", body, number // TOPICS % QUEUES, keys=[f"key-{number}"])
        for number in range(RARE_COUNT):
            body = bodies.make(number)
            self._sums[RARE] += len(body)
            yield Message(RARE, body, number % QUEUES, keys=[f"rare-{number}"])

    def ways(self, spark: SparkSession) -> dict[str, Callable[[], DataFrame]]:
        """Frames of bodies; each call makes its own, as a user's query would."""
        messages(spark, tier=self.url).createOrReplaceTempView("bench_everything")
        attached = attach(spark, tier=self.url)
        condition = f"select body from %s where topic = '{RARE}'"
        has_key = f"array_contains(keys, '{HOT_KEY}')"
        return {
            OPTION: lambda: messages(spark, tier=self.url, topic=RARE).select("body"),
            "query_where": lambda: messages(spark, tier=self.url).where(f"topic = '{RARE}'").select("body"),
            "query_view": lambda: spark.sql(condition % "bench_everything"),
            "query_attached": lambda: attached.sql(condition % "messages"),
            SCAN: lambda: messages(spark, tier=self.url, topic=HOT).select("keys", "body").where(has_key),
            "query_hot_key": lambda: messages(spark, tier=self.url, topic=HOT, keys=HOT_KEY).select("body"),
        }

    def seconds(self, way: str, frame: Callable[[], DataFrame]) -> float:
        began = time.perf_counter()
        [[found]] = frame().selectExpr("sum(length(body))").collect()
        took = time.perf_counter() - began
        expected = self._sums[HOT if "hot" in way else RARE]
        if found != expected:
            raise RuntimeError(f"{way}: expected {expected} bytes of bodies, found {found}")
        return took


def measure(spark: SparkSession, directory: Path, log_bytes: int, *, rounds: int, warmup: int) -> Times:
    """What each way took, in turns."""
    tier = QueriedTier(directory, log_bytes)
    ways = tier.ways(spark)
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(warmup + rounds):
        for way, frame in ways.items():
            took = tier.seconds(way, frame)
            if turn >= warmup:
                taken[way].append(took)
    return taken


def measure_in_child(directory: Path, log_bytes: int, *, rounds: int, warmup: int) -> Times:
    """The same in a process of its own, with two cores."""
    words = ["--child", directory, log_bytes, rounds, warmup]
    command = [sys.executable, "-m", "benchmarks.spark_query_side", *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    taken: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return taken


def add_to(made: Report, taken: Times) -> None:
    """Put what was measured into a report: above 1, a way is faster than what it is compared with."""
    typical = {way: statistics.median(each) for way, each in taken.items()}
    for (way, other), ratio in zip(WAYS.items(), RATIOS, strict=True):
        made.ratios[ratio] = round(typical[other] / typical[way], 4)
    for way, each in taken.items():
        made.rates[f"{way}_seconds"] = round(typical[way], 3)
        made.spread[way] = round((max(each) - min(each)) / 2 / typical[way], 4)


def _serve(directory: str, log_bytes: str, rounds: str, warmup: str) -> None:
    from tiermq.spark.session import get_spark

    spark = get_spark("local[2]", app="bench query")
    print(json.dumps(measure(spark, Path(directory), int(log_bytes), rounds=int(rounds), warmup=int(warmup))))
    spark.stop()


def main(size: str = "64M") -> None:
    made, log_bytes = Report("spark query"), harness.parse_size(size)
    with harness.work_directory(None, 4 * log_bytes) as directory:
        add_to(made, measure_in_child(directory, log_bytes, rounds=7, warmup=5))
    print(made.ratios, made.rates, made.spread)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _serve(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
