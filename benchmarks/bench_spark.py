"""The pipeline on Spark, each part against what Spark or the machine does with the same bytes.

`scan`     Every column of every message through `format("tiermq")`, against Spark's reader of the same rows in Parquet.
`offload`  A store into a tier by plan, with index and manifests, against repartition + sort + write of its records.
`scaling`  The same job on two cores against one, in two sessions that take turns.
`key`      What is read to find one key among 10,000 segments, against what is stored; counted, not timed.
`verify`   Every record, unit, checksum and manifest on executors, against one plain reader with a CRC-32: of files on
           the disk, on one core; and of files in memory, on all cores.
`export`   A topic's history into Parquet by the job, against `df.write.parquet` of the same scan.
`idle`     A micro-batch that has one message to carry, against half a second.
`query`    A rare topic by a condition, a view and `attach`, against the option; a hot key against a scan of its queue.
`memory`   The most that driver and workers hold at 1, 4 and 16 times the size: 1 is flat.

scan, offload and export run in one session `local[1]` whose driver, JVM and workers share one core (`--core`);
the others have all cores. Starting Spark, filling stores and making tiers is never in the time; planning, commits and
the start of tasks always are. What each side does and leaves out is in `benchmarks/spark_*_side.py`. Files are in
memory, if there is room, so that disks do not decide. The JVM gets faster for ten runs: `--quick` does not wait for it.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import (
    harness,
    spark_export_side,
    spark_idle_side,
    spark_key_side,
    spark_memory_side,
    spark_offload_side,
    spark_query_side,
    spark_scan_side,
    spark_verify_side,
    store_side,
)
from benchmarks.harness import JavaBench
from benchmarks.report import Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "spark"
MIB = 1 << 20
ROUNDS, ROUNDS_QUICK = 7, 3
WARMUP, WARMUP_QUICK = 8, 2
SIZE, SIZE_QUICK = 512 * MIB, 64 * MIB
KEY_BYTES_MIN = 128 * MIB
"""Less than this in 10,000 segments would be segments of nothing but names."""
VERIFY_FACTOR = 4
"""A plain read of `--size` bytes in memory ends before a job of Spark has begun; a history is larger than that."""
VERIFY_BYTES_MAX = (1 << 31) - MIB  # One file of a log.
SCALING_FACTOR = 8
"""What a job costs before its first byte and after its last is the same for one core and for two."""
ROOM_FACTOR = max(3 * VERIFY_FACTOR, 2 * SCALING_FACTOR + 1)
MEMORY_BYTES_MIN = 8 * MIB
"""The smallest tier of `memory`; the largest is 16 times as large, or as large as `--size`."""


@dataclass(slots=True)
class Work:
    """What a part needs to know."""

    made: Report
    size: int
    rounds: int
    warmup: int
    core: int | None
    disk: Path


def scan(work: Work, spark: SparkSession, place: Path) -> None:
    measured = spark_scan_side.measure(spark, place, work.size, rounds=work.rounds, warmup=work.warmup)
    spark_scan_side.add_to(work.made, measured)


def offload(work: Work, spark: SparkSession, place: Path) -> None:
    measured = spark_offload_side.measure_plan(spark, place, work.size, rounds=work.rounds, warmup=work.warmup)
    spark_offload_side.add_plan_to(work.made, measured)


def export(work: Work, spark: SparkSession, place: Path) -> None:
    measured = spark_export_side.measure(spark, place, work.size, rounds=work.rounds, warmup=work.warmup)
    spark_export_side.add_to(work.made, measured)


def key(work: Work, spark: SparkSession, place: Path) -> None:
    world, read_bytes = spark_key_side.measure(spark, place, max(work.size, KEY_BYTES_MIN))
    spark_key_side.add_to(work.made, world, read_bytes)


def idle(work: Work, place: Path) -> None:
    found = spark_idle_side.measure_in_child(place, rounds=work.rounds, warmup=work.warmup)
    spark_idle_side.add_to(work.made, *found)


def query(work: Work, place: Path) -> None:
    taken = spark_query_side.measure_in_child(place, work.size, rounds=work.rounds, warmup=work.warmup)
    spark_query_side.add_to(work.made, taken)


def scaling(work: Work, place: Path) -> None:
    size = SCALING_FACTOR * work.size
    measured = spark_offload_side.measure_scaling(place, size, rounds=work.rounds, warmup=work.warmup)
    spark_offload_side.add_scaling_to(work.made, measured)


def verify(work: Work, place: Path) -> None:
    size, turns = min(VERIFY_FACTOR * work.size, VERIFY_BYTES_MAX), {"rounds": work.rounds, "warmup": work.warmup}
    memory = spark_verify_side.measure_in_child("memory", "local[*]", place, size, **turns)
    with harness.work_directory(work.disk, 3 * size) as disk_place:
        disk = spark_verify_side.measure_in_child("disk", "local[1]", disk_place, size, core=work.core, **turns)
    spark_verify_side.add_to(work.made, disk, memory)


def memory(work: Work, place: Path) -> None:
    smallest = max(MEMORY_BYTES_MIN, work.size // spark_memory_side.SCALES[-1])
    spark_memory_side.add_to(work.made, spark_memory_side.measure(place, smallest))


# A JVM has the cores that its process had when it started: what has all cores runs in processes of its own.
IN_CHILDREN: dict[str, Callable[[Work, Path], None]] = {
    "scaling": scaling,
    "verify": verify,
    "idle": idle,
    "query": query,
    "memory": memory,
}
ON_ONE_CORE: dict[str, Callable[[Work, SparkSession, Path], None]] = {
    "scan": scan,
    "offload": offload,
    "key": key,
    "export": export,
}
PARTS = (*ON_ONE_CORE, *IN_CHILDREN)


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and return the result object."""
    arguments = harness.parser(NAME, PARTS).parse_args(argv)
    options = harness.options_of(arguments)
    work = Work(
        Report(NAME),
        size=arguments.size or (SIZE_QUICK if options.quick else SIZE),
        rounds=arguments.rounds or (ROUNDS_QUICK if options.quick else ROUNDS),
        warmup=arguments.warmup or (WARMUP_QUICK if options.quick else WARMUP),
        core=options.core,
        disk=options.disk_directory or Path(tempfile.gettempdir()),
    )
    wanted = options.only or frozenset(PARTS)
    chosen = replace(options, size=work.size, rounds=work.rounds, warmup=work.warmup)
    with harness.work_directory(options.directory, ROOM_FACTOR * work.size + 2 * KEY_BYTES_MIN) as directory:
        for name, part in IN_CHILDREN.items():
            if name in wanted:
                with harness.part_directory(directory) as place:
                    part(work, place)
        with harness.pinned(options.core), contextlib.ExitStack() as stack:
            for name, one_core in ON_ONE_CORE.items():
                if name in wanted:
                    with harness.part_directory(directory) as place:
                        one_core(work, _session(stack), place)
        return harness.finish(work.made, chosen, directory, JavaBench(wanted=False), store_side.kernel())


def _session(stack: contextlib.ExitStack) -> SparkSession:
    """The session of one core, started by the first part that needs it: the JVM inherits the pin of this thread."""
    from pyspark.sql import SparkSession

    from tiermq.spark.session import get_spark

    running = SparkSession.getActiveSession()
    if running is None:
        running = get_spark("local[1]", app="tiermq bench")
        stack.callback(running.stop)
    return running


if __name__ == "__main__":
    harness.main(run)
