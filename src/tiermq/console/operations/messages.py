"""Messages: find by key, id, offset and time; one message with its bytes and its life; send again."""

from __future__ import annotations

import base64
import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tiermq.client.cluster_client import ClusterClient, QueuePlace
from tiermq.client.dead_letters import OF_BROKERS, PRODUCER_GROUP
from tiermq.client.producer import Outgoing, Producer
from tiermq.client.queue_access import find_by_key
from tiermq.clock import EVER_MS
from tiermq.console.catalogue import Kind, Parameter, Result, operation
from tiermq.console.copied_commands import message_command
from tiermq.console.json_case import camel
from tiermq.console.message_life import life_of
from tiermq.console.message_reading import BODY_BYTES_MAX, FoundMessage, catalog_for, find_messages, sent_dicts
from tiermq.console.operations.topics import TOPIC
from tiermq.console.query_runs import QueryEnded
from tiermq.console.record_fields import record_fields
from tiermq.console.sources import Visit, answering
from tiermq.errors import BadRequest, TierMQError
from tiermq.history.catalog import Catalog, QueueHistory
from tiermq.history.scan_values import DEFAULT_BROKER, DEFAULT_CLUSTER, OffsetBounds, ScanRequest, Side
from tiermq.message import properties as names
from tiermq.message.ids import UniqueKeyGenerator, decode_message_id
from tiermq.message.properties import encode_properties
from tiermq.message.record import decode_records, reencode
from tiermq.message.stored_message import StoredMessage
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.tier.names import QueueKey

FOUND_MAX = 500
FOUND = 32
FOLLOW_FIRST = 10
FOLLOW_READ = 500
"""Messages of a queue that one step reads."""
FOLLOW_BEHIND_MAX = 20_000
QUEUE = Parameter("queue", "The queue's number.", Kind.WHOLE)
BROKER = Parameter("broker", "The broker's name, where several have the queue.")
OFFSET = Parameter("offset", "The offset in the queue.", Kind.WHOLE)


@operation(
    "message.find",
    "Messages of a topic: with a key, with an id, at an offset, or of a time; without any of them, the newest.",
    TOPIC,
    Parameter("key", "Messages with this key or unique key."),
    Parameter("id", "The message with this id: the broker's or the producer's."),
    QUEUE,
    BROKER,
    OFFSET,
    Parameter("begin", "Stored at this time or later.", Kind.MOMENT),
    Parameter("end", "Stored at this time or before.", Kind.MOMENT),
    Parameter("tag", "Only messages with this tag."),
    Parameter("text", "Only messages whose body contains this text."),
    Parameter("limit", "Messages at most.", Kind.WHOLE, default=FOUND, low=1, high=FOUND_MAX),
)
def find(visit: Visit, *, topic: str, limit: int, **asked: Any) -> Result:
    losses: list[str] = []
    if asked["id"]:
        times = _request(topic, asked)
        found = [
            each
            for each in _by_id(visit, topic, asked["id"], limit, losses)
            if times.begin_ms <= each.message.store_timestamp_ms <= times.end_ms
        ]
    elif asked["key"]:
        found = _by_key(visit, topic, asked["key"], asked, limit, losses)
    elif asked["offset"] is not None:
        found = _from_offset(visit, topic, asked, limit, losses)
    else:
        found = _of_time(visit, topic, asked, limit, losses)
    rows = sent_dicts((each.message for each in found), losses)
    rows = [{**row, **each.place} for row, each in zip(rows, found, strict=True)]
    return {"topic": topic, "messages": rows, "losses": losses[:20]}


def _request(topic: str, asked: dict[str, Any], **more: Any) -> ScanRequest:
    return ScanRequest(
        topics=frozenset({topic}),
        brokers=frozenset({asked["broker"]} if asked.get("broker") else ()),
        queue_ids=frozenset({asked["queue"]} if asked.get("queue") is not None else ()),
        tags=frozenset({asked["tag"]} if asked.get("tag") else ()),
        **{
            "begin_ms": asked.get("begin") or 0,
            "end_ms": EVER_MS if asked.get("end") is None else asked["end"],
            **more,
        },
    )


def _accepts(text: str | None) -> Callable[[StoredMessage], bool]:
    needle = (text or "").encode()
    return lambda message: not needle or needle in _body(message)


def _body(message: StoredMessage) -> bytes:
    try:
        return message.decompressed_body(max_bytes=BODY_BYTES_MAX)
    except TierMQError:
        return message.body


def _by_key(
    visit: Visit, topic: str, key: str, asked: dict[str, Any], limit: int, losses: list[str]
) -> list[FoundMessage]:
    if not visit.has_files:
        return visit.ask(lambda client: _by_key_at_brokers(client, topic, key, asked, limit, losses))
    request = _request(topic, asked, keys=frozenset({key}))
    with catalog_for(visit, request) as catalog:
        _require_topic(catalog, topic)
        found = find_messages(catalog, request, losses, accepts=_accepts(asked.get("text")))
        return list(itertools.islice(found, limit))


async def _by_key_at_brokers(
    client: ClusterClient, topic: str, key: str, asked: dict[str, Any], limit: int, losses: list[str]
) -> list[FoundMessage]:
    found: dict[tuple[str, int, int], FoundMessage] = {}
    for broker, address in sorted((await answering(client, (await client.route(topic)).addresses)).items()):
        for unique in (False, True):
            messages = await find_by_key(
                client, address, topic, key, unique=unique, most=limit, begin_ms=asked.get("begin") or 0,
                end_ms=EVER_MS if asked.get("end") is None else asked["end"], on_incomplete=losses.append,
            )  # fmt: skip
            for message in messages:
                found[broker, message.queue_id, message.queue_offset] = _of_wire(broker, message)
    return list(found.values())[:limit]


def _of_wire(broker: str, message: StoredMessage) -> FoundMessage:
    key = QueueKey(DEFAULT_CLUSTER, broker, message.topic, message.queue_id)
    return FoundMessage(key, message, reencode(message), Side.WIRE, "")


def _by_id(visit: Visit, topic: str, text: str, limit: int, losses: list[str]) -> list[FoundMessage]:
    """A producer's id is a key; a broker's id is a place in its log."""
    found = _by_key(visit, topic, text, {}, limit, losses)
    if found:
        return found
    try:
        place = decode_message_id(text)
    except TierMQError as error:
        raise BadRequest(
            f"id: no message of {topic} has it as its unique key, and it is no broker's id: {error}"
        ) from error
    if visit.has_wire:
        return visit.ask(lambda client: _at_place(client, topic, place.store_host, place.physical_offset))
    with visit.sources.stores() as stores:
        for store in stores:
            head = store.read(place.physical_offset, 4)
            size = int.from_bytes(head, signed=True) if head else 0
            record = store.read(place.physical_offset, size) if size > 0 else None
            for message in decode_records(record) if record else ():
                if message.topic == topic:
                    key = QueueKey(DEFAULT_CLUSTER, DEFAULT_BROKER, topic, message.queue_id)
                    return [FoundMessage(key, message, bytes(record or b""), Side.HOT, "commitlog")]
    return []


async def _at_place(client: ClusterClient, topic: str, address: str, offset: int) -> list[FoundMessage]:
    brokers = {each: broker for broker, each in (await client.route(topic)).addresses.items()}
    if address not in brokers:
        return []
    known = (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
    fields: dict[str, Any] = {"offset": offset, "topic": topic}
    answer = await client.ask(address, RequestCode.VIEW_MESSAGE_BY_ID, expected=known, **fields)
    found = decode_records(bytes(answer.body)) if answer.code == ResponseCode.SUCCESS else ()
    return [_of_wire(brokers[address], message) for message in found]


def _from_offset(visit: Visit, topic: str, asked: dict[str, Any], limit: int, losses: list[str]) -> list[FoundMessage]:
    if asked["queue"] is None:
        raise BadRequest("offset: expected queue beside it, since every queue has offsets of its own")
    request = _request(topic, asked)
    with catalog_for(visit, request) as catalog:
        _require_topic(catalog, topic)
        return list(_page(catalog, request, [(q, asked["offset"], limit) for q in catalog.queues()], losses, asked))[
            :limit
        ]


def _page(
    catalog: Catalog,
    request: ScanRequest,
    parts: list[tuple[QueueHistory, int, int]],
    losses: list[str],
    asked: dict[str, Any],
) -> Iterator[FoundMessage]:
    """The messages of some ranges: queue, first offset, count."""
    for queue, offset, count in parts:
        begin = max(offset, queue.min_offset)
        end = min(begin + count, queue.max_offset)
        if begin < end:
            bounds = {queue.key: OffsetBounds(begin, end)}
            only = ScanRequest(
                topics=request.topics, brokers=frozenset({queue.key.broker}),
                queue_ids=frozenset({queue.key.queue_id}), tags=request.tags, bounds=bounds,
                begin_ms=request.begin_ms, end_ms=request.end_ms,
            )  # fmt: skip
            yield from find_messages(catalog, only, losses, accepts=_accepts(asked.get("text")))


def _of_time(visit: Visit, topic: str, asked: dict[str, Any], limit: int, losses: list[str]) -> list[FoundMessage]:
    """Without a time the newest messages; with one, the first from its begin on. In the order of their store times."""
    request = _request(topic, asked)
    if asked.get("tag") or asked.get("text"):
        return _search(visit, topic, request, asked, limit, losses)
    with catalog_for(visit, request) as catalog:
        _require_topic(catalog, topic)
        if asked.get("begin") is not None or asked.get("end") is not None:
            found = find_messages(catalog, request, losses, each_queue=limit)
            return heapq.nsmallest(limit, found, key=FoundMessage.moment)
        newest = [(queue, max(queue.min_offset, queue.max_offset - limit), limit) for queue in catalog.queues()]
        return heapq.nlargest(limit, _page(catalog, request, newest, losses, asked), key=FoundMessage.moment)


def _search(
    visit: Visit, topic: str, request: ScanRequest, asked: dict[str, Any], limit: int, losses: list[str]
) -> list[FoundMessage]:
    """By what no index has: records are read until enough was found, or for as long as a query may run."""
    kept: list[FoundMessage] = []
    with visit.sources.queries.run(None) as running, catalog_for(visit, request, is_long=True) as catalog:
        _require_topic(catalog, topic)
        accepts = _accepts(asked.get("text"))
        try:
            found = find_messages(catalog, request, losses, accepts=accepts, each_queue=limit, check=running.check)
            kept.extend(found)
        except QueryEnded as error:
            losses.append(f"the search did not end, so that there may be more: {error}")
            running.why = ""  # What was found is an answer.
    return heapq.nsmallest(limit, kept, key=FoundMessage.moment)


def _require_topic(catalog: Catalog, topic: str) -> None:
    if not catalog.queues():
        raise BadRequest(
            f"expected messages of the topic {topic[:200]} here, found none: the list of topics has all names"
        )


# New messages


@dataclass(slots=True)
class Following:
    """New messages of a topic as they come, read on from where the last step ended. Used by one thread at a time.

    Every message is read, and given if it is wanted, or a note reports how many were not read, and why.
    """

    topic: str
    tag: str | None = None
    text: str | None = None
    has_begun: bool = False
    notes: list[str] = field(default_factory=list)
    """Of the last step."""
    is_behind: bool = False
    """The last step has left messages that are there already."""
    _next: dict[tuple[str, int], int] = field(default_factory=dict)

    def step(self, visit: Visit) -> list[Result]:
        """The next messages, oldest first; the newest few of each queue at the first step. Raises as an operation."""
        self.notes, self.is_behind = [], False
        asked = {"tag": self.tag, "text": self.text}
        request = _request(self.topic, asked)
        with catalog_for(visit, request, is_live=True) as catalog:
            queues = catalog.queues()
            if not queues and self.topic not in visit.tables().topics:
                _require_topic(catalog, self.topic)
            ranges = {(each.key.broker, each.key.queue_id): self._range(each) for each in queues}
            parts = [(each, *ranges[each.key.broker, each.key.queue_id]) for each in queues]
            found = sorted(_page(catalog, request, parts, self.notes, asked), key=FoundMessage.moment)
        self._next |= {name: begin + count for name, (begin, count) in ranges.items()}
        self.has_begun = True
        rows = sent_dicts((each.message for each in found), self.notes)
        return [{**row, **each.place} for row, each in zip(rows, found, strict=True)]

    def _range(self, queue: QueueHistory) -> tuple[int, int]:
        """Which messages of a queue the step reads: the first offset, and how many."""
        where = f"queue {queue.key.queue_id} of {queue.key.broker}"
        low, high = queue.min_offset, queue.max_offset
        # What is in a queue that was not there at the first step has come since.
        newest = max(low, high - FOLLOW_FIRST)
        begin = self._next.get((queue.key.broker, queue.key.queue_id), low if self.has_begun else newest)
        if begin < low:
            self.notes.append(f"{low - begin:,} messages of {where} were deleted before they were read")
            begin = low
        if high - begin > FOLLOW_BEHIND_MAX:
            self.notes.append(
                f"{high - FOLLOW_READ - begin:,} messages of {where} are skipped, from offset {begin:,} on: they come "
                "faster than they can be followed here; search them by their time"
            )
            begin = high - FOLLOW_READ
        count = max(0, min(FOLLOW_READ, high - begin))
        self.is_behind |= begin + count < high
        return begin, count


# One message


@operation(
    "message.show",
    "One message: its fields, its bytes with the names of their fields, where it is, and its life.",
    TOPIC,
    Parameter("queue", "The queue's number.", Kind.WHOLE, is_required=True),
    Parameter("offset", "The offset in the queue.", Kind.WHOLE, is_required=True),
    BROKER,
)
def show(visit: Visit, *, topic: str, queue: int, offset: int, broker: str | None) -> Result:
    found = one_message(visit, topic, queue, offset, broker)
    message = found.message
    body = _body(message)
    return {
        **camel(message.to_sent_dict(max_bytes=BODY_BYTES_MAX)),
        **found.place,
        "bodyBase64": base64.b64encode(body).decode("ascii"),
        "bodyBytes": len(body),
        "fields": [each.to_dict() for each in record_fields(found.record)],
        "life": life_of(visit, found),
        "command": message_command(visit, topic, queue, offset, found.queue.broker),
    }


def one_message(visit: Visit, topic: str, queue: int, offset: int, broker: str | None) -> FoundMessage:
    """The message at an offset. Raises BadRequest with what is known about the reason."""
    losses: list[str] = []
    asked = {"queue": queue, "offset": offset, "broker": broker}
    found = [each for each in _from_offset(visit, topic, asked, 1, losses) if each.message.queue_offset == offset]
    if not found:
        reason = f": {'; '.join(losses)}" if losses else "; it may have expired, or the queue may end before it"
        raise BadRequest(f"expected a message of {topic} in queue {queue} at offset {offset}, found none{reason}")
    return found[0]


@operation(
    "message.resend",
    "Send a message again, to its topic or another one: a new message with the same body, keys and properties.",
    TOPIC,
    Parameter("queue", "The queue's number.", Kind.WHOLE, is_required=True),
    Parameter("offset", "The offset in the queue.", Kind.WHOLE, is_required=True),
    BROKER,
    Parameter("to", "The topic to send to; without it, the message's own."),
    changes=True,
)
def resend(visit: Visit, *, topic: str, queue: int, offset: int, broker: str | None, to: str | None) -> Result:
    found = one_message(visit, topic, queue, offset, broker)
    goal = to or topic

    async def sent(client: ClusterClient) -> tuple[Outgoing, int]:
        producer = Producer(client, PRODUCER_GROUP)
        copy = copy_of(found.message, goal, await producer.places(goal), visit.sources.clock.now_ms())
        return copy, await producer.send([copy])

    copy, at = visit.ask(sent)
    place = copy.place
    return {
        "topic": goal, "broker": place.broker_name, "queueId": place.queue_id, "offset": at,
        "uniqueKey": copy.unique_key,
    }  # fmt: skip


def copy_of(message: StoredMessage, goal: str, places: Sequence[QueuePlace], now_ms: int) -> Outgoing:
    """A new message with the same body, keys and properties, for the queue of the same number if there is one."""
    unique_key = UniqueKeyGenerator().next_key()
    kept = {name: value for name, value in message.properties.items() if name not in OF_BROKERS}
    kept |= {names.UNIQ_KEY: unique_key, names.WAIT: "true"}
    place = next((each for each in places if each.queue_id == message.queue_id), places[message.queue_id % len(places)])
    body = message.decompressed_body()
    return Outgoing(goal, place, body, encode_properties(kept), unique_key, now_ms, flag=message.flag)
