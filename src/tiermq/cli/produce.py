"""`tiermq produce`: send messages, one or many, and report the rate."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import click

from tiermq.cli.cluster_command import ProgressLine, cluster_options, ending_signal, in_words
from tiermq.cli.completion import topic_names
from tiermq.cli.conventions import EXIT_FAILED
from tiermq.client.cluster_client import Access, ClusterClient, QueuePlace
from tiermq.client.send_fields import DEFAULT_QUEUES, send_fields
from tiermq.clock import SystemClock
from tiermq.errors import RemotingError, RequestRefused
from tiermq.message.ids import UniqueKeyGenerator
from tiermq.message.properties import DELAY, KEY_SEPARATOR, KEYS, TAGS, UNIQ_KEY, encode_properties
from tiermq.message.topic_name import AUTO_CREATE_TOPIC
from tiermq.remoting.codes import RequestCode, ResponseCode

PAGE_MESSAGES = 256
PAGES_AHEAD = 8
INPUT_READ_BYTES = 64 * 1024
STORED = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)
"""The message is in the log; only the first status means as durable as requested."""


@dataclass(frozen=True, slots=True)
class Sending:
    """What all messages of one command share."""

    topic: str
    group: str
    queue_id: int | None
    properties: dict[str, str]
    in_flight: int
    rate: float | None


@click.command()
@click.argument("topic", shell_complete=topic_names)
@click.argument("body", required=False)
@cluster_options
@click.option("--file", "file", type=click.File("rb"), help="One message per non-empty line; - is standard input.")
@click.option("--count", type=click.IntRange(1), help="Send this number of generated messages.")
@click.option("--size", type=click.IntRange(1), default=128, show_default=True, help="Bytes of each generated message.")
@click.option("--tag", help="Tag of the messages.")
@click.option("--key", "keys", multiple=True, help="Key of the messages, without blanks; repeatable.")
@click.option(
    "--property", "properties", multiple=True, metavar="NAME=VALUE", help="Property of the messages; repeatable."
)
@click.option("--queue", "queue_id", type=click.IntRange(0), help="Send to this queue [round robin].")
@click.option("--delay-level", type=click.IntRange(1, 18), help="Delay level: 1 is 1 s, 18 is 2 h.")
@click.option("--group", default="tiermq_produce", show_default=True, help="Producer group.")
@click.option("--in-flight", type=click.IntRange(1), default=64, show_default=True, help="Maximum concurrent sends.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Maximum messages per second.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def produce(access: Access, **options: Any) -> None:
    """Send BODY, the lines of a file, or generated messages, to TOPIC.

    An unknown topic is created if the broker allows it. Ctrl-C ends after the open sends.

    Exit code: 0 when all messages were stored, else 1.

    \b
    Examples:
      tiermq produce orders 'order 42' --tag paid --key order-42
      tiermq produce orders --file orders.jsonl
      tail -f app.log | tiermq produce logs --file -
      tiermq produce orders --count 100000 --size 1024 --json
    """
    pages = _pages(options)
    properties = _properties(options)
    sending = Sending(
        options["topic"],
        options["group"],
        options["queue_id"],
        properties,
        options["in_flight"],
        options["rate"],
    )
    figures, first, problem = access.run(lambda cluster: _send_all(cluster, sending, pages))
    if options["as_json"]:
        click.echo(json.dumps({**figures, "first": first, "problem": problem}))
    else:
        if first is not None and figures["messages"] == 1:
            click.echo(f"{first['messageId']}  queue {first['queueId']}, offset {first['queueOffset']}")
        click.echo(in_words("sent", figures), err=True)
        if problem:
            click.echo(f"tiermq produce: the first that failed: {problem}", err=True)
    if figures["failed"]:
        sys.exit(EXIT_FAILED)


def _pages(options: dict[str, Any]) -> Iterator[list[bytes]]:
    """The bodies, in batches of what is available."""
    body: str | None = options["body"]
    file: BinaryIO | None = options["file"]
    count: int | None = options["count"]
    if sum(each is not None for each in (body, file, count)) != 1:
        raise click.UsageError("expected one of BODY, --file and --count")
    if body is not None:
        return iter([[body.encode(errors="surrogateescape")]])
    if file is not None:
        return _lines(file)
    made = (b"tiermq " * (options["size"] // 7 + 1))[: options["size"]]
    whole, rest = divmod(count or 0, PAGE_MESSAGES)
    return itertools.chain(itertools.repeat([made] * PAGE_MESSAGES, whole), [[made] * rest])


def _lines(file: BinaryIO) -> Iterator[list[bytes]]:
    """The lines of a file without their ends, as soon as they are available."""
    partial = b""
    while chunk := os.read(file.fileno(), INPUT_READ_BYTES):
        *whole, partial = (partial + chunk).split(b"\n")
        yield [body for line in whole if (body := line.removesuffix(b"\r"))]  # No message has an empty body.
    if partial:
        yield [partial]


def _properties(options: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in options["properties"]:
        name, equals, value = each.partition("=")
        if not equals or not name or not value:
            raise click.UsageError(f"--property: expected NAME=VALUE, found {each!r}")
        found[name] = value
    if options["tag"]:
        found[TAGS] = options["tag"]
    for key in options["keys"]:
        if not key or KEY_SEPARATOR in key:
            raise click.UsageError(
                f"--key: expected a key without blanks, since blanks separate the stored keys, found {key!r}; "
                "repeat --key for several"
            )
    if options["keys"]:
        found[KEYS] = KEY_SEPARATOR.join(options["keys"])
    if options["delay_level"]:
        found[DELAY] = str(options["delay_level"])
    return found


async def _places(cluster: ClusterClient, sending: Sending) -> list[QueuePlace]:
    """The target queues; of a topic that does not exist yet, those that it will have."""
    route = await cluster.find_route(sending.topic)
    if route is None:
        pattern = await cluster.find_route(AUTO_CREATE_TOPIC)
        if pattern is None or not pattern.writable:
            raise await cluster.unknown_topic(sending.topic, "no broker has it or creates topics automatically")
        places = [place for place in pattern.writable if place.queue_id < DEFAULT_QUEUES]
    else:
        places = list(route.writable)
    if not places:
        without = (await cluster.master_table()).why_without_master
        reads = "only queues to read: its brokers are read-only, or its perm is without W (`tiermq topic list`)"
        found = reads if route is not None and route.readable else f"that {without}" if without else "none"
        raise RemotingError(f"topic {sending.topic}: expected a queue to write to, found {found}")
    if sending.queue_id is not None:
        count = len(places)
        places = [place for place in places if place.queue_id == sending.queue_id]
        if not places:
            raise RemotingError(f"topic {sending.topic}: expected queue {sending.queue_id}, found {count} others")
    return places


async def _send_all(
    cluster: ClusterClient, sending: Sending, pages: Iterator[list[bytes]]
) -> tuple[dict[str, float | int], dict[str, Any] | None, str | None]:
    """The totals, the first message's offset, and the first failure."""
    places = itertools.cycle(await _places(cluster, sending))
    keys = UniqueKeyGenerator()
    line = ProgressLine("sent")
    room = asyncio.Semaphore(sending.in_flight)
    open_sends: set[asyncio.Task[None]] = set()
    first: dict[str, Any] | None = None
    problem: str | None = None

    async def send(body: bytes, place: QueuePlace) -> None:
        nonlocal first, problem
        try:
            answer = await _send_one(cluster, sending, place, body, keys.next_key())
            if first is None:
                first = answer
            line.add(1, len(body))
        except RemotingError as error:
            line.failed += 1
            problem = problem or str(error)
        finally:
            room.release()

    async for body in _paced(pages, sending.rate):
        await room.acquire()
        task = asyncio.ensure_future(send(body, next(places)))
        open_sends.add(task)
        task.add_done_callback(open_sends.discard)
    if open_sends:
        await asyncio.wait(open_sends)
    return line.end(), first, problem


async def _paced(pages: Iterator[list[bytes]], rate: float | None) -> AsyncIterator[bytes]:
    """The bodies, at most at the rate, until their end or a stop signal."""
    ending = ending_signal()
    loop = asyncio.get_running_loop()
    line: asyncio.Queue[list[bytes] | None] = asyncio.Queue(PAGES_AHEAD)

    def read() -> None:
        for page in pages:
            asyncio.run_coroutine_threadsafe(line.put(page), loop).result()
        asyncio.run_coroutine_threadsafe(line.put(None), loop).result()

    # This daemon thread is not joined: it may block on standard input.
    threading.Thread(target=read, name="produce-read", daemon=True).start()
    asked = asyncio.ensure_future(ending.wait())
    began, number = loop.time(), 0
    while not ending.is_set():
        getting = asyncio.ensure_future(line.get())
        await asyncio.wait({getting, asked}, return_when=asyncio.FIRST_COMPLETED)
        if not getting.done() or (page := getting.result()) is None:
            getting.cancel()
            break
        for body in page:
            if rate is not None and (rest := began + number / rate - loop.time()) > 0:
                await asyncio.wait({asked}, timeout=rest)
            if ending.is_set():
                break
            number += 1
            yield body
    asked.cancel()


async def _send_one(
    cluster: ClusterClient, sending: Sending, place: QueuePlace, body: bytes, unique_key: str
) -> dict[str, Any]:
    properties = encode_properties({**sending.properties, UNIQ_KEY: unique_key})
    fields: dict[str, Any] = send_fields(sending.group, sending.topic, place, properties, SystemClock().now_ms())
    answer = await cluster.ask(place.address, RequestCode.SEND_MESSAGE_V2, body, expected=STORED, **fields)
    if answer.code != ResponseCode.SUCCESS:
        raise RequestRefused(f"stored, but not flushed as requested: {ResponseCode(answer.code).name}", answer.code)
    return {
        "messageId": answer.ext.get("msgId"),
        "uniqueKey": unique_key,
        "broker": place.broker_name,
        "queueId": int(answer.ext["queueId"]),
        "queueOffset": int(answer.ext["queueOffset"]),
    }
