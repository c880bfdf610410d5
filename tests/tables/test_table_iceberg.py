"""The Iceberg table: files and the number of the commit in one transaction."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tables.table_conformance import SCHEMA, TableConformance, commit, file_in
from tiermq.tables.table_contract import ExportTable
from tiermq.tables.table_files import open_table
from tiermq.tables.table_iceberg import open_catalog, warehouse_of


@pytest.fixture
def table(tmp_path: Path) -> ExportTable:
    return opened(tmp_path)


def opened(path: Path) -> ExportTable:
    return open_table("iceberg:lake.t", catalog=f"sqlite:///{path}/c.db")


class TestIcebergTable(TableConformance):
    def opened(self, path: Path) -> ExportTable:
        return opened(path)

    def require_rows(self, table: ExportTable, count: int) -> None:
        assert rows_in(table) == count


def rows_in(table: ExportTable) -> int:
    catalog = open_catalog(f"sqlite:///{Path(table.place.path).parent.parent}/c.db", None)
    return int(catalog.load_table("lake.t").scan().count())


def test_the_snapshot_reports_which_commit_it_is(table: ExportTable, tmp_path: Path) -> None:
    table.create(SCHEMA)
    commit(table, 7, 0, file_in(table, "data/a.parquet"))
    snapshot = open_catalog(f"sqlite:///{tmp_path}/c.db", None).load_table("lake.t").current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary["tiermq.commit"] == "7"


def test_a_table_of_another_writer_is_taken_as_it_is(table: ExportTable, tmp_path: Path) -> None:
    catalog = open_catalog(f"sqlite:///{tmp_path}/c.db", None)
    catalog.create_namespace("lake")
    catalog.create_table("lake.t", schema=SCHEMA)
    commit(table, 7, 0, file_in(table, "data/a.parquet"))
    assert (table.number(), rows_in(table)) == (7, 2)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_table_in_use_keeps_no_connection_to_its_catalogue_open(table: ExportTable, tmp_path: Path) -> None:
    table.create(SCHEMA)
    commit(table, 7, 0, file_in(table, "data/a.parquet"))
    assert table.number() == 7
    left = [name for each in Path("/proc/self/fd").iterdir() if (name := name_of(each)).startswith(f"{tmp_path}/c.db")]
    assert left == []


def name_of(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except FileNotFoundError:  # That of the listing.
        return ""


def test_a_warehouse_is_as_reported_or_beside_the_catalogue(tmp_path: Path) -> None:
    assert warehouse_of("sqlite:////lake/c.db", None) == "file:///lake"
    assert warehouse_of("prod", "s3://lake/") == "s3://lake"
    assert warehouse_of("prod", None) is None
