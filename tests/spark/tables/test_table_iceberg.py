"""The Iceberg table: files and the number of the commit in one transaction."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tiermq.errors import TableConflict
from tiermq.spark.tables.commit_journal import Commit, CommitJournal
from tiermq.spark.tables.exported_ranges import ExportedRanges
from tiermq.spark.tables.table_contract import DataFile, ExportTable
from tiermq.spark.tables.table_iceberg import open_catalog, warehouse_of
from tiermq.spark.tables.table_target import open_table

SCHEMA = pa.schema([("queueOffset", pa.int64()), ("body", pa.binary())])


@pytest.fixture
def table(tmp_path: Path) -> ExportTable:
    return opened(tmp_path)


def opened(path: Path) -> ExportTable:
    return open_table("iceberg:lake.t", catalog=f"sqlite:///{path}/c.db")


def file_in(table: ExportTable, name: str, rows: int = 2) -> DataFile:
    data = pa.table({"queueOffset": list(range(rows)), "body": [b"x"] * rows}, schema=SCHEMA)
    path = Path(table.place.path) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(data, path)
    return DataFile(name, path.stat().st_size, rows, {"queueOffset": 0}, {"queueOffset": rows - 1})


def commit(table: ExportTable, number: int, previous: int, *files: DataFile) -> None:
    CommitJournal(table.place).write(Commit(number, ExportedRanges(), SCHEMA))
    table.commit(number, previous, files, SCHEMA)


def test_a_new_table_has_no_commit_and_then_the_last_one(table: ExportTable, tmp_path: Path) -> None:
    assert (table.number(), table.schema()) == (0, None)
    table.create(SCHEMA)
    table.create(SCHEMA)
    commit(table, 7, 0, file_in(table, "data/a.parquet"))
    commit(table, 9, 7, file_in(table, "data/b.parquet"))
    assert opened(tmp_path).number() == 9
    found = opened(tmp_path).schema()
    assert found is not None
    assert found.names == SCHEMA.names


def test_a_commit_that_is_repeated_happens_once(table: ExportTable) -> None:
    table.create(SCHEMA)
    file = file_in(table, "data/a.parquet")
    commit(table, 7, 0, file)
    table.commit(7, 0, [file], SCHEMA)
    assert table.number() == 7
    assert rows_in(table) == 2


def test_a_commit_after_another_one_than_expected_adds_nothing(table: ExportTable, tmp_path: Path) -> None:
    table.create(SCHEMA)
    other = opened(tmp_path)
    commit(table, 7, 0, file_in(table, "data/a.parquet"))
    with pytest.raises(TableConflict, match="another export"):
        commit(other, 8, 0, file_in(table, "data/b.parquet"))
    assert table.number() == 7
    assert rows_in(table) == 2


def rows_in(table: ExportTable) -> int:
    catalog = open_catalog(f"sqlite:///{Path(table.place.path).parent.parent}/c.db", None)
    return int(catalog.load_table("lake.t").scan().count())


def test_the_snapshot_says_which_commit_it_is(table: ExportTable, tmp_path: Path) -> None:
    table.create(SCHEMA)
    commit(table, 7, 0, file_in(table, "data/a.parquet"))
    snapshot = open_catalog(f"sqlite:///{tmp_path}/c.db", None).load_table("lake.t").current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary["tiermq.commit"] == "7"


def test_a_table_that_somebody_made_is_taken_as_it_is(table: ExportTable, tmp_path: Path) -> None:
    catalog = open_catalog(f"sqlite:///{tmp_path}/c.db", None)
    catalog.create_namespace("lake")
    catalog.create_table("lake.t", schema=SCHEMA)
    commit(table, 7, 0, file_in(table, "data/a.parquet"))
    assert (table.number(), rows_in(table)) == (7, 2)


def test_a_warehouse_is_as_said_or_beside_the_catalogue(tmp_path: Path) -> None:
    assert warehouse_of("sqlite:////lake/c.db", None) == "file:///lake"
    assert warehouse_of("prod", "s3://lake/") == "s3://lake"
    assert warehouse_of("prod", None) is None
