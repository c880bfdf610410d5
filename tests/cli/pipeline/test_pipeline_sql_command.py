"""`tiermq pipeline sql`, as somebody types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tiermq import Message
from tiermq.cli.main import cli
from tiermq.cli.pipeline.sql import show_rows
from tiermq.pipeline.job_report import JobReport
from tiermq.store.local_store import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with LocalStore.open(tmp_path / "s", background=False) as opened:
        opened.put(Message("orders", b"x", 0))
        opened.dispatch_now()
    return tmp_path / "s"


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["pipeline", "sql", *map(str, words)])


def test_a_dry_run_says_what_would_be_read_without_starting_spark(store: Path) -> None:
    found = run("select body from orders", "--store", store, "--dry-run")
    assert found.exit_code == 0, found.output
    assert "orders:" in found.output
    assert "1 queue," in found.output
    report = json.loads(run("select body from orders", "--store", store, "--dry-run", "--json").stdout)
    assert report["details"]["columnsRead"] == ["body"]


def test_what_cannot_be_asked_is_said_in_one_sentence(store: Path) -> None:
    assert "--tier URL, --store DIR, or both" in run("select 1").output
    here = run("select 1", "--store", store, "--master", "here")
    assert (here.exit_code, "SQL needs Spark" in here.output) == (1, True)
    other = run("select 1", "--store", store, "--topic", "order", "--dry-run")
    assert "did you mean 'orders'" in other.output


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ("csv", 'a,b\n1,"{""x"": [1]}"\n2,\n'),
        ("jsonl", '{"a": 1, "b": {"x": [1]}}\n{"a": 2, "b": null}\n'),
    ],
)
def test_rows_for_programs(form: str, wanted: str, capsys: pytest.CaptureFixture[str]) -> None:
    show_rows(report_of_rows(), form)
    assert capsys.readouterr().out == wanted


def test_rows_for_eyes(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows(report_of_rows(), "table")
    shown = capsys.readouterr()
    assert '{"x": [1]}' in shown.out
    assert "2 rows" in shown.err


def report_of_rows() -> JobReport:
    report = JobReport("sql", "here", done={"messages": 2})
    report.details = {"columns": [{"name": "a"}, {"name": "b"}], "rows": [[1, {"x": [1]}], [2, None]]}
    return report
