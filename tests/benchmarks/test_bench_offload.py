"""The benchmark of an offload over the wire: its ratios, and a driver that copies what simulated brokers have."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import bench_offload, offload_driver_side, offload_wire_side
from benchmarks.report import TARGETS, Report, Round


def test_sides_are_compared_by_their_rates() -> None:
    made = Report("offload")
    slow, fast = [Round(100, 1000, 2.0, 2.0)], [Round(100, 1000, 1.0, 1.0)]
    sides = {offload_wire_side.LOCAL: fast, offload_wire_side.TIERMQ: fast, offload_wire_side.ROCKETMQ: slow}
    offload_wire_side.add_wire_to(made, sides)
    offload_wire_side.add_executors_to(made, {offload_wire_side.ONE: slow, offload_wire_side.TWO: fast})
    assert made.ratios == {
        "wire_offload_tiermq_vs_directory": 1.0,
        "wire_offload_rocketmq_vs_directory": 0.5,
        "wire_offload_two_executors_vs_one": 2.0,
    }
    assert all(TARGETS[name].required for name in made.ratios)


def test_costs_of_the_driver_become_ratios(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(queues: int, _place: Path) -> dict[str, object]:
        waves = {wave: {"cpu_s": queues / 500, "memory_mb": queues / 2} for wave in offload_driver_side.WAVES}
        return {"queues": queues, **waves}

    monkeypatch.setattr(offload_driver_side, "measure", measured)
    work = bench_offload.Work(Report("offload"), size=1, rounds=1, warmup=1, queues=(1_000, 4_000))
    bench_offload.driver(work, tmp_path)
    assert work.made.ratios == {"driver_cost_of_a_queue_1000_vs_4000": 1.0, "driver_memory_1_gb_vs_used": 0.5}


@pytest.mark.bench
@pytest.mark.slow
def test_a_driver_copies_what_simulated_brokers_have_and_reports_its_cost(tmp_path: Path) -> None:
    found = offload_driver_side.measure(160, tmp_path)
    assert found["queues"] == 160
    assert [found[wave]["messages"] for wave in offload_driver_side.WAVES] == [160, 160, 0]
    assert all(found[wave]["memory_mb"] > 0 for wave in offload_driver_side.WAVES)
