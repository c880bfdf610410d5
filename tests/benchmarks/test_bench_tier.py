"""Uploads to an S3 server against the plain client: a tiny run of both sides."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import bench_tier
from benchmarks.report import TARGETS


@pytest.mark.bench
@pytest.mark.slow
def test_uploads_to_an_s3_server_are_measured_against_plain_puts(tmp_path: Path) -> None:
    words = ["--quick", "--only", "s3", "--size", "8M", "--rounds", "1"]
    result = bench_tier.run([*words, "--dir", str(tmp_path), "--disk-dir", str(tmp_path)])
    if result["environment"].get("s3") == "no server":
        pytest.skip("no real S3 server here")
    assert set(result["ratios"]) == {"upload_s3_vs_plain"} <= set(TARGETS)
    assert all(value > 0 for value in result["rates"].values())
    assert list(tmp_path.iterdir()) == []
