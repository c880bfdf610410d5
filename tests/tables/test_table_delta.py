"""The Delta table: files and the number of the commit in one transaction."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tables.table_conformance import SCHEMA, TableConformance, commit, file_in
from tiermq.tables.table_contract import ExportTable
from tiermq.tables.table_delta import storage_options
from tiermq.tables.table_files import open_table


@pytest.fixture
def table(tmp_path: Path) -> ExportTable:
    return opened(tmp_path)


def opened(path: Path) -> ExportTable:
    return open_table(f"delta:{path}/t")


class TestDeltaTable(TableConformance):
    def opened(self, path: Path) -> ExportTable:
        return opened(path)

    def require_rows(self, table: ExportTable, count: int) -> None:
        assert rows_in(table) == count


def rows_in(table: ExportTable) -> int:
    return int(DeltaTable(table.place.path).count())


def test_a_commit_of_another_writer_in_between_is_no_conflict(table: ExportTable, tmp_path: Path) -> None:
    table.create(SCHEMA)
    commit(table, 7, 0, file_in(table, "data/a.parquet"))
    write_deltalake(table.place.path, pa.table({"queueOffset": [9], "body": [b"y"]}, schema=SCHEMA), mode="append")
    commit(table, 9, 7, file_in(table, "data/b.parquet"))
    assert (table.number(), rows_in(table)) == (9, 5)


def test_the_number_outlives_a_checkpoint(table: ExportTable) -> None:
    table.create(SCHEMA)
    commit(table, 7, 0, file_in(table, "data/a.parquet"))
    DeltaTable(table.place.path).create_checkpoint()
    assert table.number() == 7


def test_options_of_an_endpoint_of_one_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.delenv("AWS_ENDPOINT", raising=False)
    assert storage_options() == {}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert storage_options()["AWS_ALLOW_HTTP"] == "true"
