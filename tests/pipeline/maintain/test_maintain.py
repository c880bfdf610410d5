"""Maintenance of exported tables: fewer files and versions, the same rows in the same order."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from tables.table_world import TableWorld
from tiermq.cli.main import cli
from tiermq.errors import TableConflict
from tiermq.pipeline.maintain.job import maintain, plan_groups
from tiermq.spark import SparkRunner
from tiermq.tables.table_delta import DeltaLakeTable
from tiermq.tables.table_files import open_table, table_files
from tiermq.tables.table_iceberg import IcebergTable, open_catalog


@pytest.fixture(params=["delta", "iceberg"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> TableWorld:
    made = TableWorld(tmp_path, request.param)
    for _ in range(4):
        made.put(10)
        made.put(4, topic="returns")
        made.export()
    return made


def options(world: TableWorld) -> dict[str, Any]:
    return {("table" if name == "to" else name): value for name, value in world.to.items()}


def run(world: TableWorld, *words: str) -> Result:
    named = [f"--{name}={value}" for name, value in options(world).items()]
    return CliRunner().invoke(cli, ["pipeline", "maintain", *named, "--master", "here", "--json", *words])


def data_files(world: TableWorld) -> set[str]:
    root = world.root if world.kind == "delta" else world.path / "lake" / "orders"
    return {path.relative_to(root).as_posix() for path in root.rglob("*.parquet") if "_tiermq" not in path.parts}


def test_small_files_become_one_for_each_partition_and_old_ones_go(world: TableWorld) -> None:
    before, rows = data_files(world), world.rows()
    looked = json.loads(run(world, "--dry-run").stdout)
    assert (looked["planned"]["smallFiles"], looked["done"]) == (len(before), {})
    assert data_files(world) == before
    done = json.loads(run(world).stdout)["done"]
    partitions = 2 if world.kind == "iceberg" else 1
    assert (done["smallFiles"], done["files"], done["rows"]) == (len(before), partitions, len(rows))
    assert done["oldFiles"] == 0, "versions of less than a week are kept"
    assert before < data_files(world)
    assert world.rows() == rows == world.wanted()
    gone = json.loads(run(world, "--keep", "0h", "--force").stdout)["done"]
    assert gone["oldFiles"] >= len(before)
    assert data_files(world) == set(open_table(**world.to).files())
    assert len(data_files(world)) == partitions
    assert world.rows() == rows


def test_exports_and_replays_go_on_after_it(world: TableWorld) -> None:
    assert run(world, "--keep", "0h", "--force").exit_code == 0
    assert world.export().planned["messages"] == 0
    world.put(6)
    assert world.export().done["messages"] == 6
    assert world.rows() == world.wanted()
    catalog = world.to.get("catalog")
    _, files, notes = table_files(world.to["to"], catalog, ("queueOffset",))
    assert (len(files), notes) == (3 if world.kind == "iceberg" else 2, ())
    names = [file.name for file in files]
    offsets: dict[tuple[str, int], list[int]] = {}
    place = open_table(**world.to).place
    for name in names:
        for row in pq.read_table(f"{place.path}/{name}", partitioning=None).to_pylist():
            offsets.setdefault((row["topic"], row["queueId"]), []).append(row["queueOffset"])
    assert all(found == list(range(len(found))) for found in offsets.values())


def test_files_without_a_commit_go_when_they_are_old_and_stay_when_they_are_young(world: TableWorld) -> None:
    root = world.root if world.kind == "delta" else world.path / "lake" / "orders"
    for name in ("old", "young"):
        (root / "data" / f"{name}.parquet").write_bytes(b"of an export that died")
    os.utime(root / "data" / "old.parquet", (1e9, 1e9))
    found = json.loads(run(world, "--no-compact").stdout)
    assert found["details"]["expired"] == ["data/old.parquet"]
    assert not (root / "data" / "old.parquet").exists()
    assert (root / "data" / "young.parquet").exists()
    assert world.rows() == world.wanted()


def test_an_export_that_commits_meanwhile_keeps_its_rows(world: TableWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    kind: Any = DeltaLakeTable if world.kind == "delta" else IcebergTable
    replace = kind.replace

    def meanwhile(self: Any, *arguments: Any) -> None:
        world.put(8)
        world.export()
        replace(self, *arguments)

    monkeypatch.setattr(kind, "replace", meanwhile)
    maintain(None, **options(world))
    assert world.rows() == world.wanted()
    assert world.export().planned["messages"] == 0


def test_files_that_went_meanwhile_are_a_conflict_and_nothing_is_committed(
    world: TableWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind: Any = DeltaLakeTable if world.kind == "delta" else IcebergTable
    replace = kind.replace

    def meanwhile(self: Any, *arguments: Any) -> None:
        monkeypatch.setattr(kind, "replace", replace)
        maintain(None, **options(world))
        replace(self, *arguments)

    monkeypatch.setattr(kind, "replace", meanwhile)
    with pytest.raises(TableConflict, match="another program has rewritten it"):
        maintain(None, **options(world))
    assert world.rows() == world.wanted()


def test_a_large_file_stays_and_parts_what_is_around_it(tmp_path: Path) -> None:
    world = TableWorld(tmp_path, "delta")
    for count in (5, 5, 900, 5, 5):
        world.put(count, queues=1, body="%d" + "x" * 50)
        world.export()
    groups = plan_groups(open_table(**world.to), 20_000)
    assert [len(group) for group in groups] == [2, 2]
    maintain(None, **options(world), file_bytes=20_000)
    assert world.rows() == world.wanted()


def test_an_upserted_table_keeps_its_files_and_loses_old_versions(tmp_path: Path) -> None:
    world = TableWorld(tmp_path, "delta")
    for _ in range(3):
        world.put(10, queues=1)
        world.export(upsert=True, topic="orders")
    found = json.loads(run(world, "--keep", "0h", "--force").stdout)
    assert "the table is upserted" in found["details"]["notes"][0]
    assert found["done"]["oldFiles"] > 0
    assert data_files(world) == set(open_table(**world.to).files())
    assert len(world.rows()) == 10


def test_what_is_not_safe_is_refused_in_words(world: TableWorld, tmp_path: Path) -> None:
    refused = run(world, "--keep", "1d")
    assert (refused.exit_code, "a running query or export may need their files" in refused.output) == (1, True)
    for table, reported in (
        (f"delta:{tmp_path}/nothing", "found none"),
        (f"parquet:{tmp_path}/nothing", "cannot be replaced in one step"),
    ):
        found = CliRunner().invoke(cli, ["pipeline", "maintain", "--table", table, "--master", "here"])
        assert (found.exit_code, reported in found.output, "Traceback" in found.output) == (1, True, False)


def test_spark_compacts_on_executors(spark: Any, world: TableWorld) -> None:
    report = maintain(SparkRunner(spark), **options(world))
    assert report.done["files"] >= 1
    assert world.rows() == world.wanted()
    if world.kind == "iceberg":
        table = open_catalog(world.catalog, None).load_table("lake.orders")
        assert {task.file.partition[0] for task in table.scan().plan_files()} == {"orders", "returns"}
