"""The Delta table: files and the number of the commit in one transaction."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tiermq.errors import TableConflict
from tiermq.spark.tables.commit_journal import Commit, CommitJournal
from tiermq.spark.tables.exported_ranges import ExportedRanges
from tiermq.spark.tables.table_contract import DataFile, ExportTable
from tiermq.spark.tables.table_delta import storage_options
from tiermq.spark.tables.table_target import open_table

SCHEMA = pa.schema([("queueOffset", pa.int64()), ("body", pa.binary())])


@pytest.fixture
def table(tmp_path: Path) -> ExportTable:
    return opened(tmp_path)


def opened(path: Path) -> ExportTable:
    return open_table(f"delta:{path}/t")


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
    return int(DeltaTable(table.place.path).count())


def test_a_commit_of_somebody_else_in_between_is_no_conflict(table: ExportTable, tmp_path: Path) -> None:
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
