"""`tiermq pipeline export`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import click

from tiermq.cli.pipeline_offload import seconds_of
from tiermq.cli.pipeline_options import bar, finish, job_options, spark_for
from tiermq.cli.pipeline_source_options import queue_ranges, source_arguments, source_options, stopped_by_signals
from tiermq.errors import BadConfig

if TYPE_CHECKING:
    from tiermq.spark.tables.body_format import BodyFormat


@click.command()
@source_options
@click.option("--to", required=True, metavar="KIND:PLACE", help="parquet:/dir, delta:s3://…, iceberg:namespace.table.")
@click.option("--catalog", help="Iceberg: sqlite:////file.db, or the name of a catalogue that pyiceberg knows.")
@click.option("--warehouse", metavar="PLACE", help="Iceberg: where tables are made; else beside the sqlite file.")
@click.option("--columns", help="Only these columns of messages, with commas between them.")
@click.option("--body", type=click.Choice(["json", "avro", "protobuf"]), help="Make columns of bodies.")
@click.option(
    "--schema", help="For --body: 'id bigint, name string', or the file of a JSON, Avro or descriptor schema."
)
@click.option("--message", default="", help="For --body protobuf: the message's full name.")
@click.option("--prefix", default="", help="For --body: what the names of its columns begin with.")
@click.option("--keep-body", is_flag=True, help="For --body: keep the raw body as a column, too.")
@click.option("--max-bad", type=int, help="Commit nothing when more bodies than this cannot be decoded.")
@click.option("--file-mib", type=click.IntRange(1), default=128, show_default=True, help="Messages per file, in MiB.")
@click.option("--allow-loss", is_flag=True, help="Go on where messages were lost before they were exported.")
@click.option("--trigger", metavar="TIME", help="Look again every so often (60s, 5m), until stopped.")
@job_options
def export(
    to: str,
    catalog: str | None,
    warehouse: str | None,
    columns: str | None,
    body: str | None,
    schema: str | None,
    message: str,
    prefix: str,
    keep_body: bool,
    max_bad: int | None,
    file_mib: int,
    allow_loss: bool,
    trigger: str | None,
    master: str,
    conf: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    **source: Any,
) -> None:
    """Topics into a Parquet directory, a Delta or an Iceberg table: every message once, over any number of runs.

    The table knows which offsets of which queues it has, so a run adds what is new, or what lies before: first --since
    yesterday, later everything. It can be stopped or killed at any moment. Of two runs at once, one loses and adds
    nothing. A table with other columns is refused before anything is read.

    --body makes columns of bodies. A body that does not fit goes to a directory of Parquet files beside the table,
    PLACE_bad, with its offset, the reason and the raw body. Messages that are damaged in the history stay out: they do
    not count as exported, and the run after a repair adds them.

    Parquet files lie in the directory itself, and only committed ones; what the job keeps is in _tiermq, which readers
    pass over.

    Exit code: 0, or 1 if messages were damaged or not one body fitted.

    \b
    Examples:
      tiermq pipeline export --tier s3://history --topic orders --to parquet:/lake/orders --dry-run
      tiermq pipeline export --tier s3://history --store ~/store --to delta:s3://lake/all --trigger 60s
      tiermq pipeline export --store ~/store --to iceberg:lake.orders --catalog sqlite:////lake/catalog.db
      tiermq pipeline export --tier s3://history --topic orders --to delta:/lake/orders \\
          --body json --schema 'id bigint, price double, items array<struct<sku: string, count: int>>'
    """
    from tiermq.spark.jobs.export import export as run

    stop = threading.Event()
    arguments = source_arguments(**source) | {"body": _body_of(body, schema, message, prefix)}
    trigger_s = None if trigger is None else seconds_of(trigger)
    with (
        spark_for(master, conf, needed=not dry_run) as spark,
        bar("exporting", quiet=as_json) as progress,
        stopped_by_signals(stop, "run"),
    ):
        report = run(
            spark,
            to=to,
            catalog=catalog,
            warehouse=warehouse,
            columns=[name.strip() for name in columns.split(",")] if columns else None,
            keep_body=keep_body,
            max_bad=max_bad,
            file_bytes=file_mib << 20,
            allow_loss=allow_loss,
            trigger_s=trigger_s,
            stop=stop,
            dry_run=dry_run,
            progress=progress,
            **arguments,
        )
    finish(report, as_json=as_json, details=queue_ranges)


def _body_of(body: str | None, schema: str | None, message: str, prefix: str) -> BodyFormat | None:
    if body is None:
        if schema or message or prefix:
            raise BadConfig("--schema, --message and --prefix are for --body; say which: json, avro or protobuf")
        return None
    if schema is None:
        raise BadConfig(f"--body {body} needs --schema: which columns bodies have")
    from tiermq.spark.tables.body_format import BodyFormat

    return BodyFormat.of(body, schema, message=message, prefix=prefix)
