"""The sides of `verify` on Spark: the job on executors, and a plain read with a CRC-32 of the same bytes.

Run it alone for a look:  python -m benchmarks.spark_verify_side 256M
Both sides run on one core: pin the process before the session is started, and its JVM and workers inherit the pin.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import harness, verify_side
from benchmarks.report import Report, Round
from benchmarks.spark_scan_side import tree_timed
from benchmarks.verify_side import Verifying
from tiermq.spark.jobs.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RATIO, MANY_RATIO = "spark_verify_vs_plain_read", "spark_verify_many_queues_vs_plain_read"


class SparkVerifying:
    """A tier in a directory: verified by the job, and read plainly."""

    def __init__(self, spark: SparkSession, tier: Verifying, url: str) -> None:
        self._spark, self._tier, self._url = spark, tier, url

    def verified(self) -> Round:
        return tree_timed(self._verify)

    def read_plainly(self) -> Round:
        return self._tier.read_plainly()

    def _verify(self) -> tuple[int, int]:
        report = verify(self._spark, tier=self._url)
        if not report.is_clean or report.done["bytes"] != self._tier.size:
            raise RuntimeError(f"expected {self._tier.size} sound bytes, found {report}")
        return int(report.done["records"]), int(report.done["bytes"])


def measure(
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


def add_to(made: Report, measured: dict[str, list[Round]]) -> None:
    """Put what was measured and its ratios into a report."""
    made.add(measured)
    made.compare(RATIO, measured["spark_verify"], measured["plain_read"])
    made.compare(MANY_RATIO, measured["spark_verify_many_queues"], measured["plain_read_many_queues"])


def main(size: str = "256M") -> None:
    from tiermq.spark.session import get_spark

    log_size = harness.parse_size(size)
    core = harness.choose_core("last")
    made = Report("spark verify")
    with harness.work_directory(None, 3 * log_size) as directory, harness.pinned(core):
        spark = get_spark("local[1]", app="bench verify")
        add_to(made, measure(spark, directory, log_size))
        spark.stop()
    print(made.ratios, made.cpu_ratios, made.rates, made.core_share)


if __name__ == "__main__":
    main(*sys.argv[1:])
