"""`tiermq transaction`: what is open, and what became of the others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from delivery.transactions.transaction_world import World
from tiermq.cli.main import cli


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "store")
    yield made
    made.store.close()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["transaction", *arguments])


def test_open_transactions_are_listed_for_eyes_and_for_programs(world: World) -> None:
    assert run("ls", str(world.path)).stderr == "no transaction is open\n"
    for name in "ab":
        world.half(name)
    world.round_after(10)
    world.commit(world.asked[0], is_answer=True)
    world.ops.write()
    world.store.flush()
    world.store.dispatch_now()
    done = run("ls", str(world.path))
    assert done.exit_code == 0
    assert [line.split()[1:] for line in done.stdout.splitlines()] == [["T:1", "ID-b", "PG", "asked", "1", "times"]]
    (line,) = run("ls", str(world.path), "--json").stdout.splitlines()
    assert json.loads(line)["transactionId"] == "ID-b"
    assert run("ls", str(world.path), "--topic", "U", "--json").stdout == ""
    assert run("ls", str(world.path), "--group", "U", "--json").stdout == ""


def test_the_fate_of_a_transaction_is_shown(world: World) -> None:
    world.roll_back(world.half("a"))
    world.half("b")
    world.store.flush()
    world.store.dispatch_now()
    place = ["--store", str(world.path)]
    done = run("show", "ID-a", *place)
    assert done.exit_code == 0
    rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if not line.startswith("producer"))
    assert (rows["fate"], rows["topic"]) == ("rolled back", "T:1")
    assert json.loads(run("show", "ID-b", *place, "--json").stdout)["fate"] == "open"


def test_what_is_unknown_and_what_cannot_be_read_is_reported(world: World, tmp_path: Path) -> None:
    world.half("a")
    world.store.flush()
    unknown = run("show", "ID-x", "--store", str(world.path))
    assert (unknown.exit_code, "nothing is known" in unknown.stderr) == (1, True)
    assert run("show", "ID-x").exit_code == 2
    (tmp_path / "empty").mkdir()
    for arguments in (["ls", str(tmp_path / "empty")], ["show", "ID-x", "--store", str(tmp_path / "empty")]):
        refused = run(*arguments)
        assert (refused.exit_code, refused.stderr.startswith("Error: ")) == (2, True), refused.output


def test_store_stat_counts_open_transactions(world: World) -> None:
    stat = ["store", "stat", str(world.path)]
    assert json.loads(CliRunner().invoke(cli, [*stat, "--json"]).stdout)["openTransactions"] == 0
    world.half("a")
    world.roll_back(world.half("b"))
    world.store.flush()
    assert json.loads(CliRunner().invoke(cli, [*stat, "--json"]).stdout)["openTransactions"] == 1
    assert "transactions  1 open" in CliRunner().invoke(cli, stat).stdout
