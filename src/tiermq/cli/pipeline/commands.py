"""`tiermq pipeline`: the jobs that run on Spark. Each is loaded when it is called."""

from __future__ import annotations

import errno
import re
from typing import Any

import click

from tiermq.cli.lazy_group import Entry, LazyGroup

COMMANDS = {
    "offload": Entry("tiermq.cli.pipeline_offload", "offload", "Copy store directories into a tier, once or for ever."),
    "compact": Entry("tiermq.cli.pipeline_compact", "compact", "Merge small parts and small index files of a tier."),
    "expire": Entry("tiermq.cli.pipeline_expire", "expire", "Delete what is too old or too much, orphans included."),
    "verify": Entry("tiermq.cli.pipeline_verify", "verify", "Read every byte of a tier and check it; --repair mends."),
    "export": Entry("tiermq.cli.pipeline_export", "export", "Topics into Parquet, Delta or Iceberg tables."),
    "replay": Entry("tiermq.cli.pipeline_replay", "replay", "A range of history back into a topic, at a chosen rate."),
    "reindex": Entry("tiermq.cli.pipeline_reindex", "reindex", "Build the key index of history that has none."),
    "sql": Entry("tiermq.cli.pipeline_sql", "sql", "Ask history in SQL; every topic is a table."),
}

_RAISED = re.compile(r"[\w.]*(Error|Exception|Held|Loss|Lost|Missing|Unavailable)\b.*:")
"""The last line of a traceback."""


class JobGroup(LazyGroup):
    """The outermost edge of a job: what the operating system or Spark raises becomes one sentence here, too."""

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
            raise click.ClickException(f"Spark gave the job up: {told_by_spark(str(error))}") from error


def is_of_spark(error: Exception) -> bool:
    """Whether PySpark raised it, or what it talks to Java or to a server with."""
    return any(kind.__module__.partition(".")[0] in ("pyspark", "py4j", "grpc") for kind in type(error).__mro__)


def told_by_spark(text: str) -> str:
    """The one line of many that says what happened: the last one of a worker's traceback, or else the first."""
    lines = [line.strip() for line in text.split("JVM stacktrace")[0].splitlines() if line.strip()]
    raised = [
        line for line in lines if re.match(r"[\w.]*(Error|Exception|Held|Loss|Lost|Missing|Unavailable)\b.*:", line)
    ]
    return (raised or lines or ["no reason was given"])[-1 if raised else 0]


@click.group(cls=JobGroup, entries=COMMANDS)
def pipeline() -> None:
    """Move, tend and open up history on Spark. Without --master it runs here, on every core of this machine.

    \b
    A day with it:
      tiermq pipeline offload --store ~/store --tier s3://history --trigger 20s    copy what is put, for ever
      tiermq pipeline verify s3://history                                          read and check every byte
      tiermq pipeline sql "select topic, count(*) from messages group by topic" --tier s3://history
      tiermq pipeline export --tier s3://history --topic orders --to parquet:/lake/orders

    Each job can be stopped at any moment and started again; nothing is done twice and nothing is left half done. Every
    job has --dry-run, which says what would be done, and --json, a report for programs.
    """
