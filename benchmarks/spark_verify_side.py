"""The sides of `verify` on Spark: the job on executors, and a plain read with a CRC-32 of the same bytes.

Run it alone for a look:  python -m benchmarks.spark_verify_side 256M
Both sides run on one core: pin the process before the session is started, and its JVM and workers inherit the pin.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import harness, verify_side
from benchmarks.harness import timed
from benchmarks.report import Report, Round
from benchmarks.verify_side import Verifying
from tiermq.spark.jobs.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RATIO = "spark_verify_vs_plain_read"


class SparkVerifying:
    """A tier in a directory: verified by the job, and read plainly."""

    def __init__(self, spark: SparkSession, tier: Verifying, url: str) -> None:
        self._spark, self._tier, self._url = spark, tier, url

    def verified(self) -> Round:
        return timed(self._verify)

    def read_plainly(self) -> Round:
        return self._tier.read_plainly()

    def _verify(self) -> tuple[int, int]:
        report = verify(self._spark, tier=self._url)
        if not report.is_clean or report.done["bytes"] != self._tier.size:
            raise RuntimeError(f"expected {self._tier.size} sound bytes, found {report}")
        return int(report.done["records"]), int(report.done["bytes"])


@contextlib.contextmanager
def spark_tier_to_verify(spark: SparkSession, directory: Path, log_size: int) -> Iterator[SparkVerifying]:
    """A tier of the workload's queues with all checksums known, and the job over it."""
    with verify_side.tier_to_verify(directory, log_size) as tier:
        yield SparkVerifying(spark, tier, (directory / "tier").as_uri())


def measure(
    spark: SparkSession, directory: Path, log_size: int, *, rounds: int = 5, warmup: int = 3
) -> dict[str, list[Round]]:
    """Alternating rounds of both sides."""
    with spark_tier_to_verify(spark, directory, log_size) as tier:
        sides = {"spark_verify": tier.verified, "plain_read": tier.read_plainly}
        return harness.alternate(sides, rounds, warmup)


def add_to(made: Report, measured: dict[str, list[Round]]) -> None:
    """Put what was measured and its ratio into a report."""
    made.add(measured)
    made.compare(RATIO, measured["spark_verify"], measured["plain_read"])


def main(size: str = "256M") -> None:
    from tiermq.spark.session import get_spark

    log_size = harness.parse_size(size)
    core = harness.choose_core("last")
    with harness.work_directory(None, 3 * log_size) as directory, harness.pinned(core):
        spark = get_spark("local[1]", app="bench verify")
        measured = measure(spark, directory, log_size)
        spark.stop()
    rates = {name: sorted(each.rate for each in rounds)[len(rounds) // 2] for name, rounds in measured.items()}
    for name, rounds in measured.items():
        seconds = sorted(each.seconds for each in rounds)[len(rounds) // 2]
        print(f"{name}: {rounds[0].bytes / seconds / 1e6:,.0f} MB/s")
    print(f"{RATIO}: {rates['spark_verify'] / rates['plain_read']:.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
