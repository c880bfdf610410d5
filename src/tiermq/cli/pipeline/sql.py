"""`tiermq pipeline sql`."""

from __future__ import annotations

import csv
import json
import sys
from typing import TYPE_CHECKING, Any

import click

from tiermq.cli.pipeline.options import HERE, Command, job_options, source_arguments, source_options, spark_for
from tiermq.cli.terminal import table_lines
from tiermq.console.json_case import camel
from tiermq.errors import BadConfig

if TYPE_CHECKING:
    from tiermq.pipeline.job_report import JobReport

CELL_MAX = 60
_OPTIONS = (
    click.argument("query"),
    source_options,
    click.option("--key", "keys", multiple=True, help="Only messages with this key, found by the index; repeatable."),
    click.option("--tag", "tags", multiple=True, help="Only messages with this tag; repeatable."),
    click.option("--format", "form", type=click.Choice(["table", "csv", "jsonl"]), default="table", show_default=True),
    click.option(
        "--limit", type=click.IntRange(0), default=1000, show_default=True, help="Maximum number of rows; 0: all."
    ),
    click.option("--explain", is_flag=True, help="Print what the scan planned, skipped and read, on stderr."),
)


def query_options(command: Command) -> Command:
    """The query, what it is asked of, and the form of its rows: of `tiermq sql` and `tiermq pipeline sql`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def query_arguments(keys: tuple[str, ...], tags: tuple[str, ...], **source: Any) -> dict[str, Any]:
    """What those options say as arguments of `scan_spec`. Raises BadConfig."""
    return source_arguments(**source) | {name: list(given) for name, given in (("keys", keys), ("tags", tags)) if given}


@click.command()
@query_options
@job_options
def sql(
    query: str,
    keys: tuple[str, ...],
    tags: tuple[str, ...],
    form: str,
    limit: int,
    explain: bool,
    master: str,
    conf: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    **source: Any,
) -> None:
    """Query history in SQL. Every topic is a table; `messages` is all of them.

    A table's name is its topic, in backticks where it is no plain identifier: `a-b`. A name in lower case and
    with an underscore for other characters works while it is unambiguous: a_b, and _retry_group for %RETRY%group.
    Only columns that the query names are decoded, so name them instead of taking all. Its plain conditions on topic,
    brokerName, queueId, queueOffset, storeTimestamp, tags, uniqKey and array_contains(keys, …) prune before anything is
    read, as --topic, --since, --until, --offsets, --key and --tag do; other conditions are checked row by row.

    \b
    Columns:
      topic, brokerName, queueId, queueOffset, tags, keys, uniqKey, body,
      properties, bornTimestamp, storeTimestamp, msgId, storeSize, deliverTime,
      tier, …; and Kafka's names: key, value, partition, offset, timestamp,
      headers

    \b
    Examples:
      tiermq pipeline sql --tier s3://history \\
          "select topic, count(*) from messages group by topic"
      tiermq pipeline sql "select queueOffset, string(body) from orders" \\
          --tier s3://history --key order-42
      tiermq pipeline sql "select max(storeTimestamp) from orders" \\
          --store ~/store --explain
      tiermq pipeline sql "select body:price from orders" \\
          --tier s3://history --since 2026-01-31 --format csv
    """
    from tiermq.spark.sql import sql as run

    if master == HERE and not dry_run:
        raise BadConfig(f"SQL needs Spark; --master {HERE} runs without it")
    arguments = query_arguments(keys, tags, **source)
    with spark_for(master, conf, needed=not dry_run) as spark:
        report = run(spark, query, limit=limit, explain=explain, dry_run=dry_run, **arguments)
    show_result(report, form, dry_run=dry_run, as_json=as_json)


def show_result(report: JobReport, form: str, *, dry_run: bool, as_json: bool) -> None:
    """Print the rows of a query as text, and on standard error what was read and noted; or all of it as JSON."""
    if as_json:
        click.echo(json.dumps(camel(report.as_dict())))
        return
    for view, lines in report.details.get("scan", {}).items():
        click.echo(f"{view}:", err=not dry_run)
        for line in lines:
            click.echo(f"  {line}", err=not dry_run)
    for note in report.details.get("notes", ()):
        click.echo(f"note: {note}", err=True)
    if not dry_run:
        show_rows(report, form)


def show_rows(report: JobReport, form: str) -> None:
    """Print the rows of a report."""
    from tiermq.pipeline.job_report import counted

    names = [column["name"] for column in report.details["columns"]]
    rows = report.details["rows"]
    if form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([_cell(value) for value in row] for row in rows)
        sys.stdout.flush()
    elif form == "jsonl":
        for row in rows:
            click.echo(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False))
    else:
        cells = [[_short(_cell(value)) for value in row] for row in rows]
        for line in table_lines(names, cells, texts=len(names), width=None):
            click.echo(line)
        summary = f"{counted('rows', len(rows))} in {report.took_s:.1f} s"
        if "messages" in report.done:
            summary += f"; {counted('messages', report.done['messages'])} read"
        click.echo(summary, err=True)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | bool) else str(value)


def _short(text: str) -> str:
    return text if len(text) <= CELL_MAX else f"{text[: CELL_MAX - 1]}…"
