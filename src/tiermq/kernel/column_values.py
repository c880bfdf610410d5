"""What `decode_columns` is asked and what it answers; the same classes for both twins of the kernel.

Names are those of the columns that users see. A column is given as the buffers of Arrow's memory layout, little-endian,
each None where Arrow allows that (no validity bitmap: nothing is null):

    I64, I32     validity, values                       times in microseconds
    TEXT, BYTES  validity, offsets (i32, rows + 1), data
    LIST         validity, offsets, and of the elements: offsets, data
    MAP          validity, offsets, of the names: offsets, data, and of the values: offsets, data
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any


class Shape(enum.Enum):
    """How a column lies in memory."""

    I64 = enum.auto()
    I32 = enum.auto()
    TEXT = enum.auto()
    BYTES = enum.auto()
    LIST = enum.auto()
    MAP = enum.auto()


COLUMN_SHAPES = {
    "queueOffset": Shape.I64,
    "bornTimestamp": Shape.I64,
    "storeTimestamp": Shape.I64,
    "tagsCode": Shape.I64,
    "preparedTransactionOffset": Shape.I64,
    "commitLogOffset": Shape.I64,
    "deliverTime": Shape.I64,
    "flag": Shape.I32,
    "sysFlag": Shape.I32,
    "reconsumeTimes": Shape.I32,
    "bodyCrc": Shape.I32,
    "storeSize": Shape.I32,
    "tags": Shape.TEXT,
    "uniqKey": Shape.TEXT,
    "bornHost": Shape.TEXT,
    "storeHost": Shape.TEXT,
    "msgId": Shape.TEXT,
    "offsetMsgId": Shape.TEXT,
    "transactionState": Shape.TEXT,
    "key": Shape.BYTES,  # KEYS as it stands, not split.
    "body": Shape.BYTES,
    "keys": Shape.LIST,
    "properties": Shape.MAP,
}
"""Every column that is read from records, in the order of the compiled twin's numbers."""


class Check(enum.IntEnum):
    """Which checksums of a record are looked at. Its structure and its place always are."""

    NOTHING = 0
    BODY = 1
    BODY_AND_PROPERTY = 2  # The CRC property too, if there is one. In a tier it is stale: offsets were rewritten.


TIME_MIN_MS = -(1 << 63)
TIME_MAX_MS = (1 << 63) - 1
OWN_PLACES = -(1 << 63)
"""As `log_base`: the records were gathered from anywhere, and each says itself where it lies."""


@dataclass(frozen=True, slots=True)
class ColumnRequest:
    """What is wanted of the records of one run, and what they must be.

    The record at `start` must say of itself that it lies at `log_base + start`, unless that is OWN_PLACES.
    `first_offset`: the queue offset of the run's first record, the others follow one by one; -1: the records say.
    `tags` and `keys`: at least one of them must be the record's tag, one of its keys or its unique key; empty: no
    restriction. Times are inclusive.
    """

    columns: tuple[str, ...]
    topic: bytes
    queue_id: int
    log_base: int = 0
    first_offset: int = -1
    check: Check = Check.BODY
    begin_ms: int = TIME_MIN_MS
    end_ms: int = TIME_MAX_MS
    tags: tuple[bytes, ...] = ()
    keys: tuple[bytes, ...] = ()
    decompress: bool = True
    delays_ms: tuple[int, ...] = ()  # What the levels of the property DELAY mean; level n is element n - 1.

    def __post_init__(self) -> None:
        unknown = [name for name in self.columns if name not in COLUMN_SHAPES]
        if unknown:
            raise ValueError(f"no column of a record is called {unknown[0]!r}; there are {', '.join(COLUMN_SHAPES)}")


class DecodedColumns:
    """Rows as columns. `next_index` is the first record of the run that was not looked at.

    `corrupt` has (row, index in the run, reason) for each row that is damaged: it is null in every column but
    `commitLogOffset` and, where it is known, `queueOffset`.
    """

    __slots__ = ("buffers", "corrupt", "next_index", "rows")

    def __init__(
        self, rows: int, next_index: int, corrupt: list[tuple[int, int, str]], buffers: dict[str, tuple[Any, ...]]
    ) -> None:
        self.rows = rows
        self.next_index = next_index
        self.corrupt = corrupt
        self.buffers = buffers
