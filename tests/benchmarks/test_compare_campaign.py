"""A run of many works: order, resumption, failures, growth and what there is no room for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import harness
from benchmarks.compare import campaign, growth, places, results
from benchmarks.compare.campaign import Job, Options
from benchmarks.compare.places import Grounds
from benchmarks.compare.results import BadResult, Comparison, Outcome, Point, Status
from benchmarks.compare.work import Work
from compare_fakes import MIB, broken_work, fake_work, outcome, point, whole_run

QUICK = Options(quick=True, rounds=2)


class Heard:
    """A display that remembers."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int]] = []
        self.ended: list[Status] = []

    def begin(self, job: Job, number: int, count: int, rest_seconds: float | None) -> None:
        self.begun.append((job.work.name, job.scale))

    def step(self, words: str) -> None: ...

    def end(self, point: Point, outcome: Outcome) -> None:
        self.ended.append(point.status)


def ran(
    tmp_path: Path, works: list[Work], known: Comparison | None = None, options: Options = QUICK
) -> tuple[Comparison, Heard]:
    found = known or Comparison()
    heard = Heard()
    campaign.run(found, works, options, Grounds(tmp_path, tmp_path), tmp_path / "state.json", heard)
    return found, heard


def quick_work(name: str, log: list[str] | None = None, **more: object) -> Work:
    return fake_work(name, log, needs_warmup=False, **more)  # type: ignore[arg-type]


def test_all_works_run_at_their_size_before_any_grows(tmp_path: Path) -> None:
    found, heard = ran(tmp_path, [quick_work("a"), quick_work("b", grows=False), quick_work("c")])
    own = [(name, 1) for name in "abc"]
    assert heard.begun == [*own, ("a", 1), ("a", 4), ("a", 16), ("c", 1), ("c", 4), ("c", 16)]
    assert found.outcomes["a"].growth[16].samples["tiermq"][0].done.messages == 16_000
    assert set(heard.ended) == {Status.MEASURED}


def test_the_state_after_every_point_is_a_run_that_can_be_read_again(tmp_path: Path) -> None:
    found, _ = ran(tmp_path, [quick_work("a")])
    again = results.load(tmp_path / "state.json")
    assert again.as_dict() == found.as_dict()
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_a_resumed_run_does_only_what_is_missing(tmp_path: Path) -> None:
    log: list[str] = []
    ran(tmp_path, [quick_work("a", log, grows=False)])
    assert log
    known = results.load(tmp_path / "state.json")
    log.clear()
    _, heard = ran(tmp_path, [quick_work("a", log, grows=False), quick_work("b", grows=False)], known)
    assert heard.begun == [("b", 1)]
    assert log == []


def test_a_quick_look_does_not_count_as_done_for_a_verdict_but_a_verdict_does_for_a_look() -> None:
    known = Comparison(outcomes={"a": outcome("a", point(1, [1.0], [1.0]))})
    work = [quick_work("a", grows=False)]
    assert campaign.jobs_of(work, Options(quick=True), known) == []
    known.outcomes["a"].points[1].quick = True
    assert [job.scale for job in campaign.jobs_of(work, Options(), known)] == [1]
    assert campaign.jobs_of(work, Options(quick=True), known) == []


def test_what_is_there_is_measured_again_when_asked() -> None:
    known = Comparison(outcomes={"a": outcome("a", point(1, [1.0], [1.0]))})
    work = [quick_work("a", grows=False)]
    assert [job.scale for job in campaign.jobs_of(work, Options(again=True), known)] == [1]


def test_a_work_that_fails_is_reported_without_paths_and_the_next_one_runs(tmp_path: Path) -> None:
    found, heard = ran(tmp_path, [broken_work("bad"), quick_work("good", grows=False)])
    assert heard.ended[:2] == [Status.FAILED, Status.MEASURED]
    failed = found.outcomes["bad"].points[1]
    assert failed.reason == "SystemExit: no broker in …/x: missing"
    assert [(made.name, each.part) for made, each in found.failed()] == [("bad", 1)] * 2
    assert found.outcomes["bad"].growth[4].status is Status.LEFT_OUT
    assert found.outcomes["bad"].growth[4].reason == "there is no measurement at 1×"


def test_a_work_that_failed_is_tried_again_by_a_resumed_run(tmp_path: Path) -> None:
    found, _ = ran(tmp_path, [broken_work("a")])
    found, heard = ran(tmp_path, [quick_work("a")], found)
    assert heard.begun == [("a", 1), ("a", 1), ("a", 4), ("a", 16)]
    assert found.failed() == []


def test_an_interrupted_work_leaves_the_works_before_it_and_no_files(tmp_path: Path) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ran(tmp_path, [quick_work("a", grows=False), quick_work("b", opener=interrupted)])
    assert list(results.load(tmp_path / "state.json").outcomes["a"].points) == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


@pytest.mark.parametrize(
    ("grown", "options", "rounds", "most"),
    [
        (False, Options(), 9, 9),
        (False, Options(quick=True), 3, 3),
        (True, Options(), 2, 5),
        (True, Options(quick=True), 2, 5),
        (False, Options(rounds=5), 5, 5),
        (True, Options(rounds=3), 2, 3),
        (True, Options(rounds=9), 2, 5),
        (True, Options(rounds=1), 1, 1),
    ],
)
def test_growth_gets_few_rounds_and_a_flag_bounds_them(grown: bool, options: Options, rounds: int, most: int) -> None:
    effort = campaign.effort_of(Job(quick_work("a"), grown=grown), options)
    assert (effort.rounds, effort.rounds_most) == (rounds, most)
    effort = campaign.effort_of(Job(quick_work("a", rounds_max=1), grown=grown), options)
    assert (effort.rounds, effort.rounds_most) == (1, 1)


def test_growth_begins_with_a_part_of_the_data_and_a_quick_look_with_all_of_its_own(tmp_path: Path) -> None:
    found, _ = ran(tmp_path, [quick_work("a", growth_part=4)], Comparison(), Options(rounds=1))
    counts = [point.samples["tiermq"][0].done.messages for point in found.outcomes["a"].all_points()]
    assert counts == [1000, 250, 1000, 4000]
    assert [point.part for point in found.outcomes["a"].all_points()] == [1, 4, 4, 4]
    found, _ = ran(tmp_path, [quick_work("a", growth_part=4)], Comparison())
    assert [point.part for point in found.outcomes["a"].all_points()] == [1, 1, 1, 1]


def test_growth_that_was_interrupted_goes_on_with_its_next_size(tmp_path: Path) -> None:
    work, growing = quick_work("a"), Options(rounds=1, base=False)
    found, _ = ran(tmp_path, [work], Comparison(), growing)
    del found.outcomes["a"].growth[16]
    results.save(tmp_path / "state.json", found.as_dict())
    found, heard = ran(tmp_path, [work], results.load(tmp_path / "state.json"), growing)
    assert heard.begun == [("a", 16)]
    assert (list(found.outcomes["a"].growth), found.outcomes["a"].points) == ([1, 4, 16], {})


def test_larger_points_of_a_file_from_before_growth_had_its_own_sizes_are_left_behind(tmp_path: Path) -> None:
    found, _ = ran(tmp_path, [quick_work("a", grows=False)])
    reported = found.as_dict()
    (work,) = reported["works"]
    work["points"].append({**work["points"][0], "scale": 4})
    del work["growth"]
    results.save(tmp_path / "state.json", reported)
    assert [each.scale for each in results.load(tmp_path / "state.json").outcomes["a"].all_points()] == [1]


def test_growth_alone_leaves_out_works_that_do_not_grow() -> None:
    works = [quick_work("a"), quick_work("b", grows=False)]
    jobs = campaign.jobs_of(works, Options(base=False), Comparison())
    assert [(job.work.name, job.scale) for job in jobs] == [("a", 1), ("a", 4), ("a", 16)]
    jobs = campaign.jobs_of(works, Options(grow=False), Comparison())
    assert [(job.work.name, job.scale) for job in jobs] == [("a", 1), ("b", 1)]


def test_the_rest_is_expected_by_what_works_took_before() -> None:
    a, b = quick_work("a"), quick_work("b")
    assert campaign.expected_seconds([Job(a, 1)], {}) is None
    took = {Job(a): 10.0, Job(quick_work("c")): 20.0, Job(a, 4, grown=True): 50.0}
    assert campaign.expected_seconds([Job(a), Job(b), Job(b, 4, grown=True)], took) == 10 + 15 + 50


def test_files_are_expected_to_grow_with_the_data_and_memory_as_it_did() -> None:
    first, second = point(1, [1.0], [1.0]), point(4, [1.0], [1.0])
    assert growth.expected_files_bytes(first, 16) == {"directory": 128 * MIB, "disk": 0}
    assert growth.expected_memory_bytes([first], 4) == 2 * 330 * MIB
    assert growth.expected_memory_bytes([first, second], 16) == 330 * MIB
    more = second.memory["tiermq"]
    second.memory["tiermq"] = results.Memory(more.peak_bytes, more.peak_own_bytes + 30 * MIB, 0, 0)
    assert growth.expected_memory_bytes([first, second], 16) == (360 + 12 * 10) * MIB


def test_a_point_for_which_there_is_no_room_is_left_out_with_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "available_memory", lambda: 8 << 30)
    first = point(1, [1.0], [1.0])
    grounds = Grounds(tmp_path, tmp_path)
    assert growth.why_not([first], 4, grounds) == ""
    first.files_bytes["directory"] = 10**15
    assert growth.why_not([first], 4, grounds).startswith("about 4800000.0 GB of ")
    assert growth.why_not([first], 16, grounds) == "there is no measurement at 4×"


def test_outcomes_follow_the_plan_and_works_that_are_gone_go() -> None:
    known = Comparison(outcomes={name: outcome(name, point(1, [1.0], [1.0])) for name in ("b", "gone", "a")})
    campaign.in_order(known, [quick_work("a", title="newer title"), quick_work("b")])
    assert list(known.outcomes) == ["a", "b"]
    assert known.outcomes["a"].title == "newer title"
    assert known.outcomes["a"].base is not None


def test_directories_of_a_run_that_was_killed_are_removed_and_those_of_a_living_one_stay(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for name in (f"{places.PREFIX}{gone.pid}-x", f"{places.PREFIX}{os.getpid()}-x", "else"):
        (tmp_path / name).mkdir()
    assert places.remove_left_over(Grounds(tmp_path, tmp_path)) == 1
    assert {path.name for path in tmp_path.iterdir()} == {f"{places.PREFIX}{os.getpid()}-x", "else"}


def test_a_place_is_fresh_and_removed_whatever_happens(tmp_path: Path) -> None:
    grounds = Grounds(tmp_path, tmp_path)

    def fail() -> None:
        with places.fresh(grounds, 4, quick=True) as place:
            assert (place.scale, place.quick) == (4, True)
            assert place.directory != place.disk
            (place.disk / "file").write_bytes(b"x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError, match="expected a directory"):
        places.choose(tmp_path / "nowhere", None, quick=True)
    assert places.choose(tmp_path, tmp_path, quick=True) == Grounds(tmp_path, tmp_path)


def test_a_run_survives_its_json() -> None:
    assert Comparison.from_dict(whole_run().as_dict()) == whole_run()


@pytest.mark.parametrize("text", ["", "[]", '{"format": 9}', '{"format": 1}', '{"format": 1, "works": [{}]}'])
def test_a_file_that_is_no_run_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "compare.json").write_text(text)
    with pytest.raises(BadResult, match="compare.json"):
        results.load(tmp_path / "compare.json")


@pytest.mark.parametrize(
    ("reported", "kept"),
    [
        ("in /tmp/a/b.log: gone", "in …/b.log: gone"),
        ("rate 3/s of 1/2", "rate 3/s of 1/2"),
        ("http://127.0.0.1:80/metrics/x", "http://127.0.0.1:80/metrics/x"),
        ({"at": Path("/tmp/x/y"), "all": ["/var/lib/z"]}, {"at": "y", "all": ["…/z"]}),
        (7, 7),
    ],
)
def test_paths_are_cut_to_their_last_name(reported: object, kept: object) -> None:
    assert results.without_paths(reported) == kept
