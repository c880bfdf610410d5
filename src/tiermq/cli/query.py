"""`tiermq query`: find messages by key, by id or by place, at whichever broker and in whichever half they are."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from tiermq.cli.cluster_options import cluster_options
from tiermq.cli.consume import described
from tiermq.client.access import Access
from tiermq.client.cluster_client import ClusterClient
from tiermq.client.key_query import find_by_key
from tiermq.errors import TierMQError
from tiermq.message.ids import decode_message_id
from tiermq.message.record import decode_records
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import TOOLS_GROUP
from tiermq.remoting.codes import RequestCode, ResponseCode

EXIT_NOTHING = 1
LONG_MAX = 2**63 - 1
FOUND_OR_NOT = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)


@click.command()
@click.argument("topic")
@cluster_options
@click.option("--key", help="Messages with this key.")
@click.option("--id", "message_id", help="The message with this id: as a broker gave it, or as its producer did.")
@click.option("--queue", "queue_id", type=click.IntRange(0), help="The message at a place: of this queue …")
@click.option("--offset", type=click.IntRange(0), help="… at this offset.")
@click.option("--begin", type=click.IntRange(0), default=0, help="Stored at or after this time, in milliseconds.")
@click.option("--end", type=click.IntRange(0), default=LONG_MAX, help="Stored at or before this time.")
@click.option("--max", "wanted", type=click.IntRange(1), default=64, show_default=True, help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each message.")
def query(access: Access, **options: Any) -> None:
    """Print the messages of TOPIC that have a key, an id, or a place.

    Exit code: 0 when there was one, 1 when there was none.

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
    route = await cluster.route(topic)
    found: list[StoredMessage] = []
    for address in sorted(set(route.addresses.values())):
        answer = await cluster.ask(
            address,
            RequestCode.PULL_MESSAGE,
            expected=(ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED),
            consumerGroup=TOOLS_GROUP,
            topic=topic,
            queueId=options["queue_id"],
            queueOffset=options["offset"],
            maxMsgNums=1,
            sysFlag=4,
            commitOffset=0,
            suspendTimeoutMillis=0,
            subscription="*",
            subVersion=0,
        )
        if answer.code == ResponseCode.SUCCESS:
            found += decode_records(bytes(answer.body))
    return [message for message in found if message.queue_offset == options["offset"]]


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
        )
    return sorted(found, key=lambda each: each.store_timestamp_ms)


async def _by_id(cluster: ClusterClient, options: dict[str, Any], text: str) -> list[StoredMessage]:
    """An id of a broker says where its message lies; a producer's must be looked up."""
    by_unique_key = await _by_key(cluster, options, text, unique=True)
    if by_unique_key:
        return by_unique_key
    try:
        place = decode_message_id(text)
    except TierMQError as error:
        raise click.ClickException(f"no message has that id, and no broker could have given it: {error}") from error
    route = await cluster.route(options["topic"])
    if place.store_host not in route.addresses.values():
        return []
    known = (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
    asked: dict[str, Any] = {"offset": place.physical_offset, "topic": options["topic"]}
    answer = await cluster.ask(place.store_host, RequestCode.VIEW_MESSAGE_BY_ID, expected=known, **asked)
    return list(decode_records(bytes(answer.body))) if answer.code == ResponseCode.SUCCESS else []


def _print(message: StoredMessage, as_json: bool) -> None:
    told = described(message)
    if as_json:
        click.echo(json.dumps(told))
        return
    for name, value in told.items():
        click.echo(f"{name:28} {value}")
    click.echo()
