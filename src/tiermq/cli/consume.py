"""`tiermq consume`: read messages over the wire, to the end of the topic or as they come."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from dataclasses import dataclass
from typing import Any

import click

from tiermq.cli.cluster_options import cluster_options, ending_signal
from tiermq.cli.progress_line import ProgressLine, in_words
from tiermq.client.access import Access
from tiermq.client.cluster_client import ClusterClient, QueuePlace
from tiermq.errors import CorruptRecord, RemotingError
from tiermq.message.record import decode_records
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import TOOLS_GROUP
from tiermq.remoting.codes import RequestCode, ResponseCode

COMMIT, SUSPEND, SUBSCRIPTION = 1, 2, 4
HOLD_MS = 15_000
PULL_MESSAGES = 32
ANSWERED = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


@dataclass(frozen=True, slots=True)
class Reading:
    """What is read, and how."""

    topic: str
    group: str | None
    start: str
    expression: str
    expression_type: str
    follow: bool
    shown_as: str


class Reader:
    """Reads the queues of a topic side by side; what it has shown counts as consumed."""

    def __init__(self, cluster: ClusterClient, reading: Reading, wanted: int | None) -> None:
        self._cluster = cluster
        self._reading = reading
        self._left = wanted
        self.line = ProgressLine("received", shown=reading.shown_as == "nothing" and sys.stderr.isatty())
        self.enough = asyncio.Event()
        self.seen: dict[QueuePlace, int] = {}
        """Where each queue would be gone on with: behind what was shown, and behind what the filter left out."""

    async def read(self, place: QueuePlace) -> None:
        """One queue, until it ends or there is enough. May be cancelled at any moment."""
        offset = self.seen[place] = await self._first_offset(place)
        while not self.enough.is_set():
            answer = await self._pull(place, offset)
            messages = decode_records(bytes(answer.body)) if answer.code == ResponseCode.SUCCESS else ()
            for message in messages:
                if not self._take(message):
                    return
                self.seen[place] = message.queue_offset + 1
            offset = self.seen[place] = int(answer.ext["nextBeginOffset"])
            if answer.code == ResponseCode.PULL_NOT_FOUND and not self._reading.follow:
                return

    async def commit(self) -> None:
        """Tell the broker how far the group has come, once nothing is read any more."""
        if self._reading.group is not None:
            for place, offset in self.seen.items():
                await self._commit(place, offset)

    def _take(self, message: StoredMessage) -> bool:
        """Show one. False: there was enough before it."""
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
            expected=ANSWERED,
            timeout_s=HOLD_MS / 1000 * 3,
            consumerGroup=reading.group or TOOLS_GROUP,
            topic=reading.topic,
            queueId=place.queue_id,
            queueOffset=offset,
            maxMsgNums=PULL_MESSAGES,
            sysFlag=SUBSCRIPTION | (SUSPEND if reading.follow else 0),
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
        elif reading.start.isdigit():
            code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
            queue["timestamp"] = reading.start
        elif reading.start == "committed" and reading.group is not None:
            asked: dict[str, Any] = {"consumerGroup": reading.group, "setZeroIfNotFound": False, **queue}
            known = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
            answer = await self._cluster.ask(place.address, RequestCode.QUERY_CONSUMER_OFFSET, expected=known, **asked)
            if answer.code == ResponseCode.SUCCESS:
                return int(answer.ext["offset"])
        answer = await self._cluster.ask(place.address, code, **queue)
        return int(answer.ext["offset"])

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
@click.argument("topic")
@cluster_options
@click.option("--group", help="Go on where this group is, and say how far it came [read without a trace].")
@click.option(
    "--from",
    "start",
    default="committed",
    show_default=True,
    help="first, last, committed (first, without a group), or a time in milliseconds.",
)
@click.option("--queue", "queue_id", type=click.IntRange(0), help="Only this queue.")
@click.option("--tag", help="Only these tags: 'paid || open'.")
@click.option("--sql", help="Only what this SQL92 condition on properties holds for.")
@click.option("--max", "wanted", type=click.IntRange(1), help="End after so many messages.")
@click.option("--follow", is_flag=True, help="At the end of the topic wait for more.")
@click.option("--bodies", is_flag=True, help="Print bodies alone, each with a line's end.")
@click.option("--quiet", is_flag=True, help="Print no messages, only how many there were and how fast they came.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each message.")
def consume(access: Access, **options: Any) -> None:
    """Print the messages of TOPIC, queue by queue as they come, until its end.

    Without --group nothing is left behind at the broker. With it, the offsets of that group are moved; consumers of the
    same group that run elsewhere are not told, and get the same messages: use it for groups of your own. Ctrl-C ends
    cleanly, and what was printed then counts as consumed.

    \b
    Examples:
      tiermq consume orders
      tiermq consume orders --follow --tag paid
      tiermq consume orders --group audit --max 100 --json
      tiermq consume orders --sql "amount > 100 AND place IN ('north', 'south')"
      tiermq consume orders --from 1700000000000 --quiet
    """
    if options["tag"] and options["sql"]:
        raise click.UsageError("expected --tag or --sql, found both")
    start: str = options["start"]
    if start not in ("first", "last", "committed") and not start.isdigit():
        raise click.UsageError(f"--from: expected first, last, committed or milliseconds, found {start!r}")
    shown = [name for name in ("bodies", "quiet", "as_json") if options[name]]
    if len(shown) > 1:
        raise click.UsageError("expected one of --bodies, --quiet and --json")
    shown_as = {"bodies": "bodies", "quiet": "nothing", "as_json": "json"}[shown[0]] if shown else "lines"
    reading = Reading(
        options["topic"],
        options["group"],
        start,
        options["sql"] or options["tag"] or "*",
        "SQL92" if options["sql"] else "TAG",
        options["follow"],
        shown_as,
    )
    figures = access.run(lambda cluster: _consume(cluster, reading, options["queue_id"], options["wanted"]))
    click.echo(in_words("received", figures), err=True)


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
    """One message on standard output."""
    if shown_as == "json":
        click.echo(json.dumps(described(message)))
    elif shown_as == "bodies":
        sys.stdout.buffer.write(_body(message) + b"\n")
        sys.stdout.buffer.flush()
    elif shown_as == "lines":
        body = _body(message)
        text = body[:160].decode(errors="backslashreplace") + (" …" if len(body) > 160 else "")
        tag = f" [{message.tags}]" if message.tags else ""
        click.echo(f"{message.queue_id}:{message.queue_offset}{tag} {text}")


def described(message: StoredMessage) -> dict[str, Any]:
    """For JSON; the body as its producer wrote it."""
    told = message.to_dict()
    body = _body(message)
    try:
        told["body"], told["body_encoding"] = body.decode(), "utf-8"
    except UnicodeDecodeError:
        told["body"], told["body_encoding"] = base64.b64encode(body).decode("ascii"), "base64"
    return told


def _body(message: StoredMessage) -> bytes:
    """As it was sent; as it is stored, where it cannot be unpacked."""
    try:
        return message.decompressed_body()
    except CorruptRecord:
        return message.body
