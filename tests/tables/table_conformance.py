"""What every table promises an export, whatever its kind: commits are numbered, happen once and in order."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tiermq.errors import TableConflict
from tiermq.tables.commit_journal import Commit, CommitJournal, ExportedRanges
from tiermq.tables.table_contract import DataFile, ExportTable

SCHEMA = pa.schema([("queueOffset", pa.int64()), ("body", pa.binary())])


def file_in(table: ExportTable, name: str, rows: int = 2) -> DataFile:
    data = pa.table({"queueOffset": list(range(rows)), "body": [b"x"] * rows}, schema=SCHEMA)
    path = Path(table.place.path) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(data, path)
    return DataFile(name, path.stat().st_size, rows, {"queueOffset": 0}, {"queueOffset": rows - 1})


def commit(table: ExportTable, number: int, previous: int, *files: DataFile) -> None:
    CommitJournal(table.place).write(Commit(number, ExportedRanges(), SCHEMA))
    table.commit(number, previous, files, SCHEMA)


class TableConformance:
    """Derive, and say how a table of the kind is opened and, where it says so itself, how many rows it has."""

    def opened(self, path: Path) -> ExportTable:
        raise NotImplementedError

    def require_rows(self, table: ExportTable, count: int) -> None:
        """A table that is its files alone has no word of its own on them."""

    @pytest.fixture
    def table(self, tmp_path: Path) -> ExportTable:
        return self.opened(tmp_path)

    def test_a_new_table_has_no_commit_and_then_the_last_one(self, table: ExportTable, tmp_path: Path) -> None:
        assert (table.number(), table.schema()) == (0, None)
        table.create(SCHEMA)
        table.create(SCHEMA)
        commit(table, 7, 0, file_in(table, "data/a.parquet"))
        commit(table, 9, 7, file_in(table, "data/b.parquet"))
        assert self.opened(tmp_path).number() == 9
        found = self.opened(tmp_path).schema()
        assert found is not None
        assert found.names == SCHEMA.names

    def test_a_commit_that_is_repeated_happens_once(self, table: ExportTable) -> None:
        table.create(SCHEMA)
        file = file_in(table, "data/a.parquet")
        commit(table, 7, 0, file)
        table.commit(7, 0, [file], SCHEMA)
        assert table.number() == 7
        self.require_rows(table, 2)

    def test_a_commit_after_another_one_than_expected_adds_nothing(self, table: ExportTable, tmp_path: Path) -> None:
        table.create(SCHEMA)
        other = self.opened(tmp_path)
        commit(table, 7, 0, file_in(table, "data/a.parquet"))
        with pytest.raises(TableConflict, match="another export"):
            commit(other, 8, 0, file_in(table, "data/b.parquet"))
        assert table.number() == 7
        self.require_rows(table, 2)
