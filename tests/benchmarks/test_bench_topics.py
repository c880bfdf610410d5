"""Topics at scale: the benchmark creates what it says and finds it again after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import bench_topics


@pytest.mark.bench
@pytest.mark.slow
def test_a_tiny_run_states_its_ratios(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_topics, "COUNTS_QUICK", (20, 100))
    found = bench_topics.run(["--quick", "--core", "none", "--disk-dir", str(tmp_path)])
    assert found["ratios"].keys() == {"topic_creation_100_vs_20", "topic_start_100_vs_20"}
    assert all(ratio > 0 for ratio in found["ratios"].values())
