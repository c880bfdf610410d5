"""Producers of the demo: several real clients that send lists at once to a broker, which may be killed under them.

Each producer has a connection and queues of its own, and one list on its way to each. A list is acknowledged when the
broker has answered, which with SYNC_FLUSH means that it is on disk. Whether a list without an answer was stored is
open; since nobody else writes to its queue, the end of the queue says so afterwards.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from tiermq.cli.demo_orders import (
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
from tiermq.errors import PeerGone
from tiermq.message.ids import UniqueKeyGenerator
from tiermq.message.properties import KEYS, TAGS, UNIQ_KEY, encode_properties

GROUP = "demo_producers"
IN_THE_MIDDLE_S = 0.003  # From an answer to when the next lists are on their way, or half stored.

Told = Callable[[int], None]
"""Told how many more messages were acknowledged."""

ToldOfQueue = Callable[[int, int], None]
"""Told how many messages of a queue were acknowledged by now."""


def list_at(place: QueuePlace, offset: int, keys: UniqueKeyGenerator) -> list[Outgoing]:
    """The list that begins at a place of a queue."""
    born_ms = time.time_ns() // 1_000_000
    made = []
    for number in range(number_of(place.queue_id, offset), number_of(place.queue_id, offset + LIST_MESSAGES), QUEUES):
        unique = keys.next_key()
        properties = encode_properties({KEYS: key_of(number), TAGS: tag_of(number), UNIQ_KEY: unique})
        made.append(Outgoing(TOPIC, place, body_of(number), properties, unique, born_ms))
    return made


async def send_list(producer: Producer, place: QueuePlace, offset: int, keys: UniqueKeyGenerator) -> None:
    """Send the list that begins at `offset`, and see that it got its place. Raises DemoFailed and RemotingError."""
    found = await producer.send(list_at(place, offset, keys))
    if found != offset:
        raise DemoFailed(f"queue {place.queue_id}: expected the next message at {offset}, found {found}")


async def send_all(name_server: str, held: Sequence[int], wanted: Sequence[float], told: ToldOfQueue) -> None:
    """Let all producers send, at once, what the queues lack of `wanted`, and perhaps a part of a list more.

    Raises the first problem of a queue when all have ended: DemoFailed, RemotingError.
    """
    keys = UniqueKeyGenerator()

    async def fill(producer: Producer, place: QueuePlace) -> None:
        offset = held[place.queue_id]
        while offset < wanted[place.queue_id]:
            await send_list(producer, place, offset, keys)
            offset += LIST_MESSAGES
            told(place.queue_id, offset)

    async with AsyncExitStack() as clients:
        fills = []
        for number in range(PRODUCERS):
            producer = Producer(await clients.enter_async_context(ClusterClient(name_server)), GROUP)
            places = {place.queue_id: place for place in await producer.places(TOPIC)}
            fills += [fill(producer, places[queue_id]) for queue_id in queues_of(number)]
        problems = [each for each in await asyncio.gather(*fills, return_exceptions=True) if each is not None]
    # A kill shows itself as a connection that is gone; anything else is worse, and is told first.
    for problem in sorted(problems, key=lambda each: isinstance(each, PeerGone)):
        raise problem


def send_until_killed(name_server: str, enough: int, kill: Callable[[], None], told: Told) -> tuple[list[int], float]:
    """Send on and on, and kill the broker when `enough` messages are acknowledged and more are on their way.

    What was acknowledged, by queue, and how fast. Raises DemoFailed when the broker is gone before.
    """
    acknowledged = [0] * QUEUES
    when_ns: list[int] = []

    def hear(queue_id: int, count: int) -> None:
        told(count - acknowledged[queue_id])
        acknowledged[queue_id] = count
        when_ns.append(time.monotonic_ns())
        if sum(acknowledged) >= enough > sum(acknowledged) - LIST_MESSAGES:
            asyncio.get_running_loop().call_later(IN_THE_MIDDLE_S, kill)

    try:
        asyncio.run(send_all(name_server, [0] * QUEUES, [math.inf] * QUEUES, hear))
    except PeerGone as error:  # What producers see of a kill.
        if sum(acknowledged) < enough:
            raise DemoFailed(f"the broker was gone before it was to be killed: {error}") from error
    # The first list pays for connections, so the rate leaves it out.
    return acknowledged, (sum(acknowledged) - LIST_MESSAGES) * 1e9 / max(1, when_ns[-1] - when_ns[0])


def fill_up(name_server: str, held: Sequence[int], wanted: Sequence[int], told: Told) -> list[int]:
    """Let all producers send what the queues lack: how many messages of each are acknowledged now."""
    acknowledged = list(held)

    def hear(queue_id: int, count: int) -> None:
        told(count - acknowledged[queue_id])
        acknowledged[queue_id] = count

    asyncio.run(send_all(name_server, held, wanted, hear))
    return acknowledged
