"""The benchmarks of clients and of gRPC run end to end on a tiny size, and state what they promise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench_client, bench_grpc, java_peer
from benchmarks.report import TARGETS
from interop.proxy import fetch_proxy
from interop.rocketmq import Unavailable

TINY = ["--size", "8M", "--rounds", "1", "--warmup", "0", "--quick"]


@pytest.fixture
def proxy() -> None:
    try:
        fetch_proxy()
        java_peer.find_jdk()
    except (Unavailable, java_peer.JdkMissing) as reason:
        pytest.skip(f"no proxy of RocketMQ here: {reason}")


def as_printed(result: dict[str, Any]) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(json.dumps(result))
    assert set(loaded["ratios"]) <= set(TARGETS)
    assert all(each > 0 for each in loaded["rates"].values())
    return loaded


@pytest.mark.bench
@pytest.mark.slow
@pytest.mark.interop
@pytest.mark.usefixtures("proxy")
def test_grpc_is_measured_beside_the_real_proxy(tmp_path: Path) -> None:
    words = ["--messages", "300", "--waiting", "50", "--dir", str(tmp_path)]
    result = as_printed(bench_grpc.run([*TINY, *words]))
    kinds = {f"grpc_{work}_vs_proxy" for work in ("send", "receive", "send_cpu", "receive_cpu")}
    assert set(result["ratios"]) == kinds | {f"grpc_memory_{state}_proxy_vs_tiermq" for state in ("idle", "load")}
    assert {name: each["waiting"] for name, each in result["environment"]["waiting receives"].items()} == {
        "tiermq": 50,
        "proxy": 50,
    }


@pytest.mark.bench
@pytest.mark.slow
def test_the_client_is_measured_beside_those_that_can_be_had(tmp_path: Path) -> None:
    result = as_printed(bench_client.run([*TINY, "--messages", "500", "--dir", str(tmp_path)]))
    others = [name for name in (*bench_client.OTHERS, "java") if name not in result["environment"]]
    kinds = ("client_send", "client_async_send", "client_consume", "client_async_consume")
    assert set(result["ratios"]) == {f"{kind}_vs_{name}" for kind in kinds for name in others}
