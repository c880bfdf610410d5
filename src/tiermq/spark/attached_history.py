"""`attach`: the topics of a history as tables of a session, and queries that read only what they need.

    history = attach(spark, tier="s3://bucket/prefix")
    history.sql("select tags, count(*) from orders where storeTimestamp >= '2026-01-31' group by tags").show()
    spark.sql("select tags, count(*) from tiermq.prod.orders group by tags").show()

Each topic is a temporary view, under its own name and a plain one, and `messages` is all of them, so `spark.sql` and
`spark.table` work too; there `query_pruning` does what `history.sql` does by the text of a query, also with Spark
Connect: it reads each table separately, with the query's own conditions applied, and only the columns that it can
need. `tiermq.<cluster>.<topic>` is the same in `spark.sql` as the view of the topic; see `TopicCatalog`.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import shutil
import tempfile
import uuid
import warnings
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tiermq.errors import BadOption
from tiermq.pipeline.sql.query_tables import QueryTables, TableRead, query_tables, written_table
from tiermq.pipeline.sql.topic_views import ALL_TOPICS, TopicViews, columns_needed, history_views
from tiermq.spark.option_table import Use
from tiermq.spark.options import SourceOptions
from tiermq.spark.query_pruning import RULE_OPTIONS, TABLE_PREFIX
from tiermq.spark.source.builder import PRUNING_OPTION, messages, option_texts, session_zone
from tiermq.spark.source.scan_meter import METER_OPTION, ScanMeter

if TYPE_CHECKING:
    import datetime as dt

    from pyspark.sql import DataFrame, SparkSession

    from tiermq.spark.source.data_source import TierMQDataSource

# The catalog `tiermq` of a session: a namespace for each cluster, a table for each topic.
#
#     select tags, count(*) from tiermq.prod.orders group by tags
#
# PySpark has no API for catalogs in Python, and hands a Python source none of a table's options when the table is
# read. So each table has a source of its own, which has the options in its class; and the catalog is one of Spark's
# own classes, over a list of tables in memory that belongs to nothing else: the session's other catalogs and
# databases do not change. It is put among the catalogs of the session by a private field of Spark 4. Where that is
# not there (Spark Connect, another Spark) there is no catalog, and `attach` warns; its views are there all the same.

CATALOG = "tiermq"
_numbers = itertools.count()
_of_sessions: weakref.WeakKeyDictionary[SparkSession, TopicCatalog] = weakref.WeakKeyDictionary()


class TopicCatalog:
    """Tables of one session. Belongs to one thread."""

    def __init__(self, spark: SparkSession) -> None:
        """Raises BadOption when the session cannot have it."""
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]

        if getattr(spark, "_jsparkSession", None) is None:
            raise BadOption("a session of Spark Connect has no catalogs of Python's own")
        if spark.conf.get(f"spark.sql.catalog.{CATALOG}", None) is not None:
            raise BadOption(f"the session has another catalog {CATALOG} (spark.sql.catalog.{CATALOG})")
        self._session = weakref.ref(spark)
        self._jvm: Any = spark._jvm
        self._folder = tempfile.mkdtemp(prefix="tiermq-catalog-")  # Of namespaces: no table has a file in it.
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._sources: dict[tuple[str, str], str] = {}
        try:
            self._catalog = self._made()
            manager = spark._jsparkSession.sessionState().catalogManager()
            field = manager.getClass().getDeclaredField("catalogs")
            field.setAccessible(True)
            field.get(manager).put(CATALOG, self._catalog)
        except (Py4JError, TypeError) as error:
            raise BadOption(f"this Spark session cannot register the catalog: {str(error).splitlines()[0]}") from error

    @classmethod
    def of(cls, spark: SparkSession) -> TopicCatalog:
        """The session's own, made when it is first asked for. Raises BadOption."""
        if spark not in _of_sessions:
            _of_sessions[spark] = cls(spark)
        return _of_sessions[spark]

    @property
    def _spark(self) -> SparkSession:
        spark = self._session()
        assert spark is not None, "a session asks for its own catalog"
        return spark

    def put(self, namespace: str, name: str, options: Mapping[str, str]) -> str:
        """Make or replace a table; returns what identifies it."""
        source = f"{TABLE_PREFIX}{uuid.uuid4().hex[:8]}_{next(_numbers)}"
        made: Any = bound_source(source, dict(options))
        self._spark.dataSource.register(made)
        if not self._catalog.namespaceExists(self._texts(namespace)):
            location = f"file://{self._folder}/{namespace}"
            self._catalog.createNamespace(
                self._texts(namespace), self._jvm.java.util.Collections.singletonMap("location", location)
            )
        table = self._identifier(namespace, name)
        self._catalog.dropTable(table)
        schema = self._spark.createDataFrame([], made(options).schema())._jdf.schema()
        kind = self._jvm.org.apache.spark.sql.connector.expressions.Transform
        gateway = self._spark.sparkContext._gateway
        properties = self._jvm.java.util.Collections.singletonMap("provider", source)
        self._catalog.createTable(table, schema, gateway.new_array(kind, 0), properties)
        self._sources[namespace, name] = source
        return source

    def drop(self, namespace: str, name: str, source: str) -> None:
        """Remove a table, unless another has its name by now; and the namespace with its last table."""
        if self._sources.get((namespace, name)) != source:
            return
        del self._sources[namespace, name]
        self._catalog.dropTable(self._identifier(namespace, name))
        if not any(each == namespace for each, _ in self._sources):
            self._catalog.dropNamespace(self._texts(namespace), True)

    def _made(self) -> Any:
        spark, packages = self._spark, self._jvm.org.apache.spark.sql
        context = spark.sparkContext._jsc
        tables = packages.catalyst.catalog.InMemoryCatalog(context.sc().conf(), context.hadoopConfiguration())
        return packages.execution.datasources.v2.V2SessionCatalog(packages.catalyst.catalog.SessionCatalog(tables))

    def _identifier(self, namespace: str, name: str) -> Any:
        return self._jvm.org.apache.spark.sql.connector.catalog.Identifier.of(self._texts(namespace), name)

    def _texts(self, text: str) -> Any:
        array = self._spark.sparkContext._gateway.new_array(self._jvm.java.lang.String, 1)
        array[0] = text
        return array


def bound_source(name: str, given: dict[str, str]) -> type[TierMQDataSource]:
    """A source with options of its own, whatever Spark gives it."""
    from tiermq.spark.source.data_source import TierMQDataSource

    def __init__(self: Any, options: Mapping[str, str]) -> None:  # noqa: N807 - Spark calls it so.
        of_the_plan = {name: value for name, value in options.items() if name.lower() in RULE_OPTIONS}
        TierMQDataSource.__init__(self, {**given, **of_the_plan})

    members = {"__init__": __init__, "name": classmethod(lambda _cls: name)}
    return type("TopicTable", (TierMQDataSource,), members)


def plain_name(name: str) -> str:
    """A name that Spark's catalogs take: small letters, digits and `_`."""
    return re.sub(r"\W+", "_", name, flags=re.ASCII).lower()


_NAME = "_tiermq_"
_QUALIFIED = re.compile(rf"\b{CATALOG}`?\s*\.", re.IGNORECASE)
_numbers = itertools.count()
_views_of_sessions: weakref.WeakKeyDictionary[SparkSession, dict[str, int]] = weakref.WeakKeyDictionary()
"""The views that `attach` made in each session, so that a second one may replace those of the first."""


def attach(spark: SparkSession, *, topic: Any = None, meter: ScanMeter | None = None, **source: Any) -> AttachedHistory:
    """Make a view and a table `tiermq.<cluster>.<topic>` of each topic.

    Arguments are those of `messages`, without `columns` and `where`: queries have both. `meter` counts what the queries
    read. Raises BadOption, BadHistory.
    """
    for name in ("columns", "where"):
        if name in source:
            raise BadOption(f"{name} is not an argument of attach: say it in the query, or read with messages(…)")
    attached = AttachedHistory(spark, topic_views(topic=topic, **source), source, meter)
    skipped = attached.make_views([ALL_TOPICS, *attached.views])
    if skipped:
        warnings.warn(
            f"the session has temporary views {', '.join(skipped)} of its own, which stay as they are: there spark.sql "
            "reads them, and history.sql the topics",
            stacklevel=2,
        )
    attached.make_tables()
    alone = [topic for topic in attached.views.topics if not attached.views.plain_names(topic)]
    if alone:
        warnings.warn(
            f"topics {', '.join(alone)} have no views, since their names mean others, too: read them with history.sql "
            "and their own names in backticks",
            stacklevel=2,
        )
    return attached


class AttachedHistory:
    """Topics as tables. `views` has the topic of each name. Belongs to one thread."""

    def __init__(
        self, spark: SparkSession | None, views: TopicViews, source: dict[str, Any], meter: ScanMeter | None = None
    ) -> None:
        self.views = views
        self._session = spark
        self.source = source
        self._meter = meter
        self._made: dict[str, int] = {}
        self._tables: dict[tuple[str, str], str] = {}

    @property
    def _spark(self) -> SparkSession:
        assert self._session is not None, "a plan alone needs no session, anything else does"
        return self._session

    def make_views(self, names: list[str], columns: tuple[str, ...] | None = None) -> list[str]:
        """Temporary views of topics, as they are now; gives the names that views of the session's user have."""
        skipped = []
        for name in names:
            topics = self.views.topics_of(name)
            frame = messages(self._spark, topic=topics, columns=columns, meter=self._meter, **self.source)
            also = [] if name == ALL_TOPICS else self.views.plain_names(topics[0])
            skipped += [each for each in dict.fromkeys([name, *also]) if not self._view(frame, each)]
        return skipped

    def make_tables(self) -> None:
        """Tables of the catalog `tiermq`, by cluster and topic; warns where there cannot be any."""
        try:
            catalog = TopicCatalog.of(self._spark)
        except BadOption as error:
            warnings.warn(f"there are no tables tiermq.<cluster>.<topic>, only views: {error}", stacklevel=3)
            return
        for cluster, topics in self.views.clusters.items():
            chosen = self._cluster_choice(cluster)
            if chosen is None:
                warnings.warn(
                    f"cluster {cluster} has no tables tiermq.{plain_name(cluster)}.<topic>: the history has stores, "
                    "and brokers of other clusters; attach one cluster at a time (cluster=…)",
                    stacklevel=3,
                )
                continue
            for topic in topics:
                name = next((each for each in self.views.plain_names(topic) if each == plain_name(each)), None)
                if name is not None:
                    texts = option_texts(topic=topic, zone=session_zone(self._spark), **{**self.source, **chosen})
                    if self._meter is not None:
                        texts[METER_OPTION] = self._meter.option
                    place = plain_name(cluster), name
                    self._tables[place] = catalog.put(*place, texts)

    def _cluster_choice(self, cluster: str) -> dict[str, Any] | None:
        """The arguments that choose a cluster; None when the history has stores, which are those of one cluster."""
        if len(self.views.clusters) == 1:
            return {}
        return None if self.source.get("store") is not None else {"cluster": cluster}

    def sql(self, query: str) -> DataFrame:
        """The frame of a query. Raises BadOption, and what Spark raises for a query that it does not understand."""
        from pyspark.errors import AnalysisException

        changed = written_table(query)
        if changed is not None and self.views.topics_of(changed):
            raise BadOption(
                f"table {changed}: history is read-only. Messages are sent to a broker, or written with "
                'frame.write.format("tiermq") and option store or namesrv'
            )
        if not self._tables and _QUALIFIED.search(query):
            self.make_tables()
        columns = columns_needed(query)
        with quiet_analysis():
            try:
                return self._frame(query, columns)
            except AnalysisException:
                if columns is None:
                    raise
            return self._frame(query, None)  # Spark's error now covers all columns.

    def detach(self) -> None:
        """Drop the views that this made, unless others have their names by now."""
        for name, made in self._made.items():
            if _view_hash(self._spark, name) == made:
                self._spark.catalog.dropTempView(name)
        self._made.clear()
        for place, source in self._tables.items():
            TopicCatalog.of(self._spark).drop(*place, source)
        self._tables.clear()

    def _frame(self, query: str, columns: tuple[str, ...] | None) -> DataFrame:
        tables = tables_of(query, self.views, session_zone(self._spark))
        if tables is None:
            return self._frame_of_views(query, columns)
        names = []
        try:
            for read in tables.reads:
                arguments = {**read_arguments(read, self), **self.source, "columns": columns, "meter": self._meter}
                messages(self._spark, **arguments).createOrReplaceTempView(read.name)
                names.append(read.name)
            return self._spark.sql(tables.text)
        finally:
            if getattr(self._spark, "_sc", None) is not None:
                for name in names:
                    self._spark.catalog.dropTempView(name)
            else:  # With Spark Connect a name is looked up when it is used.
                self._made |= {name: _view_hash(self._spark, name) or 0 for name in names}

    def _frame_of_views(self, query: str, columns: tuple[str, ...] | None) -> DataFrame:
        """For a text that is left as it is: by views of the session."""
        names = self.views.named(query)
        attached = [name for name in names if name in self._made]
        skipped = self.make_views(attached)  # As they are now, and for others with all of their columns.
        skipped += self.make_views([name for name in names if name not in attached], columns)
        if taken := sorted(set(skipped) & set(names)):
            raise BadOption(
                f"table {taken[0]}: expected no temporary view of that name beside the topic, found one of the "
                "session; rename it, or write the query as a plain SELECT, in which history.sql reads the topic"
            )
        return self._spark.sql(query)

    def _view(self, frame: DataFrame, name: str) -> bool:
        """Make a view; False when the session's user has one of this name."""
        from pyspark.errors import AnalysisException

        ours, quoted = _views_of_sessions.setdefault(self._spark, {}), f"`{name}`"
        if name in ours and _view_hash(self._spark, name) == ours[name]:
            frame.createOrReplaceTempView(quoted)
        else:
            try:
                frame.createTempView(quoted)
            except AnalysisException as error:
                if error.getCondition() != "TEMP_TABLE_OR_VIEW_ALREADY_EXISTS":
                    raise
                return False
        self._made[name] = ours[name] = _view_hash(self._spark, name) or 0
        return True


def _view_hash(spark: SparkSession, name: str) -> int | None:
    """Identifies a view among all that had its name; None without one."""
    from pyspark.errors import AnalysisException

    try:
        return int(spark.table(f"`{name}`").semanticHash())
    except AnalysisException:
        return None


@contextlib.contextmanager
def quiet_analysis() -> Iterator[None]:
    """Without PySpark's log of an error in a query, which has the JVM's stack: the raised error is enough."""
    from pyspark.logger import PySparkLogger

    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def tables_of(query: str, views: TopicViews, zone: dt.tzinfo | None) -> QueryTables | None:
    """The tables of a query under names that nothing else in this process has."""
    prefix = f"{_NAME}{uuid.uuid4().hex[:8]}_{next(_numbers)}_"
    return query_tables(query, views.known, prefix, zone)


def read_arguments(read: TableRead, attached: AttachedHistory) -> dict[str, Any]:
    """The arguments of `messages` and `explain_scan` for one table of a query."""
    return {"topic": attached.views.topics_of(read.view), PRUNING_OPTION: read.pruning.as_text()}


def topic_views(*, topic: Any = None, **source: Any) -> TopicViews:
    """The views by name: the requested topics, or all of the history."""
    return history_views(SourceOptions.of(option_texts(topic=topic, **source), Use.BATCH).scan)
