"""`tiermq pipeline`: the jobs that run on Spark. Each is loaded when it is called."""

from __future__ import annotations

import errno
import re
from typing import Any

import click

from tiermq.cli.main import Entry, LazyGroup

COMMANDS = {
    "offload": Entry("tiermq.cli.pipeline.offload", "offload", "Copy running brokers or store directories to a tier."),
    "compact": Entry("tiermq.cli.pipeline.compact", "compact", "Merge small parts and small index files of a tier."),
    "expire": Entry("tiermq.cli.pipeline.expire", "expire", "Delete expired history and orphans of a tier."),
    "verify": Entry("tiermq.cli.pipeline.verify", "verify", "Verify and repair a large tier in parallel."),
    "export": Entry("tiermq.cli.pipeline.export", "export", "Export topics to Parquet, Delta or Iceberg tables."),
    "maintain": Entry(
        "tiermq.cli.pipeline.maintain", "maintain", "Merge small files and delete old versions of exported tables."
    ),
    "replay": Entry("tiermq.cli.pipeline.replay", "replay", "Replay a range of history into topics."),
    "reindex": Entry("tiermq.cli.pipeline.reindex", "reindex", "Build missing parts of the key index of a tier."),
    "sql": Entry("tiermq.cli.pipeline.sql", "sql", "Query history in SQL; every topic is a table."),
}

_RAISED = re.compile(r"[\w.]*(Error|Exception|Held|Loss|Lost|Missing|Unavailable)\b.*:")
"""Matches the last line of a traceback."""


class JobGroup(LazyGroup):
    """Errors of the operating system and of Spark become one-line error messages."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OSError as error:
            if error.errno == errno.EPIPE:  # `… | head -1`: click ends the command quietly.
                raise
            raise click.ClickException(" ".join(str(error).split())) from error
        except Exception as error:
            if not is_of_spark(error):
                raise
            raise click.ClickException(f"the Spark job failed: {spark_error_text(str(error))}") from error


def is_of_spark(error: Exception) -> bool:
    """Whether PySpark, Py4J or gRPC raised it."""
    return any(kind.__module__.partition(".")[0] in ("pyspark", "py4j", "grpc") for kind in type(error).__mro__)


def spark_error_text(text: str) -> str:
    """The line that names the error: the last of a worker's traceback, else the first."""
    lines = [line.strip() for line in text.split("JVM stacktrace")[0].splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    return (raised or lines or ["no reason was given"])[-1 if raised else 0]


@click.group(cls=JobGroup, entries=COMMANDS)
def pipeline() -> None:
    """Batch jobs on Spark: offload, compact, verify, export, SQL.

    \b
    Examples:
      tiermq pipeline offload --store ~/store --tier s3://history --trigger 20s
      tiermq pipeline verify s3://history
      tiermq pipeline sql --tier s3://history \\
          "select topic, count(*) from messages group by topic"
      tiermq pipeline export --tier s3://history --topic orders \\
          --to parquet:/lake/orders

    Each job can be stopped at any moment and started again; no work is repeated or left incomplete. Every
    job has --dry-run, which reports what would be done, and --json, a report for programs.
    """
