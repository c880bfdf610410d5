"""`tiermq sql`, as somebody types it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tiermq import Message, TieredStore
from tiermq.cli.main import cli
from tiermq.embedded.duckdb_query import advice
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
    assert "or an age such as 2h" in run("select 1 from orders", "--store", store, "--since", "lately").output


def test_mistakes_are_explained_in_a_sentence(store: Path) -> None:
    assert "give --tier URL, --store DIR, or both" in run("select 1").output
    wrong = run("select nothing from orders", "--store", store)
    assert (wrong.exit_code, "Tables are" in wrong.output) == (1, True)
    assert "did you mean 'orders'" in run("select 1", "--store", store, "--topic", "order").output
    assert "tiermq pipeline sql" in run("--help").output


def test_a_query_that_reads_much_is_answered_with_a_note_about_spark(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = ("select count(body) c from orders", "--store", store)
    assert "spark" not in run(*query).stderr.lower()
    monkeypatch.setattr("tiermq.embedded.duckdb_query.advice", partial(advice, least=1))
    found = run(*query)
    assert (found.exit_code, found.stdout) == (0, "c\n30\n")
    assert "tiermq pipeline sql --master local[*]" in found.stderr
    assert "tiermq pipeline sql" in run(*query, "--dry-run").output


COUNT = "select count(*) from orders"


@pytest.mark.parametrize("own", [30, 5], ids=["longer", "shorter"])
def test_a_store_of_another_broker_is_not_read_under_the_tiers_name(store: Path, tmp_path: Path, own: int) -> None:
    with TieredStore.open(tmp_path / "t", tier=tmp_path / "bucket", broker_name="web") as opened:
        opened.put_many([Message("orders", b"web %d" % n, queue_id=n % 2) for n in range(own)])
    tier = (tmp_path / "bucket").as_uri()
    refused = run(COUNT, "--store", store, "--tier", tier)
    assert refused.exit_code != 0
    assert "expected the store of broker 'web'" in refused.output
    assert "--store DIR=NAME" in refused.output
    named = run(COUNT, "--store", f"{store}=shop", "--tier", tier, "--format", "csv")
    assert named.stdout.endswith(f"\n{30 + own}\n")


def test_a_store_without_its_records_of_a_tier_is_recognised_by_its_messages(tmp_path: Path) -> None:
    with TieredStore.open(tmp_path / "t", tier=tmp_path / "bucket", broker_name="web") as opened:
        opened.put_many([Message("orders", b"%d" % n, queue_id=n % 2) for n in range(30)])
    (tmp_path / "t" / "config" / "tieredStoreMetadata.db").unlink()
    with LocalStore.open(tmp_path / "t") as alone:
        alone.put(Message("orders", b"not uploaded", queue_id=0))
    found = run(COUNT, "--store", tmp_path / "t", "--tier", (tmp_path / "bucket").as_uri(), "--format", "csv")
    assert found.stdout.endswith("\n31\n"), found.output
