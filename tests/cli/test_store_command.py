"""`tiermq store stat` and `tiermq store check`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tiermq.cli.main import cli
from tiermq.store.readonly.check import CheckReport, check_store

GOLDEN = Path(__file__).parent.parent / "golden"
STORE = GOLDEN / "rocketmq-5.3.3-clean" / "store"


def test_stat_shows_topics_and_the_log() -> None:
    result = CliRunner().invoke(cli, ["store", "stat", str(STORE)])
    assert result.exit_code == 0
    assert "orders" in result.output
    assert "in order" in result.output


def test_stat_as_json_is_one_object() -> None:
    values = json.loads(CliRunner().invoke(cli, ["store", "stat", str(STORE), "--json"]).output)
    assert values["messages"] == 200


def test_a_clean_store_checks_with_exit_code_0() -> None:
    result = CliRunner().invoke(cli, ["store", "check", str(STORE)])
    assert result.exit_code == 0
    assert "clean" in result.output


def test_problems_are_listed_with_exit_code_1(tmp_path: Path) -> None:
    store = Path(shutil.copytree(STORE, tmp_path / "store"))
    shutil.rmtree(store / "consumequeue" / "payments")
    result = CliRunner().invoke(cli, ["store", "check", str(store)])
    assert result.exit_code == 1
    assert "unit_missing" in result.output
    assert "more; --json" in result.output
    values = json.loads(CliRunner().invoke(cli, ["store", "check", str(store), "--json"]).output)
    assert values["clean"] is False
    assert values["problemCount"] == 100


def test_notes_do_not_make_a_crashed_store_bad(tmp_path: Path) -> None:
    store = Path(shutil.copytree(GOLDEN / "rocketmq-5.3.3-crashed" / "store", tmp_path / "store"))
    shutil.rmtree(store / "consumequeue" / "payments")
    result = CliRunner().invoke(cli, ["store", "check", str(store)])
    assert result.exit_code == 0
    assert "notes" in result.output


@pytest.mark.parametrize("command", ["stat", "check"])
def test_a_folder_that_is_no_store_gives_exit_code_2(tmp_path: Path, command: str) -> None:
    result = CliRunner().invoke(cli, ["store", command, str(tmp_path)])
    assert result.exit_code == 2
    assert "expected a store directory" in result.output


def test_a_commit_log_elsewhere_is_taken_in(tmp_path: Path) -> None:
    store = Path(shutil.copytree(STORE, tmp_path / "store"))
    (tmp_path / "disk2").mkdir()
    (store / "commitlog").rename(tmp_path / "disk2" / "commitlog")
    assert CliRunner().invoke(cli, ["store", "check", str(store)]).exit_code == 1
    words = ["store", "check", str(store), "--log", str(tmp_path / "disk2" / "commitlog")]
    assert CliRunner().invoke(cli, words).exit_code == 0


@pytest.mark.parametrize("watched", [True, False])
def test_progress_is_shown_only_where_somebody_watches(monkeypatch: pytest.MonkeyPatch, watched: bool) -> None:
    asked: list[bool] = []

    def spying(*arguments: Any, **options: Any) -> CheckReport:
        asked.append(options.get("progress") is not None)
        return check_store(*arguments, **options)

    monkeypatch.setattr("tiermq.cli.store.is_watched", lambda: watched)
    monkeypatch.setattr("tiermq.cli.store.check_store", spying)
    result = CliRunner().invoke(cli, ["store", "check", str(STORE)])
    assert result.exit_code == 0
    assert asked == [watched]
