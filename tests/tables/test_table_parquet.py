"""The Parquet table: its files, and the number of the last commit in its journal."""

from __future__ import annotations

from pathlib import Path

from tables.table_conformance import TableConformance
from tiermq.tables.table_contract import ExportTable
from tiermq.tables.table_files import open_table


class TestParquetTable(TableConformance):
    def opened(self, path: Path) -> ExportTable:
        return open_table(f"parquet:{path}/t")
