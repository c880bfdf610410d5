"""Clients of the demo: producers that send batches to a broker that may be killed, and a consumer that reads all.

Each producer has a connection and queues of its own, and one batch in flight to each. A batch is acknowledged when the
broker has answered, which with SYNC_FLUSH means that it is on disk. Whether a batch without an answer was stored is
unknown; no other client writes to its queue, so the queue's max offset shows it afterwards.

All requests go over the wire; the broker reads from its log or its tier.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import TypeVar

from tiermq.cli.demo.orders import (
    LIST_MESSAGES,
    PRODUCERS,
    QUEUES,
    TOPIC,
    DemoFailed,
    body_of,
    key_of,
    number_of,
    queues_of,
    tag_of,
)
from tiermq.client.cluster_client import ClusterClient, QueuePlace
from tiermq.client.producer import Outgoing, Producer
from tiermq.client.queue_access import QueueAccess, find_by_key
from tiermq.errors import PeerGone
from tiermq.message.ids import UniqueKeyGenerator
from tiermq.message.properties import KEYS, TAGS, UNIQ_KEY, encode_properties
from tiermq.message.record import decode_records
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import AUTO_CREATE_TOPIC
from tiermq.namesrv.topic_config import PERM_READ, PERM_WRITE
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.json_dialect import decode_object

KEY_MESSAGES = 8
LOOK_S = 0.02
LOOKS = 1_500  # Half a minute, for what takes a moment.

T = TypeVar("T")


class OrdersClient:
    """See the module. Belongs to the loop that it is used on."""

    def __init__(self, client: ClusterClient, address: str) -> None:
        self._client = client
        self._address = address
        self._queues = [QueueAccess(client, TOPIC, QueuePlace("", address, queue_id)) for queue_id in range(QUEUES)]

    # Consumer requests.

    async def pull(self, queue_id: int, offset: int, most: int = 32) -> list[StoredMessage]:
        """Messages from an offset, none at the end of the queue. Raises DemoFailed for missing messages."""
        pulled = await self._queues[queue_id].pull(offset, most=most)
        if pulled.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND):
            raise DemoFailed(
                f"queue {queue_id}: expected message {offset} or the queue's end, found that the broker goes on at "
                f"{pulled.next_offset} (code {pulled.code})"
            )
        return list(decode_records(pulled.records))

    async def find(self, key: str) -> list[StoredMessage]:
        """The messages with a key."""
        return await find_by_key(self._client, self._address, TOPIC, key, most=KEY_MESSAGES)

    async def offset_at(self, queue_id: int, moment_ms: int) -> int:
        """The first message that was stored at this time or later."""
        return await self._queues[queue_id].offset_at(moment_ms)

    async def ends(self) -> list[int]:
        """The max offset of each queue."""
        return [high for _, high in await asyncio.gather(*(queue.bounds() for queue in self._queues))]

    # Operator requests.

    async def create_topic(self) -> None:
        """Create the topic, and wait until the name server knows it."""
        await self._client.ask(
            self._address,
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            topic=TOPIC,
            defaultTopic=AUTO_CREATE_TOPIC,
            readQueueNums=QUEUES,
            writeQueueNums=QUEUES,
            perm=PERM_READ | PERM_WRITE,
            topicFilterType="SINGLE_TAG",
            topicSysFlag=0,
            order=False,
        )

        async def is_known() -> bool:
            route = await self._client.find_route(TOPIC)
            return route is not None and len(route.writable) == QUEUES

        await until(is_known, "the topic at the name server")

    async def log_range(self) -> tuple[int, int]:
        """The bytes of the log that the broker holds locally, [first, end)."""
        answer = await self._client.ask(self._address, RequestCode.GET_BROKER_RUNTIME_INFO)
        table = decode_object(answer.body)["table"]
        return int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])

    async def clean(self) -> None:
        """Let the broker delete expired files, as mqadmin's deleteExpiredCommitLog does."""
        await self._client.ask(self._address, RequestCode.DELETE_EXPIRED_COMMITLOG)


def over_the_wire(name_server: str, address: str, work: Callable[[OrdersClient], Awaitable[T]]) -> T:
    """The result of the work, done with a new client."""

    async def working() -> T:
        async with ClusterClient(name_server) as client:
            return await work(OrdersClient(client, address))

    return asyncio.run(working())


async def until(is_so: Callable[[], Awaitable[bool]], what: str) -> None:
    """Poll a condition. Raises DemoFailed after half a minute."""
    for _ in range(LOOKS):
        if await is_so():
            return
        await asyncio.sleep(LOOK_S)
    raise DemoFailed(f"expected {what} within {LOOKS * LOOK_S:.0f} s, found it was not there")


GROUP = "demo_producers"
IN_THE_MIDDLE_S = 0.003  # From an answer to when the next lists are on their way, or half stored.

Progress = Callable[[int], None]
"""Called with the number of newly acknowledged messages."""

QueueProgress = Callable[[int, int], None]
"""Called with the number of acknowledged messages of a queue."""


def list_at(place: QueuePlace, offset: int, keys: UniqueKeyGenerator) -> list[Outgoing]:
    """The batch that begins at an offset of a queue."""
    born_ms = time.time_ns() // 1_000_000
    made = []
    for number in range(number_of(place.queue_id, offset), number_of(place.queue_id, offset + LIST_MESSAGES), QUEUES):
        unique = keys.next_key()
        properties = encode_properties({KEYS: key_of(number), TAGS: tag_of(number), UNIQ_KEY: unique})
        made.append(Outgoing(TOPIC, place, body_of(number), properties, unique, born_ms))
    return made


async def send_list(producer: Producer, place: QueuePlace, offset: int, keys: UniqueKeyGenerator) -> None:
    """Send the batch that begins at `offset`, and check that it got this offset. Raises DemoFailed, RemotingError."""
    found = await producer.send(list_at(place, offset, keys))
    if found != offset:
        raise DemoFailed(f"queue {place.queue_id}: expected the next message at {offset}, found {found}")


async def send_all(name_server: str, held: Sequence[int], wanted: Sequence[float], progress: QueueProgress) -> None:
    """Let all producers send concurrently what the queues lack of `wanted`, and perhaps part of a batch more.

    Raises the first problem of a queue when all have ended: DemoFailed, RemotingError.
    """
    keys = UniqueKeyGenerator()

    async def fill(producer: Producer, place: QueuePlace) -> None:
        offset = held[place.queue_id]
        while offset < wanted[place.queue_id]:
            await send_list(producer, place, offset, keys)
            offset += LIST_MESSAGES
            progress(place.queue_id, offset)

    async with AsyncExitStack() as clients:
        fills = []
        for number in range(PRODUCERS):
            producer = Producer(await clients.enter_async_context(ClusterClient(name_server)), GROUP)
            places = {place.queue_id: place for place in await producer.places(TOPIC)}
            fills += [fill(producer, places[queue_id]) for queue_id in queues_of(number)]
        problems = [each for each in await asyncio.gather(*fills, return_exceptions=True) if each is not None]
    # A kill closes the connection; any other error is worse, and is raised first.
    for problem in sorted(problems, key=lambda each: isinstance(each, PeerGone)):
        raise problem


def send_until_killed(
    name_server: str, enough: int, kill: Callable[[], None], progress: Progress
) -> tuple[list[int], float]:
    """Send until `enough` messages are acknowledged, and kill the broker while more are in flight.

    Returns the acknowledged messages by queue, and the rate. Raises DemoFailed if the broker ended before.
    """
    acknowledged = [0] * QUEUES
    when_ns: list[int] = []

    def hear(queue_id: int, count: int) -> None:
        progress(count - acknowledged[queue_id])
        acknowledged[queue_id] = count
        when_ns.append(time.monotonic_ns())
        if sum(acknowledged) >= enough > sum(acknowledged) - LIST_MESSAGES:
            asyncio.get_running_loop().call_later(IN_THE_MIDDLE_S, kill)

    try:
        asyncio.run(send_all(name_server, [0] * QUEUES, [math.inf] * QUEUES, hear))
    except PeerGone as error:  # What producers see of a kill.
        if sum(acknowledged) < enough:
            raise DemoFailed(f"the broker was gone before it was to be killed: {error}") from error
    # The first batch includes connecting, so the rate leaves it out.
    return acknowledged, (sum(acknowledged) - LIST_MESSAGES) * 1e9 / max(1, when_ns[-1] - when_ns[0])


def fill_up(name_server: str, held: Sequence[int], wanted: Sequence[int], progress: Progress) -> list[int]:
    """Let all producers send what the queues lack; returns the acknowledged messages of each."""
    acknowledged = list(held)

    def hear(queue_id: int, count: int) -> None:
        progress(count - acknowledged[queue_id])
        acknowledged[queue_id] = count

    asyncio.run(send_all(name_server, held, wanted, hear))
    return acknowledged
