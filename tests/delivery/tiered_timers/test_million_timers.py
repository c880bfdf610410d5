"""A million tiered timers: each given once, with few objects, few requests and bounded memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_million_far_timers_over_a_year_need_few_objects_few_requests_and_little_memory(tmp_path: Path) -> None:
    count = 1_000_000
    done = subprocess.run(
        [sys.executable, "-m", "delivery.tiered_timers.million_timers", str(tmp_path), str(count)],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    print(found)
    assert found["once"] == count
    assert found["objects_max"] < 5_000
    assert found["objects_left"] <= 2  # The manifest and the lease.
    assert found["requests_to_store"] < count // 20
    assert found["requests"] < count // 10
    assert found["memory_bytes"] < 400 << 20
