"""The sides of `verify` on Spark: the job on executors, and a plain read with a CRC-32 of the same bytes.

Run it alone for a look:  python -m benchmarks.spark_verify_side 256M
`disk`: files that the system forgets before each round, as history is when it is verified; driver, JVM and
worker share one core, as the reader has one. `memory`: files in the page cache, the job on all cores, as by default,
against one reader. There the reader copies a megabyte at a time into the same cache lines, faster than any disk; what
the job costs beyond reading shows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import harness, verify_side
from benchmarks.report import Report, Round
from benchmarks.spark_scan_side import tree_timed
from benchmarks.verify_side import Verifying
from tiermq.pipeline.verify.job import verify
from tiermq.spark import SparkRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RATIO = "spark_verify_vs_plain_read"


class SparkVerifying:
    """A tier in a directory: verified by the job, and read plainly."""

    def __init__(self, spark: SparkSession, tier: Verifying, url: str) -> None:
        self._spark, self._tier, self._url = spark, tier, url

    def verified(self) -> Round:
        return tree_timed(self._verify)

    def read_plainly(self) -> Round:
        return self._tier.read_plainly()

    def _verify(self) -> tuple[int, int]:
        report = verify(SparkRunner(self._spark), tier=self._url)
        if not report.is_clean or report.done["bytes"] != self._tier.size:
            raise RuntimeError(f"expected {self._tier.size} sound bytes, found {report}")
        return int(report.done["records"]), int(report.done["bytes"])


def measure_in_memory(
    spark: SparkSession, directory: Path, log_size: int, *, rounds: int = 5, warmup: int = 3
) -> dict[str, list[Round]]:
    """Alternating rounds of both sides: over one long queue, as history is, and over 64 of the same size together."""
    measured: dict[str, list[Round]] = {}
    for name, opened in (("", verify_side.one_queue), ("_many_queues", verify_side.many_queues)):
        with harness.part_directory(directory) as place, opened(place, log_size) as tier:
            job = SparkVerifying(spark, tier, (place / "tier").as_uri())
            sides = {f"spark_verify{name}": job.verified, f"plain_read{name}": job.read_plainly}
            measured |= harness.alternate(sides, rounds, warmup)
    return measured


def measure_on_disk(
    spark: SparkSession, directory: Path, log_size: int, *, rounds: int = 5, warmup: int = 3
) -> dict[str, list[Round]]:
    """Alternating rounds over one long queue, whose files the system forgets before each of them."""
    with harness.part_directory(directory) as place, verify_side.one_queue(place, log_size) as tier:
        os.sync()  # Pages that wait to be written are not forgotten.
        job = SparkVerifying(spark, tier, (place / "tier").as_uri())
        sides = {"spark_verify": job.verified, "plain_read": job.read_plainly}
        cold = {name: _cold(side, place / "tier") for name, side in sides.items()}
        return harness.alternate(cold, rounds, warmup)


def _cold(side: Callable[[], Round], directory: Path) -> Callable[[], Round]:
    def run() -> Round:
        for path in directory.rglob("*"):
            if path.is_file():
                descriptor = os.open(path, os.O_RDONLY)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)
        return side()

    return run


PLACES = {"memory": measure_in_memory, "disk": measure_on_disk}


def measure_in_child(
    where: str, master: str, directory: Path, log_size: int, *, rounds: int, warmup: int, core: int | None = None
) -> dict[str, list[Round]]:
    """One of `PLACES` in a process of its own, with all cores or pinned to one."""
    command = [sys.executable, "-m", "benchmarks.spark_verify_side", "--child", where, master, str(directory)]
    command += [str(number) for number in (log_size, rounds, warmup)]
    with harness.pinned(core):
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, list[list[float]]] = json.loads(done.stdout.splitlines()[-1])
    return {
        name: [Round(int(count), int(size), wall, cpu) for count, size, wall, cpu in each]
        for name, each in found.items()
    }


def add_to(made: Report, disk: dict[str, list[Round]], memory: dict[str, list[Round]]) -> None:
    """Put what was measured and its ratios into a report."""
    made.add(disk)
    made.add({f"{name}_in_memory": rounds for name, rounds in memory.items()})
    made.compare(RATIO, disk["spark_verify"], disk["plain_read"])
    for name in ("", "_many_queues"):
        ratio = f"spark_verify{name}_in_memory_vs_plain_read"
        made.compare(ratio, memory[f"spark_verify{name}"], memory[f"plain_read{name}"])


def _serve(where: str, master: str, directory: str, *numbers: str) -> None:
    from tiermq.spark.session import get_spark

    log_size, rounds, warmup = map(int, numbers)
    spark = get_spark(master, app="bench verify")
    measured = PLACES[where](spark, Path(directory), log_size, rounds=rounds, warmup=warmup)
    spark.stop()
    reported = {
        name: [[r.messages, r.bytes, r.seconds, r.cpu_seconds] for r in each] for name, each in measured.items()
    }
    print(json.dumps(reported))


def main(size: str = "256M") -> None:
    log_size = harness.parse_size(size)
    core = harness.choose_core("last")
    made = Report("spark verify")
    with harness.work_directory(None, 3 * log_size) as directory:
        memory = measure_in_child("memory", "local[*]", directory, log_size, rounds=5, warmup=3)
    with harness.work_directory(Path(tempfile.gettempdir()), 3 * log_size) as directory:
        disk = measure_in_child("disk", "local[1]", directory, log_size, rounds=5, warmup=3, core=core)
    add_to(made, disk, memory)
    print(made.ratios, made.cpu_ratios, made.rates, made.core_share)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _serve(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
