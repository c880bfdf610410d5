"""Query pruning: conditions and columns of Spark's own plans reach the source, by a rule of its optimizer.

    frame = spark.read.format("tiermq").option("tier", tier).load()
    frame.where("topic = 'rare'")          reads topic rare;  spark.sql("… from messages where topic = 'rare'")  too

Spark 4.3 has pushdown for Python sources, which gives wrong rows when a frame is used twice. The rule does the same
without that fault, see `PruneMessages.java`. It is Java, since Python cannot extend a class of the JVM, and it is
compiled when a session starts, by the compiler that Spark carries for its own generated code: there is no jar to
install. It runs where the optimizer runs; executors never see it. The rule passes the text of a condition, and the
planner of the source reads it here (`read_condition`), as it reads the conditions of `messages(where=…)`.
"""

from __future__ import annotations

import atexit
import datetime as dt
import shutil
import tempfile
import warnings
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tiermq.history.scan_pruning import ScanPruning

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE_PREFIX = "tiermq_table_"
CHEAPEST_COLUMN = "queueId"
RULE_OPTIONS = frozenset({"scancondition", "scansnapshot"})
"""What the rule gives to the source, in small letters."""
_SOURCE = Path(__file__).with_name("PruneMessages.java")
_CLASS = "tiermq.PruneMessages"
_installed: weakref.WeakSet[SparkSession] = weakref.WeakSet()


def prune_queries(spark: SparkSession) -> None:
    """Let conditions and columns of every plan of this session prune what is read from the source.

    `get_spark`, `messages` and `attach` call this. A session of Spark Connect stays as it is: its optimizer is on the
    server. Warns where the session cannot have the rule; then a plan reads what its options say.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    if spark in _installed:
        return
    _installed.add(spark)
    if getattr(spark, "_jsparkSession", None) is None:
        return
    try:
        _install(spark)
    except (Py4JError, TypeError) as error:
        warnings.warn(
            "conditions of .where(…) and spark.sql do not prune in this session, which reads everything that options "
            f"say and filters afterwards: {str(error).splitlines()[0]}",
            stacklevel=3,
        )


def _install(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    methods = spark._jsparkSession.experimental()
    before = methods.extraOptimizations()
    rules = [before.apply(number) for number in range(before.size())]
    if any(rule.getClass().getName() == _CLASS for rule in rules):
        return
    folder = tempfile.mkdtemp(prefix="tiermq-snapshots-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader())
    compiler.cook(_SOURCE.read_text(encoding="utf-8"))
    given = ("tiermq", "tiermq.spark.source.data_source", "TierMQDataSource", TABLE_PREFIX, CHEAPEST_COLUMN, folder)
    values = spark.sparkContext._gateway.new_array(jvm.java.lang.Object, len(given))
    for number, value in enumerate(given):
        values[number] = value
    rule = compiler.getClassLoader().loadClass(_CLASS).getConstructors()[0].newInstance(values)
    getattr(methods, "extraOptimizations_$eq")(jvm.PythonUtils.toSeq([*rules, rule]))


def read_condition(text: str) -> ScanPruning:
    """The pruning of a condition of a plan, behind the time zone of its session."""
    from tiermq.pipeline.sql.query_tables import condition_pruning

    name, _, condition = text.partition(" ")
    return condition_pruning(condition, zone_of(name))


def zone_of(name: str) -> dt.tzinfo | None:
    """A time zone as Spark names it; None for one that Python does not know."""
    if name in ("UTC", "Z"):
        return dt.UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        pass
    try:
        return dt.time.fromisoformat(f"00:00{name}").tzinfo
    except ValueError:
        return None
