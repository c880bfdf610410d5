"""What the commands of `tiermq pipeline` share: options, the session, the bar, and how a report is shown.

Nothing here imports Spark before a job runs: help comes at once.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tiermq.cli.tier_output import is_watched
from tiermq.errors import BadConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiermq.spark.jobs.job_report import JobReport

EXIT_PROBLEMS = 1
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
"""The lines of a job's own that follow the report's."""

TIER = click.option("--tier", required=True, metavar="URL", help="The tier: file:///dir, s3://bucket/prefix, …")
CLUSTER = click.option("--cluster", help="Only this cluster (brokerClusterName).")
BROKER = click.option("--broker", help="Only this broker (brokerName).")
STORE = click.option(
    "--store",
    metavar="DIR[=cluster/broker]",
    help="The broker's store directory: the job goes by its metadata and keeps them true.",
)
DRY_RUN = click.option("--dry-run", is_flag=True, help="Say what would be done. Nothing is written, no lease taken.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, the report, and no bar.")
MASTER = click.option(
    "--master",
    default="local[*]",
    show_default=True,
    help=f"Where tasks run: local[N], spark://host:7077, sc://host; '{HERE}' is this process, without Spark.",
)
CONF = click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark; may be repeated.")


def job_options(command: Command) -> Command:
    """The options that every job has: --master, --conf, --dry-run, --json."""
    for option in (JSON, DRY_RUN, CONF, MASTER):
        command = option(command)
    return command


def parsed_conf(conf: tuple[str, ...]) -> dict[str, str]:
    """`KEY=VALUE` texts as settings. Raises BadConfig."""
    settings = {}
    for text in conf:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise BadConfig(f"--conf is KEY=VALUE, such as spark.executor.memory=2g, found {text!r}")
        settings[name.strip()] = value
    return settings


def check_master(master: str) -> None:
    """Raises BadConfig for a text that is no master, or one that does not answer: Spark itself takes a minute."""
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
    """The session for a job, stopped at its end if it was started for it; None for `here`, and where none is needed.

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
def bar(text: str, *, in_bytes: bool = False, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A function to tell (done, in all); it draws where somebody is watching."""
    if quiet or not is_watched():
        yield lambda _done, _total: None
        return
    amount = DownloadColumn() if in_bytes else MofNCompleteColumn()
    unit = TextColumn("" if in_bytes else "tasks done,")
    columns = (TextColumn(text), BarColumn(), amount, unit, TimeRemainingColumn(), TextColumn("left"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(text, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def show_report(
    report: JobReport, *, as_json: bool, details: Callable[[JobReport], Iterator[str]] | None = None
) -> None:
    """Print a report, for eyes or for programs."""
    if as_json:
        click.echo(json.dumps(report.as_dict()))
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
    """Show the report and end: exit code 0, or 1 when there were problems."""
    show_report(report, as_json=as_json, details=details)
    raise SystemExit(0 if report.is_clean else EXIT_PROBLEMS)
