"""The data files of an exported table, in the order in which they were exported: what a replay reads."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.parquet as pq

from tiermq.errors import BadOption, BadSchema
from tiermq.spark.tables.commit_journal import FOLDER
from tiermq.spark.tables.data_place import DataPlace, FoundFile
from tiermq.spark.tables.table_target import open_table


def table_files(to: str, catalog: str | None, columns: Sequence[str]) -> tuple[DataPlace, list[FoundFile]]:
    """Where the table lies, and its files by name. Raises BadOption, and BadSchema when a column misses."""
    table = open_table(to, catalog=catalog)
    there = table.number()
    place = table.place
    names = None
    if table.kind == "delta":
        from tiermq.spark.tables.table_delta import delta_files

        names = delta_files(place)
    elif table.kind == "iceberg":
        from tiermq.spark.tables.table_iceberg import iceberg_files

        names = iceberg_files(to.partition(":")[2], catalog or "", place)
    files = [
        file for file in place.files() if file.name.endswith(".parquet") and not file.name.startswith(f"{FOLDER}/")
    ]
    if names is not None:
        files = [file for file in files if file.name in names]
    if not there and not files:
        raise BadOption(f"{to}: expected a table that was exported, found none; export to it first")
    files.sort(key=lambda file: file.name.rsplit("/", 1)[-1])
    if files:
        with place.open(files[0].name) as stream:
            missing = [name for name in columns if name not in pq.read_schema(stream).names]
        if missing:
            raise BadSchema(
                f"{to}: a replay needs the columns {', '.join(columns)}, and the table has no {', '.join(missing)}; "
                "export it with them (--keep-body where bodies were made columns)"
            )
    return place, files
