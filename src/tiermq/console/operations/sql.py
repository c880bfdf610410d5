"""SQL over messages: DuckDB on Arrow batches of the history, hot and cold as one table for each topic.

A topic is a view of its name. The query is parsed first, so that only topics that it names are read; rows are read in
batches as DuckDB asks for them, and a query ends at the row limit.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from tiermq.client.wire_history import read_placed_task
from tiermq.console.catalogue import Kind, Parameter, Result, operation
from tiermq.console.copied_commands import for_spark, spark_command, sql_command
from tiermq.console.message_reading import catalog_for
from tiermq.console.operations.topics import topic_names
from tiermq.console.query_runs import RunningQuery
from tiermq.console.sources import Visit
from tiermq.console.spark_query import SparkFailed, SparkQuery
from tiermq.errors import BadRequest, install_hint
from tiermq.history.catalog import Catalog
from tiermq.history.cold_reading import reads_of
from tiermq.history.planning import plan_scan
from tiermq.history.scan_values import Loss, ScanCounters, ScanPlan, ScanRequest, describe

ROWS_MAX = 10_000
SCAN_BYTES_MAX = 2 << 30
KEPT_BYTES_MAX = 256 << 20
RESULT_BYTES_MAX = 32 << 20
COLUMNS = (
    "topic", "brokerName", "queueId", "queueOffset", "tags", "keys", "uniqKey", "body", "properties", "bornTimestamp",
    "bornHost", "storeTimestamp", "storeHost", "recordId", "msgId", "reconsumeTimes", "storeSize", "tier", "segment",
)  # fmt: skip
READS_ONLY = re.compile(r"\s*(?:--[^\n]*\n\s*)*(select|with|from|describe|summarize)\b", re.IGNORECASE)
SPARK_CALLS = frozenset({"string", "bigint", "int", "double", "json_tuple", "from_json", "to_json", "decode", "size"})
"""Functions of Spark beside those that the parser knows, which have no effects."""
SCRIPT = re.compile(r"\busing\s*(/\*.*?\*/|--[^\n]*\n|\s)*r?['\"]", re.IGNORECASE | re.DOTALL)
"""`SELECT TRANSFORM(…) USING 'command'`, and its older forms, run programs."""
_QUERY = Parameter("query", "A SELECT; a topic is a table of its name.", is_required=True)
_SINCE = Parameter("begin", "Only messages stored at this time or later.", Kind.MOMENT)


def _topics_in(visit: Visit, query: str) -> list[str]:
    """The topics that a query may name. Raises BadRequest for a query that is no SELECT, or names none."""
    if not READS_ONLY.match(query):
        raise BadRequest(f"query: expected a SELECT, found {query.strip()[:40]!r}")
    words = set(re.findall(r"[\w%|-]+", query))
    found = [name for name in topic_names(visit, everything=True) if name in words]
    if not found:
        raise BadRequest("query: expected the name of a topic after FROM, found none that is here")
    return found


@operation(
    "sql.estimate",
    "What a query would read at most, before it does: rows, bytes, requests to the tier, tasks. Its conditions are not "
    "looked at, and may make it less. Requests are null where brokers are read.",
    _QUERY,
    _SINCE,
)
def estimate(visit: Visit, *, query: str, begin: int | None) -> Result:
    topics = _topics_in(visit, query)
    request = ScanRequest(topics=frozenset(topics), begin_ms=begin or 0)
    with catalog_for(visit, request) as catalog:
        plan = plan_scan(catalog, request, loss_is_error=False)
    return {
        "topics": topics,
        **_estimate_of(plan),
        "requests": plan.counters.requests + sum(map(reads_of, plan.tasks)) if visit.has_files else None,
        "command": sql_command(visit, query, begin),
        "sparkCommand": spark_command(visit, query, topics, begin),
    }


def _estimate_of(plan: ScanPlan) -> Result:
    return {
        "rows": sum(task.to_offset - task.from_offset for task in plan.tasks),
        "bytes": plan.counters.bytes_planned,
        "bytesSkipped": plan.counters.bytes_skipped,
        "tasks": len(plan.tasks),
    }


@operation(
    "sql.run",
    "Run a SELECT over topics with DuckDB: hot and cold messages as one table.",
    _QUERY,
    _SINCE,
    Parameter("limit", "Rows at most.", Kind.WHOLE, default=200, low=1, high=ROWS_MAX),
)
def run_sql(visit: Visit, *, query: str, begin: int | None, limit: int) -> Result:
    duckdb = _duckdb()
    queries = visit.sources.queries
    with (
        closing(duckdb.connect(":memory:", config=queries.settings())) as connection,
        queries.run(connection) as running,
    ):
        return _run(visit, query, begin or 0, limit, duckdb, connection, running)


def _run(
    visit: Visit, query: str, begin_ms: int, limit: int, duckdb: Any, connection: Any, running: RunningQuery
) -> Result:
    topics = _topics_in(visit, query)
    try:
        kinds = [str(each.type).rpartition(".")[2] for each in duckdb.extract_statements(query)]
    except duckdb.Error as error:
        raise BadRequest(f"query: {error}") from error
    if kinds != ["SELECT"]:
        raise BadRequest(f"query: expected one SELECT, found {', '.join(kinds)[:80] or 'nothing'}")
    losses: list[str] = []
    began = visit.sources.clock.monotonic()
    request = ScanRequest(topics=frozenset(topics), begin_ms=begin_ms)
    with catalog_for(visit, request, is_long=True) as catalog:
        counters = ScanCounters()

        def read(*, is_whole: bool) -> tuple[list[str], list[Any], bool]:
            for topic in topics:
                reader = _reader(catalog, topic, begin_ms, losses, counters, running, is_whole=is_whole)
                connection.register(topic, reader.read_all() if is_whole else reader)
            result = connection.execute(query)
            names = [each[0] for each in result.description or []]
            rows: list[Any] = []
            room = RESULT_BYTES_MAX
            while room > 0 and len(rows) <= limit and (row := result.fetchone()) is not None:
                rows.append(row)
                room -= sum(len(value) if isinstance(value, str | bytes) else len(str(value)) for value in row)
            return names, rows, room <= 0

        try:
            try:
                names, rows, is_full = read(is_whole=False)
            except duckdb.InvalidInputException as error:
                if "already been consumed" not in str(error):
                    raise
                names, rows, is_full = read(is_whole=True)  # A topic is named twice, as in a join with itself.
        except duckdb.OutOfMemoryException as error:
            raise BadRequest(
                f"query: it needs more than {visit.sources.queries.limits.memory_mib} MiB of memory, which is the most "
                "that a page takes: run it with `tiermq sql`, or on Spark with `tiermq pipeline sql`"
            ) from error
        except duckdb.Error as error:
            raise BadRequest(f"query: {error}") from error
    return {
        "columns": names,
        "rows": [[_shown(value) for value in row] for row in rows[:limit]],
        "isCut": len(rows) > limit or is_full,
        "messagesRead": counters.rows_read,
        "bytesRead": counters.bytes_read,
        "tookMs": round((visit.sources.clock.monotonic() - began) * 1000),
        "losses": losses[:20],
    }


@operation(
    "sql.spark",
    "Run a SELECT on Spark, for scans that are too large for the console. `sql.estimate` reports what it will read.",
    _QUERY,
    _SINCE,
    Parameter("limit", "Rows at most.", Kind.WHOLE, default=200, low=1, high=ROWS_MAX),
    starts=True,
)
def run_on_spark(visit: Visit, *, query: str, begin: int | None, limit: int) -> Result:
    """It ends with its client, with the console, and at its time limit. One at a time."""
    visit.require_files()
    place = visit.sources.place
    if place.spark_master is None:
        raise BadRequest("this needs Spark: start the console with --spark-master, such as local[2]")
    if len(place.stores) > 1:
        raise BadRequest("a query on Spark reads one store directory, and the console has several")
    topics = _topics_in(visit, query)
    query = for_spark(query, topics)
    _require_only_topics(query, set(topics))
    words = [sys.executable, "-m", "tiermq.cli", "pipeline", "sql", query, "--json", "--limit", str(limit)]
    words += ["--master", place.spark_master]
    words += ["--tier", place.tier] if place.tier is not None else []
    words += ["--store", place.stores[0].path] if place.stores else []
    words += ["--since", str(begin)] if begin is not None else []
    began = visit.sources.clock.monotonic()
    process = SparkQuery(query, words, visit.sources.clock)
    with visit.sources.spark_queries.run(process) as process.running:
        visit.sources.spark_query = process
        try:
            printed = process.run()
        except SparkFailed as error:
            raise BadRequest(f"query: {error}") from error
        finally:
            visit.sources.spark_query = None
    report = json.loads(printed)
    details = report["details"]
    rows = details["rows"]
    return {
        "columns": [each["name"] for each in details["columns"]],
        "rows": rows,
        "isCut": len(rows) >= limit,
        "messagesRead": report["done"].get("messages"),
        "bytesRead": None,
        "tookMs": round((visit.sources.clock.monotonic() - began) * 1000),
        "losses": [str(each) for each in details.get("notes", ())][:20],
    }


@operation("sql.running", "The query that runs on Spark now, and how far it is: tasks of its stage.")
def running_on_spark(visit: Visit) -> Result:
    visit.require_files()
    process, limits = visit.sources.spark_query, visit.sources.spark_queries.limits
    now_ms = visit.sources.clock.now_ms()
    return {"running": None if process is None else process.to_dict(now_ms), "limitSeconds": limits.seconds}


@operation("sql.end", "End the query that runs on Spark.", starts=True)
def end_on_spark(visit: Visit) -> Result:
    visit.require_files()
    process = visit.sources.spark_query
    if process is None or process.running is None:
        raise BadRequest("expected a query that runs on Spark, found none: it may have ended")
    process.running.interrupt(f"it was ended by {visit.actor}")
    return {"ended": process.query}


def _require_only_topics(query: str, topics: set[str]) -> None:
    """Raises BadRequest for a query that could read anything else than topics: files, classes, functions with effects.

    Spark reads files as tables (text.`/path`), and calls any class of its JVM.
    """
    try:
        import sqlglot
        from sqlglot import exp
    except ModuleNotFoundError as error:
        raise BadRequest(f"SQL on Spark needs sqlglot, which is not installed: {install_hint('console')}") from error
    try:
        [parsed] = sqlglot.parse(query, read="spark")
    except (ValueError, sqlglot.errors.SqlglotError) as error:
        raise BadRequest(f"query: expected one SELECT, found: {str(error).splitlines()[0][:200]}") from error
    if not isinstance(parsed, exp.Query):
        raise BadRequest(f"query: expected a SELECT, found {query.strip()[:40]!r}")
    own = {each.alias for each in parsed.find_all(exp.CTE)}
    known = {*topics, *own, "messages", *(re.sub(r"\W", "_", name).lower() for name in topics)}
    for table in parsed.find_all(exp.Table):
        if table.db or table.catalog or not isinstance(table.this, exp.Identifier) or table.name not in known:
            raise BadRequest(f"query: expected topics as tables, found {table.sql(dialect='spark')[:80]}")
    if SCRIPT.search(query) or parsed.find(exp.QueryTransform, exp.Command) is not None:
        raise BadRequest("query: expected a SELECT, found a script, which the console's Spark does not run")
    for call in parsed.find_all(exp.Anonymous):
        if call.name.lower() not in SPARK_CALLS:
            raise BadRequest(f"query: {call.sql(dialect='spark')[:80]} is not allowed on the console's Spark")


def _duckdb() -> Any:
    try:
        import duckdb

        importlib.import_module("pyarrow")  # The columns are Arrow's.
    except ModuleNotFoundError as error:
        raise BadRequest(f"SQL needs {error.name}, which is not installed here: {install_hint('console')}") from error
    return duckdb


def _reader(
    catalog: Catalog,
    topic: str,
    begin_ms: int,
    losses: list[str],
    counters: ScanCounters,
    running: RunningQuery,
    *,
    is_whole: bool,
) -> Any:
    """The messages of a topic as a stream of batches, which can be read once; `is_whole`: to be kept in memory.

    Raises BadRequest for more bytes than a page should read.
    """
    import pyarrow as pa

    from tiermq.history.arrow_batch import decode_run
    from tiermq.history.arrow_schema import arrow_schema

    request = ScanRequest(topics=frozenset({topic}), begin_ms=begin_ms)
    plan = plan_scan(catalog, request, loss_is_error=False)
    most = KEPT_BYTES_MAX if is_whole else SCAN_BYTES_MAX
    if plan.counters.bytes_planned > most:
        how = "kept in memory, since the query names it more than once" if is_whole else "read whole"
        raise BadRequest(
            f"query: {topic} would be {how}, {plan.counters.bytes_planned:,} bytes, which is more than a page takes "
            f"({most:,}): give a begin time, or run it on Spark with `tiermq pipeline sql`"
        )

    def lose(loss: Loss) -> None:
        losses.append(describe(loss))

    def batches() -> Iterator[Any]:
        for task in plan.tasks:
            for run in read_placed_task(catalog.history, task, counters, lose):
                running.check()
                yield from decode_run(run, COLUMNS, request)

    return pa.RecordBatchReader.from_batches(arrow_schema(COLUMNS), batches())


def _shown(value: object) -> object:
    """A value of DuckDB for JSON."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, dict):
        return {str(key): _shown(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(each) for each in value]
    return str(value)
