"""Which columns a frame must have to become messages, and which of them may be what. Checked on the driver.

body                    BINARY or STRING, never null: the one column that must be there
topic                   STRING; where it is missing or null, the option `topic`
tags, shardingKey       STRING
keys                    ARRAY<STRING>, or STRING with spaces between keys
properties              MAP<STRING, STRING>
queueId                 INT or BIGINT; where it is missing or null, by sharding key, or in turns
deliverTime             TIMESTAMP, or BIGINT in ms since 1970
delayLevel              INT or BIGINT
uniqKey                 STRING; where it is missing or null, one that is made of the row
bornTimestamp           TIMESTAMP, or BIGINT in ms since 1970; where it is missing or null, now
bornHost                STRING, such as 1.2.3.4:5
flag                    INT or BIGINT

The other columns of the source are where a message was read, and what its store said of it. They are allowed, so that
rows of the source can be written as they are, and not written: the new message has its own.
"""

from __future__ import annotations

import difflib

from pyspark.sql.types import StructType

from tiermq.errors import BadSchema
from tiermq.history.arrow_schema import COLUMNS
from tiermq.spark.options import SinkOptions

SINK_COLUMNS: dict[str, tuple[str, ...]] = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("array<string>", "string"),
    "properties": ("map<string,string>",),
    "queueId": ("int", "bigint"),
    "shardingKey": ("string",),
    "deliverTime": ("timestamp", "bigint"),
    "delayLevel": ("int", "bigint"),
    "uniqKey": ("string",),
    "bornTimestamp": ("timestamp", "bigint"),
    "bornHost": ("string",),
    "flag": ("int", "bigint"),
}
NOT_WRITTEN = frozenset(COLUMNS) - frozenset(SINK_COLUMNS)
"""Columns of the source that the sink passes over."""


def check_sink_schema(schema: StructType, options: SinkOptions) -> None:
    """Raises BadSchema, which says what to do, when rows of this schema cannot become messages."""
    for field in schema:
        kinds = SINK_COLUMNS.get(field.name)
        if field.name in NOT_WRITTEN:
            continue
        if kinds is None:
            near = difflib.get_close_matches(field.name, SINK_COLUMNS, n=1, cutoff=0.65)
            hint = f"; did you mean {near[0]}?" if near else "."
            raise BadSchema(
                f"a message to write has no column {field.name}{hint} Select some of {', '.join(SINK_COLUMNS)}, "
                "and put anything else into properties"
            )
        found = field.dataType.simpleString()
        if found not in kinds:
            raise BadSchema(f"column {field.name}: expected {' or '.join(kinds)}, found {found}; cast it")
    names = schema.fieldNames()
    if len(set(names)) < len(names):
        raise BadSchema(f"expected each column once, found {', '.join(names)}")
    if "body" not in names:
        raise BadSchema(
            f"expected a column body, found {', '.join(names) or 'none'}; name the column that is the body so"
        )
    if "topic" not in names and options.topic is None:
        raise BadSchema("expected a column topic or an option topic, found neither; say where messages go")
