"""The sides of an export to Parquet: the job, whose workers write files themselves, and `df.write.parquet` of the scan.

Run it alone for a look:  python -m benchmarks.spark_export_side 256M
Both sides run on one core and write the same rows and columns. The job's files are zstd; Spark's are snappy, as it does
by itself, and in a third side zstd as well. Before anything is measured the files of both are compared: as many rows,
and the same exclusive-or of the hash of all their columns.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import harness
from benchmarks.report import Report, Round
from benchmarks.spark_scan_side import BROKER, fill_store, tree_timed
from tiermq.pipeline.export.job import chosen_columns, export
from tiermq.pipeline.offload.job import offload
from tiermq.spark import SparkRunner
from tiermq.spark.source.builder import messages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RATIO, ZSTD_RATIO = "export_vs_write_parquet", "export_vs_write_parquet_zstd"


class Exporting:
    """One tier, exported again and again into directories that are removed in between."""

    def __init__(self, spark: SparkSession, directory: Path, count: int, size: int) -> None:
        self._spark, self._count, self._size = spark, count, size
        self._tier = (directory / "tier").as_uri()
        self._out = directory / "out"

    @classmethod
    def made(cls, spark: SparkSession, directory: Path, log_bytes: int) -> Exporting:
        """Fill a store, copy it to a tier, and see that both ways to export it give the same rows."""
        count = fill_store(directory / "store", log_bytes)
        done = offload([f"{directory / 'store'}={BROKER}"], (directory / "tier").as_uri(), index="later").done
        shutil.rmtree(directory / "store")
        made = cls(spark, directory, count, int(done["bytes"]))
        found = []
        for write in (made._export, made._write_snappy):
            write()
            found.append(made._digest(spark.read.parquet(str(made._out))))
            shutil.rmtree(made._out)
        if found[0] != found[1] or found[0][0] != count:
            raise RuntimeError(f"expected {count} rows with equal hashes, found {found}")
        return made

    def exported(self) -> Round:
        return self._round(self._export)

    def written(self) -> Round:
        return self._round(self._write_snappy)

    def written_zstd(self) -> Round:
        return self._round(self._write_zstd)

    def _round(self, write: Any) -> Round:
        found = tree_timed(write)
        shutil.rmtree(self._out)
        return found

    def _export(self) -> tuple[int, int]:
        report = export(SparkRunner(self._spark), tier=self._tier, to=f"parquet:{self._out}")
        if report.problems or report.done["messages"] != self._count:
            raise RuntimeError(f"expected {self._count} messages, found {report}")
        return self._count, self._size

    def _write_snappy(self) -> tuple[int, int]:
        return self._write("snappy")

    def _write_zstd(self) -> tuple[int, int]:
        return self._write("zstd")

    def _write(self, codec: str) -> tuple[int, int]:
        frame = messages(self._spark, tier=self._tier, columns=chosen_columns((), None))
        frame.write.option("compression", codec).parquet(str(self._out))
        return self._count, self._size

    def _digest(self, frame: DataFrame) -> tuple[Any, ...]:
        """Spark hashes no maps: they go as lists."""
        columns = [f"map_entries({name})" if name == "properties" else f"`{name}`" for name in frame.columns]
        row = frame.selectExpr(f"xxhash64({', '.join(columns)}) h").selectExpr("count(*)", "bit_xor(h)").first()
        assert row is not None
        return tuple(row)


def measure(
    spark: SparkSession, directory: Path, log_bytes: int, *, rounds: int = 5, warmup: int = 5
) -> dict[str, list[Round]]:
    """Alternating rounds of all sides. The JVM gets faster for five to ten runs, so warm-up is long."""
    world = Exporting.made(spark, directory, log_bytes)
    sides = {"export": world.exported, "write_parquet": world.written, "write_parquet_zstd": world.written_zstd}
    return harness.alternate(sides, rounds, warmup)


def add_to(made: Report, measured: dict[str, list[Round]]) -> None:
    """Put what was measured and its ratios into a report."""
    made.add(measured)
    made.compare(RATIO, measured["export"], measured["write_parquet"])
    made.compare(ZSTD_RATIO, measured["export"], measured["write_parquet_zstd"])


def main(size: str = "256M", rounds: str = "5", warmup: str = "5") -> None:
    from tiermq.spark.session import get_spark

    log_bytes = harness.parse_size(size)
    core = harness.choose_core("last")
    made = Report("spark export")
    with harness.work_directory(None, 5 * log_bytes) as directory, harness.pinned(core):
        spark = get_spark("local[1]", app="bench export")
        add_to(made, measure(spark, directory, log_bytes, rounds=int(rounds), warmup=int(warmup)))
        spark.stop()
    print(made.ratios, made.cpu_ratios, made.rates, made.core_share)


if __name__ == "__main__":
    main(*sys.argv[1:])
