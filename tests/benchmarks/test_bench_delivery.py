"""`bench delivery` runs end to end on a tiny size, and what it counts is right."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import bench_delivery, delivery_far_side, delivery_memory_side, delivery_side, harness
from benchmarks.__main__ import bench
from benchmarks.report import Report
from tiermq.delivery.timer.timer_state import TimerSettings

TINY = ["--size", "8M", "--rounds", "1", "--warmup", "1", "--core", "none", "--quick"]
DAY_S = 86_400


def run_tiny(directory: Path, *more: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(json.dumps(bench_delivery.run([*TINY, "--dir", str(directory), *more])))
    assert list(directory.iterdir()) == []
    return loaded


@pytest.mark.bench
@pytest.mark.slow
def test_deliveries_are_compared_with_puts_of_the_same_messages(tmp_path: Path) -> None:
    result = run_tiny(tmp_path, "--only", "timers", "--only", "levels", "--only", "transactions")
    ratios = {"timer_delivery_vs_put", "timer_take_in_vs_put", "delay_levels_vs_put", "transactions_vs_put"}
    assert set(result["ratios"]) == set(result["cpu_ratios"]) == ratios
    assert all(value > 0 for value in result["ratios"].values())
    assert all(f"{side}_messages_per_second" in result["rates"] for side in result["spread"])


@pytest.mark.bench
@pytest.mark.slow
def test_memory_is_looked_at_in_a_process_of_its_own_while_timers_wait(tmp_path: Path) -> None:
    result = run_tiny(tmp_path, "--only", "memory", "--timers", "3200")
    assert result["environment"]["waiting_timers"] == 3200
    assert result["ratios"] == {delivery_memory_side.RATIO: pytest.approx(1, abs=0.5)}
    assert result["targets"][delivery_memory_side.RATIO]["required"] == 0.8
    assert all(result["rates"][f"timer_memory_{scale}x_mb"] > 5 for scale in (1, 4, 16))


@pytest.mark.bench
@pytest.mark.slow
def test_what_far_timers_write_to_the_tier_is_counted_over_their_life() -> None:
    made = Report("delivery")
    with harness.work_directory(None, 64 << 20) as directory:
        delivery_far_side.measure(made, directory, 1_000, flushes=100)
    written = made.rates["far_bytes_put_per_byte_in_a_life"]
    assert 1 <= written < 4, "a few writes, not one for every two days"
    assert made.rates["far_bytes_put_per_byte"] <= written
    assert made.rates["far_rewrites_of_the_wheel_alone"] > 80
    assert made.ratios["far_rewrites_of_the_wheel_vs_tier"] > 20


@pytest.mark.parametrize(("days", "rolls"), [(1, 0), (3, 2), (100, 50), (365, 182)])
def test_the_wheel_alone_would_write_a_timer_again_every_two_days(days: int, rolls: int) -> None:
    assert delivery_far_side.rolls_in_the_wheel(days * DAY_S, TimerSettings()) == pytest.approx(rolls, abs=1)


def test_a_round_that_delivered_less_than_was_put_ends_the_benchmark(tmp_path: Path) -> None:
    with ExitStack() as stack:
        side = delivery_side.PlainPuts(stack, tmp_path / "store", 1 << 20, 10)
        with pytest.raises(RuntimeError, match="expected 10 delivered messages, found 0"):
            side.round_of(lambda: None)


@pytest.mark.bench
@pytest.mark.slow
def test_the_command_prints_its_ratios_as_a_table(tmp_path: Path) -> None:
    result = CliRunner().invoke(bench, ["delivery", *TINY, "--only", "levels", "--dir", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "delay_levels_vs_put" in result.output
