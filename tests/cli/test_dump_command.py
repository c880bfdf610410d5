"""`tiermq dump`: JSON lines and exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from click.testing import CliRunner

from tiermq.cli.dump import ROW_KINDS
from tiermq.cli.main import cli

STORE = Path(__file__).parent.parent / "golden" / "rocketmq-5.3.3-clean" / "store"
TIER = Path(__file__).parent.parent / "golden" / "rocketmq-5.3.3-tier" / "tier"


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


def test_a_tier_becomes_json_lines_too() -> None:
    result = CliRunner().invoke(cli, ["dump", str(TIER), "--kind", "record"])
    assert result.exit_code == 0
    rows = [json.loads(line) for line in result.output.splitlines()]
    assert len(rows) == 116
    assert rows[0]["file"].startswith("212d6b50_DefaultCluster/broker-a/")


def test_one_file_of_a_tier_is_known_by_its_path() -> None:
    path = next(TIER.rglob("orders/0/CONSUME_QUEUE/*"))
    rows = [json.loads(line) for line in CliRunner().invoke(cli, ["dump", str(path)]).output.splitlines()]
    assert {(row["kind"], row["topic"], row["queueId"]) for row in rows} == {("unit", "orders", 0)}


def test_the_tiers_own_files_in_a_store_directory_are_shown_once(tmp_path: Path) -> None:
    store = Path(shutil.copytree(STORE, tmp_path / "store"))
    shutil.copytree(TIER.parent / "open_index", store / "tiered_index_file")
    result = CliRunner().invoke(cli, ["dump", str(store), "--slots", "16", "--kind", "tier_index_header"])
    headers = [json.loads(line)["file"] for line in result.output.splitlines()]
    assert len(headers) == len(set(headers)) == 5
    others = CliRunner().invoke(cli, ["dump", str(store), "--kind", "other"]).output
    assert "tiered_index_file" not in others


def test_dumping_changes_nothing() -> None:
    before = {path: path.stat().st_mtime_ns for path in STORE.rglob("*")}
    CliRunner().invoke(cli, ["dump", str(STORE)])
    assert {path: path.stat().st_mtime_ns for path in STORE.rglob("*")} == before
