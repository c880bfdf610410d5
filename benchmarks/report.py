"""From rounds to ratios: medians, spread, the JSON object and the table for people.

A ratio is median rate / median rate of rounds that alternated in one run; above 1 means TierMQ is faster.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Round:
    """One timed round of one side. `cpu_seconds` is the whole process, so noise shows as cpu far below wall time."""

    messages: int
    bytes: int
    seconds: float
    cpu_seconds: float

    @property
    def rate(self) -> float:
        """Messages per second of wall time."""
        return self.messages / self.seconds


@dataclass(frozen=True, slots=True)
class Target:
    """What a ratio must reach, and what it should reach."""

    required: float | None
    aim: float | None = None


TARGETS: Mapping[str, Target] = {
    "put_vs_java": Target(1.0, 1.4),
    "put_handle_vs_java": Target(None, 1.4),
    "put_pure_vs_java": Target(0.12),
    "embedded_put_vs_engine": Target(0.98),
    "embedded_open_put_vs_full_files": Target(0.98),
    "put_many_vs_java": Target(1.7, 2.0),
    "put_many_vs_memcpy": Target(0.55, 0.7),
    "group_commit_vs_single_flush": Target(100.0),
    "group_commit_vs_raw": Target(None, 0.8),
    "dispatch_vs_java": Target(2.5, 5.5),
    "recover_vs_java": Target(0.9, 1.1),
    "get_vs_java": Target(1.2, 1.5),
    "index_put_vs_java": Target(2.0, 10.0),
    "cold_cached_vs_hot": Target(0.5, 0.9),
    "cold_posix_vs_hot": Target(0.5),
    "cold_s3_vs_ranged_reads": Target(0.7, 0.9),
    "key_look_ups_1_vs_1000_per_second": Target(1.0),
    "key_look_ups_16_vs_1000_per_second": Target(1.0),
    "upload_s3_vs_plain": Target(0.8),
    "upload_vs_raw": Target(0.7),
    "upload_with_start_vs_raw": Target(None),
    "put_while_tiering_vs_off": Target(0.9),
    "cpu_100_us_vs_used_2000": Target(1.0),
    **{f"send_p99_tier_{rate}_rocketmq_vs_tiermq": Target(2.0) for rate in (2_000, 5_000, 10_000)},
    **{f"send_p99_topics_{rate}_rocketmq_vs_tiermq": Target(1 / 0.7) for rate in (2_000, 5_000, 10_000)},
    **{f"send_max_topics_{rate}_rocketmq_vs_tiermq": Target(1.0) for rate in (2_000, 5_000, 10_000)},
    "topic_creation_5000_vs_1000": Target(0.9, 1.0),
    "topic_creation_10000_vs_1000": Target(None, 1.0),
    "topic_creation_50000_vs_1000": Target(None, 1.0),
    "topic_start_5000_vs_1000": Target(0.9, 1.0),
    "topic_start_10000_vs_1000": Target(0.9, 1.0),
    "topic_start_50000_vs_1000": Target(0.9, 1.0),
    "one_core_1024_vs_345000_per_second": Target(1.0),
    "two_brokers_vs_one": Target(None, 1.0),
    "rearrange_vs_java": Target(4.0, 7.5),
    "verify_vs_plain_read": Target(0.6, 0.9),
    "scan_vs_parquet": Target(0.7, 1.0),
    "scan_named_vs_parquet": Target(0.9, 1.0),
    "count_vs_parquet": Target(None, 1.0),
    "sql_vs_spark": Target(5.0),
    "offload_by_plan_vs_shuffle": Target(2.5, 5.0),
    "offload_two_cores_vs_one": Target(1.6),
    "wire_offload_tiermq_vs_directory": Target(0.5),
    "wire_offload_rocketmq_vs_directory": Target(0.5),
    "wire_offload_two_executors_vs_one": Target(1.6),
    "wire_offload_two_executors_vs_one_of_a_share": Target(1.6),
    "producer_rate_beside_copy_vs_alone": Target(0.95),
    "producer_p99_alone_vs_beside_copy": Target(0.909),  # 1.1 times as long beside the copy.
    "ack_to_sql_allowed_vs_p99": Target(1.0),
    "driver_memory_1_gb_vs_used": Target(1.0),
    "key_bytes_stored_vs_read": Target(1000.0),
    "spark_verify_vs_plain_read": Target(0.6, 0.9),
    "export_vs_write_parquet": Target(2.0, 2.8),
    "idle_batch_half_second_vs_taken": Target(1.0),
    "memory_1x_vs_16x": Target(0.8),
    "query_where_vs_option": Target(0.77),  # 1.3 times as long.
    "query_view_vs_option": Target(0.77),
    "query_attached_vs_option": Target(0.77),
    "query_hot_key_vs_hot_scan": Target(0.77),
    "send_128_vs_rocketmq": Target(1.0, 1.5),
    "send_1024_vs_rocketmq": Target(1.0, 1.5),
    "batch_vs_rocketmq": Target(1.0, 2.0),
    "consume_vs_rocketmq": Target(1.0, 1.5),
    "send_128_cpu_vs_rocketmq": Target(1.0, 2.0),
    "send_1024_cpu_vs_rocketmq": Target(1.0, 2.0),
    "batch_cpu_vs_rocketmq": Target(1.0, 2.0),
    "consume_cpu_vs_rocketmq": Target(1.0, 2.0),
    "client_send_vs_java": Target(None),
    "client_async_send_vs_java": Target(None),
    "client_consume_vs_java": Target(None),
    "client_async_consume_vs_java": Target(None),
    "client_send_vs_cpp": Target(1.0),
    "client_async_send_vs_cpp": Target(1.0),
    "client_consume_vs_cpp": Target(1.5),
    "client_async_consume_vs_cpp": Target(1.5),
    "client_send_vs_grpc": Target(5.0),
    "client_async_send_vs_grpc": Target(5.0),
    "client_consume_vs_grpc": Target(5.0),
    "client_async_consume_vs_grpc": Target(5.0),
    "grpc_send_vs_proxy": Target(1.0),
    "grpc_receive_vs_proxy": Target(1.2),
    "grpc_send_cpu_vs_proxy": Target(1.43),  # At most 0.7 of the proxy's time for a message.
    "grpc_receive_cpu_vs_proxy": Target(1.43),
    "grpc_memory_idle_proxy_vs_tiermq": Target(2.5),  # At most 0.4 of the proxy's.
    "grpc_memory_load_proxy_vs_tiermq": Target(2.5),
    "idle_connections_vs_10000": Target(1.0),
    "hot_with_cold_vs_alone": Target(0.9),
    "timer_memory_1x_vs_16x": Target(0.8),
    "sync_128_vs_rocketmq": Target(1.2),
    "sync_1024_vs_rocketmq": Target(1.2),
    "send_with_slave_vs_alone_tiermq": Target(0.9),
    "send_with_slave_vs_alone_tiermq_own_core": Target(0.9),
    "lag_p99_rocketmq_vs_tiermq": Target(1.0),
    "failover_allowed_vs_longest": Target(1.0),
    "promotion_allowed_vs_longest": Target(1.0),
    "takeover_allowed_vs_longest": Target(1.0),
}


def median_rate(rounds: Sequence[Round]) -> float:
    """Median messages per second."""
    return statistics.median(each.rate for each in rounds)


def cpu_rate(rounds: Sequence[Round]) -> float:
    """Messages per second of the process' processor time, all its threads and all rounds together.

    Not a median: Java reports its processor time in steps of 10 ms, which only a sum evens out.
    """
    return sum(each.messages for each in rounds) / max(0.01, sum(each.cpu_seconds for each in rounds))


def median_bytes_rate(rounds: Sequence[Round]) -> float:
    """Median bytes per second."""
    return statistics.median(each.bytes / each.seconds for each in rounds)


def spread(rounds: Sequence[Round]) -> float:
    """Half the distance between the slowest and the fastest round, as a share of the median rate."""
    rates = [each.rate for each in rounds]
    return (max(rates) - min(rates)) / 2 / statistics.median(rates)


def core_share(rounds: Sequence[Round]) -> float:
    """Median of process CPU time / wall time: below 1 the side waited, or another process used its core."""
    return statistics.median(each.cpu_seconds / each.seconds for each in rounds)


class Report:
    """Collects the rounds of every side of one benchmark and states ratios between them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ratios: dict[str, float] = {}
        self.cpu_ratios: dict[str, float] = {}
        self.rates: dict[str, float] = {}
        self.spread: dict[str, float] = {}
        self.core_share: dict[str, float] = {}
        self.environment: dict[str, Any] = {}

    def add(self, rounds_of_sides: Mapping[str, Sequence[Round]]) -> None:
        """Record what each side reached: messages per second, and megabytes per second where bytes were counted."""
        for side, rounds in rounds_of_sides.items():
            self.rates[f"{side}_messages_per_second"] = round(median_rate(rounds), 1)
            if rounds[0].bytes:
                self.rates[f"{side}_mb_per_second"] = round(median_bytes_rate(rounds) / 1e6, 2)
            self.spread[side] = round(spread(rounds), 4)
            self.core_share[side] = round(core_share(rounds), 3)

    def compare(self, ratio: str, ours: Sequence[Round], theirs: Sequence[Round]) -> None:
        """State one ratio: the median rate of our rounds over the median rate of theirs.

        The same by processor time goes beside it: it says more while others keep the core busy.
        """
        self.ratios[ratio] = round(median_rate(ours) / median_rate(theirs), 4)
        self.cpu_ratios[ratio] = round(cpu_rate(ours) / cpu_rate(theirs), 4)

    def as_dict(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        targets = {
            name: {"required": target.required, "aim": target.aim}
            for name, target in TARGETS.items()
            if name in self.ratios
        }
        return {
            "name": self.name,
            "ratios": self.ratios,
            "cpu_ratios": self.cpu_ratios,
            "rates": self.rates,
            "spread": self.spread,
            "core_share": self.core_share,
            "targets": targets,
            "environment": self.environment,
        }


def verdict(ratio: float, target: Mapping[str, float | None] | None) -> str:
    """One word for the table: what the ratio reached."""
    if target is None:
        return ""
    required, aim = target.get("required"), target.get("aim")
    if required is not None and ratio < required:
        return "below"
    if aim is not None and ratio >= aim:
        return "aim"
    if required is not None:
        return "ok"
    return "short of aim" if aim is not None else ""


def print_result(result: Mapping[str, Any], as_json: bool) -> None:
    """One JSON object on one line, or tables."""
    if as_json:
        print(json.dumps(result))
        return
    console = Console()
    ratios = Table(title=f"bench {result['name']}: ratios (above 1: TierMQ is faster)")
    for column in ("ratio", "measured", "required", "aim", "verdict"):
        ratios.add_column(column, justify="left" if column == "ratio" else "right")
    for name, value in result["ratios"].items():
        target = result["targets"].get(name)
        wanted = ["" if not target or target[kind] is None else f"{target[kind]:g}" for kind in ("required", "aim")]
        ratios.add_row(name, f"{value:.3f}", *wanted, verdict(value, target))
    rates = Table(title="rates (medians)")
    rates.add_column("side")
    rates.add_column("value", justify="right")
    for name, value in result["rates"].items():
        rates.add_row(name, f"{value:,.1f}")
    console.print(ratios)
    console.print(rates)
    if result.get("memory"):
        console.print(show_curve(result["memory"]), highlight=False)
    console.print(", ".join(f"{key} {value}" for key, value in result["environment"].items()), style="dim")


def show_curve(points: Sequence[Mapping[str, int]]) -> str:
    """Memory over uploaded bytes as lines of text: what was uploaded, the memory of the process' own, a bar of it."""
    most = max(point["own_bytes"] for point in points)
    return "\n".join(
        f"{point['uploaded_bytes'] / 1e6:10,.0f} MB uploaded {point['own_bytes'] / 1e6:8,.1f} MB own "
        + "#" * round(30 * point["own_bytes"] / most)
        for point in points
    )


def describe_machine(directory: Path) -> dict[str, Any]:
    """What a reader needs to judge the figures: processor, system, interpreter, file system, load."""
    return {
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "file_system": file_system(directory),
        "load_average": round(os.getloadavg()[0], 2),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # Not Linux: the platform's own word has to do.
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def file_system(directory: Path) -> str:
    """The kind of file system that holds `directory`."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    except OSError:  # Not Linux.
        return "unknown"
    path = directory.resolve()
    covering = [(place, kind) for place, kind in mounts if path.is_relative_to(place)]
    return max(covering, key=lambda mount: len(mount[0]), default=("", "unknown"))[1]
