"""`tiermq delayed`: messages that wait for their time: looked at, and cancelled."""

from __future__ import annotations

import heapq
import json
import sys
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import click

from tiermq.cli.cluster_options import cluster_options
from tiermq.cli.delayed_far import cancel_far, far_rows
from tiermq.cli.tier_output import moment
from tiermq.client.access import Access
from tiermq.client.cluster_client import ClusterClient
from tiermq.client.delayed_messages import cancel_timer, delayed_messages
from tiermq.config import StoreConfig
from tiermq.delivery.waiting_view import WaitingView
from tiermq.errors import BadConfig, StoreError

EXIT_NOTHING = 1
EXIT_NO_STORE = 2
Row = dict[str, Any]


@click.group()
def delayed() -> None:
    """Look at messages that wait for their time, and cancel them.

    A message waits when its producer gave it a delay level, or a time of its own (TIMER_DELIVER_MS, TIMER_DELAY_SEC,
    TIMER_DELAY_MS). Brokers may be TierMQ's or RocketMQ's.

    \b
    Examples:
      tiermq delayed ls
      tiermq delayed ls --topic orders --json
      tiermq delayed ls --store ~/store
      tiermq delayed ls --tier s3://history
      tiermq delayed cancel orders 7F0000010AB018B4AAC2058DA3140000
    """


_TIER = click.option("--tier", "tier_url", metavar="URL", help="This tier: timers that are due late wait there.")


@delayed.command("ls")
@cluster_options
@click.option(
    "--store",
    "directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Look into this store directory, of TierMQ or RocketMQ, instead of asking brokers.",
)
@_TIER
@click.option("--topic", help="Only messages for this topic.")
@click.option("--key", help="Only messages with this key, or this unique key.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most so many, soonest first.")
@click.option(
    "--levels",
    "message_delay_level",
    help="With --store: its messageDelayLevel [as its broker wrote it down, else RocketMQ's].",
)
@click.option(
    "--precision-ms", type=click.IntRange(1), help="With --store: its timerPrecisionMs, if it cannot be told."
)
@click.option("--cluster", help="Only at the brokers of this cluster [all].")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each message.")
def list_delayed(access: Access, directory: Path | None, tier_url: str | None, as_json: bool, **options: Any) -> None:
    """The messages that wait, soonest first.

    Over the wire the topics are read in which they wait, so a long list takes a while; a directory is read from its
    timer wheel. Timers that are due late wait in their broker's tier only: --tier lists those.

    Exit code: 0, or 2 if --store names no store, or --tier none that can be read.

    \b
    Examples:
      tiermq delayed ls -n 127.0.0.1:9876 --topic orders
      tiermq delayed ls --store ~/store --limit 10
      tiermq delayed ls --json | jq -r 'select(.topic == "orders") | .unique_key'
    """
    if directory is not None and tier_url is not None:
        raise click.UsageError("expected --store or --tier, found both")
    if tier_url is not None:
        found = (row for row in far_rows(tier_url, options["cluster"]) if _is_wanted(row, options))
        rows = _soonest(found, options["limit"])
    else:
        rows = _found(directory, options) if directory else access.run(lambda cluster: _asked(cluster, options))
    for row in rows:
        click.echo(json.dumps(row) if as_json else _line(row))
    if not rows and not as_json:
        click.echo("nothing waits", err=True)


async def _asked(cluster: ClusterClient, options: Row) -> list[Row]:
    found = delayed_messages(cluster, only_cluster=options["cluster"])
    return _soonest([each.to_dict() async for each in found if _is_wanted(each.to_dict(), options)], options["limit"])


def _found(directory: Path, options: Row) -> list[Row]:
    told = options["message_delay_level"]
    try:
        delays_ms = StoreConfig(message_delay_level=told).delay_levels_ms if told else ()
        with WaitingView(directory, delays_ms, options["precision_ms"]) as view:
            rows = (each.to_dict() for each in chain(view.timers(), view.levels()))
            return _soonest((row for row in rows if _is_wanted(row, options)), options["limit"])
    except BadConfig as error:
        raise click.UsageError(str(error)) from error
    except StoreError as error:
        click.echo(f"Error: {error}", err=True)
        raise SystemExit(EXIT_NO_STORE) from error


def _soonest(rows: Iterable[Row], limit: int) -> list[Row]:
    """Those that are due first. Of a list that is longer than memory only so many are kept."""
    return heapq.nsmallest(limit, rows, key=lambda row: row["deliver_ms"])


def _is_wanted(row: Row, options: Row) -> bool:
    topic, key = options["topic"], options["key"]
    return (topic is None or row["topic"] == topic) and (key is None or key in (row["unique_key"], *row["keys"]))


def _line(row: Row) -> str:
    kind = f"level {row['level']}" if row["level"] else "timer"
    keys = f"  keys {' '.join(row['keys'])}" if row["keys"] else ""
    broker = f"  at {row['broker']}" if "broker" in row else ""
    return f"{moment(row['deliver_ms'])}  {row['topic']}:{row['queue_id']}  {kind:8}  {row['unique_key']}{keys}{broker}"


@delayed.command()
@click.argument("topic")
@click.argument("unique_key")
@cluster_options
@_TIER
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def cancel(access: Access, topic: str, unique_key: str, tier_url: str | None, as_json: bool) -> None:
    """Cancel the timer of TOPIC with UNIQUE_KEY: it will not be delivered.

    The unique key is what a send was answered (msgId of Java's SendResult), and what `tiermq delayed ls` shows.
    Messages of delay levels cannot be cancelled. A timer that is due within a second may be delivered all the same. One
    that waits in its broker's tier for so long that the broker has forgotten it is looked for in --tier.

    Exit code: 0, or 1 if no such timer waits.

    \b
    Examples:
      tiermq delayed cancel orders 7F0000010AB018B4AAC2058DA3140000
      tiermq delayed cancel orders 7F0000010AB018B4AAC2058DA3140000 --tier s3://history
    """
    done = access.run(lambda cluster: cancel_timer(cluster, topic, unique_key))
    if not done and tier_url is not None:
        done = cancel_far(access, tier_url, topic, unique_key)
    if as_json:
        click.echo(json.dumps({"cancelled": [each.to_dict() for each in done]}))
    else:
        for each in done:
            click.echo(f"cancelled: it was due {moment(each.waiting.deliver_ms)} at {each.broker_name}")
    if not done:
        click.echo(f"tiermq delayed: no timer of {topic} with the unique key {unique_key} waits", err=True)
        sys.exit(EXIT_NOTHING)
