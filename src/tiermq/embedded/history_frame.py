"""`tiermq.read`: messages of a tier, of stores, or of both, as a table for Python's data tools, without Spark.

    frame = tiermq.read(tier="s3://bucket/prefix", topic="orders", since="1h", columns=["queueOffset", "body"])
    frame.to_pandas()                                       frame.polars().filter(pl.col("queueId") == 1).collect()
    frame.sql("select tags, count(*) from messages group by tags").fetchall()            # DuckDB

Nothing is read before a method asks for rows. The scan is that of the Spark source: the same plan, reader and columns.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tiermq.clock import SystemClock
from tiermq.embedded.locations import Location, Moment, moment_ms, tier_url
from tiermq.embedded.message_store import MessageStore
from tiermq.embedded.optional_modules import pyarrow_or_hint, require
from tiermq.embedded.tiered_store import TieredStore
from tiermq.errors import BadOption

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

    from tiermq.embedded.history_dataset import HistoryDataset
    from tiermq.pipeline.scan.scan_spec import ScanSpec

Texts = str | Iterable[str]
Stores = Location | MessageStore | Iterable[Location | MessageStore]


def read(
    *,
    tier: Location | None = None,
    store: Stores | None = None,
    topic: Texts | re.Pattern[str] | None = None,
    keys: Texts | None = None,
    tags: Texts | None = None,
    queues: int | Iterable[int] | None = None,
    since: Moment | None = None,
    until: Moment | None = None,
    offsets: Any = None,
    broker: Texts | None = None,
    cluster: str | None = None,
    columns: Texts | None = None,
    skip_lost: bool = False,
) -> HistoryFrame:
    """Messages of a tier, of stores, or of both, as a table with a row per message; see `HistoryFrame`.

    tier: a URL or a directory. store: a directory, several, or open stores. topic: a name, several, or a pattern; None
    for all. since, until: stored in [since, until): an age such as "1h", a date, a datetime, or milliseconds. offsets:
    (from, to) for every queue, or by topic and queue: `{"orders": {0: (100, 200)}}`. keys and tags: messages with one
    of them. broker, cluster: only these of the tier; a store's own are in its text, `store="DIR=cluster/broker"`.
    columns: names of `tiermq pipeline sql` (topic, queueId, queueOffset, body, keys, tags, storeTimestamp, …).
    skip_lost: leave out what is lost or damaged, instead of raising DataLoss or CorruptRecord.

    Raises BadOption and UnknownColumn for arguments that cannot be; errors of the history when rows are asked for.
    """
    pyarrow_or_hint()
    from tiermq.history.arrow_schema import check_columns
    from tiermq.pipeline.scan.scan_spec import scan_spec

    now_ms = SystemClock().now_ms()
    since_ms = None if since is None else moment_ms(since, now_ms)
    until_ms = None if until is None else moment_ms(until, now_ms)
    if since_ms is not None and until_ms is not None and since_ms > until_ms:
        raise BadOption(f"expected until at or after since, found since={since!r} and until={until!r}")
    found, of_store = _directories(store)
    url = of_store if tier is None else tier_url(tier)
    _check_place(url, found, broker, cluster)
    spec = scan_spec(
        tier=url,
        store=found or None,
        broker=broker,
        cluster=cluster,
        topic=topic,
        keys=keys,
        tags=tags,
        queues=queues,
        since=since_ms,
        until=until_ms,
        offsets=offsets,
    )
    names = None if columns is None else check_columns([columns] if isinstance(columns, str) else columns)
    return HistoryFrame(replace(spec, fail_on_data_loss=not skip_lost), names)


class HistoryFrame:
    """Messages of a history as a table that is not read yet. Made by `tiermq.read`; any thread may use it.

    It may be read again and again, and shows what is there each time.
    """

    def __init__(self, spec: ScanSpec, columns: tuple[str, ...] | None = None) -> None:
        self.spec = spec
        """What is scanned: the specification that jobs and the Spark source take, too."""
        self._columns = columns

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the columns."""
        return self.dataset().schema

    def select(self, *columns: str) -> HistoryFrame:
        """The same messages with these columns. Raises UnknownColumn."""
        from tiermq.history.arrow_schema import check_columns

        return HistoryFrame(self.spec, check_columns(columns))

    def explain(self) -> str:
        """What would be read, in a few lines. Raises BadHistory, DataLoss, and what the tier raises."""
        from tiermq.pipeline.scan.explain import explain

        return str(explain(self.spec, self.schema.names))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as Arrow batches, one after the other. Raises BadHistory, DataLoss, CorruptRecord, TierError."""
        return self.dataset().to_batches()

    def reader(self) -> pa.RecordBatchReader:
        """The rows as a pyarrow RecordBatchReader, which can be read once."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def dataset(self) -> HistoryDataset:
        """A pyarrow Dataset: engines that scan it read only the columns and the messages that they need."""
        from tiermq.embedded.history_dataset import HistoryDataset

        return HistoryDataset(self.spec, self._columns)

    def to_arrow(self) -> pa.Table:
        """All rows as a pyarrow Table."""
        return self.dataset().to_table()

    def to_pandas(self) -> pd.DataFrame:
        """All rows as a pandas DataFrame."""
        require("pandas", "sql")
        return self.to_arrow().to_pandas(maps_as_pydicts="lossy")

    def polars(self) -> pl.LazyFrame:
        """A Polars LazyFrame. Its columns and its conditions on topic, queue, offset, time and tags reach the scan."""
        require("polars", "polars")
        import polars as pl

        return pl.scan_pyarrow_dataset(self.dataset())

    def duckdb(self, connection: DuckDBPyConnection | None = None) -> DuckDBPyRelation:
        """A DuckDB relation, of a connection or of one of its own. Columns and conditions reach the scan."""
        from tiermq.embedded.duckdb_query import connect

        return (connection or connect()).from_arrow(self.dataset())

    def sql(self, query: str) -> DuckDBPyRelation:
        """A query in DuckDB's SQL as a relation: `messages` is this table, and each topic is one under its own name.

        Columns and conditions of the query reach the scan. Raises BadOption for a query that is not understood.
        """
        from tiermq.embedded.duckdb_query import DuckDBQuery

        return DuckDBQuery(query, self.spec, columns=self._columns).relation()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Arrow's PyCapsule interface: for every tool that takes Arrow streams."""
        return self.reader().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        texts = ", ".join(f"{name}={text}" for name, text in self.spec.as_texts().items())
        return f"HistoryFrame({texts}{'' if self._columns is None else f', columns={list(self._columns)}'})"


def _check_place(tier: str | None, stores: list[Location], broker: Texts | None, cluster: str | None) -> None:
    """Raises BadOption without any place, and for a filter that would name the brokers of stores instead."""
    if tier is None and not stores:
        raise BadOption(
            "expected the location of messages, found none: give tier= (a URL such as s3://bucket/prefix, or a "
            "directory), store= (a store's directory, or an open store), or both"
        )
    for name, given in (("broker", broker), ("cluster", cluster)):
        if given is not None and stores and (name == "broker" or tier is None):
            raise BadOption(
                f"{name}: it chooses from a tier, found {given!r} with a store: leave it out, or name the store's "
                "broker with its directory, as in store='DIR=broker' or 'DIR=cluster/broker'"
            )


def _directories(given: Stores | None) -> tuple[list[Location], str | None]:
    """The directories, and the tier of an open store."""
    if given is None:
        return [], None
    listed = [given] if isinstance(given, str | os.PathLike | MessageStore) else given
    if not isinstance(listed, Iterable):
        raise BadOption(f"store: expected a directory, an open store, or several, found {given!r}")
    listed = list(listed)
    found: list[Location] = []
    tier = None
    for each in listed:
        if isinstance(each, MessageStore):
            each.topics()  # A scan reads the files of queues: everything that was put is in them now.
            found.append(each.path)
            tier = each.tier_url if isinstance(each, TieredStore) and len(listed) == 1 else tier
        else:
            found.append(each)
    return found, tier
