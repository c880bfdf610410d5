"""Memory of Spark's driver, its JVM and its Python workers while a tier grows: 1, 4 and 16 times the size.

Run it alone for a look:  python -m benchmarks.spark_memory_side 16M
For each size a process of its own starts a session on two cores with a heap of fixed size and does what pipelines do: a
scan to a sink that drops all rows, a verification, an export to Parquet. Every 100 ms all processes below it are looked
at; what counts is the most memory of their own (pages of mapped files are the kernel's) that they held at any moment:

    driver    the Python program that starts jobs, plans and commits
    workers   all Python processes that Spark has started, also those in which it plans a scan, together
    jvm       its heap is the same at every size, and a JVM fills its heap before it collects: it is shown, not judged

The tier's segments are small, so that plans and commits grow with it as well: 16 times the bytes are 16 times the
segments. Tasks are small too, so that the smallest tier keeps both workers busy already and fills their buffers.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks import harness, process_tree
from benchmarks.report import Report
from benchmarks.spark_scan_side import BROKER, fill_store
from tiermq.pipeline.export.job import export
from tiermq.pipeline.offload.job import offload
from tiermq.pipeline.verify.job import verify
from tiermq.spark import SparkRunner
from tiermq.spark.source.builder import messages

RATIO = "memory_1x_vs_16x"
SCALES = (1, 4, 16)
SAMPLE_SECONDS = 0.1
HEAP = "768m"
SEGMENT_BYTES = 256 << 10
PARTITION_BYTES = 2 << 20
Peaks = dict[str, int]


class TreePeaks:
    """The most memory that this process and those below it held, by what they are. A thread looks until the exit."""

    def __init__(self) -> None:
        self.peaks: Peaks = dict.fromkeys(("driver", "workers", "python", "jvm"), 0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory-samples", daemon=True)

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            self.look()

    def look(self) -> None:
        """One sample."""
        now = dict.fromkeys(self.peaks, 0)
        for process in process_tree.tree():
            kind = "jvm" if process.name == "java" else "driver" if process.pid == os.getpid() else "workers"
            now[kind] += process_tree.own_bytes(process.pid)
        now["python"] = now["driver"] + now["workers"]
        self.peaks = {kind: max(peak, now[kind]) for kind, peak in self.peaks.items()}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()


def make_tier(directory: Path, log_bytes: int) -> str:
    """A tier of so many bytes in small segments; its URL. The store that it was copied from goes again."""
    fill_store(directory / "store", log_bytes)
    url = (directory / "tier").as_uri()
    done = offload(
        [f"{directory / 'store'}={BROKER}"],
        url,
        index="later",
        config={"tiered_store_commit_log_max_size": SEGMENT_BYTES},
    )
    if done.problems:
        raise RuntimeError(f"expected everything in the tier, found {done.problems}")
    shutil.rmtree(directory / "store")
    return url


def work_through(tier: str, out: Path) -> Peaks:
    """What pipelines do, once each, in a session of this process; the peaks meanwhile."""
    from tiermq.spark.session import get_spark

    conf = {"spark.driver.memory": HEAP, "spark.driver.extraJavaOptions": f"-Xms{HEAP}"}
    spark = get_spark("local[2]", app="bench memory", conf=conf)
    with TreePeaks() as watch:
        frame = messages(spark, tier=tier, maxBytesPerPartition=PARTITION_BYTES)
        frame.write.format("noop").mode("overwrite").save()
        reports = [
            verify(SparkRunner(spark), tier=tier, task_bytes=PARTITION_BYTES),
            export(SparkRunner(spark), tier=tier, to=f"parquet:{out}", file_bytes=PARTITION_BYTES),
        ]
    spark.stop()
    if any(report.problems for report in reports):
        raise RuntimeError(f"expected a sound tier and a whole export, found {reports}")
    return watch.peaks


def measure(directory: Path, log_bytes: int) -> dict[int, Peaks]:
    """The peaks at each size, in a process each: memory that was once taken is seldom given back."""
    found = {}
    for scale in SCALES:
        with harness.part_directory(directory) as place:
            url = make_tier(place, scale * log_bytes)
            command = [sys.executable, "-m", "benchmarks.spark_memory_side", "--child", url, str(place / "out")]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found[scale] = json.loads(done.stdout.splitlines()[-1])
    return found


def add_to(made: Report, found: Mapping[int, Peaks]) -> None:
    """Put what was seen and its ratio into a report: 1 is flat, 0.5 is twice the memory for 16 times the tier."""
    made.ratios[RATIO] = round(found[SCALES[0]]["python"] / found[SCALES[-1]]["python"], 4)
    for scale, peaks in found.items():
        for kind in ("driver", "workers", "jvm"):
            made.rates[f"memory_{kind}_{scale}x_mb"] = round(peaks[kind] / 1e6, 1)


def main(size: str = "16M") -> None:
    made = Report("spark memory")
    log_bytes = harness.parse_size(size)
    with harness.work_directory(None, 4 * SCALES[-1] * log_bytes) as directory:
        add_to(made, measure(directory, log_bytes))
    print(made.ratios, made.rates)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(work_through(sys.argv[2], Path(sys.argv[3]))))
    else:
        main(*sys.argv[1:])
