"""`format("tiermq")`: what Spark asks for when somebody reads or writes messages."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from tiermq.errors import BadOption
from tiermq.history.arrow_schema import spark_schema_ddl
from tiermq.spark.option_table import Use
from tiermq.spark.options import SinkOptions, SourceOptions
from tiermq.spark.sink.sink_schema import check_sink_schema
from tiermq.spark.sink.sink_store import given_settings, require_free
from tiermq.spark.sink.wire_writers import TierMQWireStreamWriter, TierMQWireWriter
from tiermq.spark.sink.writers import TierMQStreamWriter, TierMQWriter
from tiermq.spark.source.batch_reader import TierMQReader
from tiermq.spark.source.scan_request import columns_of
from tiermq.spark.source.schema_check import columns_of_schema
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
        """The columns that options ask for. So wrong options are told when a frame is loaded, not when it is used."""
        return spark_schema_ddl(columns_of(SourceOptions.of(self.options, None)))

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
        """What can be known to be wrong before a task runs is told here."""
        options = SinkOptions.of(self.options)
        if overwrite:
            raise BadOption("expected mode append, found overwrite: messages are only ever appended to a store")
        check_sink_schema(schema, options)
        if options.name_servers is None:
            given_settings(options)
            require_free(options.store)
        return options


def require_no_table(given: Mapping[str, str]) -> None:
    """Raises BadOption for options that come from `CREATE TABLE … USING tiermq`, and for those of such a table: none.

    At its creation Spark (4.3) hands each option over twice, as `name` and `option.name`, beside properties of its own;
    when the table is read, nothing.
    """
    if not given or any(name.lower().startswith(_ADDED_TO_TABLES) for name in given):
        found = "" if given else "expected option tier, store or namesrv, found no option at all; "
        raise BadOption(found + _NO_TABLES)
