"""Dead letters: messages that a group gave up, in the topic `%DLQ%group`, and resending them to their topics.

    async for letter in dead_letters(cluster, "audit", Wanted(origin_topic="orders")):
        await Resending(cluster, "audit").resend([letter])

A resent letter gets a unique key derived from its offset in the dead letter queue. So a second resend, from any
client, finds that key at the brokers, and sends nothing: no record is needed
elsewhere as long as brokers or their tiers have the message. The dead letter stays where it is.

Invariants: body, flag, tags, keys and the properties of users stay; the retry count starts from 0; what
the broker had added for its own use is removed. Used on the client's loop.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC

from tiermq.client.cluster_client import ClusterClient, QueuePlace
from tiermq.client.producer import Outgoing, Producer
from tiermq.client.queue_access import QueueAccess
from tiermq.errors import CorruptRecord
from tiermq.message import properties as names
from tiermq.message.ids import month_start_ms
from tiermq.message.properties import encode_properties
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import dead_letter_topic

PRODUCER_GROUP = "TOOLS_PRODUCER"
PULL_MESSAGES = 256
FIRST_REST_S = 0.02
LAST_REST_S = 5.0
OF_BROKERS = frozenset({
    names.RETRY_TOPIC, names.ORIGIN_MESSAGE_ID, names.DELAY, names.REAL_TOPIC, names.REAL_QID, names.RECONSUME_TIME,
    names.MAX_RECONSUME_TIMES, names.UNIQ_KEY, names.CLUSTER, names.MSG_REGION, names.TRACE_ON, names.POP_CK,
    names.TRAN_MSG, names.PGROUP, names.TRANSACTION_ID, names.TRANSACTION_CHECK_TIMES, names.TRAN_PREPARED_QUEUE_OFFSET,
    names.CHECK_IMMUNITY_TIME_IN_SECONDS, names.INNER_NUM, names.INNER_BASE, names.INNER_MULTI_DISPATCH,
    names.INNER_MULTI_QUEUE_OFFSET, names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS,
    names.TIMER_OUT_MS, names.TIMER_ENQUEUE_MS, names.TIMER_DEQUEUE_MS, names.TIMER_ROLL_TIMES, names.DUP_INFO,
    names.CRC32, names.DLQ_ORIGIN_TOPIC, names.DLQ_ORIGIN_MESSAGE_ID, names.WAIT, names.FIRST_POP_TIME,
    names.GIVEN_BACK, "CONSUME_START_TIME", "MIN_OFFSET", "MAX_OFFSET",
})  # fmt: skip
"""Properties that brokers and clients wrote for the life that is over."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter of dead letters; None or 0 matches all."""

    origin_topic: str | None = None
    since_ms: int = 0
    """Those that died at this time or later."""
    key: str | None = None
    """One of their keys, their unique key, or the id that they were sent with."""

    def holds(self, letter: DeadLetter) -> bool:
        message = letter.message
        return (
            self.origin_topic in (None, letter.origin_topic)
            and message.store_timestamp_ms >= self.since_ms
            and self.key in (None, *message.keys, message.unique_key, letter.origin_id)
        )


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One message that a group gave up, and its offset."""

    place: QueuePlace
    message: StoredMessage

    @property
    def origin_topic(self) -> str | None:
        """The topic that it was sent to; None if it was not recorded."""
        return self.message.get_property(names.RETRY_TOPIC) or self.message.get_property(names.DLQ_ORIGIN_TOPIC)

    @property
    def origin_id(self) -> str | None:
        """The id of the message as it was first stored."""
        found = self.message.get_property(names.ORIGIN_MESSAGE_ID)
        return found or self.message.get_property(names.DLQ_ORIGIN_MESSAGE_ID)

    @property
    def tries(self) -> int:
        """How often it was given to the group; the last failure made it a dead letter."""
        return self.message.reconsume_times

    @property
    def name(self) -> str:
        """Where it is: broker, queue and offset."""
        return f"{self.place.broker_name}-{self.place.queue_id}-{self.message.queue_offset}"

    @property
    def identity(self) -> str:
        """The same, and when it died: a topic that was deleted and made again begins with offset 0."""
        return f"{self.name}-{self.message.store_timestamp_ms}"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A dead letter that cannot be read, or cannot be sent again as it is."""

    name: str
    reason: str


async def dead_letters(client: ClusterClient, group: str, wanted: Wanted | None = None) -> AsyncIterator[DeadLetter]:
    """The dead letters of a group, broker by broker, the oldest first; none when the group never had one.

    Ends at what the queues hold when each is begun; leaves out brokers that are silent to the client.
    Raises RemotingError, CorruptRecord.
    """
    wanted = wanted or Wanted()
    route = await client.find_route(dead_letter_topic(group))
    for place in route.readable if route is not None else ():
        if place.address in client.silent:
            continue
        queue = QueueAccess(client, dead_letter_topic(group), place)
        offset, end = await queue.bounds()
        if wanted.since_ms:
            offset = max(offset, await queue.offset_at(wanted.since_ms))
        while offset < end:
            pulled = await queue.pull(offset, most=PULL_MESSAGES)
            for message in queue.messages_of(pulled):
                letter = DeadLetter(place, message)
                if message.queue_offset < end and wanted.holds(letter):
                    yield letter
            if pulled.next_offset <= offset:
                break
            offset = pulled.next_offset


def resent_key(group: str, letter: DeadLetter) -> str:
    """The unique key of a dead letter that is sent again: the same whenever and by whomever it is sent.

    In the form of RocketMQ's keys, with the time at which the letter died, as tools search around that time.
    """
    message = letter.message
    identity = "\0".join((group, letter.identity, message.unique_key or ""))
    digest = hashlib.sha256(identity.encode()).digest()
    since_ms = max(0, message.store_timestamp_ms - month_start_ms(message.store_timestamp_ms, UTC)) & 0xFFFFFFFF
    return (digest[:10] + since_ms.to_bytes(4, "big") + digest[10:12]).hex().upper()


def outgoing(group: str, letter: DeadLetter, topic: str, place: QueuePlace) -> Outgoing:
    """The message that is sent again. Raises CorruptRecord when its body or its properties cannot be read."""
    message = letter.message
    kept = {name: value for name, value in message.properties.items() if name not in OF_BROKERS}
    key = resent_key(group, letter)
    kept[names.UNIQ_KEY] = key
    kept[names.WAIT] = "true"
    kept[names.DLQ_ORIGIN_TOPIC] = letter.origin_topic or topic
    kept[names.DLQ_ORIGIN_MESSAGE_ID] = letter.origin_id or message.message_id
    body = message.decompressed_body()
    return Outgoing(topic, place, body, encode_properties(kept), key, message.born_timestamp_ms, flag=message.flag)


@dataclass(slots=True)
class Resent:
    """The result of a resend."""

    sent: list[DeadLetter]
    already: list[DeadLetter]
    unreadable: list[Unreadable]
    unconfirmed: int = 0
    """Sent, and not found by their keys afterwards: brokers that index no keys would be sent them again."""


class Resending:
    """Sends dead letters of one group again, to the topics that they came from or all to one."""

    def __init__(self, client: ClusterClient, group: str, to: str | None = None) -> None:
        self._client = client
        self._group = group
        self._to = to
        self._producer = Producer(client, PRODUCER_GROUP)
        self._places: dict[str, list[QueuePlace]] = {}
        self._are_keys_found = True

    async def resend(self, letters: Sequence[DeadLetter], *, dry_run: bool = False) -> Resent:
        """Send those that no broker has yet. With `dry_run`, only find out which.

        Raises RemotingError when a broker refuses one or cannot be reached: what was sent by then is found next time.
        """
        found = Resent([], [], [])
        messages: dict[str, tuple[DeadLetter, Outgoing]] = {}
        for letter in letters:
            topic = self._to or letter.origin_topic
            if topic is None:
                found.unreadable.append(Unreadable(letter.name, "its origin is unknown: use --to"))
                continue
            places = await self._queues(topic)
            try:
                # By its number, so that a second attempt goes to the same queue.
                place = places[letter.message.queue_offset % len(places)]
                message = outgoing(self._group, letter, topic, place)
            except CorruptRecord as error:
                found.unreadable.append(Unreadable(letter.name, str(error)))
            else:
                messages[message.unique_key] = (letter, message)
        missing = await self._producer.missing([message for _, message in messages.values()])
        left = {message.unique_key for message in missing}
        found.already = [letter for key, (letter, _) in messages.items() if key not in left]
        if not dry_run:
            await self._producer.send_all(missing)
            found.unconfirmed = await self._confirm(missing)
        found.sent = [messages[message.unique_key][0] for message in missing]
        return found

    async def _confirm(self, sent: Sequence[Outgoing]) -> int:
        """Wait until brokers know the keys of what was stored, so that the next resend finds it; returns how many are
        missing. If the first are never found, the rest is not waited for.
        """
        rest_s = FIRST_REST_S
        while sent:
            sent = await self._producer.missing(sent)
            if not sent or not self._are_keys_found or rest_s > LAST_REST_S:
                break
            await asyncio.sleep(rest_s)
            rest_s *= 2
        self._are_keys_found = self._are_keys_found and not sent
        return len(sent)

    async def _queues(self, topic: str) -> list[QueuePlace]:
        if topic not in self._places:
            self._places[topic] = await self._producer.places(topic)
        return self._places[topic]
