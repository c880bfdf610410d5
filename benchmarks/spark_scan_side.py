"""The sides of a full scan: `format("tiermq")` over a tier, and Spark's own reader of the same rows in Parquet.

Run it alone for a look:  python -m benchmarks.spark_scan_side 256M
Both sides run on one core and give every column of every row to a sink that drops them, or to a hash; then the columns
that a query names to a hash, and `count(*)`. Before anything is measured
the two are compared: as many rows, and the same exclusive-or of the hash of all their columns.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import harness, process_tree
from benchmarks.report import Report, Round
from tiermq import Message
from tiermq.pipeline.offload.job import offload
from tiermq.spark.source.builder import messages
from tiermq.store.local_store import LocalStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MIB = 1 << 20
TOPICS, QUEUES_PER_TOPIC = 8, 8
LOG_FILE_BYTES = 128 * MIB
BROKER = "DefaultCluster/broker-a"
RATIO, HASHED_RATIO = "scan_vs_parquet", "scan_hashed_vs_parquet"
NAMED_RATIO, COUNT_RATIO = "scan_named_vs_parquet", "count_vs_parquet"
NAMED = ("topic", "queueId", "queueOffset", "tags", "body")
"""What a query names."""
_WORDS = (
    b"order paid shipped returned customer warehouse amount total euro item colour size status city street ".split()
)


class Bodies:
    """Bodies of 100 to 300 bytes, no two alike: half of them chance, half of them words that begin with a number.

    Bodies that repeat would let Parquet keep each of them once, which messages of a real topic do not.
    """

    def __init__(self, seed: int = 11) -> None:
        self._source = random.Random(seed)
        self._text = b" ".join(self._source.choices(_WORDS, k=1 << 16))

    def make(self, number: int) -> bytes:
        length = 100 + number * 37 % 201
        if number % 2:
            return self._source.randbytes(length)
        start = number * 7919 % (len(self._text) - length)
        return b"%010d " % number + self._text[start : start + length - 11]


def fill_store(directory: Path, log_bytes: int, *, topics: int = TOPICS) -> int:
    """A closed store of so many topics with 8 queues each, every record with a key and one of ten tags; how many."""
    bodies, count = Bodies(), 0
    with LocalStore.open(directory, mapped_file_size_commit_log=LOG_FILE_BYTES) as store:
        while store.max_physical_offset < log_bytes:
            store.put_many(
                Message(
                    f"topic-{number % topics}", bodies.make(number), number // topics % QUEUES_PER_TOPIC,
                    keys=[f"order-{number}"], tags=f"Tag{number % 10}",
                )
                for number in range(count, count + 10_000)
            )  # fmt: skip
            count += 10_000
        store.dispatch_now()
    return count


def tree_timed(work: Callable[[], tuple[int, int]]) -> Round:
    """Time one call; its processor time is that of this process, the JVM and all workers together."""
    cpu_before, before = process_tree.cpu_seconds(), time.perf_counter()
    count, size = work()
    seconds = time.perf_counter() - before
    return Round(count, size, seconds, process_tree.cpu_seconds() - cpu_before)


class Scanning:
    """One history, as a tier and as Parquet files."""

    def __init__(self, spark: SparkSession, directory: Path, count: int, size: int) -> None:
        self._spark, self._count, self._size = spark, count, size
        self.tier = (directory / "tier").as_uri()
        self.parquet = str(directory / "parquet")

    @classmethod
    def made(cls, spark: SparkSession, directory: Path, log_bytes: int) -> Scanning:
        """Fill a store, copy it to a tier, write its rows as Parquet, and see that both hold the same."""
        count = fill_store(directory / "store", log_bytes)
        done = offload([f"{directory / 'store'}={BROKER}"], (directory / "tier").as_uri(), index="later").done
        made = cls(spark, directory, count, int(done["bytes"]))
        made.ours().write.parquet(made.parquet)
        found = [made.digest(frame) for frame in (made.ours(), made.theirs())]
        if found[0] != found[1] or found[0][0] != count:
            raise RuntimeError(f"expected {count} rows with equal hashes, found {found}")
        return made

    def ours(self) -> DataFrame:
        return messages(self._spark, tier=self.tier)

    def theirs(self) -> DataFrame:
        return self._spark.read.parquet(self.parquet)

    def digest(self, frame: DataFrame) -> tuple[Any, ...]:
        """How many rows, and the exclusive-or of the hash of all columns. Spark hashes no maps: they go as lists."""
        columns = [f"map_entries({name})" if name == "properties" else f"`{name}`" for name in frame.columns]
        row = frame.selectExpr(f"xxhash64({', '.join(columns)}) h").selectExpr("count(*)", "bit_xor(h)").first()
        assert row is not None
        return tuple(row)

    def dropped(self, frame: Callable[[], DataFrame]) -> Round:
        """Every column of every row to a sink that drops them."""
        return tree_timed(lambda: self._drop(frame()))

    def hashed(self, frame: Callable[[], DataFrame]) -> Round:
        """Every column of every row through a hash."""
        return tree_timed(lambda: (self.digest(frame())[0], self._size))

    def named(self, frame: Callable[[], DataFrame]) -> Round:
        """The columns that a query names, through a hash."""
        return tree_timed(lambda: (self.digest(frame().select(*NAMED))[0], self._size))

    def counted(self, frame: Callable[[], DataFrame]) -> Round:
        """`count(*)`."""
        return tree_timed(lambda: (frame().count(), self._size))

    def _drop(self, frame: DataFrame) -> tuple[int, int]:
        frame.write.format("noop").mode("overwrite").save()
        return self._count, self._size


def measure(
    spark: SparkSession, directory: Path, log_bytes: int, *, rounds: int = 5, warmup: int = 5
) -> dict[str, list[Round]]:
    """Alternating rounds of all sides. The JVM gets faster for five to ten runs, so warm-up is long."""
    world = Scanning.made(spark, directory, log_bytes)
    sides = {
        "scan": lambda: world.dropped(world.ours),
        "parquet": lambda: world.dropped(world.theirs),
        "scan_hashed": lambda: world.hashed(world.ours),
        "parquet_hashed": lambda: world.hashed(world.theirs),
        "scan_named": lambda: world.named(world.ours),
        "parquet_named": lambda: world.named(world.theirs),
        "count": lambda: world.counted(world.ours),
        "parquet_count": lambda: world.counted(world.theirs),
    }
    return harness.alternate(sides, rounds, warmup)


def add_to(made: Report, measured: dict[str, list[Round]]) -> None:
    """Put what was measured and its ratios into a report."""
    made.add(measured)
    made.compare(RATIO, measured["scan"], measured["parquet"])
    made.compare(HASHED_RATIO, measured["scan_hashed"], measured["parquet_hashed"])
    made.compare(NAMED_RATIO, measured["scan_named"], measured["parquet_named"])
    made.compare(COUNT_RATIO, measured["count"], measured["parquet_count"])


def main(size: str = "256M") -> None:
    from tiermq.spark.session import get_spark

    log_bytes = harness.parse_size(size)
    core = harness.choose_core("last")
    made = Report("spark scan")
    with harness.work_directory(None, 4 * log_bytes) as directory, harness.pinned(core):
        spark = get_spark("local[1]", app="bench scan")
        add_to(made, measure(spark, directory, log_bytes))
        spark.stop()
    print(made.ratios, made.cpu_ratios, made.rates, made.core_share)


if __name__ == "__main__":
    main(*sys.argv[1:])
