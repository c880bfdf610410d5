"""`tiermq pipeline expire`, as somebody types it."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pipeline.job_world import JobWorld
from tiermq.cli.main import cli
from tiermq.cli.option_values import parse_bytes, parse_hours


def test_times_and_sizes_have_units() -> None:
    assert [parse_hours("--keep", text) for text in ("72h", "30D", "2w", "1y")] == [72, 720, 336, 8760]
    assert [parse_bytes("--max-bytes", text) for text in ("5", "5k", "10G", "1tb")] == [5, 5120, 10 << 30, 1 << 40]
    for text in ("72", "h", "0d", "-1h", "1m"):
        with pytest.raises(click.UsageError, match="--keep"):
            parse_hours("--keep", text)
    for text in ("", "0", "G", "-5", "1.5G"):
        with pytest.raises(click.UsageError, match="--max-bytes"):
            parse_bytes("--max-bytes", text)


def test_a_look_shows_what_would_go_and_the_run_removes_it(tmp_path: Path) -> None:
    made = JobWorld.filled(tmp_path)  # Its messages are years old by the clock of this machine.
    before = len(list(made.driver.list_segments()))
    idle = CliRunner().invoke(cli, ["pipeline", "expire", made.tier, "--keep", "900y", "--dry-run"])
    assert (idle.exit_code, "  nothing to do" in idle.output) == (0, True), idle.output
    look = CliRunner().invoke(cli, ["pipeline", "expire", made.tier, "--keep", "1d", "--dry-run"])
    assert look.exit_code == 0, look.output
    assert "would go: " in look.output
    assert "nothing to do" not in look.output
    assert len(list(made.driver.list_segments())) == before
    done = CliRunner().invoke(cli, ["pipeline", "expire", made.tier, "--keep", "1d", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.output)
    assert report["done"]["segments"] == report["planned"]["segments"] - report["done"]["indexFiles"]
    assert report["details"]["notes"] == []  # A broker that tiers by itself learns it from the bucket.
    wrong = CliRunner().invoke(cli, ["pipeline", "expire", made.tier, "--keep", "soon"])
    assert (wrong.exit_code, "such as 72h" in wrong.output) == (2, True)
    made.close()
