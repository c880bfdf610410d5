"""Every benchmark still runs end to end on a tiny size. The figures mean nothing here; that they exist does."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import java_peer
from benchmarks.report import TARGETS

TINY = ["--size", "8M", "--rounds", "1", "--warmup", "1", "--java-warmup", "0", "--core", "none", "--quick"]

MORE = {"tierindex": ("--items", "5000")}


def run_tiny(name: str, directory: Path, *more: str) -> dict[str, Any]:
    try:
        java_peer.find_jdk()
    except java_peer.JdkMissing as missing:
        pytest.skip(str(missing))
    run = importlib.import_module(f"benchmarks.bench_{name}").run
    result = run([*TINY, "--dir", str(directory), "--disk-dir", str(directory), *more])
    loaded: dict[str, Any] = json.loads(json.dumps(result))
    return loaded


@pytest.mark.bench
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ratios"),
    [
        (
            "put",
            {
                "put_vs_java",
                "put_handle_vs_java",
                "embedded_put_vs_engine",
                "embedded_open_put_vs_full_files",
                "put_many_vs_java",
                "put_many_vs_memcpy",
                "group_commit_vs_single_flush",
                "group_commit_vs_raw",
            },
        ),
        ("get", {"get_vs_java"}),
        ("dispatch", {"dispatch_vs_java"}),
        ("recover", {"recover_vs_java"}),
        ("index", {"index_put_vs_java"}),
        ("tier", {"upload_vs_raw", "upload_with_start_vs_raw", "put_while_tiering_vs_off"}),
        ("tierindex", {"rearrange_vs_java", "rearrange_vs_java_warm"}),
        ("verify", {"verify_vs_plain_read", "verify_many_queues_vs_plain_read"}),
        ("wire", {"send_vs_echo", "json_send_vs_echo", "command_vs_echo"}),
        ("brokers", {"two_brokers_vs_one"}),
        ("columns", {"columns_vs_memcpy", "few_columns_vs_memcpy", "columns_vs_struct"}),
    ],
)
def test_a_benchmark_prints_every_ratio_that_it_promises(tmp_path: Path, name: str, ratios: set[str]) -> None:
    result = run_tiny(name, tmp_path, *MORE.get(name, ()))
    assert result["name"] == name
    assert ratios <= set(result["ratios"])
    assert all(value > 0 for value in result["ratios"].values())
    assert all(f"{side}_messages_per_second" in result["rates"] for side in result["spread"])
    assert result["environment"]["kernel"] in ("compiled", "pure")
    assert set(result["targets"]) == set(result["ratios"]) & set(TARGETS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.bench
@pytest.mark.slow
def test_the_pure_kernel_is_measured_in_a_child(tmp_path: Path) -> None:
    result = run_tiny("put", tmp_path, "--pure", "--only", "single")
    assert result["environment"]["kernel"] == "pure"
    assert set(result["ratios"]) == {"put_vs_java"}


@pytest.mark.bench
@pytest.mark.slow
def test_the_tier_s_requests_are_counted_and_its_memory_is_a_curve(tmp_path: Path) -> None:
    result = run_tiny("tier", tmp_path, "--only", "requests", "--only", "memory")
    assert result["requests"] == {
        "writes_per_commit_batch": 2,
        "reads_per_index_file": 2,
        "reads_per_index_file_after_restart": 2,
        "objects_per_sealed_segment": 1,
    }
    uploaded = [sample["uploaded_bytes"] for sample in result["memory"]]
    assert uploaded == sorted(uploaded)
    assert uploaded[-1] > 8_000_000
    assert all(sample["own_bytes"] > 0 for sample in result["memory"])
    assert result["rates"]["memory_grown_mb"] < result["rates"]["memory_limit_pending_mb"]
