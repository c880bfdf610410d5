"""The broker's benchmark runs end to end on a tiny size, and counts what it says it counts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench_broker, broker_side
from benchmarks.report import TARGETS
from interop.rocketmq import Unavailable, fetch
from servers.serving import Serving

TINY = ["--size", "8M", "--rounds", "1", "--warmup", "1", "--quick"]


def reported(failed: int) -> dict[str, Any]:
    return {"messages": 100, "failed": failed, "seconds": 2.0, "averageMs": 1.0, "maxMs": 2.0}


def test_a_round_counts_messages_bytes_and_the_broker_s_processor_time() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        side = broker_side.Loaded("tiermq", lambda **_job: reported(0), process.pid, "127.0.0.1:1", 1)
        measured = side.round(kind="send", bytes=128)
    assert (measured.messages, measured.bytes, measured.seconds) == (100, 12_800, 2.0)
    assert measured.cpu_seconds >= 0.0


def test_a_message_that_fails_ends_the_benchmark() -> None:
    side = broker_side.Loaded("tiermq", lambda **_job: reported(3), 1, "127.0.0.1:1", 1)
    with pytest.raises(SystemExit, match="3 of 100 messages failed"):
        side.round(kind="send")


def test_idle_peers_are_held_and_still_served(tmp_path: Path) -> None:
    with Serving(tmp_path / "store") as served:
        assert broker_side.hold_idle(served.port, 200) == 200


@pytest.mark.bench
@pytest.mark.slow
@pytest.mark.interop
@pytest.mark.timeout(1_200)
def test_every_ratio_that_the_issue_asks_for_is_measured(tmp_path: Path) -> None:
    try:
        fetch()
    except Unavailable as reason:
        pytest.skip(f"no real RocketMQ here: {reason}")
    result = bench_broker.run([*TINY, "--dir", str(tmp_path)])
    rows = {"send_128", "send_1024", "batch", "consume"}
    wanted = {f"{row}_vs_rocketmq" for row in rows} | {f"{row}_cpu_vs_rocketmq" for row in rows}
    assert set(result["ratios"]) == wanted | {"idle_connections_vs_10000", "hot_with_cold_vs_alone"}
    assert set(result["ratios"]) <= set(TARGETS)
    assert result["ratios"]["idle_connections_vs_10000"] == 1.0
