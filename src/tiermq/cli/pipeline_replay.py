"""`tiermq pipeline replay`."""

from __future__ import annotations

import threading
from typing import Any

import click

from tiermq.cli.pipeline_options import bar, finish, job_options, spark_for
from tiermq.cli.pipeline_source_options import (
    offsets_of,
    queue_ranges,
    source_arguments,
    source_options,
    stopped_by_signals,
)
from tiermq.errors import BadConfig


@click.command()
@source_options
@click.option("--key", "keys", multiple=True, help="Only messages with this key; may be repeated.")
@click.option("--tag", "tags", multiple=True, help="Only messages with this tag; may be repeated.")
@click.option("--table", metavar="KIND:PLACE", help="Replay an exported table (parquet:/dir, …) instead of a history.")
@click.option("--catalog", help="For an Iceberg table: its catalogue.")
@click.option("--into", required=True, metavar="DIR", help="The store directory that messages are put into.")
@click.option("--record", required=True, metavar="DIR", help="What was replayed where; give it again to go on.")
@click.option("--to-topic", help="Put everything into this topic; without it, each message into its own.")
@click.option("--queues", "queue_count", type=click.IntRange(1), help="Spread queue ids over so many queues.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="Add a property; may be repeated.")
@click.option("--map", "function", metavar="MODULE:FUNCTION", help="A function from a message to a message, or None.")
@click.option("--rate", type=float, help="At most so many messages per second.")
@click.option("--allow-loss", is_flag=True, help="Leave out what is lost instead of refusing.")
@job_options
def replay(
    keys: tuple[str, ...],
    tags: tuple[str, ...],
    table: str | None,
    catalog: str | None,
    into: str,
    record: str,
    to_topic: str | None,
    queue_count: int | None,
    properties: tuple[str, ...],
    function: str | None,
    rate: float | None,
    allow_loss: bool,
    master: str,
    conf: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    **source: Any,
) -> None:
    """A range of history, filtered and mapped, back into a topic of a store directory, at a chosen rate.

    Messages of a queue keep their order. Delays and transactions are not repeated: a replayed message is there at once.
    What is stored while a replay runs is not replayed: its ranges are those of its start.

    RECORD/offsets.csv has a line for each message, written as it goes: where it was, and where it is now. A replay that
    was stopped or killed goes on when it is run again with the same record, and puts nothing twice.

    --map names a function that is importable here and on the executors. It takes a ReplayMessage (topic, body,
    queue_id, keys, tags, properties, source, …) and returns one, changed with dataclasses.replace, or None to leave it
    out.

    The store must not be open elsewhere: a directory has one writer.

    Exit code: 0, or 1 if messages were damaged or lost.

    \b
    Examples:
      tiermq pipeline replay --tier s3://history --topic orders --since 2026-01-31T10:00 --until 2026-01-31T11:00 \\
          --into ~/store --to-topic orders-again --rate 500 --record ./replay-1
      tiermq pipeline replay --tier s3://history --topic orders --key order-42 --into ~/store --record ./replay-2
      tiermq pipeline replay --table delta:/lake/orders --into ~/store --map shop.replay:anonymise --record ./replay-3
    """
    from tiermq.spark.jobs.replay import replay as run

    stop = threading.Event()
    arguments = _arguments(table, source)
    arguments |= {name: list(given) for name, given in (("keys", keys), ("tags", tags)) if given}
    with (
        spark_for(master, conf, needed=not dry_run) as spark,
        bar("replaying", in_bytes=True, quiet=as_json) as progress,
        stopped_by_signals(stop, "step"),
    ):
        report = run(
            spark,
            into=into,
            record=record,
            to_topic=to_topic,
            queue_count=queue_count,
            properties=properties_of(properties),
            function=function,
            rate=rate,
            table=table,
            catalog=catalog,
            allow_loss=allow_loss,
            dry_run=dry_run,
            stop=stop,
            progress=progress,
            **arguments,
        )
    finish(report, as_json=as_json, details=queue_ranges)


def properties_of(texts: tuple[str, ...]) -> dict[str, str]:
    """`NAME=VALUE` texts as properties. Raises BadConfig."""
    pairs = [text.partition("=") for text in texts]
    wrong = next((name for name, equals, value in pairs if not (name and equals and value)), None)
    if wrong is not None:
        raise BadConfig(f"--property is NAME=VALUE, such as replay=1, found {wrong!r}")
    return {name: value for name, _, value in pairs}


def _arguments(table: str | None, source: dict[str, Any]) -> dict[str, Any]:
    if table is None:
        return source_arguments(**source)
    if source["tier"] or source["stores"]:
        raise BadConfig("a replay reads a history or a table: leave out --tier and --store, or --table")
    given = {"topic": list(source["topics"]), "queues": list(source["queues"]), "since": source["since"]}
    given |= {"until": source["until"], "offsets": offsets_of(source["offsets"])}
    return {name: value for name, value in given.items() if value}
