"""`tiermq pipeline replay`."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import click

from tiermq.cli.cluster_command import cluster_options
from tiermq.cli.pipeline.options import (
    finish,
    job_options,
    moment_of,
    offsets_of,
    queue_ranges,
    runner_for,
    source_arguments,
    source_options,
    stopped_by_signals,
)
from tiermq.cli.terminal import bar
from tiermq.client.cluster_client import Access
from tiermq.errors import BadConfig

_PASSED = ("record", "to_topic", "queue_count", "function", "create", "catalog", "allow_loss")
"""Options that are arguments of the job as they are."""


_HELP = """Replay a range of history into topics of running brokers, or of a store directory.

Messages of a queue keep their order. Delays and transactions are not repeated: a replayed message is there at once.
The ranges are fixed at the start: messages stored later are not replayed.

\b
--namesrv ADDR: TierMQ's or RocketMQ's brokers, over the wire
  tasks     read history and send it. A source queue goes to the queue of
            the same broker and id, where there is one; otherwise source
            queues are spread over all queues. Born times stay; born hosts
            are the tasks'.
  topics    must exist, or are created with --create. Topics and permissions
            are checked before the first message.
  record    a directory that tasks share, or a URL: RECORD/sent/ has a line
            for each message, in windows. A run with the same record
            continues. What a crash interrupted is asked for by unique key
            and mark; a message is sent twice only if the account may not
            ask (SUB), or a broker's key index is behind.
  accounts  ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY, here and on
            executors: PUB and SUB on the topics.

\b
--into DIR: a store directory that no process has open
  tasks read history, this process puts. RECORD/offsets.csv has a line for
  each message, with its old and new offset. A run with the same record
  continues, and puts nothing twice.

--map names a function that is importable here and on the executors. It takes a ReplayMessage (topic, body,
queue_id, keys, tags, properties, source, …) and returns one, changed with dataclasses.replace, or None to skip it.

Exit code: 0, or 1 if messages were damaged or lost.

\b
Examples:
  tiermq pipeline replay --tier s3://history --topic orders \\
      --since 2026-01-31T10:00 --until 2026-01-31T11:00 \\
      --namesrv ns1:9876 --to-topic orders-again --create 8 \\
      --rate 2000/s --record s3://history-jobs/replay-1
  tiermq pipeline replay --tier s3://history --topic orders \\
      --key order-42 --into ~/store --record ./replay-2
  tiermq pipeline replay --table delta:/lake/orders --into ~/store \\
      --map shop.replay:anonymise --record ./replay-3
"""


@click.command(help=_HELP)
@source_options
@click.option("--key", "keys", multiple=True, help="Only messages with this key; repeatable.")
@click.option("--tag", "tags", multiple=True, help="Only messages with this tag; repeatable.")
@click.option("--table", metavar="KIND:PLACE", help="Replay an exported table (parquet:/dir, …) instead of a history.")
@click.option("--catalog", help="For an Iceberg table: its catalog.")
@click.option("--into", metavar="DIR", help="Store directory to write to; or --namesrv.")
@click.option(
    "--record",
    required=True,
    metavar="DIR",
    help="Directory for the record of the replay, or with --namesrv a URL; pass it again to resume.",
)
@click.option("--to-topic", help="Put everything into this topic; [each message's own].")
@click.option("--queues", "queue_count", type=click.IntRange(1), help="Spread messages over this number of queues.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="Add a property; repeatable.")
@click.option("--map", "function", metavar="MODULE:FUNCTION", help="Function from a message to a message, or None.")
@click.option("--create", type=click.IntRange(1), metavar="QUEUES", help="With --namesrv: create missing topics.")
@click.option("--rate", metavar="NUMBER", help="Maximum messages per second, over all tasks: 2000 or 2000/s.")
@click.option("--allow-loss", is_flag=True, help="Skip lost messages instead of failing.")
@partial(cluster_options, default="")
@job_options
def replay(
    access: Access,
    keys: tuple[str, ...],
    tags: tuple[str, ...],
    table: str | None,
    into: str | None,
    properties: tuple[str, ...],
    rate: str | None,
    master: str,
    conf: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> None:
    from tiermq.pipeline.replay import replay as run
    from tiermq.pipeline.replay.wire_task import WireTarget

    stop = threading.Event()
    target = None
    if is_by_wire(into, access.name_servers):
        target = WireTarget(access.name_servers, access.tls, access.certificates)
    passed = {name: options.pop(name) for name in _PASSED} | _arguments(table, options)
    passed |= {name: list(given) for name, given in (("keys", keys), ("tags", tags)) if given}
    with (
        runner_for(master, conf, needed=not dry_run) as runner,
        bar("replaying", in_bytes=True, quiet=as_json) as progress,
        stopped_by_signals(stop, "step"),
    ):
        report = run(
            runner,
            into=into,
            namesrv=target,
            properties=properties_of(properties),
            rate=None if rate is None else rate_of(rate),
            table=table,
            dry_run=dry_run,
            stop=stop,
            progress=progress,
            **passed,
        )
    finish(report, as_json=as_json, details=queue_ranges)


def is_by_wire(into: str | None, name_servers: str) -> bool:
    """Whether messages go to brokers. Raises BadConfig unless there is one target."""
    source = click.get_current_context().get_parameter_source("namesrv")
    if into and name_servers and source is click.core.ParameterSource.COMMANDLINE:
        raise BadConfig("--into writes a directory and --namesrv sends to brokers; give one of the two")
    if not into and not name_servers:
        raise BadConfig("say where messages go: --namesrv host:port (running brokers), or --into DIR (store directory)")
    return not into


def rate_of(text: str) -> float:
    """Parse `2000` or `2000/s`. Raises BadConfig."""
    try:
        return float(text.strip().removesuffix("/s"))
    except ValueError as error:
        raise BadConfig(f"--rate is a number of messages per second, such as 2000 or 2000/s, found {text!r}") from error


def properties_of(texts: tuple[str, ...]) -> dict[str, str]:
    """Parse `NAME=VALUE` texts as properties. Raises BadConfig."""
    pairs = [text.partition("=") for text in texts]
    wrong = next((name for name, equals, value in pairs if not (name and equals and value)), None)
    if wrong is not None:
        raise BadConfig(f"--property is NAME=VALUE, such as replay=1, found {wrong!r}")
    return {name: value for name, _, value in pairs}


def _arguments(table: str | None, source: dict[str, Any]) -> dict[str, Any]:
    if table is None:
        return source_arguments(**source)
    if source["tier"] or source["stores"] or source["cluster"]:
        raise BadConfig("a replay reads a history or a table: leave out --tier, --store and --cluster, or --table")
    given: dict[str, Any] = {"topic": list(source["topics"]), "queues": list(source["queues"])}
    given |= {"since": moment_of(source["since"]), "until": moment_of(source["until"])}
    given |= {"offsets": offsets_of(source["offsets"])}
    return {name: value for name, value in given.items() if value}
