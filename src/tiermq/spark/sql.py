"""sql: ask history in SQL. Every topic is a table (see `TopicViews` for its names); `messages` is all of them.

Each table of the query is read separately: only the columns that it can need, and only what the query's own conditions
on topic, broker, queue, offset, store time, tags and keys leave (see `query_tables`). Spark applies each of them again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tiermq.errors import BadOption
from tiermq.history.scan_values import ScanCounters
from tiermq.pipeline.job_report import JobReport
from tiermq.pipeline.scan.explain import describe_counters
from tiermq.pipeline.sql.topic_views import ROWS_SHOWN, columns_needed, plain
from tiermq.spark.attached_history import AttachedHistory, quiet_analysis, read_arguments, tables_of, topic_views
from tiermq.spark.source.builder import explain_scan
from tiermq.spark.source.scan_meter import ScanMeter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def sql(
    spark: SparkSession | None,
    query: str,
    *,
    topic: Any = None,
    limit: int = ROWS_SHOWN,
    explain: bool = False,
    dry_run: bool = False,
    **source: Any,
) -> JobReport:
    """Run a query; `details` of the report has `columns` and `rows`, as JSON can hold them, and `views`.

    `topic` and `source` select messages, as in `messages`. At most `limit` rows, 0 for all of them. With
    `explain` the counters of the scan are in `details["scan"]`; a dry run plans it and reads nothing, without Spark.
    Raises BadOption, BadHistory, and for a query that Spark cannot parse BadOption with Spark's error.
    """
    views = topic_views(topic=topic, **source)
    columns = columns_needed(query)
    report = JobReport("sql", str(source.get("tier") or source.get("store")), dry_run)
    report.details |= {"views": dict(views), "columns_read": list(columns or ()) or "all"}
    with report.timed():
        if dry_run:
            _explain(report, query, AttachedHistory(spark, views, source), columns)
            return report
        if spark is None:
            raise BadOption("a query needs Spark: give a master such as local[*]")
        meter = ScanMeter(spark) if getattr(spark, "_sc", None) is not None else None
        with query_frame(query, AttachedHistory(spark, views, source, meter)) as frame:
            rows = frame.limit(limit).collect() if limit else frame.collect()
            report.details["columns"] = [
                {"name": each.name, "type": each.dataType.simpleString()} for each in frame.schema
            ]
        report.details["rows"] = [[plain(value) for value in row] for row in rows]
        report.done["rows"] = len(rows)
        read = ScanCounters()
        if meter is not None:
            read = meter.counters
            report.done |= {"messages": read.rows_read, "bytes": read.bytes_read}
        if explain:
            report.details["scan"] = {"all": describe_counters(read).splitlines()}
    return report


def _explain(report: JobReport, query: str, attached: AttachedHistory, columns: tuple[str, ...] | None) -> None:
    """Plan each table of a query separately, or, if its text is not rewritten, each view that it names."""
    tables = tables_of(query, attached.views, None)
    if tables is not None:
        wanted = [(read.view, read_arguments(read, attached)) for read in tables.reads]
    else:
        views = attached.views
        wanted = [(name, {"topic": views.topics_of(name)}) for name in views.named(query)]
    if not wanted:
        report.details["notes"] = [
            f"the query names none of the tables, so nothing is read; there are {attached.views.shown()}"
        ]
    for number, (name, arguments) in enumerate(wanted):
        found = explain_scan(show=False, **{**arguments, **attached.source, "columns": columns})
        title = name if name not in report.details.get("scan", {}) else f"{name} ({number + 1})"
        report.details.setdefault("scan", {})[title] = str(found).splitlines()
        report.planned["bytes"] = report.planned.get("bytes", 0) + found.counters.bytes_planned


@contextlib.contextmanager
def query_frame(query: str, attached: AttachedHistory) -> Iterator[DataFrame]:
    """The frame of a query. The views that it names are there as long as it is used. Raises BadOption."""
    from pyspark.errors import AnalysisException, ParseException

    try:
        with quiet_analysis():
            yield attached.sql(query)
    except (AnalysisException, ParseException) as error:
        text = str(error).split("JVM stacktrace")[0].strip()
        raise BadOption(
            f"{text}\nTables are {attached.views.shown()}; columns are those of messages (topic, queueOffset, body, …)"
        ) from None
    finally:
        attached.detach()
