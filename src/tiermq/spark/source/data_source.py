"""`format("tiermq")`: the Spark data source to read and write messages."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tiermq.errors import BadOption, BadSchema
from tiermq.history.arrow_schema import COLUMNS, arrow_schema, spark_schema_ddl
from tiermq.pipeline.store_directory import require_unlocked
from tiermq.spark.option_table import Use
from tiermq.spark.options import SinkOptions, SourceOptions
from tiermq.spark.query_pruning import RULE_OPTIONS
from tiermq.spark.sink.writers import TierMQStreamWriter, TierMQWireStreamWriter, TierMQWireWriter, TierMQWriter
from tiermq.spark.source.batch_reader import TierMQReader
from tiermq.spark.source.stream_reader import TierMQStreamReader
from tiermq.spark.worker_daemon import silence_broken_pipes

FORMAT = "tiermq"
_ADDED_TO_TABLES = ("option.", "provider")
_NO_TABLES = (
    "a table of Spark's catalog cannot read messages: Spark gives a Python data source none of the table's options "
    "when the table is read. Use CREATE TEMPORARY VIEW … USING tiermq OPTIONS (…), or tiermq.spark.attach(spark, "
    "tier=…) for a view of each topic"
)
silence_broken_pipes()


class TierMQDataSource(DataSource):  # type: ignore[misc] # PySpark is not followed by the checker.
    """Messages of a tier, of store directories, of both as one table, or of brokers; a store or brokers to write to."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def __init__(self, options: Mapping[str, str]) -> None:
        require_no_table(options)
        super().__init__(dict(options))

    def schema(self) -> str:
        """The columns that options ask for. So invalid options raise when a frame is loaded, not when it is used."""
        return spark_schema_ddl(SourceOptions.of(self.options, None).column_names)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = SourceOptions.of(self.options, Use.BATCH)
        return TierMQReader(options, columns_of_schema(schema, options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = SourceOptions.of(self.options, Use.STREAM)
        return TierMQStreamReader(options, columns_of_schema(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        options = self._sink_options(schema, overwrite)
        return TierMQWriter(options) if options.name_servers is None else TierMQWireWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        options = self._sink_options(schema, overwrite)
        return TierMQStreamWriter(options) if options.name_servers is None else TierMQWireStreamWriter(options)

    def _sink_options(self, schema: StructType, overwrite: bool) -> SinkOptions:
        """Raises what can be known to be wrong before a task runs."""
        options = SinkOptions.of(self.options)
        if overwrite:
            raise BadOption("expected mode append, found overwrite: messages are only ever appended to a store")
        check_sink_schema(schema, options)
        if options.name_servers is None:
            require_unlocked(options.store)
        return options


def require_no_table(given: Mapping[str, str]) -> None:
    """Raises BadOption for options that come from `CREATE TABLE … USING tiermq`, and for those of such a table: none.

    At its creation Spark (4.3) hands each option over twice, as `name` and `option.name`, beside properties of its own;
    when the table is read, nothing.
    """
    given = {name: value for name, value in given.items() if name.lower() not in RULE_OPTIONS}
    if not given or any(name.lower().startswith(_ADDED_TO_TABLES) for name in given):
        found = "" if given else "expected option tier, store or namesrv, found no option at all; "
        raise BadOption(found + _NO_TABLES)


def columns_of_schema(schema: StructType, options: SourceOptions) -> tuple[str, ...]:
    """The columns of a schema that a user gave, or that the source gave. Raises BadSchema, UnknownColumn."""
    names = tuple(schema.fieldNames())
    own = arrow_schema(names)
    given = to_arrow_schema(schema, timezone="UTC")
    for mine, field in zip(own, given, strict=True):
        if mine.type != field.type:
            expected = spark_schema_ddl([mine.name])
            raise BadSchema(
                f"column {mine.name}: expected {expected.partition(' ')[2]}, found "
                f"{schema[mine.name].dataType.simpleString().upper()}; declare it as {expected} and cast afterwards"
            )
        if not field.nullable:
            raise BadSchema(f"column {mine.name}: expected a column that may be null, found NOT NULL; leave that out")
    is_of_a_plan = options.scan.snapshot is not None  # Then it has those of the columns that the plan needs.
    if options.columns and not is_of_a_plan and set(options.columns) != set(names):
        raise BadSchema(
            f"the schema has columns {', '.join(names)} and option columns names {', '.join(options.columns)}: "
            "give one of them"
        )
    return names


# Columns that a frame must have to become messages, and which of them may be what:
#
# body                    BINARY or STRING, never null: the only required column
# topic                   STRING; where it is missing or null, the option `topic`
# tags, shardingKey       STRING
# keys                    ARRAY<STRING>, or STRING with spaces between keys
# properties              MAP<STRING, STRING>
# queueId                 INT or BIGINT; where it is missing or null, by sharding key, or round robin
# deliverTime             TIMESTAMP, or BIGINT in ms since 1970
# delayLevel              INT or BIGINT
# uniqKey                 STRING; where it is missing or null, derived from the row
# bornTimestamp           TIMESTAMP, or BIGINT in ms since 1970; where it is missing or null, now
# bornHost                STRING, such as 1.2.3.4:5
# flag                    INT or BIGINT
#
# The other columns of the source are where a message was read, and its store's data. They are allowed, so that
# rows of the source can be written as they are, and not written: the new message has its own.
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
"""Columns of the source that the sink ignores."""


def check_sink_schema(schema: StructType, options: SinkOptions) -> None:
    """Raises BadSchema, with what to do, when rows of this schema cannot become messages."""
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
        raise BadSchema("expected a column topic or an option topic, found neither; set the option topic")
