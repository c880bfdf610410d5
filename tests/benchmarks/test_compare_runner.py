"""Turns, warm-up, samples and memory of one work."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.compare import runner
from benchmarks.compare.memory_watch import MemoryWatch
from benchmarks.compare.results import Point, Status
from benchmarks.compare.runner import Effort, UnequalWork
from benchmarks.compare.work import LIMIT, ROCKETMQ, TIERMQ, Place, Sides
from benchmarks.peer import Peer
from benchmarks.report import Round
from compare_fakes import fake_work, scripted

EFFORT = Effort(rounds=4, warmup_least_seconds=0.0, warmup_most_seconds=1e-9)


def place(tmp_path: Path) -> Place:
    mapped, disk = tmp_path / "mapped", tmp_path / "disk"
    for directory in (mapped, disk):
        directory.mkdir()
    return Place(mapped, disk)


def measured(tmp_path: Path, log: list[str], effort: Effort = EFFORT, **more: object) -> Point:
    return runner.measure(fake_work("put", log, **more), place(tmp_path), effort, lambda words: None)  # type: ignore[arg-type]


def warm_ups(point: Point) -> dict[str, int]:
    found = point.notes["warm-up rounds"]
    assert isinstance(found, dict)
    return found


def test_turns_go_forth_and_back_after_one_round_each_to_warm_up(tmp_path: Path) -> None:
    log: list[str] = []
    measured(tmp_path, log)
    assert "".join(log) == "lrt" + "trl" + "lrt" + "trl" + "lrt" + "!"


def test_a_work_that_needs_no_warm_up_gets_none(tmp_path: Path) -> None:
    log: list[str] = []
    measured(tmp_path, log, needs_warmup=False)
    assert "".join(log) == "trl" + "lrt" + "trl" + "lrt" + "!"


def test_tiermq_is_warmed_like_rocketmq_where_both_are_loaded_by_a_virtual_machine(tmp_path: Path) -> None:
    effort = Effort(rounds=1, warmup_least_seconds=0.0, warmup_most_seconds=1.4)
    (tmp_path / "alike").mkdir()
    alike = warm_ups(measured(tmp_path / "alike", [], effort, warms_alike=True))
    assert alike[LIMIT] == 1
    assert alike[TIERMQ] == 3  # Half a second each.
    assert warm_ups(measured(tmp_path, [], effort))[TIERMQ] == 1


def test_every_round_is_kept_with_the_time_at_which_it_began(tmp_path: Path) -> None:
    point = measured(tmp_path, [])
    assert point.status is Status.MEASURED
    assert {side: len(samples) for side, samples in point.samples.items()} == {TIERMQ: 4, ROCKETMQ: 4, LIMIT: 4}
    assert [sample.done.seconds for sample in point.samples[TIERMQ]] == [0.5] * 4
    first, second = (point.samples[TIERMQ][number].at for number in (0, 1))
    assert point.started_at <= first <= point.samples[ROCKETMQ][0].at <= point.samples[ROCKETMQ][1].at <= second


def test_short_rounds_get_more_of_them_and_long_ones_do_not(tmp_path: Path) -> None:
    for cheap_seconds, rounds in ((100.0, 5), (-1.0, 2)):
        (tmp_path / str(rounds)).mkdir()
        effort = Effort(2, 0.0, 1e-9, rounds_most=5, cheap_seconds=cheap_seconds)
        assert len(measured(tmp_path / str(rounds), [], effort).samples[TIERMQ]) == rounds


def test_a_side_in_the_middle_of_a_round_ends_when_the_run_does() -> None:
    busy = "import sys, threading; sys.stdin.readline(); print('{}', flush=True); threading.Event().wait()"
    peer = Peer("busy", [sys.executable, "-c", busy])
    peer.prepare()
    with pytest.raises(KeyboardInterrupt), peer:
        raise KeyboardInterrupt
    assert not Path(f"/proc/{peer.pid}").exists()


def test_files_are_counted_and_notes_name_no_directory(tmp_path: Path) -> None:
    point = measured(tmp_path, [])
    assert point.files_bytes["directory"] >= 4096
    assert point.files_bytes["disk"] == 0
    assert point.notes["directory"] == "mapped"
    assert point.notes["warm-up rounds"] == {LIMIT: 1, ROCKETMQ: 1, TIERMQ: 1}


def test_rocketmq_is_warmed_until_three_rounds_are_no_faster(tmp_path: Path) -> None:
    times = [4.0, 4.0, 4.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0]
    left = list(times)

    def side() -> Round:
        took = left.pop(0) if len(left) > 1 else left[0]
        return Round(100, 0, took, took)

    assert runner.warm_up(side, least_seconds=3.0, most_seconds=100.0) == 12


def test_warming_ends_at_its_limit_even_within_three_rounds() -> None:
    assert runner.warm_up(scripted("rocketmq", 20.0), least_seconds=3.0, most_seconds=30.0) == 2


def test_sides_that_do_not_do_the_same_are_refused(tmp_path: Path) -> None:
    def opener(_place: Place, _stack: ExitStack) -> Sides:
        return Sides({TIERMQ: scripted(TIERMQ, 1.0, messages=900), ROCKETMQ: scripted(ROCKETMQ, 1.0, messages=1000)})

    with pytest.raises(UnequalWork, match="TierMQ did 900 messages in a round, RocketMQ 1,000"):
        measured(tmp_path, [], opener=opener)


def test_a_work_without_one_of_the_two_is_refused(tmp_path: Path) -> None:
    def opener(_place: Place, _stack: ExitStack) -> Sides:
        return Sides({TIERMQ: scripted(TIERMQ, 1.0)})

    with pytest.raises(UnequalWork, match="no side rocketmq"):
        measured(tmp_path, [], opener=opener)


HOLDER = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print("ready", flush=True)
for line in sys.stdin:
    held = None if line.startswith("drop") else b"x" * int(line)
    print("held", flush=True)
child.stdin.close()
child.wait()
"""
CHILD = """
import sys
held = b"x" * (40 << 20)
print("ready", flush=True)
sys.stdin.read()
"""


def test_memory_of_a_real_process_and_its_child_is_seen_while_it_is_held() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        pids = {TIERMQ: holder.pid}
        holder.stdout.readline()

        def ask(line: str) -> None:
            assert holder.stdin is not None
            assert holder.stdout is not None
            holder.stdin.write(line + "\n")
            holder.stdin.flush()
            holder.stdout.readline()

        with MemoryWatch(pids, interval_seconds=0.001) as watch:
            watch.begin()
            before = watch.end(TIERMQ)
            watch.begin()
            ask(str(60 << 20))
            during = watch.end(TIERMQ)
            ask("drop")
            watch.begin()
            after = watch.end(TIERMQ)
            memory = watch.settled()[TIERMQ]
        holder.stdin.close()
    assert before.own_bytes > 40 << 20, "the child counts"
    assert during.own_bytes > before.own_bytes + (55 << 20)
    assert during.resident_bytes > during.own_bytes
    assert after.own_bytes < during.own_bytes - (55 << 20)
    assert memory.peak_own_bytes == during.own_bytes
    assert memory.settled_own_bytes <= after.own_bytes + (1 << 20)


def test_a_process_that_has_ended_holds_nothing_and_hides_no_peak() -> None:
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        child.stdout.readline()
        with MemoryWatch({ROCKETMQ: child.pid}) as watch:
            watch.begin()
            child.stdin.close()
            child.wait()
            memory = watch.settled()[ROCKETMQ]
    assert memory.peak_own_bytes > 40 << 20
    assert memory.settled_bytes == 0
