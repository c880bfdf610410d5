"""The columns of a message as users see them: names, Arrow types, and the same in Spark's words.

Types are to the letter what Spark's own conversion of the declared schema gives, since Spark refuses a batch whose
types differ in anything: times are microseconds in UTC, elements of lists are called `element`, names of a map are
never null. Everything else may be null: a damaged record has little more than its offset.

Ids: `recordId` is `broker/topic/queue/offset`, always there, unique, and the same wherever a message is read. `msgId`
is the client's unique key, and the `recordId` of a message that has none. `offsetMsgId` is an offset in the commit log
of its broker, which a copy in a tier does not know: null there, and over the wire, where a record may be such a copy.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

import pyarrow as pa

from tiermq.errors import UnknownColumn

TIMESTAMP = pa.timestamp("us", tz="UTC")
CORRUPT = "_corrupt"
"""The column with the reason why a record cannot be read."""
_TEXTS = pa.list_(pa.field("element", pa.string()))
_TEXT_MAP = pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string()))
_HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))

COLUMNS: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "brokerName": pa.string(),
    "queueId": pa.int32(),
    "queueOffset": pa.int64(),
    "tags": pa.string(),
    "keys": _TEXTS,
    "uniqKey": pa.string(),
    "body": pa.binary(),
    "properties": _TEXT_MAP,
    "flag": pa.int32(),
    "sysFlag": pa.int32(),
    "bornTimestamp": TIMESTAMP,
    "bornHost": pa.string(),
    "storeTimestamp": TIMESTAMP,
    "storeHost": pa.string(),
    "recordId": pa.string(),
    "msgId": pa.string(),
    "offsetMsgId": pa.string(),
    "tagsCode": pa.int64(),
    "reconsumeTimes": pa.int32(),
    "preparedTransactionOffset": pa.int64(),
    "bodyCrc": pa.int32(),
    "storeSize": pa.int32(),
    "commitLogOffset": pa.int64(),
    "deliverTime": TIMESTAMP,
    "transactionState": pa.string(),
    "tier": pa.string(),
    "segment": pa.string(),
    "_corrupt": pa.string(),
}
"""The default columns, in their order."""
assert len(COLUMNS) == 29

ALIASES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": TIMESTAMP,
    "timestampType": pa.int32(),
    "headers": _HEADERS,
}
"""What users of Kafka's source call the same things. Only on demand: `value` would double every body."""

_SPARK_TYPES = {
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    TIMESTAMP: "TIMESTAMP",
    _TEXTS: "ARRAY<STRING>",
    _TEXT_MAP: "MAP<STRING, STRING>",
    _HEADERS: "ARRAY<STRUCT<key: STRING, value: BINARY>>",
}


def check_columns(columns: Iterable[str]) -> tuple[str, ...]:
    """The same names, if each is a column and none comes twice. Raises UnknownColumn, which names the nearest."""
    names = tuple(columns)
    known = [*COLUMNS, *ALIASES]
    for name in names:
        if name not in COLUMNS and name not in ALIASES:
            by_lower = {each.lower(): each for each in known}
            nearest = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
            hint = f"; did you mean {by_lower[nearest[0]]!r}?" if nearest else "."
            raise UnknownColumn(f"messages have no column {name!r}{hint} There are {', '.join(known)}")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UnknownColumn(f"column {twice!r} is asked for more than once; name each column once")
    return names


def arrow_schema(columns: Sequence[str] | None = None) -> pa.Schema:
    """The Arrow schema of these columns, in this order; None: the default ones."""
    return pa.schema([(name, _type_of(name)) for name in check_columns(COLUMNS if columns is None else columns)])


def spark_schema_ddl(columns: Sequence[str] | None = None) -> str:
    """The same schema as text that Spark understands: `topic STRING, queueId INT, …`."""
    names = check_columns(COLUMNS if columns is None else columns)
    return ", ".join(f"{_quoted(name)} {_SPARK_TYPES[_type_of(name)]}" for name in names)


def _type_of(name: str) -> pa.DataType:
    return COLUMNS.get(name) or ALIASES[name]


def _quoted(name: str) -> str:
    """Names that SQL would take for something else, or that start with an underscore."""
    return f"`{name}`" if name.startswith("_") or name in ("timestamp", "partition", "offset", "key", "value") else name
