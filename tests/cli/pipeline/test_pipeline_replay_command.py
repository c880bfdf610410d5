"""`tiermq pipeline replay`, as somebody types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tiermq.cli.main import cli
from tiermq.store.local_store import LocalStore
from tiermq.testing import LocalBroker


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["pipeline", "replay", *map(str, words)])


def test_a_dry_run_then_a_run_then_nothing_left(store: Path, tmp_path: Path) -> None:
    words = ("--store", store, "--into", tmp_path / "t", "--record", tmp_path / "r", "--master", "here", "--json")
    assert json.loads(run(*words, "--dry-run").stdout)["planned"]["bundles"] == 1
    done = run(*words, "--to-topic", "again", "--property", "why=test", "--offsets", "0:5", "--rate", "100000")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["done"]["messages"] == 10
    with LocalStore.open(tmp_path / "t", background=False) as opened:
        assert opened.max_offset("again", 0) == 5
    again = run(*words, "--to-topic", "again", "--property", "why=test", "--offsets", "0:5")
    assert json.loads(again.stdout)["done"]["messages"] == 0


def test_a_table_is_replayed(store: Path, tmp_path: Path) -> None:
    table = f"parquet:{tmp_path}/lake"
    exported = CliRunner().invoke(
        cli, ["pipeline", "export", "--store", str(store), "--to", table, "--master", "here", "--json"]
    )
    assert exported.exit_code == 0, exported.output
    words = ("--into", tmp_path / "t", "--record", tmp_path / "r", "--master", "here", "--json")
    found = run("--table", table, "--topic", "orders", "--queue", "1", *words)
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["done"]["messages"] == 15


def test_history_is_replayed_to_a_running_broker(store: Path, tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "broker") as broker:
        words: list[str | Path] = [
            "--store",
            store,
            "--namesrv",
            broker.name_server,
            "--to-topic",
            "again",
            "--rate",
            "100000/s",
        ]
        words += ["--record", f"file://{tmp_path}/record", "--master", "here", "--json"]
        refused = run(*words)
        assert refused.exit_code == 1
        assert "--create QUEUES" in refused.output
        done = run(*words, "--create", "2")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["done"]["messages"] == 30
        assert [message.body for message in broker.messages("again", 1)] == [b'{"id": %d}' % n for n in range(1, 30, 2)]
        assert json.loads(run(*words).stdout)["done"]["messages"] == 0


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        ([], "say where messages go: --namesrv host:port"),
        (["--into", "t", "--namesrv", "127.0.0.1:9"], "give one of the two"),
        (["--into", "t", "--rate", "fast"], "such as 2000 or 2000/s"),
        (["--into", "t", "--create", "2"], "say where messages go"),
        (["--namesrv", "127.0.0.1:9", "--table", "parquet:/x"], "a history or a table"),
    ],
)
def test_there_is_one_target(words: list[str], reported: str, store: Path, tmp_path: Path) -> None:
    found = run("--store", store, *words, "--record", tmp_path / "r", "--master", "here")
    assert found.exit_code == 1, found.output
    assert reported in found.output


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        ([], "--tier URL, --store DIR, or both"),
        (["--store", "s", "--table", "parquet:/x"], "a history or a table"),
        (["--store", "s", "--property", "x"], "--property is NAME=VALUE"),
        (["--store", "s", "--map", "x"], "expected module:function"),
        (["--store", "s", "--rate", "-1"], "rate of more than 0"),
    ],
)
def test_what_does_not_fit_is_said_in_one_sentence(words: list[str], reported: str, tmp_path: Path) -> None:
    found = run(*words, "--into", tmp_path / "t", "--record", tmp_path / "r", "--master", "here")
    assert found.exit_code == 1, found.output
    assert reported in found.output
    assert "Traceback" not in found.output
