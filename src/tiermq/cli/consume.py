"""`tiermq consume`: read messages from brokers, to the end of the topic or continuously."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from typing import Any

import click

from tiermq.cli.cluster_command import ProgressLine, cluster_options, ending_signal, in_words
from tiermq.cli.completion import group_names, topic_names
from tiermq.client.cluster_client import Access, ClusterClient, QueuePlace
from tiermq.client.queue_access import (
    HOLD_MS,
    PULL_MESSAGES,
    PULLED,
    SUBSCRIPTION_FLAG,
    SUSPEND_FLAG,
    QueueAccess,
    require_own,
)
from tiermq.clock import SystemClock, read_moment_ms
from tiermq.console.json_case import camel
from tiermq.errors import CorruptRecord, RemotingError
from tiermq.message.record import decode_records
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import TOOLS_GROUP
from tiermq.remoting.codes import RequestCode, ResponseCode


@dataclass(frozen=True, slots=True)
class Reading:
    """What to read, and how."""

    topic: str
    group: str | None
    start: str | int
    """first, last, committed, or a time in ms."""
    expression: str
    expression_type: str
    follow: bool
    shown_as: str


class Reader:
    """Reads the queues of a topic concurrently; printed messages count as consumed."""

    def __init__(self, cluster: ClusterClient, reading: Reading, wanted: int | None) -> None:
        self._cluster = cluster
        self._reading = reading
        self._left = wanted
        self.line = ProgressLine("received", shown=reading.shown_as == "nothing" and sys.stderr.isatty())
        self.enough = asyncio.Event()
        self.seen: dict[QueuePlace, int] = {}
        """The next offset of each queue that was pulled, after printed and filtered messages. A broker that answered no
        pull may not know the group, and refuses its offsets.
        """

    async def read(self, place: QueuePlace) -> None:
        """Read one queue, to its end or the limit. May be cancelled at any moment."""
        offset = await self._first_offset(place)
        at_end = False
        while not self.enough.is_set():
            answer = await self._pull(place, offset)
            messages = list(decode_records(bytes(answer.body))) if answer.code == ResponseCode.SUCCESS else []
            for message in messages:
                require_own(message, (self._reading.topic,), place.queue_id, place.address)
            for message in messages:
                if not self._take(message):
                    return
                self.seen[place] = message.queue_offset + 1
            offset = self.seen[place] = int(answer.ext["nextBeginOffset"])
            if answer.code == ResponseCode.PULL_NOT_FOUND and not self._reading.follow:
                # What was acknowledged before the command began may not be dispatched yet.
                if at_end or await QueueAccess(self._cluster, self._reading.topic, place).end() <= offset:
                    return
                at_end = True

    async def commit(self) -> None:
        """Commit the group's offsets, after all reads have ended."""
        if self._reading.group is not None:
            for place, offset in self.seen.items():
                await self._commit(place, offset)

    def _take(self, message: StoredMessage) -> bool:
        """Print one message. False: the limit was reached before it."""
        if self.enough.is_set():
            return False
        show(message, self._reading.shown_as)
        self.line.add(1, len(message.body))
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                self.enough.set()
        return True

    async def _pull(self, place: QueuePlace, offset: int) -> Any:
        reading = self._reading
        return await self._cluster.ask(
            place.address,
            RequestCode.PULL_MESSAGE,
            expected=PULLED,
            timeout_s=HOLD_MS / 1000 * 3,
            consumerGroup=reading.group or TOOLS_GROUP,
            topic=reading.topic,
            queueId=place.queue_id,
            queueOffset=offset,
            maxMsgNums=PULL_MESSAGES,
            sysFlag=SUBSCRIPTION_FLAG | (SUSPEND_FLAG if reading.follow else 0),
            commitOffset=0,
            suspendTimeoutMillis=HOLD_MS,
            subscription=reading.expression,
            subVersion=0,
            expressionType=reading.expression_type,
        )

    async def _first_offset(self, place: QueuePlace) -> int:
        reading = self._reading
        queue: dict[str, Any] = {"topic": reading.topic, "queueId": place.queue_id}
        code = RequestCode.GET_MIN_OFFSET
        if reading.start == "last":
            code = RequestCode.GET_MAX_OFFSET
        elif isinstance(reading.start, int):
            code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
            queue["timestamp"] = reading.start
        elif reading.start == "committed" and reading.group is not None:
            asked: dict[str, Any] = {"consumerGroup": reading.group, "setZeroIfNotFound": False, **queue}
            known = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
            answer = await self._cluster.ask(place.address, RequestCode.QUERY_CONSUMER_OFFSET, expected=known, **asked)
            if answer.code == ResponseCode.SUCCESS:
                return int(answer.ext["offset"])
        answer = await self._cluster.ask(place.address, code, **queue)
        return max(0, int(answer.ext["offset"]))  # The minimum of an empty batch queue is -1.

    async def _commit(self, place: QueuePlace, offset: int) -> None:
        await self._cluster.ask(
            place.address,
            RequestCode.UPDATE_CONSUMER_OFFSET,
            consumerGroup=self._reading.group,
            topic=self._reading.topic,
            queueId=place.queue_id,
            commitOffset=offset,
        )


@click.command()
@click.argument("topic", shell_complete=topic_names)
@cluster_options
@click.option("--group", shell_complete=group_names, help="Start at this group's offsets and commit them [no group].")
@click.option(
    "--from",
    "start",
    default="committed",
    show_default=True,
    metavar="WHERE",
    help="first, last, committed (first, without a group), or a time: ISO 8601, milliseconds, or an age such as 1h.",
)
@click.option("--queue", "queue_id", type=click.IntRange(0), help="Only this queue.")
@click.option("--tag", help="Only these tags: 'paid || open'.")
@click.option("--sql", help="Only messages that match this SQL92 condition.")
@click.option("--max", "wanted", type=click.IntRange(1), help="End after this number of messages.")
@click.option("--follow", is_flag=True, help="Wait for more at the end of the topic.")
@click.option("--bodies", is_flag=True, help="Print bodies only, one per line.")
@click.option("--quiet", is_flag=True, help="Print only count and rate, no messages.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each message.")
def consume(access: Access, **options: Any) -> None:
    """Print the messages of TOPIC, to its end.

    Without --group no state is stored at the broker. With it, the group's offsets are committed; consumers of the
    same group that run elsewhere get the same messages, so use a group of your own. Ctrl-C ends
    cleanly; printed messages count as consumed.

    \b
    Examples:
      tiermq consume orders
      tiermq consume orders --follow --tag paid
      tiermq consume orders --group audit --max 100 --json
      tiermq consume orders --sql "amount > 100 AND place IN ('north', 'south')"
      tiermq consume orders --from 2h --quiet
    """
    if options["tag"] and options["sql"]:
        raise click.UsageError("expected --tag or --sql, found both")
    shown = [name for name in ("bodies", "quiet", "as_json") if options[name]]
    if len(shown) > 1:
        raise click.UsageError("expected one of --bodies, --quiet and --json")
    shown_as = {"bodies": "bodies", "quiet": "nothing", "as_json": "json"}[shown[0]] if shown else "lines"
    reading = Reading(
        options["topic"],
        options["group"],
        _start_of(options["start"]),
        options["sql"] or options["tag"] or "*",
        "SQL92" if options["sql"] else "TAG",
        options["follow"],
        shown_as,
    )
    figures = access.run(lambda cluster: _consume(cluster, reading, options["queue_id"], options["wanted"]))
    click.echo(in_words("received", figures), err=True)


def _start_of(text: str) -> str | int:
    """Where --from begins: a word, or a time in ms. Raises UsageError."""
    if text in ("first", "last", "committed"):
        return text
    try:
        return read_moment_ms(text, SystemClock().now_ms())
    except ValueError as error:
        raise click.UsageError(f"--from: first, last, committed, or a time: {error}") from error


async def _consume(
    cluster: ClusterClient, reading: Reading, queue_id: int | None, wanted: int | None
) -> dict[str, float | int]:
    route = await cluster.route(reading.topic)
    places = [place for place in route.readable if queue_id in (None, place.queue_id)]
    if not places:
        raise RemotingError(f"topic {reading.topic}: expected a queue to read, found none")
    reader = Reader(cluster, reading, wanted)
    ending = ending_signal()
    reads = [asyncio.ensure_future(reader.read(place)) for place in places]
    asked: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(ending.wait()),
        asyncio.ensure_future(reader.enough.wait()),
    ]
    asked.append(asyncio.ensure_future(asyncio.wait(reads)))
    await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    for each in (*reads, *asked):
        each.cancel()
    done = await asyncio.gather(*reads, return_exceptions=True)
    await reader.commit()
    for result in done:
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
            raise result
    return reader.line.end()


def show(message: StoredMessage, shown_as: str) -> None:
    """Print one message to standard output."""
    if shown_as == "json":
        click.echo(json.dumps(camel(message.to_sent_dict())))
    elif shown_as == "bodies":
        sys.stdout.buffer.write(_body(message) + b"\n")
        sys.stdout.buffer.flush()
    elif shown_as == "lines":
        body = _body(message)
        text = body[:160].decode(errors="backslashreplace") + (" …" if len(body) > 160 else "")
        tag = f" [{message.tags}]" if message.tags else ""
        click.echo(f"{message.queue_id}:{message.queue_offset}{tag} {text}")


def _body(message: StoredMessage) -> bytes:
    """The body as sent; as stored, if it cannot be decompressed."""
    try:
        return message.decompressed_body()
    except CorruptRecord:
        return message.body
