"""Brokers on one machine: a tiny run, whose messages are all in the stores afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import bench_brokers


@pytest.mark.bench
@pytest.mark.slow
def test_bodies_of_1_kib_are_compared_with_what_one_core_is_to_carry(tmp_path: Path) -> None:
    words = ["--quick", "--rounds", "1", "--warmup", "1", "--size", "4M", "--bytes", "1024", "--dir", str(tmp_path)]
    result = bench_brokers.run(words)
    ratio = result["ratios"]["one_core_1024_vs_345000_per_second"]
    assert ratio == pytest.approx(result["rates"]["on_a_core_of_its_own_messages_per_second"] / 345_000, rel=1e-3)
    assert result["targets"].keys() == {"one_core_1024_vs_345000_per_second", "two_brokers_vs_one"}
