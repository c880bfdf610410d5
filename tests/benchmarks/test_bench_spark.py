"""What `bench spark` is made of: the tree of processes, the counts and curves as ratios, and a tiny run of the rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import (
    bench_sql,
    process_tree,
    spark_export_side,
    spark_idle_side,
    spark_key_side,
    spark_memory_side,
    spark_offload_side,
    spark_query_side,
    spark_scan_side,
    spark_verify_side,
)
from benchmarks.bench_spark import IN_CHILDREN, ON_ONE_CORE, PARTS
from benchmarks.report import TARGETS, Report, Round
from benchmarks.spark_memory_side import TreePeaks
from benchmarks.spark_scan_side import Bodies

ROOT = Path(__file__).parents[2]
WORK = """
import sys
held = b"x" * 50_000_000
number = 0
while number < 3_000_000:
    number += 1
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    """A process that has used some time and memory and then waits."""
    process = subprocess.Popen([sys.executable, "-c", WORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.communicate()


def test_a_tree_has_the_children_with_their_time_and_their_memory(child: subprocess.Popen[str]) -> None:
    found = {process.pid: process for process in process_tree.tree()}
    assert found[child.pid].parent == os.getpid()
    assert found[child.pid].ticks > 0
    assert process_tree.own_bytes(child.pid) > 50_000_000
    assert process_tree.own_peak_bytes(child.pid) >= process_tree.own_bytes(child.pid)
    assert [process.pid for process in process_tree.tree(child.pid)] == [child.pid]


def test_the_time_of_a_child_that_has_ended_stays_in_the_tree(child: subprocess.Popen[str]) -> None:
    before = process_tree.cpu_seconds()
    used = process_tree.cpu_seconds(child.pid)
    child.communicate()
    assert used > 0
    assert process_tree.own_bytes(child.pid) == 0
    assert process_tree.cpu_seconds() >= before


def test_peaks_show_the_driver_from_its_workers_and_keep_the_most(child: subprocess.Popen[str]) -> None:
    watch = TreePeaks()
    watch.look()
    workers = watch.peaks["workers"]
    assert workers > 50_000_000
    child.communicate()
    watch.look()
    assert watch.peaks["workers"] == workers
    assert watch.peaks["python"] >= workers + watch.peaks["driver"] // 2


def test_no_two_bodies_are_alike() -> None:
    bodies = Bodies()
    made = [bodies.make(number) for number in range(2_000)]
    assert len(set(made)) == len(made)
    assert {len(body) for body in made} == set(range(100, 301))


def test_memory_that_is_flat_is_one_and_memory_that_doubles_is_a_half() -> None:
    flat, doubled = Report("flat"), Report("doubled")
    small = {"driver": 10, "workers": 90, "python": 100, "jvm": 500}
    spark_memory_side.add_to(flat, {1: small, 4: small, 16: small})
    spark_memory_side.add_to(doubled, {1: small, 4: small, 16: {**small, "python": 200}})
    assert (flat.ratios, doubled.ratios) == ({"memory_1x_vs_16x": 1.0}, {"memory_1x_vs_16x": 0.5})
    assert {f"memory_{kind}_{scale}x_mb" for kind in ("driver", "workers", "jvm") for scale in (1, 4, 16)} == set(
        flat.rates
    )


def test_an_idle_batch_of_half_a_second_is_one() -> None:
    made = Report("idle")
    spark_idle_side.add_to(made, [0.4, 0.5, 0.9], [])
    assert made.ratios == {"idle_batch_half_second_vs_taken": 1.0}
    assert made.rates == {"idle_batch_seconds": 0.5}


def test_a_query_that_takes_twice_as_long_as_its_option_is_a_half() -> None:
    made = Report("query")
    taken = {way: [2.0] for way in spark_query_side.WAYS} | {
        spark_query_side.OPTION: [1.0],
        spark_query_side.SCAN: [3.0],
    }
    spark_query_side.add_to(made, taken)
    assert made.ratios == dict(zip(spark_query_side.RATIOS, [0.5, 0.5, 0.5, 1.5], strict=True))


def test_every_row_of_the_table_has_a_ratio_with_a_target() -> None:
    wanted = [
        spark_scan_side.RATIO,
        spark_offload_side.PLAN_RATIO,
        spark_offload_side.SCALING_RATIO,
        spark_key_side.RATIO,
        spark_verify_side.RATIO,
        spark_export_side.RATIO,
        spark_idle_side.RATIO,
        spark_memory_side.RATIO,
    ]
    assert len(wanted) == len(PARTS) - 1
    assert all(TARGETS[name].required for name in (*wanted, *spark_query_side.RATIOS))
    assert set(PARTS) == {*ON_ONE_CORE, *IN_CHILDREN}


def test_offloads_are_compared_by_their_rates() -> None:
    made = Report("offload")
    slow, fast = [Round(100, 1000, 2.0, 2.0)], [Round(100, 1000, 1.0, 1.5)]
    spark_offload_side.add_plan_to(made, {"offload_by_plan": fast, "shuffle": slow})
    spark_offload_side.add_scaling_to(made, {"one_core": slow, "two_cores": fast})
    assert made.ratios == {"offload_by_plan_vs_shuffle": 2.0, "offload_two_cores_vs_one": 2.0}


def run_tiny(directory: Path, *more: str) -> dict[str, Any]:
    """In a process of its own: Spark has one session per process, and that of other tests is not to be stopped."""
    command = [sys.executable, "-m", "benchmarks.bench_spark", "--json", "--quick", "--size", "8M", "--rounds", "1"]
    done = subprocess.run(
        [*command, "--warmup", "1", "--core", "none", "--dir", str(directory), *more],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.bench
@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "ratios"),
    [
        ("scan", {"scan_vs_parquet", "scan_hashed_vs_parquet", "scan_named_vs_parquet", "count_vs_parquet"}),
        ("offload", {"offload_by_plan_vs_shuffle"}),
        ("scaling", {"offload_two_cores_vs_one"}),
        ("key", {"key_bytes_stored_vs_read"}),
        (
            "verify",
            {
                "spark_verify_vs_plain_read",
                "spark_verify_in_memory_vs_plain_read",
                "spark_verify_many_queues_in_memory_vs_plain_read",
            },
        ),
        ("export", {"export_vs_write_parquet", "export_vs_write_parquet_zstd"}),
        ("idle", {"idle_batch_half_second_vs_taken"}),
        ("query", set(spark_query_side.RATIOS)),
        ("memory", {"memory_1x_vs_16x"}),
    ],
)
def test_a_row_gives_its_ratios_and_leaves_nothing_behind(tmp_path: Path, part: str, ratios: set[str]) -> None:
    result = run_tiny(tmp_path, "--only", part)
    assert set(result["ratios"]) == ratios
    assert all(value > 0 for value in result["ratios"].values())
    assert set(result["targets"]) == ratios & set(TARGETS)
    assert list(tmp_path.iterdir()) == []
    if part == "key":
        assert result["rates"]["key_segments"] == 10_000
        assert result["ratios"]["key_bytes_stored_vs_read"] >= 1000


@pytest.mark.bench
@pytest.mark.slow
def test_a_typed_query_is_measured_against_spark_with_both_starts(tmp_path: Path) -> None:
    words = ["--quick", "--rounds", "1", "--warmup", "1", "--core", "none", "--messages", "800", "--dir", str(tmp_path)]
    result = bench_sql.run(words)
    assert set(result["ratios"]) == {"sql_vs_spark"}
    assert {"tiermq_sql_median_seconds", "spark_sql_median_seconds"} <= set(result["rates"])
    assert list(tmp_path.iterdir()) == []
