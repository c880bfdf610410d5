"""`tiermq sql`, as somebody types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tiermq import Message
from tiermq.cli.main import cli
from tiermq.store.local_store import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with LocalStore.open(tmp_path / "s") as opened:
        opened.put_many([Message("orders", b"%d" % n, queue_id=n % 2, keys=[f"k{n}"], tags="paid") for n in range(30)])
    return tmp_path / "s"


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["sql", *map(str, words)])


def test_a_query_is_answered_without_spark(store: Path) -> None:
    found = run("select queueId, count(*) as n from orders group by queueId order by 1", "--store", store)
    assert found.exit_code == 0, found.output
    assert found.stdout == "queueId  n\n0        15\n1        15\n"
    assert "30 messages read" in found.stderr or "2 rows" in found.stderr
    rows = run("select decode(body) b from orders", "--store", store, "--key", "k7", "--format", "csv").stdout
    assert rows == "b\n7\n"
    lines = run("select decode(body) b from orders limit 1", "--store", store, "--format", "jsonl").stdout
    assert json.loads(lines) == {"b": "0"}


def test_a_report_is_one_json_object(store: Path) -> None:
    report = json.loads(run("select count(*) c from orders", "--store", store, "--json").stdout)
    assert report["details"]["rows"] == [[30]]
    assert report["master"] == "duckdb"


def test_what_would_be_read_is_shown_before_and_after(store: Path) -> None:
    dry = run("select body from orders where queueId = 1", "--store", store, "--dry-run")
    assert "1 queue," in dry.stdout
    explained = run("select body from orders", "--store", store, "--explain")
    assert "30 of 30 messages read" in explained.stderr


def test_ages_choose_messages(store: Path) -> None:
    assert run("select count(*) from orders", "--store", store, "--since", "2h", "--format", "csv").stdout.endswith(
        "30\n"
    )
    assert run("select count(*) from orders", "--store", store, "--until", "2h", "--format", "csv").stdout.endswith(
        "0\n"
    )
    assert "a moment is an age" in run("select 1 from orders", "--store", store, "--since", "lately").output


def test_mistakes_are_explained_in_a_sentence(store: Path) -> None:
    assert "give --tier URL, --store DIR, or both" in run("select 1").output
    wrong = run("select nothing from orders", "--store", store)
    assert (wrong.exit_code, "Tables are" in wrong.output) == (1, True)
    assert "did you mean 'orders'" in run("select 1", "--store", store, "--topic", "order").output
    assert "tiermq pipeline sql" in run("--help").output
