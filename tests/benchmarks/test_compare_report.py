"""The report's files: tables, pictures, reasons, and no word about the machine's places."""

from __future__ import annotations

import json
import os
import re
import struct
from pathlib import Path

import pytest

from benchmarks import process_tree
from benchmarks.compare import environment, picture_files, pictures, plan, reasons, report_files, results
from benchmarks.compare.places import Grounds
from benchmarks.compare.results import Comparison
from benchmarks.compare.work import TUNED
from compare_fakes import outcome, point, samples, whole_run

PNG = b"\x89PNG\r\n\x1a\n"


def written(tmp_path: Path, found: Comparison, why: dict[str, str] | None = None) -> str:
    report_files.write(found, tmp_path, why or {}, with_pictures=False)
    return (tmp_path / "compare.md").read_text(encoding="utf-8")


def cells(text: str, work: str, section: str) -> list[str]:
    """The row of a work in the first table after a heading."""
    below = text[text.index(f"{section}\n") :]
    row = next(line for line in below.splitlines() if line.startswith(f"| `{work}`"))
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_the_report_opens_with_goals_met_and_missed(tmp_path: Path) -> None:
    text = written(tmp_path, whole_run())
    assert "5 works; of 3 goals 2 met, 1 missed" in text
    assert cells(text, "put_fast", "## Goals") == [
        "`put_fast`", "2.00", "1.80 to 3.00", "≥ 1.5", "yes", "0.20", "0.25 (0.10)",
    ]  # fmt: skip
    assert cells(text, "put_slow", "## Goals")[1:5] == ["1.00", "0.91 to 1.10", "≥ 1.2", "**no**"]
    assert cells(text, "start", "## Goals")[3:5] == ["≤ 0.5", "yes"]
    assert text.index("## Goals") < text.index("## Works") < text.index("## Growth") < text.index("## Environment")


def test_groups_show_rates_spreads_and_memory_of_both_sides(tmp_path: Path) -> None:
    text = written(tmp_path, whole_run())
    row = cells(text, "put_fast", "### store")
    assert row[1:4] == ["2,000/s ± 12%", "1,000/s ± 14%", "10,000/s ± 0%"]
    assert "105 MB, 83.9 MB settled, 31.5 MB own" in text
    assert "- `put_fast`: what put_fast does; 3 rounds of 1,000 messages, 0.10 MB. Limit: memcpy." in text
    assert "settings: flush async, files 1,073,741,824." in text
    assert cells(text, "start", "### process")[1] == "0.30 s ± 17%"


def test_a_second_column_is_beside_rocketmq_with_a_fixed_heap_and_epoll(tmp_path: Path) -> None:
    found = whole_run()
    column = "TierMQ : RocketMQ with a fixed heap and epoll"
    assert column not in written(tmp_path, found)
    base = found.outcomes["put_fast"].base
    assert base is not None
    base.samples[TUNED] = samples([0.4, 0.5, 0.5])
    text = written(tmp_path, found)
    assert column in text
    assert cells(text, "put_fast", "### store")[-1] == "1.00 (0.80 to 1.25), 2,000/s ± 12%"
    assert cells(text, "put_slow", "### store")[-1] == "–"
    [reported] = [
        each for each in json.loads((tmp_path / "compare.json").read_text())["works"] if each["name"] == "put_fast"
    ]
    assert reported["points"][0]["ratios"]["rocketmq_tuned"]["median"] == pytest.approx(1.0)


def test_growth_has_a_row_for_each_size_and_reports_what_was_left_out(tmp_path: Path) -> None:
    text = written(tmp_path, whole_run())
    below = text[text.index("## Growth") :]
    rows = [line for line in below.splitlines() if line.startswith("| `put_fast`")]
    data = [[cell.strip() for cell in row.split("|")[2:4]] for row in rows[:3]]
    assert data == [["1×: 1,000 messages", "0.25"], ["4×: 4,000 messages", "1.00"], ["16×", "4.00"]]
    assert rows[2].split("|")[4].strip() == "left out"
    assert [cell.strip() for cell in rows[0].split("|")[-3:-1]] == ["105 MB", "419 MB"]
    assert "| `put_fast` | 16× | left out | about 30.0 GB of memory needed, 20.0 GB there |" in text
    assert "| `broken` | 1× | failed | PeerFailed: it ended |" in text


def test_a_missed_goal_reports_by_how_much_and_why(tmp_path: Path) -> None:
    text = written(tmp_path, whole_run(), {"put_slow": "The lock.\n\n```\nprofile\n```", "put_fast": "never shown"})
    missed = text[text.index("## Missed goals") : text.index("## Not measured")]
    assert "1.00 (0.91 to 1.10), goal ≥ 1.2: 17% below it." in missed
    assert "The lock.\n\n```\nprofile\n```" in missed
    assert "put_fast" not in missed
    assert "Not looked into yet." in written(tmp_path, whole_run())


def test_a_quick_look_is_called_one(tmp_path: Path) -> None:
    found = whole_run()
    assert "No verdict" not in written(tmp_path, found)
    found.outcomes["put_slow"].points[1].quick = True
    assert "No verdict" in written(tmp_path, found)


def test_a_report_of_several_runs_reports_so_and_which_program_did_how_much(tmp_path: Path) -> None:
    found = whole_run()
    assert "on one machine, in one run:" in written(tmp_path, found)
    found.commands.append("python3 dev.py bench compare --resume")
    for each in found.points():
        each.version = "0.1.0 (commit a)"
    found.outcomes["start"].points[1].version = "0.1.0 (commit b)"
    text = written(tmp_path, found)
    assert "on one machine, in 2 runs:" in text
    assert "of more than one version, of 6 points: 0.1.0 (commit a): 5; 0.1.0 (commit b): 1.**" in text.split("##")[0]
    assert "| measured | 1970-01-01 00:16 to 1970-01-01 00:16 UTC |" in text


def test_the_environment_names_programs_and_file_systems_but_no_place(tmp_path: Path) -> None:
    reported = environment.describe(Grounds(tmp_path, tmp_path), "5.3.3")
    assert reported["rocketmq"] == "5.3.3"
    assert reported["tiermq_kernel"] in ("compiled", "pure")
    assert reported["tiermq"].startswith("0.")
    assert reported["memory"].endswith(" GiB")
    assert all(value for name, value in reported.items() if name != "load_average_at_start")
    assert str(tmp_path) not in json.dumps(reported)


def test_a_busy_machine_is_reported_at_the_top(tmp_path: Path) -> None:
    found = whole_run()
    for each in found.points():
        each.load_average, each.others = 64.0, 0.05  # The works before made the load average.
    text = written(tmp_path, found)
    assert "busy" not in text
    assert "Others used up to 0.05 of 2 processors" in text
    found.outcomes["put_slow"].points[1].others = 0.35
    assert "busy: other programs used up to 0.35 of 2 processors" in written(tmp_path, found)
    found.outcomes["put_slow"].points[1].others = None
    assert "not known of 1 of " in written(tmp_path, found)


def test_what_others_use_leaves_out_the_benchmark_and_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ticks of 10 ms: this process 1, its child 2, and 3, which neither started."""
    monkeypatch.setattr(process_tree, "PROC", tmp_path)
    monkeypatch.setattr(process_tree, "TICKS_PER_SECOND", 100)
    own = os.getpid()
    now_s = iter([100.0, 110.0])
    monkeypatch.setattr("benchmarks.compare.environment.time.monotonic", lambda: next(now_s))

    def spend(whole: int, mine: int, child: int, other: int) -> None:
        (tmp_path / "stat").write_text(f"cpu {whole} 0 0 5000 0 0 0 0 0 0\n")
        for pid, parent, ticks in ((own, 1, mine), (own + 1, own, child), (own + 2, 1, other)):
            (tmp_path / str(pid)).mkdir(exist_ok=True)
            fields = ["S", parent, *[0] * 9, ticks, 0, 0, 0]
            (tmp_path / str(pid) / "stat").write_text(f"{pid} (a name) {' '.join(map(str, fields))}\n")

    spend(1_000, 100, 100, 100)
    others = environment.Others()
    spend(1_000 + 1_500, 100 + 200, 100 + 800, 100 + 500)
    assert others.processors() == pytest.approx(0.5)


def test_every_picture_is_one_is_named_in_the_text_and_old_ones_go(tmp_path: Path) -> None:
    (tmp_path / "growth-gone.png").write_bytes(PNG)
    report_files.write(whole_run(), tmp_path, {})
    text = (tmp_path / "compare.md").read_text(encoding="utf-8")
    drawn = {path.name for path in tmp_path.glob("*.png")}
    assert drawn == {"ratios.png", "time-store.png", "time-cold-reads.png", "time-process.png", "growth-store.png"}
    assert set(re.findall(r"\]\((\S+\.png)\)", text)) == drawn
    for name in drawn:
        content = (tmp_path / name).read_bytes()
        assert content.startswith(PNG)
        width, height = struct.unpack(">II", content[16:24])
        assert width >= 600
        assert height >= 300


def test_many_works_of_a_group_are_drawn_in_parts_of_about_the_same_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Comparison()
    found.outcomes = {name: outcome(name, point(1, [1.0], [2.0])) for name in ("a", "b", "c", "d", "e")}
    monkeypatch.setattr(pictures, "PANELS_PER_PICTURE", 4)
    drawn = [path.name for path in pictures.draw_all(found, tmp_path)]
    assert drawn == ["ratios.png", "time-store-1.png", "time-store-2.png"]
    assert picture_files.names_of("time", "store", [*drawn, "time-store-put.png"]) == [
        "time-store-1.png",
        "time-store-2.png",
    ]


def test_a_run_without_a_figure_is_still_a_report(tmp_path: Path) -> None:
    found = whole_run()
    found.outcomes = {"broken": found.outcomes["broken"]}
    report_files.write(found, tmp_path, {})
    text = (tmp_path / "compare.md").read_text(encoding="utf-8")
    assert "Nothing of this group was measured" in text
    assert list(tmp_path.glob("*.png")) == []


def test_the_json_has_every_round_and_what_follows_from_it_and_can_be_read_again(tmp_path: Path) -> None:
    written(tmp_path, whole_run())
    reported = json.loads((tmp_path / "compare.json").read_text(encoding="utf-8"))
    work = next(each for each in reported["works"] if each["name"] == "put_fast")
    assert work["goal_met"] is True
    first = work["points"][0]
    assert first["ratios"]["rocketmq"] == {"median": 2.0, "low": 1.8, "high": pytest.approx(3.0)}
    assert first["ratios"]["tiermq_median"] == 2000.0
    assert first["samples"]["rocketmq"][1]["done"]["seconds"] == 1.2
    assert results.load(tmp_path / "compare.json") == whole_run()


def test_an_unfinished_run_is_put_aside_not_lost(tmp_path: Path) -> None:
    assert report_files.move_partial(tmp_path) is None
    (tmp_path / "compare.partial.json").write_text("{}")
    aside = report_files.move_partial(tmp_path)
    assert aside is not None
    assert aside.read_text() == "{}"
    assert not (tmp_path / "compare.partial.json").exists()


def test_reasons_are_sections_headed_by_names_of_works() -> None:
    text = "# Why\n\nIntroduction.\n\n## `a`, `b`\n\nBoth.\n\n### Profile\n\n## `c`\nThat.\n"
    assert reasons.parse(text) == {"a": "Both.\n\n### Profile", "b": "Both.\n\n### Profile", "c": "That."}
    with pytest.raises(ValueError, match="two sections for a"):
        reasons.parse("## `a`\n\n## `a`\n")


def test_every_kept_reason_is_about_a_work_that_exists() -> None:
    assert set(reasons.read()) <= {work.name for work in plan.all_works()}
