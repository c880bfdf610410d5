"""`tiermq dump`: JSON lines and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from tiermq.cli.main import cli
from tiermq.store.inspect import ROW_KINDS

STORE = Path(__file__).parent.parent / "golden" / "rocketmq-5.3.3-clean" / "store"


def test_a_directory_becomes_json_lines() -> None:
    result = CliRunner().invoke(cli, ["dump", str(STORE)])
    assert result.exit_code == 0
    rows = [json.loads(line) for line in result.output.splitlines()]
    assert {"record", "unit", "index_entry", "checkpoint", "config"} <= {row["kind"] for row in rows}


def test_kinds_select_rows() -> None:
    result = CliRunner().invoke(cli, ["dump", str(STORE), "--kind", "checkpoint", "--kind", "lock", "--json"])
    assert sorted(json.loads(line)["kind"] for line in result.output.splitlines()) == ["checkpoint", "lock"]


def test_a_kind_that_does_not_exist_is_refused_with_those_that_do() -> None:
    result = CliRunner().invoke(cli, ["dump", str(STORE), "--kind", "message"])
    assert result.exit_code == 2
    assert "record" in result.output


def test_every_kind_of_row_is_explained_in_the_help() -> None:
    words = CliRunner().invoke(cli, ["dump", "--help"]).output.split()
    assert set(ROW_KINDS) <= set(words)


def test_damage_is_a_line_with_an_error_and_exit_code_1(tmp_path: Path) -> None:
    path = tmp_path / "commitlog" / "00000000000000000000"
    path.parent.mkdir()
    data = bytearray((STORE / "commitlog" / path.name).read_bytes())
    data[95] ^= 1
    path.write_bytes(data)
    result = CliRunner().invoke(cli, ["dump", str(path), "--kind", "damage"])
    assert result.exit_code == 1
    rows = [json.loads(line) for line in result.output.splitlines()]
    assert len(rows) == 1
    assert rows[0]["error"]


def test_a_path_that_does_not_exist_is_a_usage_error(tmp_path: Path) -> None:
    assert CliRunner().invoke(cli, ["dump", str(tmp_path / "nothing")]).exit_code == 2


def test_dumping_changes_nothing() -> None:
    before = {path: path.stat().st_mtime_ns for path in STORE.rglob("*")}
    CliRunner().invoke(cli, ["dump", str(STORE)])
    assert {path: path.stat().st_mtime_ns for path in STORE.rglob("*")} == before
