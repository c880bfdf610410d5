"""The cold-read benchmark still runs end to end on a tiny size, and says which of its parts it could not measure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench_coldread
from benchmarks.report import TARGETS

TINY = ["--size", "8M", "--rounds", "1", "--warmup", "1", "--quick"]


def run_tiny(directory: Path, *more: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(json.dumps(bench_coldread.run([*TINY, "--dir", str(directory), *more])))
    return result


@pytest.mark.bench
@pytest.mark.slow
def test_a_posix_tier_is_measured_against_the_local_store(tmp_path: Path) -> None:
    result = run_tiny(tmp_path, "--only", "posix")
    assert set(result["ratios"]) == {"cold_posix_vs_hot", "cold_cached_vs_hot"}
    assert all(value > 0 for value in result["ratios"].values())
    assert set(result["targets"]) == set(result["ratios"]) & set(TARGETS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.bench
@pytest.mark.slow
def test_a_hundred_groups_stay_within_the_cache(tmp_path: Path) -> None:
    memory = run_tiny(tmp_path, "--only", "memory")["environment"]["memory_of_100_groups"]
    assert {f"at_{percent}_percent_mb" for percent in (25, 50, 75, 100)} <= set(memory)
    assert memory["cache_highest_mb"] <= memory["cache_limit_mb"]


@pytest.mark.bench
@pytest.mark.slow
def test_an_s3_server_is_measured_where_there_is_one(tmp_path: Path) -> None:
    result = run_tiny(tmp_path, "--only", "s3")
    if result["environment"].get("s3") == "no server":
        pytest.skip("no real S3 server here")
    assert result["ratios"]["cold_s3_vs_ranged_reads"] > 0


@pytest.mark.bench
@pytest.mark.slow
def test_keys_are_looked_up_on_an_s3_server_by_one_caller_and_by_many(tmp_path: Path) -> None:
    result = run_tiny(tmp_path, "--only", "keys")
    if result["environment"].get("s3") == "no server":
        pytest.skip("no real S3 server here")
    assert set(result["targets"]) == set(result["ratios"])
    assert {"key_look_ups_1_cpu_us", "key_look_ups_16_server_cpu_us"} <= set(result["rates"])
    assert all(value > 0 for value in result["rates"].values())
