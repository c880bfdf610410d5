"""`tiermq pipeline reindex`, as somebody types it."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from pipeline.job_world import tiered
from tiermq.cli.main import cli


def test_a_look_and_then_the_run_and_then_nothing_is_left_to_do(tmp_path: Path) -> None:
    tier, _ = tiered(tmp_path)
    command = ["pipeline", "reindex", tier, "--master", "here", "--slots", "50"]
    look = CliRunner().invoke(cli, [*command, "--dry-run"])
    assert look.exit_code == 0, look.output
    assert "orders-0: " in look.output
    done = CliRunner().invoke(cli, [*command, "--topic", "orders"])
    assert done.exit_code == 0, done.output
    assert "40 keys" in done.output
    rest = json.loads(CliRunner().invoke(cli, [*command, "--json"]).output)
    assert rest["done"]["keys"] == 20
    again = json.loads(CliRunner().invoke(cli, [*command, "--json"]).output)
    assert (again["planned"]["queues"], again["done"]) == (0, {})
    found = CliRunner().invoke(cli, ["tier", "cat", tier, "--topic", "orders", "--key", "key-1"])
    assert json.loads(found.output)["queueOffset"] == 0
