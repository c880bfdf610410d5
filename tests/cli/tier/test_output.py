"""What `tiermq tier` shows: times, floods of remarks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from delivery.tiered_timers.tier_world import BROKER, DAY_MS, NOW_MS, FarWorld, timer
from tiermq.cli.conventions import FINDINGS_SHOWN_MAX
from tiermq.cli.main import cli
from tiermq.cli.tier.output import moment, show_remarks, show_verification, timer_values
from tiermq.tier.driver.posix import PosixDriver
from tiermq.tier.metadata.metadata_values import NEVER_MS
from tiermq.tier.restore.restore_report import Finding, Remark
from tiermq.tier.verify.verify_report import Problem, VerifyReport


@pytest.mark.parametrize(
    ("timestamp_ms", "expected"),
    [(-1, ""), (0, ""), (NEVER_MS, ""), (1_700_000_000_000, "2023-11-14T22:13:20+00:00"), (1 << 61, str(1 << 61))],
)
def test_a_time_that_is_not_known_is_not_shown(timestamp_ms: int, expected: str) -> None:
    assert moment(timestamp_ms) == expected


def test_a_flood_is_cut_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    show_remarks([Remark(Finding.HOLE, str(number)) for number in range(FINDINGS_SHOWN_MAX + 3)])
    report = VerifyReport("memory://x")
    for number in range(FINDINGS_SHOWN_MAX + 4):
        report.problem(Problem.HOLE, str(number), "")
    show_verification(report)
    found = capsys.readouterr().out
    assert "and 3 more; --json" in found
    assert "and 4 more; --json" in found


@pytest.fixture
def waiting(tmp_path: Path) -> FarWorld:
    world = FarWorld(tmp_path, PosixDriver(tmp_path / "tier"))
    world.add((timer(number, NOW_MS + (2 + number) * DAY_MS) for number in range(20)), flush_every=5)
    world.tend()
    return world


def reported(world: FarWorld, *words: str) -> Result:
    return CliRunner().invoke(cli, ["tier", words[0], world.driver.url, *words[1:]])


def test_ls_and_stat_tell_of_timers_also_where_there_is_no_history(waiting: FarWorld) -> None:
    result = reported(waiting, "stat")
    assert result.exit_code == 0
    assert f"timers     20 of {BROKER}, due 2027-01-17T08:00:00+00:00 to 2027-02-05T08:00:00+00:00" in result.output
    assert "TIMERS" in reported(waiting, "ls", "--segments").output
    [totals] = json.loads(reported(waiting, "stat", "--json").output)["timers"]
    assert (totals["timers"], totals["objects"]) == (20, 20)
    [listed] = json.loads(reported(waiting, "ls", "--json").output)["timers"]
    assert sum(each["timers"] for each in listed["objects"]) == 20
    assert (listed["firstDueMs"], listed["lastDueMs"]) == (NOW_MS + 2 * DAY_MS, NOW_MS + 21 * DAY_MS)
    assert timer_values([], with_objects=False) == []


def test_verify_reads_timers_and_reports_damage(waiting: FarWorld, tmp_path: Path) -> None:
    result = reported(waiting, "verify")
    assert result.exit_code == 0
    assert "timers   20 in 20 objects" in result.output
    path = tmp_path / "tier" / next(name for name in waiting.driver.list_objects() if name.endswith(".timers"))
    path.write_bytes(path.read_bytes()[:-1])
    result = reported(waiting, "verify", "--json")
    assert result.exit_code == 1
    [problem] = json.loads(result.output)["problems"]
    assert problem["kind"] == "damaged_timers"
    assert reported(waiting, "orphans").exit_code == 0


def test_a_damaged_manifest_of_timers_is_reported(waiting: FarWorld, tmp_path: Path) -> None:
    path = tmp_path / "tier" / next(name for name in waiting.driver.list_objects() if "/manifest" in name)
    path.write_bytes(b"{}")
    assert "expected a document written by TierMQ" in reported(waiting, "stat").output
    assert reported(waiting, "verify").exit_code == 1


def test_a_tier_of_timers_alone_needs_no_restore_and_says_so(waiting: FarWorld, tmp_path: Path) -> None:
    result = reported(waiting, "restore", "--store", str(tmp_path / "new"))
    assert result.exit_code == 0
    assert "waiting in the tier: 20 timers" in result.output
    assert json.loads(reported(waiting, "restore", "--store", str(tmp_path / "other"), "--json").output)["timers"] == 20
