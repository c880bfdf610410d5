"""`tiermq delayed`: list delayed messages and timers of brokers or of a tier, and cancel timers."""

from __future__ import annotations

import heapq
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import click

from tiermq.cli.cluster_command import cluster_options
from tiermq.cli.completion import topic_names
from tiermq.cli.conventions import EXIT_NO_STORE, EXIT_NOTHING, SuggestingGroup
from tiermq.cli.option_values import StoreDirectory, topic_option
from tiermq.cli.tier.options import opened
from tiermq.cli.tier.output import moment
from tiermq.client.cluster_client import Access, ClusterClient
from tiermq.client.delayed_messages import AtBroker, cancel_in_tier, cancel_timer, delayed_messages, timers_in_tier
from tiermq.clock import SystemClock
from tiermq.config import StoreConfig
from tiermq.console.json_case import camel
from tiermq.delivery.waiting_view import WaitingView
from tiermq.errors import BadConfig, StoreError

Row = dict[str, Any]


@click.group(cls=SuggestingGroup)
def delayed() -> None:
    """List delayed messages and timers, and cancel timers.

    A message is delayed when its producer gave it a delay level or a delivery time (TIMER_DELIVER_MS, TIMER_DELAY_SEC,
    TIMER_DELAY_MS). Brokers may be TierMQ's or RocketMQ's.

    \b
    Examples:
      tiermq delayed ls
      tiermq delayed ls --topic orders --json
      tiermq delayed ls --store ~/store
      tiermq delayed ls --tier s3://history
      tiermq delayed cancel orders 7F0000010AB018B4AAC2058DA3140000
    """


_TIER = click.option("--tier", "tier_url", metavar="URL", help="List the tiered timers of this tier.")


@delayed.command("ls")
@cluster_options
@click.option(
    "--store",
    "directory",
    type=StoreDirectory(exists=True),
    help="Read this store directory of TierMQ or RocketMQ instead of asking brokers.",
)
@_TIER
@topic_option(help="Only messages for this topic.")
@click.option("--key", help="Only messages with this key, or this unique key.")
@click.option(
    "--limit", type=click.IntRange(1), default=100, show_default=True, help="Maximum number of messages, soonest first."
)
@click.option(
    "--levels",
    "message_delay_level",
    help="With --store: its messageDelayLevel [as stored by its broker, else RocketMQ's].",
)
@click.option(
    "--precision-ms", type=click.IntRange(1), help="With --store: its timerPrecisionMs, if it cannot be detected."
)
@click.option("--cluster", help="Only at the brokers of this cluster [all].")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each message.")
def list_delayed(access: Access, directory: Path | None, tier_url: str | None, as_json: bool, **options: Any) -> None:
    """List delayed messages and timers, soonest first.

    From brokers it reads the system topics that hold them, so a long list takes a while; a directory is read from its
    timer wheel. Tiered timers are in the broker's tier only: use --tier.

    Exit code: 0, or 2 if --store is no store or the tier cannot be read.

    \b
    Examples:
      tiermq delayed ls -n 127.0.0.1:9876 --topic orders
      tiermq delayed ls --store ~/store --limit 10
      tiermq delayed ls --json | jq -r 'select(.topic == "orders") | .uniqueKey'
    """
    if directory is not None and tier_url is not None:
        raise click.UsageError("expected --store or --tier, found both")
    if tier_url is not None:
        found = (row for row in tiered_timer_rows(tier_url, options["cluster"]) if _is_wanted(row, options))
        rows = _soonest(found, options["limit"])
    else:
        rows = _found(directory, options) if directory else access.run(lambda cluster: _asked(cluster, options))
    for row in rows:
        click.echo(json.dumps(camel(row)) if as_json else _line(row))
    if not rows and not as_json:
        click.echo("nothing waits", err=True)


async def _asked(cluster: ClusterClient, options: Row) -> list[Row]:
    found = delayed_messages(cluster, only_cluster=options["cluster"])
    return _soonest([each.to_dict() async for each in found if _is_wanted(each.to_dict(), options)], options["limit"])


def _found(directory: Path, options: Row) -> list[Row]:
    levels = options["message_delay_level"]
    try:
        delays_ms = StoreConfig(message_delay_level=levels).delay_levels_ms if levels else ()
        with WaitingView(directory, delays_ms, options["precision_ms"]) as view:
            rows = (each.to_dict() for each in chain(view.timers(), view.levels()))
            return _soonest((row for row in rows if _is_wanted(row, options)), options["limit"])
    except BadConfig as error:
        raise click.UsageError(str(error)) from error
    except StoreError as error:
        click.echo(f"Error: {error}", err=True)
        raise SystemExit(EXIT_NO_STORE) from error


def _soonest(rows: Iterable[Row], limit: int) -> list[Row]:
    """The messages that are due first; keeps at most `limit` of them in memory."""
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
@click.argument("topic", shell_complete=topic_names)
@click.argument("unique_key")
@cluster_options
@_TIER
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def cancel(access: Access, topic: str, unique_key: str, tier_url: str | None, as_json: bool) -> None:
    """Cancel the timer of TOPIC with UNIQUE_KEY.

    The unique key is msgId of Java's SendResult; `tiermq delayed ls` shows it.
    Messages of delay levels cannot be cancelled. A timer that is due within a second may still be delivered. A timer
    in its broker's tier that the broker no longer knows is looked up in --tier.

    Exit code: 0, or 1 if there is no such timer.

    \b
    Examples:
      tiermq delayed cancel orders 7F0000010AB018B4AAC2058DA3140000
      tiermq delayed cancel orders 7F0000010AB018B4AAC2058DA3140000 \\
          --tier s3://history
    """
    done = access.run(lambda cluster: cancel_timer(cluster, topic, unique_key))
    if not done and tier_url is not None:
        done = cancel_tiered_timer(access, tier_url, topic, unique_key)
    if as_json:
        click.echo(json.dumps({"cancelled": [camel(each.to_dict()) for each in done]}))
    else:
        for each in done:
            click.echo(f"cancelled: it was due {moment(each.waiting.deliver_ms)} at {each.broker_name}")
    if not done:
        click.echo(f"tiermq delayed: no timer of {topic} with the unique key {unique_key} waits", err=True)
        sys.exit(EXIT_NOTHING)


def tiered_timers_at(url: str, cluster: str | None = None) -> Iterator[AtBroker]:
    """The tiered timers of a tier, by broker. Exit code 2 when it cannot be read."""
    with opened(url) as driver:
        yield from timers_in_tier(driver, SystemClock().now_ms(), cluster)


def tiered_timer_rows(url: str, cluster: str | None = None) -> Iterator[dict[str, Any]]:
    return (each.to_dict() for each in tiered_timers_at(url, cluster))


def cancel_tiered_timer(access: Access, url: str, topic: str, unique_key: str) -> list[AtBroker]:
    """Send a cancellation to each broker whose tier has the timer; returns those brokers. Raises RemotingError."""
    wanted = (topic, unique_key)
    found = [each for each in tiered_timers_at(url) if (each.waiting.topic, each.waiting.unique_key) == wanted]
    if found:
        access.run(lambda cluster: cancel_in_tier(cluster, found))
    return found
