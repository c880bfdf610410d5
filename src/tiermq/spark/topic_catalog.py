"""The catalog `tiermq` of a session: a namespace for each cluster, a table for each topic.

    select tags, count(*) from tiermq.prod.orders group by tags

PySpark has no API for catalogs in Python, and hands a Python source none of a table's options when the table is read.
So each table has a source of its own, which has the options in its class; and the catalog is one of Spark's own
classes, over a list of tables in memory that belongs to nothing else: the session's other catalogs and databases do not
change. It is put among the catalogs of the session by a private field of Spark 4. Where that is not there (Spark
Connect, another Spark) there is no catalog, and `attach` warns; its views are there all the same.
"""

from __future__ import annotations

import itertools
import re
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tiermq.errors import BadOption
from tiermq.spark.query_pruning import RULE_OPTIONS, TABLE_PREFIX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiermq.spark.source.data_source import TierMQDataSource

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
