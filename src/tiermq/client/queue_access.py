"""QueueAccess: one queue over the wire: its bounds, an offset by time, records; `find_by_key`.

Invariants: no state is left at a broker (no offset is committed, no consumer is registered); a peer that
is down or busy is retried for a while, since reads are idempotent.
The index knows hashes, so an answer to a key may hold other messages: they are left out, as RocketMQ's clients do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from tiermq.client.cluster_client import TIMEOUT_S, ClusterClient, QueuePlace
from tiermq.clock import EVER_MS
from tiermq.errors import PeerGone, RemotingError, RequestRefused, RequestTimedOut
from tiermq.message.properties import INNER_MULTI_DISPATCH, UNIQ_KEY, get_property
from tiermq.message.record import decode_records
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import TOOLS_GROUP, is_light_queue
from tiermq.remoting.client import RemotingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand, int_field
from tiermq.remoting.frame import RequestTemplate

PULL_MESSAGES = 32
HOLD_MS = 15_000
"""How long a broker holds a pull at the end of its queue."""
TRIES = 8
FIRST_REST_S = 0.1
SUSPEND_FLAG, SUBSCRIPTION_FLAG = 2, 4
PULLED = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
BUSY = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLOW_CONTROL})
T = TypeVar("T")
MOST = 32
PULL_FIELDS = {"consumerGroup": TOOLS_GROUP, "commitOffset": "0", "subVersion": "0", "expressionType": "TAG"}


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a pull was answered."""

    code: int
    next_offset: int
    records: bytes


class ForeignRecord(RemotingError):
    """A broker answered with a record of another topic or queue. Nothing of that answer is used."""


def require_own(message: StoredMessage, topics: Collection[str], queue_id: int | None, broker: str) -> None:
    """Raises ForeignRecord, naming the broker, for a message of none of the topics, or of another queue if one is
    named. A light queue has messages of its topic, which name it.
    """
    if message.topic in topics and queue_id in (None, message.queue_id):
        return
    light = message.get_property(INNER_MULTI_DISPATCH)
    if light is not None and any(is_light_queue(each) and each in topics for each in light.split(",")):
        return
    where = "" if queue_id is None else f", queue {queue_id}"
    raise ForeignRecord(
        f"broker {broker}: expected messages of topic {' or '.join(topics)}{where}, found one "
        f"of topic {message.topic[:300]!r}, queue {message.queue_id}: none of that answer is taken"
    )


@dataclass(frozen=True, slots=True)
class SentPull:
    """A pull in flight, and the connection that it was sent by."""

    client: RemotingClient
    answer: asyncio.Future[RemotingCommand]


async def patiently(work: Callable[[], Coroutine[Any, Any, T]], tries: int = TRIES) -> T:
    """The result of work, retried while the peer is down or busy, for about 25 s. For idempotent work only."""
    rest_s = FIRST_REST_S
    while True:
        tries -= 1
        try:
            return await work()
        except (PeerGone, RequestTimedOut):
            if tries <= 0:
                raise
        except RequestRefused as error:
            if tries <= 0 or error.code not in BUSY:
                raise
        await asyncio.sleep(rest_s)
        rest_s *= 2


class QueueAccess:
    """One queue at one broker. Used on the client's loop."""

    timeout_s = TIMEOUT_S
    """Of one pull that is not held."""

    def __init__(self, client: ClusterClient, topic: str, place: QueuePlace) -> None:
        self.client = client
        self.topic = topic
        self.place = place
        self._template: RequestTemplate | None = None

    async def bounds(self) -> tuple[int, int]:
        """Its messages [min, max), hot and cold; max as `end` returns it."""
        low, high = await asyncio.gather(self._number(RequestCode.GET_MIN_OFFSET), self.end())
        return min(max(0, low), high), high

    async def end(self) -> int:
        """The offset behind every message that was acknowledged before the call.

        A broker acknowledges a message when it is in the commit log, and returns it to readers once it is dispatched to
        its queue, a moment later: this waits for the moment. Offsets that were assigned and have no message (a lost
        disk) are waited for once, for HOLD_MS. A broker before 5.0 does not report them, and nothing is waited for.
        """
        assigned, high = await asyncio.gather(
            self._number(RequestCode.GET_MAX_OFFSET, committed=False), self._number(RequestCode.GET_MAX_OFFSET)
        )
        while high < assigned:
            held = await self.pull(max(0, high), most=1, hold_ms=HOLD_MS)
            high = await self._number(RequestCode.GET_MAX_OFFSET)
            if held.code != ResponseCode.SUCCESS:
                break
        return max(0, high)

    async def offset_at(self, moment_ms: int) -> int:
        """The first message that was stored at this time or later, as the broker returns it."""
        return max(0, await self._number(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=moment_ms))

    async def pull(
        self, offset: int, expression: str = "*", most: int = PULL_MESSAGES, *, hold_ms: int = 0, tries: int = TRIES
    ) -> Pulled:
        """Records from `offset` on, as many as the broker returns at once; at the end of the queue it holds the pull
        for `hold_ms`.
        """
        answer = await patiently(
            lambda: self._ask(
                RequestCode.PULL_MESSAGE,
                PULLED,
                queueOffset=offset,
                maxMsgNums=most,
                timeout_s=self.timeout_s + 3 * hold_ms / 1000,
                **PULL_FIELDS,
                sysFlag=SUBSCRIPTION_FLAG | (SUSPEND_FLAG if hold_ms else 0),
                suspendTimeoutMillis=hold_ms,
                subscription=expression,
            ),
            tries,
        )
        return _pulled(answer)

    def messages_of(self, pulled: Pulled) -> list[StoredMessage]:
        """The messages of an answer. Raises ForeignRecord, CorruptRecord."""
        found = list(decode_records(pulled.records))
        for message in found:
            require_own(message, (self.topic,), self.place.queue_id, self.place.address)
        return found

    def pull_soon(self, offset: int, most: int) -> SentPull | None:
        """The same of all messages, sent with everything that this loop iteration sends, and without a task.

        For pulls by the thousand, one of which costs a fifth of `pull`. None: no connection is open, so it must be done
        by `pull`.
        """
        client = self.client.connected(self.place.address)
        if client is None:
            return None
        if self._template is None:
            fields = {"topic": self.topic, "queueId": str(self.place.queue_id), **PULL_FIELDS, "subscription": "*"}
            fields |= {"sysFlag": str(SUBSCRIPTION_FLAG), "suspendTimeoutMillis": "0"}
            self._template = RequestTemplate(RequestCode.PULL_MESSAGE, fields, ("queueOffset", "maxMsgNums"))
        encode, code = self._template.encode, int(RequestCode.PULL_MESSAGE)
        if client.credentials is not None:
            encode = partial(self._template.signed, client.credentials)
        return SentPull(
            client, client.request_encoded(lambda opaque: (encode(opaque, offset, most),), self.timeout_s, code)
        )

    async def answer_of(self, sent: SentPull, offset: int, most: int) -> Pulled:
        """The answer of a pull that was sent; one that failed is done again by `pull`. Raises as that does."""
        try:
            answer = await sent.answer
            if answer.code in PULLED:
                return _pulled(answer)
        except RequestTimedOut:
            self.client.retire(self.place.address, sent.client)
        except PeerGone:
            pass  # As below.
        return await self.pull(offset, most=most)

    async def _number(self, code: RequestCode, **fields: Any) -> int:
        answer = await patiently(lambda: self._ask(code, (ResponseCode.SUCCESS,), **fields))
        return _offset(answer, "offset")

    def _ask(self, code: RequestCode, expected: tuple[int, ...], **fields: Any) -> Coroutine[Any, Any, RemotingCommand]:
        queue: dict[str, Any] = {"topic": self.topic, "queueId": self.place.queue_id, **fields}
        return self.client.ask(self.place.address, code, expected=expected, **queue)


def _pulled(answer: RemotingCommand) -> Pulled:
    found = answer.body if answer.code == ResponseCode.SUCCESS else b""
    return Pulled(answer.code, _offset(answer, "nextBeginOffset"), bytes(found))


def _offset(answer: RemotingCommand, field: str) -> int:
    """A number of an answer. Raises RemotingError: that is no refusal of the broker's."""
    try:
        return int_field(answer, field)
    except RequestRefused as error:
        raise RemotingError(f"expected the answer of a broker, found one that cannot be read: {error}") from error


async def find_by_key(
    cluster: ClusterClient,
    address: str,
    topic: str,
    key: str,
    *,
    unique: bool = False,
    most: int = MOST,
    begin_ms: int = 0,
    end_ms: int = EVER_MS,
    on_incomplete: Callable[[str], None] = lambda _reason: None,
) -> list[StoredMessage]:
    """Messages of a topic with one of its keys, or with `unique` its unique key, as far as the broker has `most`.

    Raises RequestRefused when nothing is found and the broker's index is not complete; when something is,
    `on_incomplete` gets the broker's reason.
    """
    answer = await cluster.ask(
        address,
        RequestCode.QUERY_MESSAGE,
        expected=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
        topic=topic,
        key=key,
        maxNum=most,
        beginTimestamp=begin_ms,
        endTimestamp=end_ms,
        _UNIQUE_KEY_QUERY=unique,
    )
    if answer.ext.get("indexComplete") == "false":
        on_incomplete(answer.remark or "the key index is not complete")
    found = decode_records(bytes(answer.body)) if answer.code == ResponseCode.SUCCESS else []
    return [message for message in found if message.topic == topic and _has_key(message, key, unique)]


def _has_key(message: StoredMessage, key: str, unique: bool) -> bool:
    if unique:
        return get_property(message.encoded_properties, UNIQ_KEY.encode()) == key.encode()
    return key in message.keys
