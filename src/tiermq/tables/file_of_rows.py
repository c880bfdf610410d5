"""FileOfRows: one Parquet file of a table, written as its rows come, with statistics for readers that skip files."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tiermq.tables.data_place import DataPlace
from tiermq.tables.table_contract import DataFile

PLACE_COLUMNS = ("topic", "brokerName", "queueId", "queueOffset", "storeTimestamp")
_STATISTICS = (*PLACE_COLUMNS, "tags", "bornTimestamp")
ROW_GROUP_BYTES = 64 << 20
_REPEATING = ("topic", "brokerName", "queueId", "tags", "bornHost", "storeHost", "flag", "sysFlag", "reconsumeTimes",
              "storeSize", "tagsCode", "transactionState", "tier", "segment", "properties.key_value.key")  # fmt: skip
"""Columns with repeated values: a dictionary of other columns costs time and saves nothing."""


class FileOfRows:
    """A Parquet file that is made with its first row. Rows are gathered until they fill a row group.

    `key` names one more column with statistics. Belongs to one thread.
    """

    def __init__(
        self, stack: ExitStack, place: DataPlace, name: str, schema: pa.Schema, group_bytes: int, key: str = ""
    ) -> None:
        self.name = name
        self.rows = 0
        self.buckets: list[int] = []
        self._statistics = (*_STATISTICS, key)
        self._stack = stack
        self._place = place
        self._schema = schema
        self._group_bytes = group_bytes
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._stream: Any = None
        self._writer: pq.ParquetWriter | None = None
        self._size = 0
        self._least: dict[str, Any] = {}
        self._most: dict[str, Any] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self.rows += batch.num_rows
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= self._group_bytes:
            self._write()

    def end(self, footer: dict[bytes, bytes] | None = None) -> None:
        if self._waiting:
            self._write()
        if self._writer is not None:
            self._writer.add_key_value_metadata(footer or {})
            self._writer.close()
            self._size = self._stream.tell()

    def written(self) -> DataFile | None:
        if self._writer is None:
            return None
        return DataFile(self.name, self._size, self.rows, _plain(self._least, up=False), _plain(self._most, up=True))

    def _write(self) -> None:
        table = pa.Table.from_batches(self._waiting, self._schema)
        self._waiting, self._waiting_bytes = [], 0
        if self._writer is None:
            self._stream = self._stack.enter_context(self._place.create(self.name))
            names = set(self._schema.names)
            self._writer = pq.ParquetWriter(
                self._stream,
                self._schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=[each for each in _REPEATING if each.split(".")[0] in names],
                write_statistics=[each for each in self._schema.names if self._has_statistics(each)],
            )
        for group in self._groups(table):
            self._writer.write_table(group, row_group_size=group.num_rows)
        for name in self._statistics:
            if name in self._schema.names:
                self._note(name, table.column(name))

    def _groups(self, table: pa.Table) -> Iterator[pa.Table]:
        """The row groups of these rows."""
        yield table

    def _has_statistics(self, name: str) -> bool:
        kind = self._schema.field(name).type
        return name in self._statistics or pa.types.is_primitive(kind)

    def _note(self, name: str, column: pa.ChunkedArray) -> None:
        found = pc.min_max(column).as_py()
        if found["min"] is not None:
            self._least[name] = min(found["min"], self._least.get(name, found["min"]))
            self._most[name] = max(found["max"], self._most.get(name, found["max"]))


def _plain(values: dict[str, Any], *, up: bool) -> dict[str, Any]:
    """Times as texts of whole milliseconds, which is what Delta's statistics hold; the largest are rounded up."""
    made = {}
    for name, value in values.items():
        if isinstance(value, dt.datetime):
            ms = value.microsecond // 1000 * 1000
            moment = value.replace(microsecond=ms) + dt.timedelta(
                milliseconds=1 if up and ms != value.microsecond else 0
            )
            made[name] = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        else:
            made[name] = value
    return made
