"""`tiermq query`: find messages by key, id or offset: at all brokers, hot or cold, or in files and a tier alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import click

from tiermq.cli.completion import topic_names
from tiermq.cli.conventions import EXIT_NOTHING
from tiermq.cli.option_values import Moment
from tiermq.cli.source_options import given, require_history, source_options
from tiermq.client.cluster_client import ClusterClient, QueuePlace
from tiermq.client.queue_access import QueueAccess, find_by_key
from tiermq.clock import iso_moment
from tiermq.console.catalogue import Result, found_operation, run
from tiermq.console.json_case import camel
from tiermq.console.sources import Visit
from tiermq.errors import RequestRefused, TierMQError
from tiermq.message.ids import decode_message_id
from tiermq.message.record import decode_records
from tiermq.message.stored_message import StoredMessage
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.settings import LONG_MAX

WIRE = "wire"
JANUARY_1970_MS = 31 * 24 * 3600 * 1000
"""No message is older than this month's end; a number of seconds up to the year 2054 is a moment of it."""
Found = tuple[str, StoredMessage]
"""A broker's name, and a message of it."""
Brokers = Mapping[str, str]
"""Their addresses by name."""


@click.command()
@click.argument("topic", shell_complete=topic_names)
@source_options
@click.option("--key", help="Messages with this key.")
@click.option("--id", "message_id", help="The message with this id: the broker's or the producer's.")
@click.option("--queue", "queue_id", type=click.IntRange(0), help="The message of this queue …")
@click.option("--offset", type=click.IntRange(0), help="… at this offset.")
@click.option("--broker", help="Only messages of this broker.")
@click.option(
    "--begin",
    type=Moment(),
    default=0,
    help="Stored at or after this time: ISO 8601, milliseconds, or an age such as 1h.",
)
@click.option("--end", type=Moment(), default=LONG_MAX, help="Stored at or before this time.")
@click.option(
    "--max",
    "wanted",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Maximum number of messages; of --tier and --store at most 500.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each message.")
def query(visit: Visit, **options: Any) -> None:
    """Print the messages of TOPIC with a key, an id, or an offset.

    Asks the brokers; with --tier or --store it reads those, and no broker is needed.

    Exit code: 0 when a message was found, 1 when none was, or when a broker's key index is not
    complete; standard error reports that, even if messages were found.

    \b
    Examples:
      tiermq query orders --key order-42
      tiermq query orders --id 7F00000100002A9F0000000000000123
      tiermq query orders --queue 2 --offset 1700 --json
      tiermq query orders --key order-42 --begin 1d --tier s3://history
    """
    place = options["queue_id"] is not None or options["offset"] is not None
    ways = [options["key"] is not None, options["message_id"] is not None, place]
    if sum(ways) != 1:
        raise click.UsageError("expected one of --key, --id, and --queue with --offset")
    if place and (options["queue_id"] is None or options["offset"] is None):
        raise click.UsageError("expected --queue and --offset together, found one of them")
    _check_times(options["begin"], options["end"])
    found = _read(visit, options) if visit.has_files else visit.ask(lambda cluster: _ask(cluster, options))
    for values in found[: options["wanted"]]:
        _print(values, options["as_json"])
    if not found:
        click.echo("tiermq query: no such message", err=True)
        sys.exit(EXIT_NOTHING)


def _check_times(begin_ms: int, end_ms: int) -> None:
    """Raises UsageError for a range of times that holds none, and notes one that was probably given in seconds."""
    if begin_ms > end_ms:
        raise click.UsageError(f"expected --begin before --end, found {iso_moment(begin_ms)} and {iso_moment(end_ms)}")
    for option, moment_ms in (("--begin", begin_ms), ("--end", end_ms)):
        if 0 < moment_ms < JANUARY_1970_MS:
            click.echo(
                f"tiermq query: {option} {moment_ms} is {iso_moment(moment_ms)}: a number is in milliseconds since "
                "1970, not in seconds",
                err=True,
            )


def _read(visit: Visit, options: dict[str, Any]) -> list[Result]:
    """From files and a tier, as `message.find` answers."""
    require_history(visit.sources, beside_brokers=False)
    asked = {"topic": options["topic"], "key": options["key"], "id": options["message_id"]}
    asked |= {"queue": options["queue_id"], "offset": options["offset"], "broker": options["broker"]}
    asked |= {"begin": options["begin"] or None, "end": None if options["end"] == LONG_MAX else options["end"]}
    found = run("message.find", visit, given({**asked, "limit": min(options["wanted"], _most())}))
    for text in found["losses"]:
        click.echo(f"tiermq query: {text}", err=True)
    at = options["offset"]
    messages: list[Result] = found["messages"]
    return [each for each in messages if at in (None, each["queueOffset"])]


def _most() -> int:
    """What `message.find` gives at most."""
    return next(each.high for each in found_operation("message.find").parameters if each.name == "limit")


async def _ask(cluster: ClusterClient, options: dict[str, Any]) -> list[Result]:
    return [
        {**camel(message.to_sent_dict()), "broker": broker, "side": WIRE, "segment": ""}
        for broker, message in await _find(cluster, options)
        if options["begin"] <= message.store_timestamp_ms <= options["end"]
    ]


async def _find(cluster: ClusterClient, options: dict[str, Any]) -> list[Found]:
    brokers: Brokers = (await cluster.route(options["topic"])).addresses
    if (wanted := options["broker"]) is not None:
        if wanted not in brokers:
            known = ", ".join(sorted(brokers))
            raise RequestRefused(f"--broker: expected one that has the topic ({known}), found {wanted!r}")
        brokers = {wanted: brokers[wanted]}
    if options["key"] is not None:
        return await _by_key(cluster, brokers, options, options["key"], unique=False)
    if options["message_id"] is not None:
        return await _by_id(cluster, brokers, options, options["message_id"])
    return await _at_offset(cluster, brokers, options)


async def _at_offset(cluster: ClusterClient, brokers: Brokers, options: dict[str, Any]) -> list[Found]:
    offset = options["offset"]
    found: list[Found] = []
    for broker_name, address in sorted(brokers.items()):
        queue = QueueAccess(cluster, options["topic"], QueuePlace(broker_name, address, options["queue_id"]))
        pulled = await queue.pull(offset, most=1)
        if pulled.code != ResponseCode.SUCCESS and await queue.end() > offset:  # It may just have been dispatched.
            pulled = await queue.pull(offset, most=1)
        found += [(broker_name, message) for message in queue.messages_of(pulled) if message.queue_offset == offset]
    return found


async def _by_key(
    cluster: ClusterClient, brokers: Brokers, options: dict[str, Any], key: str, *, unique: bool
) -> list[Found]:
    found: list[Found] = []
    for broker_name, address in sorted(brokers.items()):
        messages = await find_by_key(
            cluster,
            address,
            options["topic"],
            key,
            unique=unique,
            most=options["wanted"],
            begin_ms=options["begin"],
            end_ms=options["end"],
            on_incomplete=lambda reason, address=address: click.echo(  # type: ignore[misc] # No annotations in lambdas.
                f"tiermq query: {address}: {reason}", err=True
            ),
        )
        found += [(broker_name, message) for message in messages]
    return sorted(found, key=lambda each: each[1].store_timestamp_ms)


async def _by_id(cluster: ClusterClient, brokers: Brokers, options: dict[str, Any], text: str) -> list[Found]:
    """A broker's id holds the message's offset; a producer's id must be looked up."""
    by_unique_key = await _by_key(cluster, brokers, options, text, unique=True)
    if by_unique_key:
        return by_unique_key
    try:
        place = decode_message_id(text)
    except TierMQError as error:
        raise click.ClickException(f"no message has that id; it is not a valid message id: {error}") from error
    broker = next((name for name, address in brokers.items() if address == place.store_host), None)
    if broker is None:
        return []
    known = (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
    asked: dict[str, Any] = {"offset": place.physical_offset, "topic": options["topic"]}
    answer = await cluster.ask(place.store_host, RequestCode.VIEW_MESSAGE_BY_ID, expected=known, **asked)
    messages = decode_records(bytes(answer.body)) if answer.code == ResponseCode.SUCCESS else ()
    return [(broker, message) for message in messages]


def _print(values: Result, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(values))
        return
    for name, value in values.items():
        if name.endswith("TimestampMs"):  # Text is for people, JSON for programs.
            name, value = name.removesuffix("Ms"), iso_moment(value, timespec="milliseconds")
        click.echo(f"{name:28} {value}")
    click.echo()
