"""`dev.py bench compare` on the command line: lists, choices, refusals, resumption, exit codes; once for real."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from benchmarks import bench_compare
from benchmarks.__main__ import bench
from benchmarks.compare import environment, plan, report_files, results
from compare_fakes import broken_work, fake_work, whole_run
from interop.rocketmq import Unavailable, fetch

ROOT = Path(__file__).parents[2]


def compare(*words: object) -> Result:
    return CliRunner().invoke(bench, ["compare", *map(str, words)])


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Two works that are scripted, in place of the real ones, and no need of RocketMQ; the rounds that were done."""
    log: list[str] = []
    works = [fake_work("alpha", log, needs_warmup=False, group="one two"), fake_work("beta", log, needs_warmup=False)]
    monkeypatch.setattr(plan, "all_works", lambda: works)
    monkeypatch.setattr(bench_compare, "distribution", lambda: SimpleNamespace(version="5.3.3"))
    monkeypatch.setattr(bench_compare, "LOOKS", tmp_path / "looks")
    monkeypatch.setattr(bench_compare, "KEPT", tmp_path / "kept")
    return log


def test_help_teaches_with_examples_and_exit_codes() -> None:
    result = compare("--help")
    assert result.exit_code == 0
    for word in ("--only", "--quick", "--resume", "--against", "--growth-only", "--list", "examples:", "exit code:"):
        assert word in result.output


def test_the_list_names_every_work_of_the_plan() -> None:
    result = compare("--list", "--json")
    reported = json.loads(result.output)["works"]
    assert [each["name"] for each in reported] == [work.name for work in plan.all_works()]
    groups = {"store", "tier", "network", "open-loop", "spark", "process", "queues"}
    assert {each["group"].split()[0] for each in reported} == groups
    assert "put_1_128_async" in compare("--list").output


def test_every_goal_of_the_list_is_possible() -> None:
    goals = [work for work in plan.all_works() if work.goal]
    assert len(goals) >= 15
    assert all(work.goal is not None and work.goal.is_upper is (work.kind.name != "RATE") for work in goals)


def test_an_unknown_name_is_refused_with_those_that_are_near() -> None:
    result = compare("--only", "put_1_128_asinc")
    assert result.exit_code == 2
    assert "did you mean put_1_128_async" in result.output
    assert "groups are" in compare("--only", "nonsense?!").output


@pytest.mark.parametrize(
    "words",
    [["--rounds", "0"], ["--rounds", "x"], ["--no-growth", "--growth-only"], ["--again"], ["--frobnicate"]],
)
def test_a_wrong_command_line_is_refused_before_anything_runs(words: list[str], fakes: list[str]) -> None:
    assert compare(*words).exit_code == 2
    assert fakes == []


def test_names_groups_and_patterns_choose_works(fakes: list[str]) -> None:
    works = plan.all_works()
    for names, chosen in {
        ("alpha",): ["alpha"],
        ("one",): ["alpha"],
        ("one two",): ["alpha"],
        ("*a",): ["alpha", "beta"],
        ("beta", "alpha"): ["alpha", "beta"],
        (): ["alpha", "beta"],
    }.items():
        assert [work.name for work in plan.choose(works, names)] == chosen


def test_a_look_is_written_aside_and_a_whole_run_to_its_place(fakes: list[str], tmp_path: Path) -> None:
    assert compare("--quick", "--only", "alpha", "--no-growth").exit_code == 0
    assert (tmp_path / "looks" / "ratios.png").exists()
    assert (tmp_path / "looks" / "compare.md").exists()
    assert not (tmp_path / "kept").exists()
    result = compare("--no-pictures", "--rounds", 1, "--dir", tmp_path, "--disk-dir", tmp_path)
    assert result.exit_code == 0
    text = (tmp_path / "kept" / "compare.md").read_text()
    assert "```\npython3 dev.py bench compare --rounds 1\n```" in text
    assert str(tmp_path) not in text + (tmp_path / "kept" / "compare.json").read_text()
    assert not (tmp_path / "kept" / "compare.partial.json").exists()


def test_a_resumed_run_keeps_the_rest_and_measures_what_is_asked_for_again(fakes: list[str], tmp_path: Path) -> None:
    words = ("--no-pictures", "--out", tmp_path / "out", "--rounds", 1, "--no-growth")
    compare(*words, "--only", "alpha")
    done = len(fakes)
    compare(*words, "--resume")
    assert len(fakes) == 2 * done
    compare(*words, "--resume", "--again", "--only", "beta")
    assert len(fakes) == 3 * done
    reported = results.load(tmp_path / "out" / "compare.json")
    assert list(reported.outcomes) == ["alpha", "beta"]
    assert reported.commands[-1] == "python3 dev.py bench compare --rounds 1 --no-growth --resume --again --only beta"


def test_figures_of_another_commit_are_not_added_to_a_report_unless_asked_for(
    fakes: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = ("--no-pictures", "--out", tmp_path, "--rounds", 1, "--no-growth")
    compare(*words, "--only", "alpha")
    done = len(fakes)
    monkeypatch.setattr(environment, "_commit", lambda: "(commit of later)")
    refused = compare(*words, "--resume")
    assert refused.exit_code == 1
    assert "figures of different code do not belong into one report" in str(refused.exception) + refused.output
    assert len(fakes) == done
    assert compare(*words, "--mixed").exit_code == 2
    assert compare(*words, "--resume", "--mixed").exit_code == 0
    assert "These figures are of more than one version" in (tmp_path / "compare.md").read_text()


def test_a_failed_work_is_in_the_report_and_in_the_exit_code(
    fakes: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    works = [broken_work("bad"), fake_work("good", needs_warmup=False)]
    monkeypatch.setattr(plan, "all_works", lambda: works)
    result = compare("--no-pictures", "--out", tmp_path, "--rounds", 1, "--no-growth", "--json")
    assert result.exit_code == 1
    reported = json.loads(result.stdout)
    assert [(each["name"], each["points"][0]["status"]) for each in reported["works"]] == [
        ("bad", "failed"),
        ("good", "measured"),
    ]
    assert "| `bad` | 1× | failed | SystemExit: no broker in …/x: missing |" in (tmp_path / "compare.md").read_text()
    assert "bad at 1× failed: SystemExit" in compare("--no-pictures", "--out", tmp_path, "--report-only").output


def test_a_report_is_written_again_without_measuring(fakes: list[str], tmp_path: Path) -> None:
    assert compare("--no-pictures", "--out", tmp_path, "--report-only").exit_code == 2
    compare("--no-pictures", "--out", tmp_path, "--rounds", 1, "--no-growth")
    (tmp_path / "compare.md").unlink()
    fakes.clear()
    assert compare("--no-pictures", "--out", tmp_path, "--report-only").exit_code == 0
    assert "# TierMQ beside RocketMQ" in (tmp_path / "compare.md").read_text()
    assert fakes == []


def test_what_got_worse_than_a_kept_run_is_reported_and_is_the_exit_code(fakes: list[str], tmp_path: Path) -> None:
    compare("--no-pictures", "--out", tmp_path, "--rounds", 2, "--no-growth")
    kept = tmp_path / "compare.json"
    assert compare("--no-pictures", "--out", tmp_path, "--report-only", "--against", kept).exit_code == 0
    better = tmp_path / "better.json"
    reported = json.loads(kept.read_text())
    for sample in reported["works"][0]["points"][0]["samples"]["tiermq"]:
        sample["done"]["seconds"] /= 2
    better.write_text(json.dumps(reported))
    result = compare("--no-pictures", "--out", tmp_path, "--report-only", "--against", better)
    assert result.exit_code == 1
    assert "worse" in result.output
    reported = json.loads(
        compare("--no-pictures", "--out", tmp_path, "--report-only", "--against", better, "--json").stdout
    )
    assert reported["against"][0] == {
        "work": "alpha",
        "scale": 1,
        "grown": False,
        "then": 4.0,
        "now": 2.0,
        "change": "worse",
    }
    assert compare("--against", tmp_path / "nothing.json").exit_code == 2


def test_a_request_to_end_keeps_what_is_measured(
    fakes: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def ended(*_: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    works = [fake_work("alpha", needs_warmup=False), fake_work("beta", opener=ended)]
    monkeypatch.setattr(plan, "all_works", lambda: works)
    result = compare("--no-pictures", "--out", tmp_path, "--rounds", 1, "--no-growth")
    assert result.exit_code == 130
    assert "--resume" in result.stderr
    assert list(results.load(tmp_path / report_files.PARTIAL).outcomes["alpha"].points) == [1]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_tables_show_every_work_at_the_end(fakes: list[str], tmp_path: Path) -> None:
    results.save(tmp_path / "compare.json", whole_run().as_dict())
    compare("--no-pictures", "--out", tmp_path, "--rounds", 1, "--no-growth", "--resume")
    output = compare("--no-pictures", "--out", tmp_path, "--report-only").output
    assert "alpha" in output
    assert "beta" in output
    assert "put_fast" not in output, "works that the plan no longer has are gone"


@pytest.mark.bench
@pytest.mark.slow
@pytest.mark.interop
@pytest.mark.timeout(1_200)
def test_one_work_is_measured_beside_the_real_rocketmq(tmp_path: Path) -> None:
    try:
        fetch()
    except Unavailable as reason:
        pytest.skip(f"no real RocketMQ here: {reason}")
    words = ["--quick", "--only", "put_1_1024_async", "--no-growth", "--rounds", "2", "--out", str(tmp_path), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench_compare", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [work] = json.loads(done.stdout)["works"]
    found = work["points"][0]
    assert found["ratios"]["rocketmq"]["median"] > 0
    assert {side: len(rounds) for side, rounds in found["samples"].items()} == {"tiermq": 2, "rocketmq": 2, "limit": 2}
    assert all(found["memory"][side]["peak_own_bytes"] > 1 << 20 for side in ("tiermq", "rocketmq"))
    assert (tmp_path / "ratios.png").exists()
