"""`tiermq pipeline export`, as somebody types it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from tiermq.cli.main import cli


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["pipeline", "export", *map(str, words)])


def test_a_dry_run_then_a_run_then_nothing_left(store: Path, tmp_path: Path) -> None:
    words = ("--store", store, "--to", f"parquet:{tmp_path}/t", "--master", "here")
    looked = run(*words, "--dry-run")
    assert looked.exit_code == 0, looked.output
    assert "DefaultCluster/broker-a/orders/0: 0..15" in looked.output
    assert not (tmp_path / "t").exists()
    done = json.loads(run(*words, "--json").stdout)
    assert done["done"]["messages"] == 30
    assert json.loads(run(*words, "--json").stdout)["planned"]["messages"] == 0


def test_bodies_become_columns(store: Path, tmp_path: Path) -> None:
    words = ("--store", store, "--to", f"parquet:{tmp_path}/t", "--master", "here", "--offsets", "0:5")
    found = run(
        *words, "--body", "json", "--schema", "id bigint", "--prefix", "order_", "--columns", "queueId,queueOffset"
    )
    assert found.exit_code == 0, found.output
    table = pq.read_table(tmp_path / "t")
    assert table.column_names == ["queueId", "queueOffset", "order_id"]
    assert sorted(table.column("order_id").to_pylist()) == list(range(10))


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["--to", "parquet:/x"], "--tier URL, --store DIR, or both"),
        (["--store", "s", "--to", "csv:/x"], "expected a table such as"),
        (["--store", "s", "--to", "parquet:/x", "--schema", "a int"], "need --body"),
        (["--store", "s", "--to", "parquet:/x", "--body", "json"], "needs --schema"),
        (["--store", "s", "--to", "parquet:/x", "--body", "json", "--schema", "a nothing"], "expected a type"),
        (["--store", "s", "--to", "parquet:/x", "--offsets", "5"], "--offsets is FROM:TO"),
        (["--store", "s", "--to", "parquet:/x", "--trigger", "soon"], "a time such as"),
    ],
)
def test_what_does_not_fit_is_said_in_one_sentence(words: list[str], reported: str) -> None:
    found = run(*words, "--master", "here")
    assert found.exit_code == 1, found.output
    assert reported in found.output
    assert "Traceback" not in found.output
