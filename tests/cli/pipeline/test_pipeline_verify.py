"""`tiermq pipeline verify`, as somebody types it."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from pipeline.job_world import UNITS, JobWorld
from tiermq.cli.main import cli


def test_a_sound_tier_ends_with_0_and_a_damaged_one_with_1_until_it_is_repaired(tmp_path: Path) -> None:
    made = JobWorld.filled(tmp_path)
    command = ["pipeline", "verify", made.tier, "--master", "here"]
    sound = CliRunner().invoke(cli, command)
    assert (sound.exit_code, "35 records" in sound.output) == (0, True), sound.output
    made.damage(UNITS, at=5)
    bad = CliRunner().invoke(cli, [*command, "--json"])
    assert bad.exit_code == 1
    assert json.loads(bad.output)["problems"]
    repaired = CliRunner().invoke(cli, [*command, "--repair", "--report", str(tmp_path / "r.jsonl")])
    assert repaired.exit_code == 0, repaired.output
    assert "done: " in repaired.output
    assert (tmp_path / "r.jsonl").exists()
    made.close()


def test_what_is_wrong_with_the_command_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["pipeline", "verify", f"ftp://{tmp_path}", "--master", "here"])
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert "Traceback" not in result.output
