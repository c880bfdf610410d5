"""`tiermq pipeline export`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import click

from tiermq.cli.pipeline.offload import seconds_of
from tiermq.cli.pipeline.options import (
    finish,
    job_options,
    queue_ranges,
    runner_for,
    source_arguments,
    source_options,
    stopped_by_signals,
)
from tiermq.cli.terminal import bar
from tiermq.errors import BadConfig

if TYPE_CHECKING:
    from tiermq.tables.body_format import BodyFormat

PASSED = ("to", "catalog", "warehouse", "keep_body", "max_bad", "fail_on_bad", "merge_schema", "upsert", "key",
          "tombstone", "buckets", "allow_loss")  # fmt: skip
"""Options that are the job's arguments as they are."""


@click.command()
@source_options
@click.option("--to", required=True, metavar="KIND:PLACE", help="Target: parquet:/dir, delta:s3://…, iceberg:ns.table.")
@click.option("--catalog", help="Iceberg: sqlite:////file.db, or the name of a pyiceberg catalog.")
@click.option("--warehouse", metavar="PLACE", help="Iceberg: where tables are created [beside the sqlite file].")
@click.option("--columns", help="Only these columns of messages, comma-separated.")
@click.option("--body", type=click.Choice(["json", "avro", "protobuf"]), help="Decode bodies into columns.")
@click.option(
    "--schema", help="For --body: 'id bigint, name string', or the file of a JSON, Avro or descriptor schema."
)
@click.option("--message", default="", help="For --body protobuf: full name of the message type.")
@click.option("--prefix", default="", help="For --body: prefix of its column names.")
@click.option("--keep-body", is_flag=True, help="For --body: also keep the raw body as a column.")
@click.option("--max-bad", type=int, help="Commit nothing if more bodies than this cannot be decoded.")
@click.option("--fail-on-bad", is_flag=True, help="Exit with 1 if there were such bodies; the rest is committed.")
@click.option("--merge-schema", is_flag=True, help="Add columns of bodies that the table lacks; widen types (Iceberg).")
@click.option("--upsert", is_flag=True, help="Keep only the last write of each key (Delta, Iceberg).")
@click.option("--key", metavar="COLUMN", help="For --upsert: a column of bodies [the message's first key].")
@click.option("--tombstone", metavar="RULE", help="For --upsert: empty, none, tag:TAG, column:NAME=VALUE [empty].")
@click.option("--buckets", type=int, help="For --upsert: parts of the table that are merged separately [16].")
@click.option("--file-mib", type=click.IntRange(1), default=128, show_default=True, help="Messages per file, in MiB.")
@click.option("--allow-loss", is_flag=True, help="Continue where messages were lost before export.")
@click.option("--trigger", metavar="TIME", help="Repeat at this interval (60s, 5m), until stopped.")
@job_options
def export(
    columns: str | None,
    body: str | None,
    schema: str | None,
    message: str,
    prefix: str,
    file_mib: int,
    trigger: str | None,
    master: str,
    conf: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    **more: Any,
) -> None:
    """Export topics to a Parquet, Delta or Iceberg table, every message exactly once over any number of runs.

    The table records which offsets of each queue it has, so a run adds new or older messages: first --since
    yesterday, later everything. It can be stopped or killed at any moment. Of two concurrent runs, one fails and adds
    nothing. A table with other columns is rejected before reading.

    --body decodes bodies into columns. A body that cannot be decoded goes to Parquet files beside the table,
    PLACE_bad, with its offset, the reason and the raw body. Damaged messages of the history are left out: they do
    not count as exported, and the run after a repair adds them.

    --upsert keeps the last write of each key, by store time and queue offset; a tombstone deletes its key. Late
    messages never replace newer ones. It takes one topic. A message without a key goes to PLACE_bad.

    The directory of a Parquet table holds committed files only; the job's state is in _tiermq, which readers
    skip.

    Exit code: 0, or 1 if messages were damaged or no body could be decoded, and with --fail-on-bad if any could not.

    \b
    Examples:
      tiermq pipeline export --tier s3://history --topic orders \\
          --to parquet:/lake/orders --dry-run
      tiermq pipeline export --store ~/store --to iceberg:lake.orders \\
          --catalog sqlite:////lake/catalog.db
      tiermq pipeline export --tier s3://history --topic orders \\
          --to delta:/lake/orders --body json \\
          --schema 'id bigint, items array<struct<sku: string, count: int>>'
      tiermq pipeline export --tier s3://history --topic orders \\
          --to delta:/lake/latest --trigger 60s \\
          --upsert --key id --body json --schema 'id bigint, price double' \\
          --merge-schema
    """
    from tiermq.pipeline.export import export as run

    stop = threading.Event()
    passed = {name: more.pop(name) for name in PASSED}
    arguments = source_arguments(**more) | {"body": _body_of(body, schema, message, prefix)}
    trigger_s = None if trigger is None else seconds_of(trigger)
    with (
        runner_for(master, conf, needed=not dry_run) as runner,
        bar("exporting", quiet=as_json) as progress,
        stopped_by_signals(stop, "run"),
    ):
        report = run(
            runner,
            columns=[name.strip() for name in columns.split(",")] if columns else None,
            file_bytes=file_mib << 20,
            trigger_s=trigger_s,
            stop=stop,
            dry_run=dry_run,
            progress=progress,
            **passed,
            **arguments,
        )
    finish(report, as_json=as_json, details=queue_ranges)


def _body_of(body: str | None, schema: str | None, message: str, prefix: str) -> BodyFormat | None:
    if body is None:
        if schema or message or prefix:
            raise BadConfig("--schema, --message and --prefix need --body json, avro or protobuf")
        return None
    if schema is None:
        raise BadConfig(f"--body {body} needs --schema: which columns bodies have")
    from tiermq.tables.body_format import BodyFormat

    return BodyFormat.of(body, schema, message=message, prefix=prefix)
