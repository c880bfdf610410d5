"""UpsertRule: which messages of a topic are versions of one row, which of them is the last, and which deletes the row.

The last write of a key is the one with the largest (store time, queue offset, broker, queue). The order is stored in
the row itself, so that a late message, or an earlier range exported later, never replaces a newer row. Deleted keys
are kept with their order beside the table, for the same reason.

Keys are spread over buckets by the CRC-32 of their text. A data file has keys of one bucket, which its name contains:

    data/b00003of00016-….parquet        a file of another name, or of another number of buckets, has keys of any
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tiermq.errors import BadOption

KEY_COLUMN = "messageKey"
"""The key column of a table that is keyed by messages' own keys."""
DELETED = "_deleted"
ORDER = ("storeTimestamp", "queueOffset", "brokerName", "queueId")
BUCKETS = 16
_FILE = re.compile(r"(?:.*/)?b(\d{5})of(\d{5})-[^/]*")


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Which messages delete: `empty` bodies, `tag`, `column` with a value (as text), or `none`."""

    kind: str = "empty"
    name: str = ""
    value: str = ""

    @classmethod
    def of(cls, text: str) -> Tombstone:
        """`empty`, `none`, `tag:TAG` or `column:NAME=VALUE`. Raises BadOption."""
        kind, _, rest = text.partition(":")
        name, equals, value = rest.partition("=")
        if kind in ("empty", "none") and not rest:
            return cls(kind)
        if kind == "tag" and rest:
            return cls(kind, "tags", rest)
        if kind == "column" and name and equals:
            return cls(kind, name, value)
        raise BadOption(f"expected a tombstone of empty, none, tag:TAG or column:NAME=VALUE, found {text!r}")

    def __str__(self) -> str:
        rest = {"tag": f":{self.value}", "column": f":{self.name}={self.value}"}
        return self.kind + rest.get(self.kind, "")

    def marks(self, values: pa.Array) -> pa.Array:
        """Which of these values of the tag or the column delete."""
        return pc.fill_null(pc.equal(pc.cast(values, pa.string()), self.value), False)


@dataclass(frozen=True, slots=True)
class UpsertRule:
    """`key` is a column of the table: of the body, or KEY_COLUMN."""

    key: str = KEY_COLUMN
    tombstone: Tombstone = Tombstone()
    buckets: int = BUCKETS

    @property
    def is_of_keys(self) -> bool:
        return self.key == KEY_COLUMN

    def as_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> UpsertRule:
        found = json.loads(text)
        return cls(found["key"], Tombstone(**found["tombstone"]), found["buckets"])

    def prefix(self, bucket: int) -> str:
        return f"b{bucket:05d}of{self.buckets:05d}-"

    def bucket_of_file(self, name: str) -> int | None:
        """None for a file that may have keys of any bucket."""
        found = _FILE.fullmatch(name)
        return int(found[1]) if found and int(found[2]) == self.buckets else None

    def bucket_numbers(self, keys: pa.Array | pa.ChunkedArray) -> Any:
        texts = pc.cast(keys, pa.string()).to_pylist()
        return np.fromiter((zlib.crc32(text.encode()) % self.buckets for text in texts), np.int64, len(texts))

    def graves_schema(self, table: pa.Schema) -> pa.Schema:
        """The columns of a file of deleted keys."""
        return pa.schema([table.field(name) for name in dict.fromkeys((self.key, *ORDER))])


def require_key_type(kind: pa.DataType, name: str) -> None:
    """Raises BadOption."""
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind)):
        raise BadOption(f"key {name}: expected a column of texts or whole numbers, found {kind}; choose another key")


def last_per_key(rows: pa.Table, key: str) -> pa.Table:
    """The last write of each key, sorted by key."""
    if not rows.num_rows:
        return rows
    order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in (key, *ORDER)])
    keys = pc.take(rows.column(key), order).combine_chunks()
    is_last: Any = np.append(pc.not_equal(keys[:-1], keys[1:]).to_numpy(zero_copy_only=False), True)
    return rows.take(order.filter(pa.array(is_last)))


def fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows with the columns of a schema: absent ones are null, others are cast."""
    columns = []
    for field in schema:
        if field.name in rows.column_names:
            found = rows.column(field.name)
            columns.append(found if found.type == field.type else found.cast(field.type))
        else:
            columns.append(pa.chunked_array([pa.nulls(rows.num_rows, field.type)]))
    return pa.table(columns, schema=schema)
