"""Alternation, warm-up, options, pinning and work directories of the benchmark harness."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from benchmarks import harness, limits
from benchmarks.report import Round


def scripted(name: str, log: list[str], seconds: list[float]) -> harness.Side:
    """A side whose n-th round takes the n-th time, and the last time from then on."""

    def side() -> Round:
        log.append(name)
        took = seconds.pop(0) if len(seconds) > 1 else seconds[0]
        return Round(100, 0, took, took)

    return side


def test_sides_take_turns_and_warm_up_rounds_are_dropped() -> None:
    log: list[str] = []
    sides = {"java": scripted("j", log, [9.0, 1.0]), "ours": scripted("o", log, [9.0, 2.0])}
    measured = harness.alternate(sides, rounds=2, warmup=1)
    assert "".join(log) == "jojojo"
    assert [each.seconds for each in measured["java"]] == [1.0, 1.0]
    assert [each.seconds for each in measured["ours"]] == [2.0, 2.0]


def test_a_side_is_warmed_until_it_stops_getting_faster() -> None:
    log: list[str] = []
    times = [4.0, 4.0, 4.0, 2.0, 2.0, 2.0, 1.0]
    harness.warmed(scripted("j", log, times), least_seconds=3.0, most_seconds=100.0)
    assert len(log) == 12  # 4 s, 2 s, 1 s per round, and one turn of three that was no faster.


def test_warming_ends_at_its_limit_even_if_rounds_get_faster_for_ever() -> None:
    log: list[str] = []
    times = [8.0 / 2**turn for turn in range(30)]
    harness.warmed(scripted("j", log, times), least_seconds=1.0, most_seconds=10.0)
    assert len(log) == 3


@pytest.mark.parametrize(
    ("text", "size"), [("1G", 1 << 30), ("256m", 256 << 20), ("2048K", 2 << 20), ("1048576", 1 << 20)]
)
def test_sizes_are_read_with_units(text: str, size: int) -> None:
    assert harness.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "ten", "4K"])
def test_a_size_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        harness.parse_size(text)


def test_quick_means_fewer_and_smaller_rounds_and_flags_win() -> None:
    parser = harness.parser("put", ("single", "batch"))
    full = harness.options_of(parser.parse_args([]))
    quick = harness.options_of(parser.parse_args(["--quick"]))
    exact = harness.options_of(parser.parse_args(["--quick", "--rounds", "7", "--size", "8M", "--only", "batch"]))
    assert (full.rounds, full.size) == (9, 1 << 30)
    assert (quick.rounds, quick.size) == (3, 256 << 20)
    assert (exact.rounds, exact.size, exact.only) == (7, 8 << 20, frozenset({"batch"}))


def test_a_core_that_may_not_be_used_is_refused() -> None:
    assert harness.choose_core("none") is None
    with pytest.raises(SystemExit):
        harness.choose_core("100000")


def test_pinning_ends_with_its_block() -> None:
    before = os.sched_getaffinity(0)
    core = harness.choose_core("last")
    with harness.pinned(core):
        assert os.sched_getaffinity(0) == {core}
    assert os.sched_getaffinity(0) == before


def test_a_work_directory_is_fresh_and_removed(tmp_path: Path) -> None:
    with harness.work_directory(tmp_path, 0) as directory:
        assert directory.parent == tmp_path
        (directory / "file").write_bytes(b"x")
    assert list(tmp_path.iterdir()) == []


def test_memcpy_copies_the_block_to_consecutive_places_and_wraps(tmp_path: Path) -> None:
    block = os.urandom(10_000)
    with limits.Memcpy(tmp_path / "copy", 25_000, block, messages_per_block=7) as memcpy:
        done = memcpy.round(3)
    assert (done.messages, done.bytes) == (21, 30_000)
    written = (tmp_path / "copy").read_bytes()
    assert written[:20_000] == block * 2
    assert written[20_000:] == bytes(5_000)


def test_raw_flush_writes_every_block(tmp_path: Path) -> None:
    block = os.urandom(5_000)
    with limits.RawFlush(tmp_path / "raw", 12_000, block, messages_per_block=2) as raw:
        done = raw.round(2)
    assert (done.messages, done.bytes) == (4, 10_000)
    assert (tmp_path / "raw").read_bytes() == block * 2 + bytes(2_000)
