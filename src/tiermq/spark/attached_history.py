"""`attach`: the topics of a history as tables of a session, and queries that read only what they need.

    history = attach(spark, tier="s3://bucket/prefix")
    history.sql("select tags, count(*) from orders where storeTimestamp >= '2026-01-31' group by tags").show()

Each topic is a temporary view under a legal name, and `messages` is all of them, so `spark.sql` and `spark.table` work
too; there a view is pruned to its topic, and Spark applies everything else row by row. `history.sql` reads each table
of its query by itself, with what the query's own conditions leave, and only the columns that it can need.
"""

from __future__ import annotations

import itertools
import uuid
from typing import TYPE_CHECKING, Any

from tiermq.errors import BadOption
from tiermq.history.catalog import read_catalog
from tiermq.history.open_history import open_history
from tiermq.spark.jobs.asked_history import require_queues
from tiermq.spark.jobs.sql_views import ALL_TOPICS, columns_needed, views_named, views_of
from tiermq.spark.option_table import Use
from tiermq.spark.options import SourceOptions
from tiermq.spark.source.builder import PRUNING_OPTION, messages, option_texts, session_zone
from tiermq.spark.source.query_tables import QueryTables, TableRead, query_tables
from tiermq.spark.source.scan_meter import ScanMeter
from tiermq.spark.source.scan_request import base_request, check_topics, require_tier

if TYPE_CHECKING:
    import datetime as dt

    from pyspark.sql import DataFrame, SparkSession

_NAME = "_tiermq_"
_numbers = itertools.count()


def attach(spark: SparkSession, *, topic: Any = None, meter: ScanMeter | None = None, **source: Any) -> AttachedHistory:
    """Make a view of each topic. Arguments are those of `messages`, without `columns` and `where`: queries have both.

    `meter` counts what the queries read. Raises BadOption, BadHistory.
    """
    for name in ("columns", "where"):
        if name in source:
            raise BadOption(f"{name} is not an argument of attach: say it in the query, or read with messages(…)")
    attached = AttachedHistory(spark, topic_views(topic=topic, **source), source, meter)
    attached.make_views([ALL_TOPICS, *attached.views])
    return attached


class AttachedHistory:
    """Topics as tables. `views` has the topic of each name. Belongs to one thread."""

    def __init__(
        self, spark: SparkSession | None, views: dict[str, str], source: dict[str, Any], meter: ScanMeter | None = None
    ) -> None:
        self.views = views
        self._session = spark
        self.source = source
        self._meter = meter
        self._made: list[str] = []

    @property
    def _spark(self) -> SparkSession:
        assert self._session is not None, "a plan alone needs no session, anything else does"
        return self._session

    def make_views(self, names: list[str], columns: tuple[str, ...] | None = None) -> None:
        """Temporary views of topics, as they are now."""
        for name in names:
            frame = messages(self._spark, topic=self.topics(name), columns=columns, meter=self._meter, **self.source)
            self._view(frame, name)

    def sql(self, query: str) -> DataFrame:
        """The frame of a query. Raises what Spark raises for a query that it does not understand."""
        tables = tables_of(query, self.views, session_zone(self._spark))
        columns = columns_needed(query)
        if tables is None:
            self.make_views(views_named(query, [ALL_TOPICS, *self.views]), columns)
            return self._spark.sql(query)
        for read in tables.reads:
            arguments = {**read_arguments(read, self), **self.source, "columns": columns, "meter": self._meter}
            self._view(messages(self._spark, **arguments), read.name)
        frame = self._spark.sql(tables.text)
        if getattr(self._spark, "_sc", None) is not None:  # With Spark Connect a name is looked up when it is used.
            self._drop([read.name for read in tables.reads])
        return frame

    def detach(self) -> None:
        """Drop the views."""
        self._drop(list(self._made))

    def topics(self, view: str) -> list[str]:
        return sorted(self.views.values()) if view == ALL_TOPICS else [self.views[view]]

    def _view(self, frame: DataFrame, name: str) -> None:
        frame.createOrReplaceTempView(name)
        if name not in self._made:
            self._made.append(name)

    def _drop(self, names: list[str]) -> None:
        for name in names:
            self._spark.catalog.dropTempView(name)
            self._made.remove(name)


def tables_of(query: str, views: dict[str, str], zone: dt.tzinfo | None) -> QueryTables | None:
    """The tables of a query under names that nothing else in this process has."""
    prefix = f"{_NAME}{uuid.uuid4().hex[:8]}_{next(_numbers)}_"
    return query_tables(query, {ALL_TOPICS, *views}, prefix, zone)


def read_arguments(read: TableRead, attached: AttachedHistory) -> dict[str, Any]:
    """What `messages` and `explain_scan` are told about one table of a query."""
    return {"topic": attached.topics(read.view), PRUNING_OPTION: read.pruning.as_text()}


def topic_views(*, topic: Any = None, **source: Any) -> dict[str, str]:
    """The views that there are, by name: the topics that were asked for, or all of the history."""
    options = SourceOptions.of(option_texts(topic=topic, **source), Use.BATCH)
    request = base_request(options, ())
    with open_history(options.place) as history:
        catalog = read_catalog(history, request)
        require_tier(catalog, options)
        check_topics(catalog, request)
        require_queues(catalog, options)
        return views_of(catalog.topics())
