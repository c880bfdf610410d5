"""The demo's topic as a client sees it: pulls, key queries, times, and what an operator asks of the broker.

    with asyncio: async with OrdersClient(name_server) as orders: await orders.pull(0, 0)

Everything goes over the wire. Whether a message lies in the log or in the tier is the broker's affair.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tiermq.cli.demo_orders import QUEUES, TOPIC, DemoFailed
from tiermq.client.cluster_client import ClusterClient, QueuePlace
from tiermq.client.key_query import find_by_key
from tiermq.client.queue_access import QueueAccess
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

    # What consumers ask.

    async def pull(self, queue_id: int, offset: int, most: int = 32) -> list[StoredMessage]:
        """Messages from a place on, none at the end of the queue. Raises DemoFailed when the broker leaves some out."""
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
        """Where each queue ends."""
        return [high for _, high in await asyncio.gather(*(queue.bounds() for queue in self._queues))]

    # What operators ask.

    async def create_topic(self) -> None:
        """Make the topic, and wait until the name server knows it, as it does a moment later."""
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
        """Let the broker delete what is past its time, as mqadmin's deleteExpiredCommitLog does."""
        await self._client.ask(self._address, RequestCode.DELETE_EXPIRED_COMMITLOG)


def over_the_wire(name_server: str, address: str, work: Callable[[OrdersClient], Awaitable[T]]) -> T:
    """What the work gives, done with a client of its own."""

    async def working() -> T:
        async with ClusterClient(name_server) as client:
            return await work(OrdersClient(client, address))

    return asyncio.run(working())


async def until(is_so: Callable[[], Awaitable[bool]], what: str) -> None:
    """Look until something is so. Raises DemoFailed when it is not after half a minute."""
    for _ in range(LOOKS):
        if await is_so():
            return
        await asyncio.sleep(LOOK_S)
    raise DemoFailed(f"expected {what} within {LOOKS * LOOK_S:.0f} s, found it was not there")
