"""AsyncSimpleConsumer: receives messages one request at a time, without queues of its own (POP, from RocketMQ 5.0 on).

    async with cluster.simple_consumer("mail", topic="letters", invisible_s=60) as consumer:
        for message in await consumer.receive(wait_s=15):
            await consumer.ack(message)                     # within 60 s, or it is delivered again
            await consumer.extend(message, 300)             # or: five more minutes

Any member may receive from any queue: nothing is shared out, and a member more or less changes nothing for the others.
What is not acknowledged in time comes again, to any member; retries and dead letters are the broker's.

A receipt records where a message was popped, as RocketMQ's clients write it:

    startOffset popTime invisibleTime reviveQueue mark brokerName queueId offset    mark: 0 topic, 1 and 2 retry topics

A broker writes it into messages that come again; of others it is made from the fields of the answer.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

from tiermq.client.member.message_queue import MessageQueue
from tiermq.client.member.received_message import ReceivedMessage, require_received
from tiermq.client.member.session import REQUEST_S, Session, closed_consumer, not_started
from tiermq.client.member.subscription import Subscription
from tiermq.client.queue_access import require_own
from tiermq.errors import BadConfig, IllegalMessage, PeerGone, RequestRefused
from tiermq.message.properties import POP_CK
from tiermq.message.record import decode_records
from tiermq.message.topic_name import RETRY_PREFIX, check_group, retry_topic
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand, int_field, text_field

POP_MESSAGES_MAX = 32
EARLY_S = 0.05
"""An answer may come so much earlier than it was asked for."""
FULL_REST_S = 1.0
"""A broker that holds too many requests answers at once; then it is asked again after a rest."""
BY_ITS_CLOCK = 0
"""Instead of the time when a request was made: the broker takes its own. It holds a request for a time after that, and
refuses one that is older; the clocks of two machines differ.
"""
QUEUE_DIGITS_MAX = 10
TOO_LATE = "timeout too much"
_POPPED = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.POLLING_FULL,
    ResponseCode.POLLING_TIMEOUT,
)


@dataclass(slots=True)
class PopReceipt:
    """What binds a popped message to its broker. `words` change when the invisible time does."""

    address: str
    words: list[str]
    until_s: float
    """When it is delivered again, by this process's monotonic clock."""

    @property
    def is_current(self) -> bool:
        return time.monotonic() < self.until_s

    def done(self) -> None:
        raise IllegalMessage("a popped message is acknowledged at its broker: await consumer.ack(message)")

    def fields(self, group: str, topic: str) -> dict[str, Any]:
        """Of a request about the message."""
        mark = self.words[4]
        if mark != "0" and not topic.startswith(RETRY_PREFIX):
            topic = f"{RETRY_PREFIX}{group}{'_' if mark == '1' else '+'}{topic}"
        return {
            "consumerGroup": group,
            "topic": topic,
            "queueId": self.words[6],
            "extraInfo": " ".join(self.words),
            "offset": self.words[7],
        }


class AsyncSimpleConsumer:
    """Receives messages one request at a time, without queues of its own: POP. Made by `AsyncCluster.simple_consumer`;
    used with `async with`, and belongs to the cluster's loop.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        subscription: Subscription,
        *,
        invisible_s: float,
        start: Literal["first", "last"],
    ) -> None:
        check_group(group)
        self.group = group
        self._session = session
        self._subscription = subscription
        self._invisible_ms = round(invisible_s * 1000)
        topic = subscription.topic
        self._poppable = (topic, f"{RETRY_PREFIX}{group}_{topic}", f"{RETRY_PREFIX}{group}+{topic}")
        """What an answer may have: a broker of RocketMQ may give retries under the topic that they are kept in."""
        self._init_mode = 0 if start == "first" else 1
        self._turn = itertools.count()
        self._by_own_clock: set[str] = set()
        """Brokers that want to know when a request was made, and do not set it themselves."""
        self._is_started = self._is_closed = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Be known to the topic's brokers. Raises RequestRefused for an unknown topic."""
        if self._is_closed:
            raise closed_consumer(self.group)
        if self.group in self._session.consumers:
            raise IllegalMessage(f"group {self.group}: expected one consumer in each client, found a second")
        self._session.consumers[self.group] = self
        try:
            if await self._session.route(self._subscription.topic) is None:
                raise await self._session.client.unknown_topic(self._subscription.topic, "no broker has it")
            await self._session.greet_all(self.topics())
        except BaseException:
            await self._session.leave(self, is_consumer=True)
            raise
        self._is_started = True

    async def close(self) -> None:
        """Leave the group. What is not acknowledged comes again when its time is over."""
        if not self._is_closed:
            self._is_closed = True
            await self._session.leave(self, is_consumer=True)

    def __repr__(self) -> str:
        state = ", closed" if self._is_closed else "" if self._is_started else ", not begun"
        return f"AsyncSimpleConsumer({self.group!r}, topic={self._subscription.topic!r}{state})"

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    async def receive(self, max_messages: int = 16, *, wait_s: float = 15.0) -> list[ReceivedMessage]:
        """Up to 32 messages of one broker, which holds the request while it has none; [] after `wait_s`.

        Brokers take turns. Raises ForeignRecord for an answer with messages of another topic, RequestRefused, and
        PeerGone when a broker went away: receive again.
        """
        if self._is_closed:
            raise closed_consumer(self.group)
        if not self._is_started:
            raise not_started(self.group, "cluster.simple_consumer(…)")
        if not 1 <= max_messages <= POP_MESSAGES_MAX:
            raise IllegalMessage(f"expected 1 to {POP_MESSAGES_MAX} messages, found {max_messages}")
        if not isinstance(wait_s, int | float) or not 0 <= wait_s < math.inf:
            raise BadConfig(f"wait_s: expected a number of seconds of 0 or more, found {wait_s!r}")
        topic = self._subscription.topic
        route = await self._session.route(topic)
        brokers = sorted({(place.broker_name, place.address) for place in route.readable}) if route is not None else []
        if not brokers:
            raise await self._session.client.unknown_topic(topic, "no broker has it")
        deadline_s = time.monotonic() + wait_s
        while True:
            for last in range(len(brokers), 0, -1):
                name, address = brokers[next(self._turn) % len(brokers)]
                # Only the last one holds the request: another may have messages now.
                held_s = max(0.0, deadline_s - time.monotonic()) if last == 1 else 0.0
                try:
                    found = await self._pop(name, address, max_messages, held_s)
                except PeerGone:
                    self._session.forget_route(topic)
                    raise
                if found:
                    return found
            left_s = deadline_s - time.monotonic()
            if left_s < EARLY_S:
                return []
            await asyncio.sleep(min(left_s, FULL_REST_S))

    async def _pop(self, name: str, address: str, most: int, held_s: float) -> list[ReceivedMessage]:
        now_s, is_by_own_clock = time.monotonic(), name in self._by_own_clock
        answer = await self._session.ask(
            address,
            RequestCode.POP_MESSAGE,
            expected=_POPPED,
            timeout_s=held_s + 2 * REQUEST_S,
            consumerGroup=self.group,
            topic=self._subscription.topic,
            queueId=-1,  # Any.
            maxMsgNums=most,
            invisibleTime=self._invisible_ms,
            pollTime=round(held_s * 1000),
            bornTime=time.time_ns() // 1_000_000 if is_by_own_clock else BY_ITS_CLOCK,
            initMode=self._init_mode,
            expType=self._subscription.kind,
            exp=self._subscription.expression,
            order=False,
        )
        if answer.code != ResponseCode.SUCCESS:
            is_refused = TOO_LATE in (answer.remark or "") or time.monotonic() - now_s < held_s / 2
            if answer.code == ResponseCode.POLLING_TIMEOUT and is_refused and not is_by_own_clock:
                self._by_own_clock.add(name)
                return await self._pop(name, address, most, held_s)
            return []
        until_s = now_s + self._invisible_ms / 1000
        found = popped_in(answer, name, address, until_s)
        for message in found:
            require_own(message.stored, self._poppable, None, address)
        return [
            message
            for message in found
            if message.stored.get_property(POP_CK) or self._subscription.wants(message.tags)
        ]

    async def ack(self, message: ReceivedMessage) -> None:
        """The message need not come again. Raises RequestRefused when it is too late."""
        receipt = _receipt_of(message)
        fields = receipt.fields(self.group, self._subscription.topic)
        await self._session.ask(receipt.address, RequestCode.ACK_MESSAGE, **fields)

    async def extend(self, message: ReceivedMessage, invisible_s: float) -> None:
        """It comes again so long after now; 0: at once. Raises RequestRefused when it is too late."""
        receipt = _receipt_of(message)
        fields = receipt.fields(self.group, self._subscription.topic)
        invisible_ms = round(invisible_s * 1000)
        answer = await self._session.ask(
            receipt.address, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, invisibleTime=invisible_ms, **fields
        )
        words = receipt.words
        words[0] = words[7]
        words[1:4] = [text_field(answer, name) for name in ("popTime", "invisibleTime", "reviveQid")]
        receipt.until_s = time.monotonic() + invisible_s

    # What the session calls.

    def heartbeat(self) -> dict[str, Any]:
        return {
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET" if self._init_mode == 0 else "CONSUME_FROM_LAST_OFFSET",
            "consumeType": "CONSUME_POP",
            "groupName": self.group,
            "messageModel": "CLUSTERING",
            "subscriptionDataSet": [
                self._subscription.described(),
                Subscription.of(retry_topic(self.group), None, None, self._subscription.version).described(),
            ],
            "unitMode": False,
        }

    def topics(self) -> set[str]:
        return {self._subscription.topic}

    def on_request(self, address: str, command: RemotingCommand) -> Coroutine[Any, Any, RemotingCommand | None] | None:
        del address
        return _nothing() if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED else None


async def _nothing() -> None:
    """Members share no queues: who else is there changes nothing."""
    await asyncio.sleep(0)


def _receipt_of(message: ReceivedMessage) -> PopReceipt:
    require_received(message)
    if not isinstance(message.receipt, PopReceipt):
        raise IllegalMessage("expected a message of this consumer's receive(), found another one")
    return message.receipt


def popped_in(answer: RemotingCommand, broker_name: str, address: str, until_s: float) -> list[ReceivedMessage]:
    """The messages of a pop, each with its receipt. Raises RequestRefused for an answer without what makes receipts."""
    starts: dict[int, str] = {}
    for entry in answer.ext.get("startOffsetInfo", "").split(";"):
        words = entry.split(" ")
        if len(words) == 3 and words[0] == "0":
            if not (words[1].isascii() and words[1].isdecimal() and len(words[1]) <= QUEUE_DIGITS_MAX):
                raise RequestRefused(f"expected a queue's number in startOffsetInfo, found {words[1][:40]!r}")
            starts[int(words[1])] = words[2]
    pop_ms, invisible_ms = int_field(answer, "popTime"), int_field(answer, "invisibleTime")
    head = [str(pop_ms), str(invisible_ms), text_field(answer, "reviveQid")]
    found = []
    for stored in decode_records(bytes(answer.body)):
        own = stored.get_property(POP_CK)
        if own is not None:
            words = own.split(" ")
        elif stored.queue_id in starts:
            words = [starts[stored.queue_id], *head, "0", broker_name, str(stored.queue_id), str(stored.queue_offset)]
        else:
            raise RequestRefused(f"expected the start of queue {stored.queue_id} in the answer to a pop, found none")
        if len(words) < 8:
            raise RequestRefused(f"expected a receipt of 8 words, found {own!r}")
        queue = MessageQueue(stored.topic, broker_name, stored.queue_id)
        found.append(ReceivedMessage(stored, queue, PopReceipt(address, words, until_s)))
    return found
