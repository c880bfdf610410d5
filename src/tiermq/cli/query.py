"""`tiermq query`: find messages by key, id or offset, at all brokers, hot or cold."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from tiermq.cli.cluster_command import cluster_options
from tiermq.cli.consume import described
from tiermq.cli.conventions import EXIT_NOTHING
from tiermq.client.cluster_client import Access, ClusterClient, QueuePlace
from tiermq.client.queue_access import QueueAccess, find_by_key
from tiermq.console.catalogue import camel
from tiermq.errors import TierMQError
from tiermq.message.ids import decode_message_id
from tiermq.message.record import decode_records
from tiermq.message.stored_message import StoredMessage
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.settings import LONG_MAX


@click.command()
@click.argument("topic")
@cluster_options
@click.option("--key", help="Messages with this key.")
@click.option("--id", "message_id", help="The message with this id: the broker's or the producer's.")
@click.option("--queue", "queue_id", type=click.IntRange(0), help="The message of this queue …")
@click.option("--offset", type=click.IntRange(0), help="… at this offset.")
@click.option("--begin", type=click.IntRange(0), default=0, help="Stored at or after this time, in milliseconds.")
@click.option("--end", type=click.IntRange(0), default=LONG_MAX, help="Stored at or before this time.")
@click.option(
    "--max", "wanted", type=click.IntRange(1), default=64, show_default=True, help="Maximum number of messages."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each message.")
def query(access: Access, **options: Any) -> None:
    """Print the messages of TOPIC with a key, an id, or an offset.

    Exit code: 0 when a message was found, 1 when none was, or when a broker's key index is not
    complete; standard error reports that, even if messages were found.

    \b
    Examples:
      tiermq query orders --key order-42
      tiermq query orders --id 7F00000100002A9F0000000000000123
      tiermq query orders --queue 2 --offset 1700 --json
    """
    place = options["queue_id"] is not None or options["offset"] is not None
    ways = [options["key"] is not None, options["message_id"] is not None, place]
    if sum(ways) != 1:
        raise click.UsageError("expected one of --key, --id, and --queue with --offset")
    if place and (options["queue_id"] is None or options["offset"] is None):
        raise click.UsageError("expected --queue and --offset together, found one of them")
    found = access.run(lambda cluster: _find(cluster, options))
    for message in found[: options["wanted"]]:
        _print(message, options["as_json"])
    if not found:
        click.echo("tiermq query: no such message", err=True)
        sys.exit(EXIT_NOTHING)


async def _find(cluster: ClusterClient, options: dict[str, Any]) -> list[StoredMessage]:
    topic = options["topic"]
    if options["key"] is not None:
        return await _by_key(cluster, options, options["key"], unique=False)
    if options["message_id"] is not None:
        return await _by_id(cluster, options, options["message_id"])
    return await _at_offset(cluster, topic, options["queue_id"], options["offset"])


async def _at_offset(cluster: ClusterClient, topic: str, queue_id: int, offset: int) -> list[StoredMessage]:
    route = await cluster.route(topic)
    found: list[StoredMessage] = []
    for broker_name, address in sorted(route.addresses.items()):
        queue = QueueAccess(cluster, topic, QueuePlace(broker_name, address, queue_id))
        pulled = await queue.pull(offset, most=1)
        if pulled.code != ResponseCode.SUCCESS and await queue.end() > offset:  # It may just have been dispatched.
            pulled = await queue.pull(offset, most=1)
        found += queue.messages_of(pulled)
    return [message for message in found if message.queue_offset == offset]


async def _by_key(cluster: ClusterClient, options: dict[str, Any], key: str, *, unique: bool) -> list[StoredMessage]:
    topic = options["topic"]
    route = await cluster.route(topic)
    found: list[StoredMessage] = []
    for address in sorted(set(route.addresses.values())):
        found += await find_by_key(
            cluster,
            address,
            topic,
            key,
            unique=unique,
            most=options["wanted"],
            begin_ms=options["begin"],
            end_ms=options["end"],
            on_incomplete=lambda reason, address=address: click.echo(  # type: ignore[misc] # No annotations in lambdas.
                f"tiermq query: {address}: {reason}", err=True
            ),
        )
    return sorted(found, key=lambda each: each.store_timestamp_ms)


async def _by_id(cluster: ClusterClient, options: dict[str, Any], text: str) -> list[StoredMessage]:
    """A broker's id holds the message's offset; a producer's id must be looked up."""
    by_unique_key = await _by_key(cluster, options, text, unique=True)
    if by_unique_key:
        return by_unique_key
    try:
        place = decode_message_id(text)
    except TierMQError as error:
        raise click.ClickException(f"no message has that id; it is not a valid message id: {error}") from error
    route = await cluster.route(options["topic"])
    if place.store_host not in route.addresses.values():
        return []
    known = (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
    asked: dict[str, Any] = {"offset": place.physical_offset, "topic": options["topic"]}
    answer = await cluster.ask(place.store_host, RequestCode.VIEW_MESSAGE_BY_ID, expected=known, **asked)
    return list(decode_records(bytes(answer.body))) if answer.code == ResponseCode.SUCCESS else []


def _print(message: StoredMessage, as_json: bool) -> None:
    shown = described(message)
    if as_json:
        click.echo(json.dumps(camel(shown)))
        return
    for name, value in shown.items():
        click.echo(f"{name:28} {value}")
    click.echo()
