"""A query in DuckDB's SQL over a history: every topic is a table, and `messages` is all of them.

Each reference to a table is scanned separately, with what the query's own conditions leave of it and only the columns
that it can need, as `tiermq pipeline sql` does on Spark (`pipeline/sql/query_tables`). DuckDB applies every condition
again, so pruning never decides what the answer is. One process does the work: for very much data Spark is the better
engine, and `advice` reports it before anything is read.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import TYPE_CHECKING

from tiermq.embedded.history_dataset import HistoryDataset
from tiermq.embedded.optional_modules import require
from tiermq.errors import BadOption, TierMQError
from tiermq.history.arrow_schema import ALIASES, COLUMNS
from tiermq.history.scan_values import ScanCounters, ScanPlan
from tiermq.pipeline.job_report import JobReport, size_text
from tiermq.pipeline.scan.explain import describe_counters
from tiermq.pipeline.scan.scan_spec import ScanSpec
from tiermq.pipeline.sql.query_tables import query_tables
from tiermq.pipeline.sql.topic_views import ROWS_SHOWN, columns_needed, history_views, plain

if TYPE_CHECKING:
    import duckdb

SPARK_BYTES = 20 << 30
"""From here on a Spark cluster, or Spark on several processors, answers sooner than one process does."""
_PREFIX = "_tiermq_"


def connect() -> duckdb.DuckDBPyConnection:
    """A connection to a database in memory, in UTC, which loads nothing over the network."""
    require("duckdb", "sql")
    import duckdb

    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'; SET autoinstall_known_extensions = false")
    return connection


class DuckDBQuery:
    """One query and the tables that it reads. Belongs to one thread. Nothing but the list of topics is read yet."""

    def __init__(self, query: str, spec: ScanSpec, *, columns: tuple[str, ...] | None = None) -> None:
        """Raises BadHistory, and BadOption for a name that means several topics."""
        self.query = query
        self.views = history_views(spec)
        needed = columns_needed(query)
        offered = columns or (*COLUMNS, *ALIASES)
        wanted = columns if needed is None else tuple(name for name in needed if name in offered)
        tables = query_tables(query, self.views.known, _PREFIX, dt.UTC, dialect="duckdb")
        self.tables: dict[str, tuple[str, HistoryDataset]] = {}
        """Name in the query's text → name that the user wrote, and what it reads."""
        if tables is None:  # A text that is left as it is: whole topics, under every name that it has.
            self.text = query
            for name in dict.fromkeys([*self.views.named(query)]):
                self.tables[name] = (name, HistoryDataset(self._of_topic(spec, name), wanted))
            return
        self.text = tables.text
        for read in tables.reads:
            chosen = self._of_topic(spec, read.view)
            self.tables[read.name] = (
                read.view,
                HistoryDataset(replace(chosen, pruning=chosen.pruning.also(read.pruning)), wanted),
            )

    def _of_topic(self, spec: ScanSpec, view: str) -> ScanSpec:
        return replace(spec, topics=tuple(self.views.topics_of(view)), topic_pattern=None)

    def plans(self) -> dict[str, ScanPlan]:
        """What each table of the query would read, by its name in the query. Reads no message."""
        found: dict[str, ScanPlan] = {}
        for number, (view, dataset) in enumerate(self.tables.values(), 1):
            found[view if view not in found else f"{view} ({number})"] = dataset.plan()
        return found

    def relation(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """The query as a relation, which is evaluated when rows are asked for. Raises BadOption."""
        connection = connection or connect()
        for name, (_, dataset) in self.tables.items():
            connection.register(name, dataset)
        import duckdb

        try:
            relation = connection.sql(self.text)
        except duckdb.Error as error:
            raise self._bad(error) from None
        if relation is None:
            raise BadOption("history is read-only: expected a query, found a statement that gives no rows")
        return relation

    def rows(self, limit: int) -> tuple[list[tuple[str, str]], list[tuple[object, ...]]]:
        """(Name, type) of the columns, and at most `limit` rows (0: all). Raises BadOption, and what a scan raises."""
        import duckdb

        connection = connect()
        try:
            relation = self.relation(connection)
            columns = [(str(name), str(kind)) for name, kind in zip(relation.columns, relation.types, strict=True)]
            try:
                rows = (relation.limit(limit) if limit else relation).fetchall()
            except duckdb.Error as error:
                cause = error.__cause__ or error.__context__
                raise (cause if isinstance(cause, TierMQError) else self._bad(error)) from None
        finally:
            connection.close()
        return columns, rows

    @property
    def counters(self) -> ScanCounters:
        """What was planned and read."""
        total = ScanCounters()
        for _, dataset in self.tables.values():
            total += dataset.counters
        return total

    def _bad(self, error: Exception) -> BadOption:
        return BadOption(
            f"{error}\nTables are {self.views.shown()}; columns are those of messages (topic, queueOffset, body, …). "
            'Names that are no plain identifiers stand in double quotes: "a-b"'
        )


def query_history(
    query: str, spec: ScanSpec, *, limit: int = ROWS_SHOWN, explain: bool = False, dry_run: bool = False
) -> JobReport:
    """Run a query; the report is that of `tiermq.spark.sql.sql`: its `details` have `columns` and `rows`, fit for JSON.

    A note in `details["notes"]` states when Spark is the better engine. A dry run plans the scans, and reads nothing.
    Raises BadOption for a query that cannot be, BadHistory, and what a scan raises.
    """
    place = spec.place
    report = JobReport("sql", place.tier or ", ".join(store.path for store in place.stores), dry_run, master="duckdb")
    with report.timed():
        asked = DuckDBQuery(query, spec)
        report.details |= {"views": dict(asked.views), "columns_read": list(columns_needed(query) or ()) or "all"}
        notes = report.details["notes"] = []
        if not asked.tables:
            notes.append(f"the query names none of the tables, so nothing is read; there are {asked.views.shown()}")
        plans = asked.plans()
        report.planned["bytes"] = sum(plan.counters.bytes_planned for plan in plans.values())
        if note := advice(int(report.planned["bytes"])):
            notes.append(note)
        if dry_run:
            report.details["scan"] = {
                view: describe_counters(plan.counters).splitlines() for view, plan in plans.items()
            }
            return report
        columns, rows = asked.rows(limit)
        report.details["columns"] = [{"name": name, "type": kind} for name, kind in columns]
        report.details["rows"] = [[plain(value) for value in row] for row in rows]
        read = asked.counters
        report.done |= {"rows": len(rows), "messages": read.rows_read, "bytes": read.bytes_read}
        if explain:
            report.details["scan"] = {"all": describe_counters(read).splitlines()}
    return report


def advice(planned_bytes: int, least: int = SPARK_BYTES) -> str:
    """Why Spark is the better engine for a scan of so many bytes; empty when it is not."""
    if planned_bytes < least:
        return ""
    return (
        f"this query reads about {size_text(planned_bytes)}, in one process. Spark reads on all processors, or on a "
        "cluster: tiermq pipeline sql --master local[*] … (or spark://host:7077). Conditions on topic, time, queue, "
        "offset and key make both read less"
    )
