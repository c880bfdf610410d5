"""Works of many queues and of open loops: their goals are those of the issue, and a tiny run of the real thing."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.compare import open_loop_works, plan, queue_works
from benchmarks.compare.queue_works import blocks_below
from benchmarks.compare.work import ROCKETMQ, TIERMQ, TUNED, Goal, Kind, Place, by_name
from benchmarks.report import Round
from interop.rocketmq import Unavailable, fetch

WORKS = by_name([*queue_works.WORKS, *open_loop_works.WORKS])


def test_the_works_are_in_the_plan_with_the_goals_of_the_issue() -> None:
    planned = by_name(plan.all_works())
    assert {name: planned[name].goal for name in WORKS} == {
        "queues_start_clean": Goal(own=1.0),
        "queues_start_killed": Goal(own=2.0),
        "queues_idle": Goal(own=1.0),
        "queues_trickle": Goal(own=1.0),
        "queues_disk": Goal(own=8192),
        "cpu_2000": Goal(own=100e-6),
        "tier_send_p99": Goal(0.5, at_most=True),
        "topics_send_p99": Goal(0.7, at_most=True),
        "topics_send_max": Goal(1.0, at_most=True),
        "topics_producer": Goal(1.5),
    }


def test_a_goal_is_of_a_ratio_or_of_an_own_figure() -> None:
    for figure in (0.0, 1.0):
        with pytest.raises(ValueError, match="expected a goal of a ratio or of an own figure"):
            Goal(ratio=figure, own=figure)


def test_figures_of_a_round_by_kind() -> None:
    done = Round(messages=1_000, bytes=4_096_000, seconds=20.0, cpu_seconds=0.1)
    assert Kind.PERCENT.of(done) == pytest.approx(0.5)
    assert Kind.CPU.of(done) == pytest.approx(100e-6)
    assert Kind.DISK.of(done) == 4096


def test_blocks_are_counted_of_files_and_of_directories(tmp_path: Path) -> None:
    queue = tmp_path / "topic" / "0"
    queue.mkdir(parents=True)
    with (queue / "00000000000000000000").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 8192)
        file.truncate(6_000_000)  # A hole, as behind the first units of a queue.
    files, directories = blocks_below(tmp_path)
    assert files == 8192
    assert directories == sum(each.stat().st_blocks * 512 for each in (tmp_path, queue.parent, queue))


@pytest.mark.bench
@pytest.mark.slow
@pytest.mark.interop
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("name", sorted(WORKS))
def test_both_brokers_do_a_round(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        fetch()
    except Unavailable as reason:
        pytest.skip(f"no real RocketMQ here: {reason}")
    monkeypatch.setattr(open_loop_works, "BACKLOG_BYTES", 2 << 30)
    work = WORKS[name]
    with ExitStack() as stack:
        sides = work.opener(Place(tmp_path, tmp_path, quick=True), stack)
        figures = {side: work.kind.of(run()) for side, run in sides.rounds.items()}
    assert set(figures) - {TUNED} == {TIERMQ, ROCKETMQ}
    assert (TUNED in figures) == (work.group == open_loop_works.GROUP and name != "tier_send_p99")
    assert min(figures.values()) >= 0.0
    if work.kind is not Kind.PERCENT:  # A short look may find no tick of the clock.
        assert min(figures.values()) > 0.0
