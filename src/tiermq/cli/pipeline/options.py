"""Shared by the commands of `tiermq pipeline`: options, Spark session, report output.

Options that select messages (sources, topics, times) are those of `tiermq.pipeline.scan.scan_spec`.
Spark is imported only when a job runs, so that help is fast.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

import click

from tiermq.cli.conventions import EXIT_PROBLEMS
from tiermq.cli.option_values import topic_option
from tiermq.clock import SystemClock, read_moment_ms
from tiermq.console.json_case import camel
from tiermq.errors import BadConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiermq.pipeline.job_report import JobReport
    from tiermq.pipeline.task_runner import TaskRunner


HERE = "here"
DETAILS_SHOWN_MAX = 20
MASTER_WAIT_S = 5.0
CONNECT_PORT = 15002
_MASTERS = re.compile(
    r"local(\[(\*|[1-9]\d*)(,\s*\d+)?\])?|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]"
    r"|spark://[^/,:]+:\d+(,[^/,:]+:\d+)*|sc://.+|k8s://.+|yarn"
)

Command = TypeVar("Command", bound=Callable[..., Any])
Details: TypeAlias = "Callable[[JobReport], Iterator[str]]"
"""A job's own lines after the report."""

TIER = click.option("--tier", required=True, metavar="URL", help="Tier: file:///dir, s3://bucket/prefix, …")
CLUSTER = click.option("--cluster", help="Only this cluster (brokerClusterName).")
BROKER = click.option("--broker", help="Only this broker (brokerName).")
STORE = click.option(
    "--store",
    metavar="DIR[=cluster/broker]",
    help="The broker's store directory: the job uses and updates its tier metadata.",
)
DRY_RUN = click.option("--dry-run", is_flag=True, help="Report what would be done; write nothing, take no lease.")
JSON = click.option(
    "--json", "as_json", is_flag=True, help="Print the report as one JSON object, without progress bar."
)
MASTER = click.option(
    "--master",
    default="local[*]",
    show_default=True,
    help=f"Where tasks run: local[N], spark://host:7077, sc://host; '{HERE}' is this process, without Spark.",
)
NO_WAIT = click.option(
    "--no-wait", is_flag=True, help="Fail at once if another job, which may be dead, holds a broker's lease."
)
CONF = click.option("--conf", multiple=True, metavar="KEY=VALUE", help="Spark setting; repeatable.")


def job_options(command: Command) -> Command:
    """The options that every job has: --master, --conf, --dry-run, --json."""
    for option in (JSON, DRY_RUN, CONF, MASTER):
        command = option(command)
    return command


def parsed_conf(conf: tuple[str, ...]) -> dict[str, str]:
    """Parse `KEY=VALUE` texts as settings. Raises BadConfig."""
    settings = {}
    for text in conf:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise BadConfig(f"--conf is KEY=VALUE, such as spark.executor.memory=2g, found {text!r}")
        settings[name.strip()] = value
    return settings


def check_master(master: str) -> None:
    """Raises BadConfig for an invalid or unreachable master; Spark would take a minute to fail."""
    if not _MASTERS.fullmatch(master):
        raise BadConfig(
            "--master is local[N], local-cluster[N,CORES,MB], spark://host:port, k8s://…, yarn, sc://host or "
            f"'{HERE}', found {master!r}"
        )
    scheme, _, rest = master.partition("://")
    if scheme not in ("spark", "sc"):
        return
    places = [text.partition("/")[0].partition(";")[0] for text in rest.split(",")]
    refusals = []
    for place in places:
        host, _, port = place.partition(":")
        try:
            with socket.create_connection((host, int(port or CONNECT_PORT)), timeout=MASTER_WAIT_S):
                return
        except (OSError, ValueError) as error:
            refusals.append(f"{place}: {error}")
    raise BadConfig(f"--master {master}: expected a Spark that answers, found none ({'; '.join(refusals)})")


@contextmanager
def spark_for(master: str, conf: tuple[str, ...] = (), *, needed: bool = True) -> Iterator[SparkSession | None]:
    """The session for a job, stopped at its end if started here; None for `here`, and if no session is needed.

    Raises BadConfig, …
    """
    settings = parsed_conf(conf)
    if not needed:
        yield None
        return
    if master == HERE:
        if settings:
            raise BadConfig(f"--conf is for Spark, and with --master {HERE} there is none; leave out one of the two")
        yield None
        return
    from pyspark.sql import SparkSession

    from tiermq.spark.session import get_spark

    running = SparkSession.getActiveSession()
    if running is None:
        check_master(master)
    session = get_spark(master, app="tiermq pipeline", conf=settings)
    try:
        yield session
    finally:
        if running is None:
            session.stop()


@contextmanager
def runner_for(master: str, conf: tuple[str, ...] = (), *, needed: bool = True) -> Iterator[TaskRunner | None]:
    """Where a job's tasks run: on the executors of `spark_for`, or None for this process. Raises BadConfig, …"""
    with spark_for(master, conf, needed=needed) as spark:
        if spark is None:
            yield None
            return
        from tiermq.spark.spark_runner import SparkRunner

        yield SparkRunner(spark)


def show_report(
    report: JobReport, *, as_json: bool, details: Callable[[JobReport], Iterator[str]] | None = None
) -> None:
    """Print a report as text or JSON."""
    if as_json:
        click.echo(json.dumps(camel(report.as_dict())))
        return
    for line in report.lines():
        click.echo(line)
    shown = list(details(report)) if details is not None else []
    for line in shown[:DETAILS_SHOWN_MAX]:
        click.echo(f"  {line}")
    if len(shown) > DETAILS_SHOWN_MAX:
        click.echo(f"  … and {len(shown) - DETAILS_SHOWN_MAX} more; --json has all of them")
    for note in report.details.get("notes", ()):
        click.echo(f"  note: {note}")


def finish(report: JobReport, *, as_json: bool, details: Details | None = None) -> NoReturn:
    """Print the report and exit: code 0, or 1 when there were problems."""
    show_report(report, as_json=as_json, details=details)
    raise SystemExit(0 if report.is_clean else EXIT_PROBLEMS)


PLACES = (
    click.option("--tier", metavar="URL", help="Tier: file:///dir, s3://bucket/prefix, …"),
    click.option(
        "--store",
        "stores",
        multiple=True,
        metavar="DIR[=broker]",
        help="Store directory and its broker's name; repeatable. With --tier: hot and cold as one.",
    ),
)
TOPICS = topic_option("topics", multiple=True, help="Only this topic; repeatable [all].")
TIMES = (
    click.option(
        "--since",
        metavar="TIME",
        help="Stored at or after: 2026-01-31T10:00 (UTC without a zone), ms since 1970, or an age such as 1h.",
    ),
    click.option("--until", metavar="TIME", help="Stored before this time."),
)
OFFSETS = click.option(
    "--offsets", metavar="FROM:TO", help="Only these offsets of every queue, either side optional: 100:200, 100:."
)
QUEUES = click.option("--queue", "queues", multiple=True, type=int, help="Only this queue id; repeatable.")


def source_options(command: Command) -> Command:
    """--tier, --store, --cluster, --topic, --queue, --since, --until, --offsets."""
    for option in (OFFSETS, *reversed(TIMES), QUEUES, TOPICS, CLUSTER, *reversed(PLACES)):
        command = option(command)
    return command


def source_arguments(
    *,
    tier: str | None,
    stores: tuple[str, ...],
    topics: tuple[str, ...],
    cluster: str | None = None,
    queues: tuple[int, ...] = (),
    since: str | None = None,
    until: str | None = None,
    offsets: str | None = None,
) -> dict[str, Any]:
    """The options as arguments of `scan_spec`. Raises BadConfig."""
    if tier is None and not stores:
        raise BadConfig("no source: give --tier URL, --store DIR, or both")
    arguments: dict[str, Any] = {
        "tier": tier,
        "store": list(stores) or None,
        "cluster": cluster,
        "topic": list(topics) or None,
        "queues": list(queues) or None,
        "since": moment_of(since),
        "until": moment_of(until),
        "offsets": offsets_of(offsets),
    }
    return {name: value for name, value in arguments.items() if value is not None}


def moment_of(text: str | None) -> int | None:
    """A time in ms since 1970; without a zone it is UTC. Raises BadConfig."""
    try:
        return None if text is None else read_moment_ms(text, SystemClock().now_ms())
    except ValueError as error:
        raise BadConfig(f"--since and --until: {error}") from error


def offsets_of(text: str | None) -> tuple[int | None, int | None] | None:
    """`FROM:TO` as numbers. Raises BadConfig."""
    if text is None:
        return None
    begin, colon, end = text.partition(":")
    if not colon or not all(each == "" or each.isdigit() for each in (begin, end)) or text == ":":
        raise BadConfig(f"--offsets is FROM:TO, such as 100:200, 100: or :200, found {text!r}")
    if begin and end and int(begin) > int(end):
        raise BadConfig(f"--offsets is FROM:TO, with FROM <= TO, found {text!r}")
    return (int(begin) if begin else None, int(end) if end else None)


@contextmanager
def stopped_by_signals(stop: threading.Event, what: str) -> Iterator[None]:
    """The first SIGINT or SIGTERM sets `stop`; the second ends the process."""
    before: dict[int, Any] = {}

    def ask(number: int, _frame: object) -> None:
        click.echo(f"stopping after this {what}; once more to stop at once", err=True)
        stop.set()
        signal.signal(number, before[number])

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, ask)
    try:
        yield
    finally:
        for changed, handler in before.items():
            signal.signal(changed, handler)


def queue_ranges(report: JobReport) -> Iterator[str]:
    """A line for each queue of a report, with its offset ranges."""
    for row in report.details.get("queues", ()):
        ranges = ", ".join(f"{begin}..{end}" for begin, end in row["ranges"])
        yield f"{row['queue']}: {ranges}"
