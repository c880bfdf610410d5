"""What is asked of one queue over the wire: its bounds, a place by time, records.

Invariants: nothing is left behind at a broker (no offset is committed, nobody is registered as a consumer); a peer that
is gone or busy is asked again for a while, since reading twice does no harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from tiermq.client.cluster_client import ClusterClient, QueuePlace
from tiermq.errors import PeerGone, RequestRefused, RequestTimedOut
from tiermq.message.topic_name import TOOLS_GROUP
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand

"""RocketMQ's own group for tools; brokers have it without being told."""

PULL_MESSAGES = 32
TRIES = 8
FIRST_REST_S = 0.1
SUBSCRIPTION_FLAG = 4
PULLED = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
BUSY = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLOW_CONTROL})
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a pull was answered."""

    code: int
    next_offset: int
    records: bytes


async def patiently(work: Callable[[], Coroutine[Any, Any, T]], tries: int = TRIES) -> T:
    """What work gives, tried again while the peer is gone or busy: for about 25 s. Only for what may be done twice."""
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

    def __init__(self, client: ClusterClient, topic: str, place: QueuePlace) -> None:
        self.client = client
        self.topic = topic
        self.place = place

    async def bounds(self) -> tuple[int, int]:
        """Its messages [min, max), hot and cold."""
        low, high = await asyncio.gather(
            self._number(RequestCode.GET_MIN_OFFSET), self._number(RequestCode.GET_MAX_OFFSET)
        )
        high = max(0, high)
        return min(max(0, low), high), high

    async def offset_at(self, moment_ms: int) -> int:
        """The first message that was stored at this time or later, as the broker says."""
        return max(0, await self._number(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=moment_ms))

    async def pull(self, offset: int, expression: str = "*", most: int = PULL_MESSAGES) -> Pulled:
        """Records from `offset` on, as many as the broker likes to give at once; nobody waits for more to come."""
        answer = await patiently(
            lambda: self._ask(
                RequestCode.PULL_MESSAGE,
                PULLED,
                consumerGroup=TOOLS_GROUP,
                queueOffset=offset,
                maxMsgNums=most,
                sysFlag=SUBSCRIPTION_FLAG,
                commitOffset=0,
                suspendTimeoutMillis=0,
                subscription=expression,
                subVersion=0,
                expressionType="TAG",
            )
        )
        found = answer.body if answer.code == ResponseCode.SUCCESS else b""
        return Pulled(answer.code, int(answer.ext["nextBeginOffset"]), bytes(found))

    async def _number(self, code: RequestCode, **fields: Any) -> int:
        answer = await patiently(lambda: self._ask(code, (ResponseCode.SUCCESS,), **fields))
        return int(answer.ext["offset"])

    def _ask(self, code: RequestCode, expected: tuple[int, ...], **fields: Any) -> Coroutine[Any, Any, RemotingCommand]:
        queue: dict[str, Any] = {"topic": self.topic, "queueId": self.place.queue_id, **fields}
        return self.client.ask(self.place.address, code, expected=expected, **queue)
