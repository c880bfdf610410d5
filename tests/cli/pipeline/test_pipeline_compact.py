"""`tiermq pipeline compact`, as somebody types it."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from pipeline.job_world import JobWorld
from tiermq.cli.main import cli


def test_a_look_and_then_the_run(tmp_path: Path) -> None:
    made = JobWorld.filled(tmp_path)
    made.world.put_index()
    command = ["pipeline", "compact", made.tier, "--master", "here"]
    look = CliRunner().invoke(cli, [*command, "--dry-run"])
    assert look.exit_code == 0, look.output
    assert "would seal " in look.output
    assert len(made.index_bases()) == 2
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    assert "140 items of 2 files" in done.output
    assert len(made.index_bases()) == 1
    again = json.loads(CliRunner().invoke(cli, [*command, "--json"]).output)
    assert (again["done"], again["problems"]) == ({}, [])
    made.close()
