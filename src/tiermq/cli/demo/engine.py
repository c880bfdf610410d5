"""How the demo copies history: jobs on Spark, or without Spark the same job in this process.

Both write the same bytes to the tier while the broker serves. SQL and tables need Spark; without it these steps
are reported as skipped.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tiermq.cli.demo.broker import BROKER, DEMO_CLUSTER, Place, complaint_of, tier_settings
from tiermq.cli.demo.orders import LIST_MESSAGES, TOPIC, DemoFailed, Tally
from tiermq.cli.pipeline.options import HERE
from tiermq.errors import JavaMissing, install_hint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiermq.pipeline.task_runner import TaskRunner

QUICK_MESSAGES_MAX = 2_000_000
# For a JVM of one minute, C2 and a multi-threaded collector cost more than they give.
QUICK_JAVA = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
ORDER_SCHEMA = "order bigint, customer int, cents int, receipt string, note string"
SQL = """\
select tags, tier, count(*) as messages,
       sum(bigint(get_json_object(string(body), '$.cents'))) as cents,
       sum(crc32(body)) as checksum
from orders
group by tags, tier
order by messages desc"""
BROKER_SQL = """\
select tags, count(*) as messages, sum(bigint(get_json_object(string(body), '$.cents'))) as cents,
       sum(crc32(body)) as checksum
from orders_at_brokers
group by tags"""
TABLE_SQL = """\
select tags, count(*) as messages, sum(cents) as cents, sum(crc32(body)) as checksum
from orders_table
group by tags"""


@dataclass(frozen=True, slots=True)
class SqlRow:
    """A row of the demo's query."""

    tags: str
    tier: str
    messages: int
    cents: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Table:
    """A written table, and its totals from another reader."""

    files: int
    bytes: int
    took_s: float  # To write; counting not included.
    tally: Tally


class Engine(Protocol):
    """Copies history, and queries it."""

    name: str

    def copy(self, place: Place) -> int:
        """Copy everything that the tier lacks; returns the number of messages. Raises DemoFailed."""
        ...

    def query(self, place: Place) -> list[SqlRow] | None:
        """Query store and tier as one table; None without SQL."""
        ...

    def find(self, place: Place, key: str) -> tuple[list[bytes], int] | None:
        """The bodies of the messages with a key, by SQL, and the bytes read for them."""
        ...

    def ask_brokers(self, name_server: str, tag: str) -> Tally | None:
        """The totals of the messages with a tag, read and filtered by the brokers."""
        ...

    def export(self, place: Place) -> Table | None:
        """Write history into a table and count it there; None without tables."""
        ...

    def close(self) -> None: ...


class PlainEngine:
    """The offload job, in this process."""

    name = "a job without Spark"

    def __init__(self, messages: int) -> None:
        self._settings = tier_settings(messages)

    def copy(self, place: Place) -> int:
        return copied(place, self._settings)

    def query(self, place: Place) -> list[SqlRow] | None:  # noqa: ARG002 - the contract's
        return None

    def find(self, place: Place, key: str) -> tuple[list[bytes], int] | None:  # noqa: ARG002
        return None

    def ask_brokers(self, name_server: str, tag: str) -> Tally | None:  # noqa: ARG002
        return None

    def export(self, place: Place) -> Table | None:  # noqa: ARG002
        return None

    def close(self) -> None:
        """Nothing to close."""


class SparkEngine:
    """A Spark session and the jobs of `tiermq pipeline`. A session that existed before stays open."""

    def __init__(self, master: str, messages: int, log: Path) -> None:
        """The output of a new session's processes goes to the file `log`. Raises DemoFailed."""
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession

        from tiermq.spark.session import get_spark
        from tiermq.spark.spark_runner import SparkRunner

        self._settings = tier_settings(messages)
        self._is_ours = SparkSession.getActiveSession() is None
        conf = QUICK_JAVA if messages <= QUICK_MESSAGES_MAX else {}
        try:
            with errors_into(log) if self._is_ours else nullcontext():
                self._spark: SparkSession = get_spark(master, app="tiermq demo", conf=conf)
        except (PySparkException, OSError) as error:
            reason = str(error).rstrip(".")
            raise DemoFailed(f"Spark did not start on {master}: {reason}. {complaint_of(log)}".rstrip()) from error
        self.name = f"Spark {self._spark.version} on {master}"
        # Workers start with their first task; later measurements exclude the start.
        self._runner = SparkRunner(self._spark)
        self._runner.run(warm_up, [0, 1], name="tiermq demo: start workers")

    def copy(self, place: Place) -> int:
        return copied(place, self._settings, self._runner)

    def query(self, place: Place) -> list[SqlRow] | None:
        from tiermq.spark import messages

        columns = ["tags", "tier", "body"]
        frame = messages(self._spark, tier=place.tier, store=place.store, topic=TOPIC, columns=columns)
        frame.createOrReplaceTempView("orders")
        try:
            return [SqlRow(**row.asDict()) for row in self._spark.sql(SQL).collect()]
        finally:
            self._spark.catalog.dropTempView("orders")

    def find(self, place: Place, key: str) -> tuple[list[bytes], int] | None:
        from tiermq.spark import ScanMeter, messages

        meter = ScanMeter(self._spark)
        frame = messages(
            self._spark, tier=place.tier, store=place.store, topic=TOPIC, keys=key, columns=["body"], meter=meter
        )
        bodies = [bytes(row["body"]) for row in frame.collect()]
        return bodies, meter.counters.bytes_read + meter.counters.index_bytes_read

    def ask_brokers(self, name_server: str, tag: str) -> Tally | None:
        from tiermq.spark import messages

        frame = messages(self._spark, namesrv=name_server, topic=TOPIC, tags=tag, columns=["tags", "body"])
        frame.createOrReplaceTempView("orders_at_brokers")
        try:
            return tally_of(row.asDict() for row in self._spark.sql(BROKER_SQL).collect())
        finally:
            self._spark.catalog.dropTempView("orders_at_brokers")

    def export(self, place: Place) -> Table | None:
        from tiermq.pipeline.export import export
        from tiermq.tables.body_format import BodyFormat

        body = BodyFormat.of("json", ORDER_SCHEMA)
        to = f"parquet:{place.table}"
        columns = ["queueId", "queueOffset", "tags", "keys", "storeTimestamp", "body"]
        report = export(
            self._runner, to=to, tier=place.tier, store=place.store, topic=TOPIC, body=body, columns=columns
        )
        if not report.is_clean:
            raise DemoFailed(f"not everything could be exported to {to}: {'; '.join(report.problems)}")
        files = [file for file in place.table.rglob("*.parquet") if file.is_file()]
        return Table(len(files), sum(file.stat().st_size for file in files), report.took_s, self._count(place))

    def _count(self, place: Place) -> Tally:
        """The table's totals from Spark's own Parquet reader."""
        self._spark.read.parquet(str(place.table)).createOrReplaceTempView("orders_table")
        try:
            return tally_of(row.asDict() for row in self._spark.sql(TABLE_SQL).collect())
        finally:
            self._spark.catalog.dropTempView("orders_table")

    def close(self) -> None:
        if self._is_ours:
            self._spark.stop()


@contextmanager
def errors_into(log: Path) -> Iterator[None]:
    """Redirect standard error of processes that start meanwhile to a file, not that of this process.

    A JVM and its workers warn of incubators and broken pipes, also much later.
    """
    sys.stderr.flush()
    mine, before = os.dup(2), sys.stderr
    try:
        with log.open("ab") as file, os.fdopen(os.dup(2), "w") as ours:
            os.dup2(file.fileno(), 2)
            sys.stderr = ours if before is sys.__stderr__ else before
            try:
                yield
            finally:
                sys.stderr = before
                os.dup2(mine, 2)
    finally:
        os.close(mine)


def copied(place: Place, settings: dict[str, Any], runner: TaskRunner | None = None) -> int:
    """Copy new messages while the broker serves the store; returns their number. Raises DemoFailed."""
    from tiermq.pipeline.offload import offload

    report = offload([f"{place.store}={DEMO_CLUSTER}/{BROKER}"], place.tier, runner=runner, config=settings)
    if not report.is_clean:
        raise DemoFailed(f"not everything could be copied to {place.tier}: {'; '.join(report.problems)}")
    return int(report.done["messages"])


def warm_up(task: int) -> int:
    """A task that only imports what a copy needs."""
    import tiermq.pipeline.offload.task  # noqa: F401

    return task + LIST_MESSAGES


def tally_of(rows: Iterable[dict[str, Any]]) -> Tally:
    """Rows with tags, messages, cents and checksum as one tally."""
    tally = Tally()
    for row in rows:
        count, cents = tally.by_tag.get(row["tags"], (0, 0))
        tally.by_tag[row["tags"]] = count + row["messages"], cents + row["cents"]
        tally.count += row["messages"]
        tally.checksum += row["checksum"]
    return tally


def why_no_spark(master: str) -> str | None:
    """Why Spark cannot be used, or None if it can."""
    if master == HERE:
        return f"--master {HERE} was given"
    missing = [name for name in ("pyspark", "pyarrow", "pandas") if importlib.util.find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed here; {install_hint('spark')}"
    from tiermq.spark.java import find_java

    try:
        find_java()
    except JavaMissing as error:
        return str(error).rstrip(".")
    return None
