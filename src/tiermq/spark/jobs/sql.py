"""sql: ask history in SQL. Every topic is a view under a legal name; `messages` is all of them.

Only views that the query names are made, and only the columns that it can need are decoded. Conditions in the query are
Spark's work; places, topics, times, keys and tags that are given beside it prune before anything is read.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tiermq.errors import BadOption
from tiermq.history.catalog import read_catalog
from tiermq.history.open_history import open_history
from tiermq.history.scan_values import ScanCounters
from tiermq.spark.jobs.asked_history import require_queues
from tiermq.spark.jobs.job_report import JobReport
from tiermq.spark.jobs.sql_views import ALL_TOPICS, columns_needed, views_named, views_of
from tiermq.spark.option_table import Use
from tiermq.spark.options import SourceOptions
from tiermq.spark.source.builder import explain_scan, messages, option_texts
from tiermq.spark.source.scan_meter import ScanMeter, describe_counters
from tiermq.spark.source.scan_request import base_request, check_topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LIMIT = 1000


def sql(
    spark: SparkSession | None,
    query: str,
    *,
    topic: Any = None,
    limit: int = LIMIT,
    explain: bool = False,
    dry_run: bool = False,
    **source: Any,
) -> JobReport:
    """Run a query; `details` of the report has `columns` and `rows`, as JSON can hold them, and `views`.

    `topic` and `source` say which messages there are, as in `messages`. At most `limit` rows, 0 for all of them. With
    `explain` the counters of the scan are in `details["scan"]`; a dry run plans it and reads nothing, without Spark.
    Raises BadOption, BadHistory, and for a query that Spark does not understand BadOption with what Spark says.
    """
    views = topic_views(topic=topic, **source)
    named = views_named(query, [ALL_TOPICS, *views])
    columns = columns_needed(query)
    report = JobReport("sql", str(source.get("tier") or source.get("store")), dry_run)
    report.details |= {"views": views, "columns_read": list(columns or ()) or "all"}
    with report.timed():
        if dry_run:
            if not named:
                shown = ", ".join([ALL_TOPICS, *list(views)[:20]])
                report.details["notes"] = [f"the query names none of the tables, so nothing is read; there are {shown}"]
            for name in named:
                found = explain_scan(show=False, topic=_topics(name, views), columns=columns, **source)
                report.details.setdefault("scan", {})[name] = str(found).splitlines()
                report.planned["bytes"] = report.planned.get("bytes", 0) + found.counters.bytes_planned
            return report
        if spark is None:
            raise BadOption("a query needs Spark: give a master such as local[*]")
        meter = ScanMeter(spark) if getattr(spark, "_sc", None) is not None else None
        with query_frame(spark, query, views, meter=meter, **source) as frame:
            rows = frame.limit(limit).collect() if limit else frame.collect()
            report.details["columns"] = [
                {"name": each.name, "type": each.dataType.simpleString()} for each in frame.schema
            ]
        report.details["rows"] = [[plain(value) for value in row] for row in rows]
        read = meter.counters if meter is not None else ScanCounters()
        report.done |= {"rows": len(rows), "messages": read.rows_read, "bytes": read.bytes_read}
        if explain:
            report.details["scan"] = {"all": describe_counters(read).splitlines()}
    return report


def topic_views(*, topic: Any = None, **source: Any) -> dict[str, str]:
    """The views that there are, by name: the topics that were asked for, or all of the history."""
    options = SourceOptions.of(option_texts(topic=topic, **source), Use.BATCH)
    request = base_request(options, ())
    with open_history(options.place) as history:
        catalog = read_catalog(history, request)
        check_topics(catalog, request)
        require_queues(catalog, options)
        return views_of(catalog.topics())


@contextlib.contextmanager
def query_frame(
    spark: SparkSession, query: str, views: dict[str, str], *, meter: ScanMeter | None = None, **source: Any
) -> Iterator[DataFrame]:
    """The frame of a query. The views that it names are there as long as it is used. Raises BadOption."""
    from pyspark.errors import AnalysisException, ParseException

    columns = columns_needed(query)
    made = []
    try:
        for name in views_named(query, [ALL_TOPICS, *views]):
            frame = messages(spark, topic=_topics(name, views), columns=columns, meter=meter, **source)
            frame.createOrReplaceTempView(name)
            made.append(name)
        yield spark.sql(query)
    except (AnalysisException, ParseException) as error:
        shown = ", ".join([ALL_TOPICS, *list(views)[:20]])
        text = str(error).split("JVM stacktrace")[0].strip()
        raise BadOption(
            f"{text}\nTables are {shown}; columns are those of messages (topic, queueOffset, body, …)"
        ) from None
    finally:
        for name in made:
            spark.catalog.dropTempView(name)


def plain(value: Any) -> Any:
    """A value of Spark as JSON can hold it: bytes as text where they are text, times in ISO form."""
    if isinstance(value, bytes | bytearray):
        data = bytes(value)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return f"0x{data.hex()}"
    if isinstance(value, dt.datetime | dt.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, dict):
        return {str(plain(name)): plain(each) for name, each in value.items()}
    if hasattr(value, "asDict"):
        return plain(value.asDict())
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def _topics(view: str, views: dict[str, str]) -> Iterable[str]:
    return sorted(views.values()) if view == ALL_TOPICS else [views[view]]
