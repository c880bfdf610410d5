"""Producer: messages to brokers, each of which can be asked for afterwards by its unique key.

A send without an answer may have been stored. So failed messages are queried by key before they are sent again:
`send_all` stores each message at least once, and once unless the broker's key index is behind by more than the rest
before the question, or a send that was given up arrives even later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tiermq.client.cluster_client import ClusterClient, QueuePlace
from tiermq.client.queue_access import BUSY, find_by_key, patiently
from tiermq.client.send_fields import DEFAULT_QUEUES, send_fields
from tiermq.errors import PeerGone, RemotingError, RequestRefused, RequestTimedOut
from tiermq.message.client_batch import BatchElement, encode_client_batch
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import AUTO_CREATE_TOPIC
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import int_field

BATCH_BYTES = 512 << 10
BATCH_MESSAGES = 256
IN_FLIGHT = 8
QUESTIONS = 32
SEND_TRIES = 8
FIRST_REST_S = 0.2
STORED = (ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message on its way. `encoded_properties` hold `unique_key`; `alone`: not in a batch, as it is delayed.

    `mark` is the name and the value of a property that identifies the message where other messages have its unique key.
    """

    topic: str
    place: QueuePlace
    body: bytes
    encoded_properties: bytes
    unique_key: str
    born_ms: int
    alone: bool = False
    flag: int = 0
    mark: tuple[str, str] | None = None


class Producer:
    """Used on the client's loop."""

    def __init__(self, client: ClusterClient, group: str) -> None:
        self._client = client
        self._group = group

    async def places(self, topic: str) -> list[QueuePlace]:
        """The writable queues of a topic, in order; of a topic that does not exist yet, those that it will have.

        Raises RequestRefused when there are none.
        """
        route = await self._client.find_route(topic)
        found = list(route.writable) if route is not None else []
        if route is None:
            pattern = await self._client.find_route(AUTO_CREATE_TOPIC)
            found = [each for each in pattern.writable if each.queue_id < DEFAULT_QUEUES] if pattern else []
        if not found:
            raise RequestRefused(
                f"expected a topic {topic} with queues to write to, found none, and no broker creates topics: "
                f"`tiermq topic create {topic}` makes it",
                ResponseCode.TOPIC_NOT_EXIST,
            )
        return sorted(found, key=lambda place: (place.broker_name, place.queue_id))

    async def send(self, messages: Sequence[Outgoing]) -> int:
        """Store messages of one queue, all or none; returns the queue offset of the first.

        Raises RemotingError: then whether it was done may be open.
        """
        first = messages[0]
        is_batch = len(messages) > 1
        body, properties = first.body, first.encoded_properties
        if is_batch:
            body = encode_client_batch(BatchElement(each.flag, each.body, each.encoded_properties) for each in messages)
            properties = b""
        flag = 0 if is_batch else first.flag
        fields: dict[str, Any] = send_fields(
            self._group, first.topic, first.place, properties, first.born_ms, flag=flag, is_batch=is_batch
        )
        answer = await self._client.ask(
            first.place.address,
            RequestCode.SEND_BATCH_MESSAGE if is_batch else RequestCode.SEND_MESSAGE_V2,
            body,
            expected=STORED,
            **fields,
        )
        return int_field(answer, "queueOffset")

    async def find_stored(self, message: Outgoing, *, is_strict: bool = True) -> StoredMessage | None:
        """The message as a broker of its topic has it, by its unique key and its mark.

        Raises RequestRefused where the account lacks the right to ask (SUB); without `is_strict` that counts as None.
        """
        topic = message.topic
        # A new topic reaches the name server a little later than its first message is stored.
        route = await self._client.find_route(topic) or await self._client.find_route(AUTO_CREATE_TOPIC)
        for address in sorted(set(route.addresses.values())) if route is not None else []:
            try:
                found = await patiently(
                    lambda address=address: find_by_key(  # type: ignore[misc] # As lambdas cannot say.
                        self._client, address, topic, message.unique_key, unique=True
                    )
                )
            except RequestRefused as error:
                if is_strict or error.code != ResponseCode.NO_PERMISSION:
                    raise
                return None
            for each in found:
                if message.mark is None or each.get_property(message.mark[0]) == message.mark[1]:
                    return each
        return None

    async def stored(self, messages: Sequence[Outgoing], *, is_strict: bool = True) -> list[StoredMessage | None]:
        """Each of them as a broker has it, or None. `is_strict`: see `find_stored`."""
        room = asyncio.Semaphore(QUESTIONS)

        async def ask(message: Outgoing) -> StoredMessage | None:
            async with room:
                return await self.find_stored(message, is_strict=is_strict)

        return await asyncio.gather(*(ask(message) for message in messages))

    async def missing(self, messages: Sequence[Outgoing], *, is_strict: bool = True) -> list[Outgoing]:
        """Those that no broker has yet. `is_strict`: see `find_stored`."""
        found = await self.stored(messages, is_strict=is_strict)
        return [message for message, there in zip(messages, found, strict=True) if there is None]

    async def send_batch(self, batch: Sequence[Outgoing]) -> list[int]:
        """Store a batch of one queue before this returns; the queue offset of each message.

        What was not answered is asked for, and sent again if no broker has it. Raises as `send_all` does.
        """
        offsets: dict[int, int] = {}
        left = list(range(len(batch)))
        rest_s = FIRST_REST_S
        for _ in range(SEND_TRIES):
            try:
                first = await self.send([batch[at] for at in left])
            except (PeerGone, RequestTimedOut, RequestRefused) as error:
                if isinstance(error, RequestRefused) and error.code not in BUSY:
                    raise
                problem = error
            else:
                offsets |= {at: first + number for number, at in enumerate(left)}
                return [offsets[at] for at in range(len(batch))]
            await asyncio.sleep(rest_s)
            rest_s *= 2
            found = await self.stored([batch[at] for at in left], is_strict=False)
            offsets |= {at: each.queue_offset for at, each in zip(left, found, strict=True) if each is not None}
            left = [at for at in left if at not in offsets]
            if not left:
                return [offsets[at] for at in range(len(batch))]
        raise _not_stored(len(batch), len(left), problem)

    async def send_all(self, messages: Sequence[Outgoing], *, ask_first: bool = False) -> int:
        """Store all of them; how many were sent now. With `ask_first`, those that are there already are not sent.

        An account that may only send (PUB) cannot ask: it sends again what was not answered.
        Raises RemotingError when a broker refuses one, or cannot be reached for about a minute.
        """
        left = await self.missing(messages, is_strict=False) if ask_first else list(messages)
        count = len(left)
        rest_s = FIRST_REST_S
        for _ in range(SEND_TRIES):
            left, problem = await self._send_some(left)
            if problem is None:
                return count
            await asyncio.sleep(rest_s)
            rest_s *= 2
            left = await self.missing(left, is_strict=False)
        raise _not_stored(count, len(left), problem)

    async def _send_some(self, messages: Sequence[Outgoing]) -> tuple[list[Outgoing], RemotingError | None]:
        """Send each once; returns those with an unknown result, and why."""
        room = asyncio.Semaphore(IN_FLIGHT)
        open_ones: list[Outgoing] = []
        problems: list[RemotingError] = []

        async def send(batch: list[Outgoing]) -> None:
            async with room:
                try:
                    await self.send(batch)
                except (PeerGone, RequestTimedOut) as error:
                    open_ones.extend(batch)
                    problems.append(error)
                except RequestRefused as error:
                    if error.code not in BUSY:
                        raise
                    open_ones.extend(batch)
                    problems.append(error)

        await asyncio.gather(*(send(batch) for batch in batches_of(messages)))
        return open_ones, problems[0] if problems else None


def _not_stored(count: int, left: int, problem: RemotingError | None) -> RemotingError:
    error = RemotingError(f"expected {count} messages stored, found {left} that are not: {problem}")
    error.__cause__ = problem
    return error


def batches_of(messages: Sequence[Outgoing]) -> list[list[Outgoing]]:
    """Messages of one queue together, in their order, as many as one send may have, which has one born time."""
    made: list[list[Outgoing]] = []
    growing: dict[tuple[str, QueuePlace], tuple[list[Outgoing], int]] = {}
    for message in messages:
        name = (message.topic, message.place)
        size = len(message.body) + len(message.encoded_properties)
        batch, taken = growing.get(name, ([], 0))
        is_full = taken + size > BATCH_BYTES or len(batch) >= BATCH_MESSAGES
        if not batch or message.alone or is_full or batch[0].born_ms != message.born_ms:
            batch, taken = [], 0
            made.append(batch)
        batch.append(message)
        growing[name] = (batch, taken + size) if not message.alone else ([], 0)
    return made
