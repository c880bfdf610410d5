"""Medians, spread, ratios and verdicts of benchmark rounds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.report import Report, Round, show_curve, verdict


def rounds(*seconds: float) -> list[Round]:
    return [Round(messages=100, bytes=1000, seconds=each, cpu_seconds=each / 2) for each in seconds]


def test_a_rate_is_the_median_so_one_disturbed_round_does_not_move_it() -> None:
    assert report.median_rate(rounds(1.0, 2.0, 50.0)) == 50.0
    assert report.median_bytes_rate(rounds(1.0, 2.0, 50.0)) == 500.0


def test_a_ratio_is_ours_over_theirs_of_median_rates() -> None:
    made = Report("put")
    made.compare("put_vs_java", rounds(1.0, 2.0, 4.0), rounds(3.0, 3.0, 9.0))
    assert made.ratios == {"put_vs_java": 1.5}


def test_a_ratio_by_processor_time_evens_out_coarse_clocks() -> None:
    ours = [Round(100, 0, 1.0, cpu) for cpu in (0.01, 0.02, 0.0)]
    assert report.cpu_rate(ours) == pytest.approx(10_000)
    assert report.cpu_rate([Round(100, 0, 0.001, 0.0)]) == 10_000  # Shorter than one step of the clock.


def test_spread_is_half_the_range_of_rates_over_the_median_rate() -> None:
    assert report.spread(rounds(1.0, 1.0)) == 0.0
    assert report.spread(rounds(0.5, 1.0, 2.0)) == pytest.approx((200 - 50) / 2 / 100)


def test_core_share_shows_that_a_side_waited() -> None:
    assert report.core_share(rounds(1.0, 2.0, 4.0)) == 0.5


def test_the_object_names_ratios_rates_targets_and_environment() -> None:
    made = Report("put")
    made.add({"put": rounds(1.0), "java_put": rounds(2.0)})
    made.compare("put_vs_java", rounds(1.0), rounds(2.0))
    made.environment["core"] = 1
    result = json.loads(json.dumps(made.as_dict()))
    assert result["name"] == "put"
    assert result["ratios"] == {"put_vs_java": 2.0}
    assert result["rates"]["put_messages_per_second"] == 100.0
    assert result["rates"]["java_put_messages_per_second"] == 50.0
    assert result["targets"] == {"put_vs_java": {"required": 1.0, "aim": 1.4}}
    assert result["environment"] == {"core": 1}


@pytest.mark.parametrize(
    ("ratio", "required", "aim", "word"),
    [
        (0.9, 1.0, 1.4, "below"),
        (1.0, 1.0, 1.4, "ok"),
        (1.4, 1.0, 1.4, "aim"),
        (0.5, None, 0.8, "short of aim"),
        (0.8, None, 0.8, "aim"),
        (5.0, 2.0, None, "ok"),
    ],
)
def test_a_verdict_reports_which_target_was_reached(
    ratio: float, required: float | None, aim: float | None, word: str
) -> None:
    assert verdict(ratio, {"required": required, "aim": aim}) == word


def test_a_ratio_without_a_target_has_no_verdict() -> None:
    assert verdict(3.0, None) == ""


def test_json_output_is_one_line_and_a_table_shows_every_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    made = Report("get")
    made.add({"get": rounds(1.0)})
    made.compare("get_vs_java", rounds(1.0), rounds(1.5))
    report.print_result(made.as_dict(), as_json=True)
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert json.loads(printed)["ratios"] == {"get_vs_java": 1.5}
    report.print_result(made.as_dict(), as_json=False)
    assert "get_vs_java" in capsys.readouterr().out


def test_the_machine_is_described_with_its_file_system(tmp_path: Path) -> None:
    described = report.describe_machine(tmp_path)
    assert described["cpus"] >= 1
    assert described["file_system"]


def test_the_curve_of_memory_has_a_line_for_each_point_and_its_longest_bar_for_the_most_memory() -> None:
    points = [
        {"uploaded_bytes": 0, "own_bytes": 30_000_000},
        {"uploaded_bytes": 2_000_000_000, "own_bytes": 60_000_000},
    ]
    first, second = show_curve(points).splitlines()
    assert first.split() == ["0", "MB", "uploaded", "30.0", "MB", "own", "#" * 15]
    assert second.split() == ["2,000", "MB", "uploaded", "60.0", "MB", "own", "#" * 30]
