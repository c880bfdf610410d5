"""AsyncConsumer: a member of a consumer group: it shares the topic's queues with the others, and leaves cleanly.

    async with cluster.consumer("audit", topic="orders", start="first") as consumer:
        async for message in consumer:
            ...                                 # asking for the next message means that this one is done

    async with cluster.consumer("audit", topic="orders", on_message=handle, workers=8) as consumer:
        await consumer.wait()                   # handle(message) in eight tasks or threads; raising means: later again

How a queue is read:

    route ─► rebalance (members of the group) ─► AssignedQueue ─► pulls ─► ready ─► given ─► done
                      commit offset: every 5 s, when the queue goes, at the end ◄───────────┘

Invariants: a message is given to one caller of this consumer; its offset is committed only when it, and all before it
in its queue, are done. Messages come again when their queue went to another member before they were committed, when
this process died, or when they failed. Pulls stop while `max_buffered` messages or `max_buffered_bytes` wait to be
given. Ordered: the broker has granted the queue to this member alone, and its messages are given one after the other.
Belongs to the loop of its cluster.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

from tiermq.client.member.assigned_queue import AssignedQueue
from tiermq.client.member.cursor import MessageCursor
from tiermq.client.member.handlers import Handler, Handlers, checked_level
from tiermq.client.member.message_queue import (
    MAX_OFFSET,
    MessageQueue,
    allocate_averagely,
    checked_offset,
    queue_in,
)
from tiermq.client.member.offset_file import OffsetFile
from tiermq.client.member.operator_requests import OperatorRequests
from tiermq.client.member.received_message import Receipt, ReceivedMessage, require_received
from tiermq.client.member.replies import reply_command
from tiermq.client.member.session import CLOSE_S, Session, closed_consumer, not_started
from tiermq.client.member.start_position import Start, checked_start
from tiermq.client.member.subscription import Subscription
from tiermq.client.queue_access import (
    HOLD_MS,
    PULLED,
    SUBSCRIPTION_FLAG,
    SUSPEND_FLAG,
    ForeignRecord,
    require_own,
)
from tiermq.client.send_fields import send_fields
from tiermq.errors import (
    BadConfig,
    IllegalMessage,
    PeerGone,
    RemotingError,
    RequestRefused,
    RequestTimedOut,
    TierMQError,
)
from tiermq.message.client_batch import unwrap_inner_batch
from tiermq.message.message_filter import SQL92
from tiermq.message.properties import (
    CLUSTER,
    DELAY,
    MSG_REGION,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    TRACE_ON,
    TRAN_MSG,
    encode_properties,
)
from tiermq.message.record import decode_records
from tiermq.message.system_flag import is_inner_batch, with_host_shapes
from tiermq.message.topic_name import check_group, is_retry_topic, retry_topic
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand, int_field
from tiermq.remoting.json_dialect import decode_object, encode_body, list_in, object_in

_log = logging.getLogger(__name__)

COMMIT_FLAG = 1
COMMIT_S = 5.0
REBALANCE_S = 20.0
UNBALANCED_S = 1.0
"""How soon a share that could not be worked out, or a queue without an offset, is tried again."""
FINISHED_S, SETTLED_S = 0.15, 0.3
"""A queue that goes to another member: how long its last messages may take to be done before it is committed, and how
long the other member waits, when it hears of the change at the same time, before it asks where to begin.
"""
LOCK_S = 20.0
PULL_TIMEOUT_S = 30.0
REST_S = 1.0
PULL_REST_MAX_S = 5.0
IDLE_REST_S = 0.0025
"""After pulls in a row that were answered at once and got no further: a rest that doubles, to a second."""
WARN_S = 60.0
STALE_MAX = 1 << 16
"""How far an answer may go beyond its own maxOffset, which a broker may have read before more messages came."""
DONE_LOOK_S = 0.02
"""How often a pull looks whether messages that were given are done."""
NONE_COMMITTED = -1
"""Of a group that has committed none, in answers of brokers that do not say QUERY_NOT_FOUND."""
GIVEN_MAX = 2000
"""Messages of one queue that were pulled and are not done: what may come again when this process dies."""
DEAD_LETTER_LEVEL = -1


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """How a consumer reads. `max_attempts`: a message that failed as often, the first delivery counted, becomes a dead
    letter. RocketMQ's `maxReconsumeTimes` counts the deliveries after the first: one less.
    """

    start: Literal["first", "last"] | int = "last"
    is_broadcast: bool = False
    is_ordered: bool = False
    auto_ack: bool = True
    max_buffered: int = 1000
    max_buffered_bytes: int = 64 << 20
    pull_messages: int = 32
    max_attempts: int = 16
    idle_s: float | None = None
    offsets: OffsetFile | None = None


def check_take(most: int, wait_s: float | None) -> None:
    """Raises BadConfig for what is no number of messages, or no time to wait."""
    if not isinstance(most, int) or most < 1:
        raise BadConfig(f"max_messages: expected 1 or more, found {most!r}")
    if wait_s is not None and not (isinstance(wait_s, int | float) and wait_s >= 0):
        raise BadConfig(f"wait_s, idle_s: expected seconds, 0 or more, or None for no limit; found {wait_s!r}")


class AsyncConsumer:
    """A member of a consumer group: `async for message in consumer`, or `poll`, or handlers. Made by
    `AsyncCluster.consumer`, and used with `async with`; belongs to the cluster's loop.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        subscriptions: Iterable[Subscription],
        settings: ConsumerSettings,
        *,
        on_message: Handler | None = None,
        workers: int = 16,
    ) -> None:
        check_group(group)
        self.group = group
        self.settings = settings
        self._session = session
        self._subscriptions = {each.topic: each for each in subscriptions}
        if not settings.is_broadcast:
            topic = retry_topic(group)
            self._subscriptions[topic] = Subscription.of(topic, None, None, time.time_ns() // 1_000_000)
        self._queues: dict[MessageQueue, AssignedQueue] = {}
        self._pulls: dict[AssignedQueue, asyncio.Task[None]] = {}
        self._room: dict[AssignedQueue, asyncio.Event] = {}
        self._with_ready: deque[AssignedQueue] = deque()
        self._busy: set[AssignedQueue] = set()
        self._ready_count = self._ready_bytes = 0
        self._arrived = asyncio.Event()
        self._must_rebalance = asyncio.Event()
        self._rebalancing = asyncio.Lock()
        self._closed = asyncio.Event()
        self._is_started = self._is_closing = False
        self._received_count = self._sent_back_count = self._refused_count = 0
        self._has_others = False
        self._made_later: set[str] = set()
        """Topics that no broker had when this member joined: all of their messages are new."""
        self._tasks: list[asyncio.Task[Any]] = []
        self._operators = OperatorRequests(self)
        self.cursor = MessageCursor(auto_ack=settings.auto_ack)
        self.handlers = Handlers(self, on_message, workers) if on_message is not None else None

    # Life.

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.cursor.finish()
        await self.close()

    async def start(self) -> None:
        """Join the group. Returns when this member has its share of the queues, as far as brokers answer.

        Raises RequestRefused for a filter that the broker does not accept, IllegalMessage for a second consumer of the
        group in one client.
        """
        self.require_open()
        if self.group in self._session.consumers:
            raise IllegalMessage(
                f"group {self.group}: expected one consumer in each client, found a second: give it its own connect(), "
                "or more workers"
            )
        self._session.consumers[self.group] = self
        try:
            await self._check_filters()
            await self._session.greet_all(set(self._subscriptions))
            is_balanced = await self.rebalance()
        except BaseException:
            await self._session.leave(self, is_consumer=True)
            raise
        self._tasks.append(self._session.spawn(self._rebalance_always(is_balanced), f"rebalance-{self.group}"))
        self._tasks.append(self._session.spawn(self._commit_always(), f"commit-{self.group}"))
        if self.settings.is_ordered and not self.settings.is_broadcast:
            self._tasks.append(self._session.spawn(self._lock_always(), f"lock-{self.group}"))
        self._is_started = True
        if self.handlers is not None:
            self.handlers.start(self._session)

    async def close(self) -> None:
        """Finish the handlers' messages, commit, and leave the group: the others get its queues at once."""
        if self._is_closing:
            await self._closed.wait()
            return
        self._is_closing = True
        self._arrived.set()
        try:
            if self.handlers is not None:
                await self.handlers.close()
            for task in (*self._tasks, *self._pulls.values()):
                task.cancel()
            await asyncio.gather(*self._tasks, *self._pulls.values(), return_exceptions=True)
            queues = list(self._queues.values())
            await self._commit(queues, timeout_s=CLOSE_S)
            for queue in queues:
                queue.drop()
            if self.settings.is_ordered:
                await self._unlock(queues)
        finally:
            for task in (*self._tasks, *self._pulls.values()):  # Also of a close that was cancelled.
                task.cancel()
            try:
                await self._session.leave(self, is_consumer=True)
            finally:
                self._queues.clear()
                self._pulls.clear()
                self._closed.set()

    def __repr__(self) -> str:
        topics = [each for each in self._subscriptions if not is_retry_topic(each)]
        state = ", closed" if self._is_closing else "" if self._is_started else ", not begun"
        return f"AsyncConsumer({self.group!r}, topics={topics}{state})"

    def require_outside(self) -> None:
        """Raises RemotingError in a handler's own thread, which would wait for itself. Any thread may call."""
        if self.handlers is not None and self.handlers.is_inside:
            raise RemotingError("expected close() outside of the consumer's handlers, found it inside: set an event")

    def require_open(self) -> None:
        """Raises RemotingError from `close` on. Any thread may call."""
        if self._is_closing:
            raise closed_consumer(self.group)

    def _require_started(self) -> None:
        if not self._is_started:
            raise not_started(self.group, "cluster.consumer(…)")

    async def wait(self) -> None:
        """Until the consumer is closed: handlers work meanwhile."""
        self._require_started()
        await self._closed.wait()

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    @property
    def is_closing(self) -> bool:
        return self._is_closing

    @property
    def assigned(self) -> list[AssignedQueue]:
        """Its queues with their progress, the retry topic's too."""
        return [self._queues[name] for name in sorted(self._queues)]

    @property
    def queues(self) -> list[MessageQueue]:
        """This member's share, without the group's retry topic."""
        return sorted(name for name in self._queues if not is_retry_topic(name.topic))

    @property
    def metrics(self) -> dict[str, int]:
        """Messages since the consumer was made, answers with messages of other queues, which were refused, what waits
        to be given, and this member's queues.
        """
        return {
            "received": self._received_count,
            "sent_back": self._sent_back_count,
            "refused": self._refused_count,
            "ready": self._ready_count,
            "open": sum(queue.open_count for queue in self._queues.values()),
            "queues": len(self.queues),
        }

    # Reading.

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        message = self.cursor.next()
        while message is None:
            self.require_no_handler()
            batch = await self.take(FETCHED_MESSAGES, self.settings.idle_s)
            if not batch:
                raise StopAsyncIteration
            self.cursor.refill(batch)
            message = self.cursor.next()
        return message

    async def poll(self, max_messages: int = 32, *, wait_s: float | None = 1.0) -> list[ReceivedMessage]:
        """Up to so many messages; [] when none came in time. Those of the last poll are done now, with `auto_ack`.

        Raises RemotingError when the consumer is closed.
        """
        self.require_no_handler()
        self.require_open()
        check_take(max_messages, wait_s)
        found = self.cursor.next_many(max_messages)
        if not found:
            self.cursor.refill(await self.take(max_messages, wait_s))
            found = self.cursor.next_many(max_messages)
        return found

    def require_no_handler(self) -> None:
        """Raises IllegalMessage where `on_message` gets the messages: a loop would take some of them from it."""
        if self.handlers is not None:
            raise IllegalMessage(
                f"group {self.group}: expected a consumer without on_message, found one whose messages go to its "
                "handler: wait(), or leave on_message out"
            )

    def ack(self, message: ReceivedMessage) -> None:
        """A message is done. For consumers without `auto_ack`. Any thread may call."""
        receipt = self._receipt_of(message)
        self.cursor.keep_open(message)
        receipt.done()

    def _receipt_of(self, message: ReceivedMessage) -> Receipt:
        require_received(message)
        if message.receipt is None:
            raise IllegalMessage(
                f"group {self.group}: expected a message as this consumer gave it, found a copy, such as one that was "
                "pickled: acknowledge the message itself"
            )
        return message.receipt

    async def retry(self, message: ReceivedMessage, *, delay_level: int = 0) -> None:
        """Let a message come again later, to any member: after the level's time, or one that grows with its attempts.

        After `max_attempts` it becomes a dead letter, in `%DLQ%<group>`. Raises RemotingError when no broker took it:
        then it comes again as if it was never done.
        """
        await self._put_off(message, checked_level(delay_level))

    async def dead_letter(self, message: ReceivedMessage) -> None:
        """Put a message aside, in `%DLQ%<group>`, where `tiermq dlq` finds it."""
        await self._put_off(message, DEAD_LETTER_LEVEL)

    async def _put_off(self, message: ReceivedMessage, delay_level: int) -> None:
        if self.settings.is_broadcast:
            raise IllegalMessage("expected a clustering consumer, found a broadcasting one: it has no retries")
        receipt = self._receipt_of(message)
        self.cursor.keep_open(message)
        try:
            await self._send_back(message, delay_level)
        except (PeerGone, RequestTimedOut, RequestRefused) as error:
            _log.warning("group %s: %r is sent to the retry topic itself: %s", self.group, message, error)
            await self._send_again(message, delay_level)
        self._sent_back_count += 1
        receipt.done()

    async def reply(self, message: ReceivedMessage, body: bytes) -> None:
        """Answer a message of `producer.request`. Raises RequestRefused when the producer is gone."""
        require_received(message)
        if not isinstance(body, bytes | bytearray | memoryview):
            raise TypeError(f"body: expected bytes, found {body!r}")
        address = await self._address_of(message.queue)
        client = await self._session.greet(address)
        answer = await client.request(reply_command(self.group, message, body))
        if answer.code != ResponseCode.SUCCESS:
            raise RequestRefused(f"{address}: the reply was not delivered: {answer.remark}", answer.code)

    async def seek(self, start: Start) -> None:
        """Continue all queues of this member at the first message, behind the last one, or at a time, as `start` of
        `AsyncCluster.consumer`. Raises BadConfig for anything else.
        """
        self._require_started()
        begin = checked_start(start, "seek")
        for queue in [each for each in self._queues.values() if not is_retry_topic(each.name.topic)]:
            await self.move(queue, await self._bound(queue.name, begin))

    async def take(self, most: int, wait_s: float | None) -> list[ReceivedMessage]:
        """Messages that are ready, as soon as there are any; [] after `wait_s`, or when the consumer closes."""
        self._require_started()
        check_take(most, wait_s)
        found = self._take_ready(most)
        if found or self._is_closing:
            return found
        with suppress(TimeoutError):
            async with asyncio.timeout(None if wait_s == math.inf else wait_s):
                while not found and not self._is_closing:
                    self._arrived.clear()
                    await self._arrived.wait()
                    found = self._take_ready(most)
        return found

    def _take_ready(self, most: int) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        while self._with_ready and len(found) < most:
            queue = self._with_ready.popleft()
            found += self._take_of(queue, most - len(found))
            if queue.ready:
                self._with_ready.append(queue)
        return found

    def take_in_order(self, most: int) -> tuple[AssignedQueue, list[ReceivedMessage]] | None:
        """Ready messages of one queue, which is the caller's alone until `give_back`. None: none is ready."""
        for _ in range(len(self._with_ready)):
            queue = self._with_ready.popleft()
            if queue in self._busy:
                self._with_ready.append(queue)
                continue
            found = self._take_of(queue, most)
            if queue.ready:
                self._with_ready.append(queue)
            if found:
                self._busy.add(queue)
                return queue, found
        return None

    def give_back(self, queue: AssignedQueue) -> None:
        self._busy.discard(queue)
        self._arrived.set()

    async def arrival(self) -> None:
        """Wait until more messages are ready, or the consumer closes."""
        if not self._is_closing:
            self._arrived.clear()
            await self._arrived.wait()

    @property
    def ready_count(self) -> int:
        return self._ready_count

    def _take_of(self, queue: AssignedQueue, most: int) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        size = queue.ready_bytes
        while queue.ready and len(found) < most:
            found.append(queue.take())
        self._ready_count -= len(found)
        self._ready_bytes -= size - queue.ready_bytes
        room = self._room.get(queue)
        if room is not None and len(queue.ready) <= self._share() // 2:
            room.set()
        return found

    # Pulling.

    def _share(self) -> int:
        """How many messages of one queue may be ready: at least one."""
        return max(1, self.settings.max_buffered // max(1, len(self._queues)))

    async def _pull_always(self, queue: AssignedQueue) -> None:
        while not queue.is_dropped:
            try:
                await self._wait_for_room(queue)
                began = time.monotonic()
                has_progressed = await self._pull_once(queue)
                queue.failures = 0
                if has_progressed or time.monotonic() - began >= PULL_REST_MAX_S / 10:
                    queue.idle_pulls = 0
                else:  # A broker that holds a pull until messages arrive answers late, or with messages.
                    queue.idle_pulls += 1
                    await asyncio.sleep(min(IDLE_REST_S * 2 ** min(queue.idle_pulls, 10), REST_S))
            except TierMQError as error:
                queue.failures += 1
                level = logging.WARNING if queue.failures <= 3 else logging.DEBUG
                _log.log(level, "group %s: %r cannot be pulled: %s", self.group, queue, error)
                self._session.forget_route(queue.name.topic)
                if isinstance(error, RequestRefused) and error.code in _UNKNOWN_TO_BROKER:
                    with suppress(RemotingError):
                        await self._session.greet(await self._address_of(queue.name), again=True)
                await asyncio.sleep(min(REST_S * queue.failures, PULL_REST_MAX_S))

    async def _wait_for_room(self, queue: AssignedQueue) -> None:
        room = self._room[queue]
        while len(queue.ready) >= self._share() or self._ready_bytes >= self.settings.max_buffered_bytes:
            room.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(REST_S):
                    await room.wait()
        while queue.open_count >= GIVEN_MAX:
            await asyncio.sleep(DONE_LOOK_S)

    async def _pull_once(self, queue: AssignedQueue) -> bool:
        """One pull; whether the queue got further. Raises RemotingError for an answer that cannot be."""
        name, settings = queue.name, self.settings
        subscription = self._subscriptions[name.topic]
        flags = SUSPEND_FLAG
        fields: dict[str, Any] = {"commitOffset": 0}
        if subscription.kind != SQL92:  # A condition is compiled once, from the heartbeat.
            flags |= SUBSCRIPTION_FLAG
            fields["subscription"] = subscription.expression
        if not settings.is_broadcast and queue.committed > 0:
            flags |= COMMIT_FLAG
            fields["commitOffset"] = queue.committed
        generation, position = queue.generation, queue.position
        answer = await self._session.ask(
            await self._address_of(name, queue.broker_id),
            RequestCode.PULL_MESSAGE,
            expected=PULLED,
            timeout_s=PULL_TIMEOUT_S,
            consumerGroup=self.group,
            topic=name.topic,
            queueId=name.queue_id,
            queueOffset=position,
            maxMsgNums=max(1, min(settings.pull_messages, self._share() - len(queue.ready))),
            sysFlag=flags,
            suspendTimeoutMillis=HOLD_MS,
            subVersion=subscription.version,
            expressionType=subscription.kind,
            **fields,
        )
        if queue.is_dropped or queue.generation != generation:
            return True
        queue.broker_id = int_field(answer, "suggestWhichBrokerId", 0)
        next_position = int_field(answer, "nextBeginOffset")
        is_moved = answer.code == ResponseCode.PULL_OFFSET_MOVED
        least, most = 0, min(int_field(answer, "maxOffset"), MAX_OFFSET)
        if not is_moved:
            most = min(max(most, position) + STALE_MAX, MAX_OFFSET)
            least = position if answer.code == ResponseCode.SUCCESS else 0
        if not least <= next_position <= most:
            raise RemotingError(
                f"broker {name.broker_name}: expected a next offset from {least} to {most}, found {next_position}: "
                "nothing of that answer is taken"
            )
        if is_moved:
            if time.monotonic() >= queue.warn_again_s:
                queue.warn_again_s = time.monotonic() + WARN_S
                _log.warning("group %s: %r continues at %d, as the broker has it", self.group, queue, next_position)
            await self.move(queue, next_position)
            return False
        if answer.code == ResponseCode.SUCCESS:
            try:
                self._take_in(queue, subscription, bytes(answer.body), next_position)
            except ForeignRecord:
                self._refused_count += 1
                raise
            return bool(answer.body) and queue.position > position
        queue.position = max(position, next_position)
        return queue.position > position

    def _take_in(self, queue: AssignedQueue, subscription: Subscription, data: bytes, next_position: int) -> None:
        position, name, last = queue.position, queue.name, -1
        messages = []
        for stored in decode_records(data):
            require_own(stored, (name.topic,), name.queue_id, name.broker_name)
            is_light = stored.topic != name.topic  # Its records have the offsets of their own topic.
            for each in unwrap_inner_batch(stored) if is_inner_batch(stored.sys_flag) else (stored,):
                if not is_light:
                    if not last < each.queue_offset < next_position:
                        raise RemotingError(
                            f"broker {name.broker_name}: expected messages at ascending offsets below its next offset "
                            f"{next_position}, found {each.queue_offset} after {last}: nothing of that answer is taken"
                        )
                    last = each.queue_offset
                if each.queue_offset < position or (subscription.tags and not subscription.wants(each.tags)):
                    continue
                messages.append(ReceivedMessage(each, name))
        before = queue.ready_bytes
        was_empty = not queue.ready
        count = queue.add(messages, next_position)
        self._received_count += count
        self._ready_count += count
        self._ready_bytes += queue.ready_bytes - before
        if count:
            if was_empty:
                self._with_ready.append(queue)
            self._arrived.set()

    async def _address_of(self, name: MessageQueue, broker_id: int = 0) -> str:
        """Where a queue is. Raises RemotingError when its broker is not in the route."""
        route = await self._session.route(name.topic)
        address = route.address_of(name.broker_name, broker_id) if route is not None else None
        if address is None:
            raise RemotingError(f"topic {name.topic}: expected broker {name.broker_name} in its route, found it gone")
        return address

    # Sharing.

    async def _rebalance_always(self, is_balanced: bool) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(REBALANCE_S if is_balanced else UNBALANCED_S):
                    await self._must_rebalance.wait()
            self._must_rebalance.clear()
            try:
                is_balanced = await self.rebalance()
            except RemotingError as error:
                _log.warning("group %s: its queues cannot be shared now: %s", self.group, error)
                is_balanced = False

    async def rebalance(self) -> bool:
        """Take this member's share, and give up what is not in it. False: part of it could not be done yet."""
        async with self._rebalancing:
            wanted: set[MessageQueue] = set()
            unknown: set[str] = set()
            for topic in self._subscriptions:
                share = await self._share_of(topic)
                if share is None:
                    unknown.add(topic)
                else:
                    wanted.update(share)
            lost = [queue for name, queue in self._queues.items() if name not in wanted and name.topic not in unknown]
            if lost:
                await self._give_up(lost)
            if wanted - self._queues.keys() and self._has_others:
                await asyncio.sleep(SETTLED_S)
            added = await asyncio.gather(*(self._assign(name) for name in sorted(wanted - self._queues.keys())))
            return not unknown and all(added)

    async def _share_of(self, topic: str) -> list[MessageQueue] | None:
        """None: not known now; what this member has, it keeps."""
        try:
            route = await self._session.route(topic)
        except RemotingError as error:
            _log.warning("topic %s: no route: %s", topic, error)
            return None
        if route is None or not route.readable:
            return None
        queues = sorted(MessageQueue(topic, place.broker_name, place.queue_id) for place in route.readable)
        if self.settings.is_broadcast:
            return queues
        members = await self._members(set(route.addresses.values()))
        if members is None or self._session.client_id not in members:
            await self._session.greet_all({topic})
            return None
        self._has_others = len(members) > 1
        return allocate_averagely(queues, members, self._session.client_id)

    async def _members(self, addresses: set[str]) -> list[str] | None:
        """The client ids of the group, sorted, from the first broker that answers."""
        for address in sorted(addresses):
            try:
                answer = await self._session.ask(
                    address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=self.group
                )
                return sorted(str(each) for each in list_in(decode_object(answer.body), "consumerIdList"))
            except RemotingError as error:
                _log.info("%s: no members of group %s: %s", address, self.group, error)
        return None

    async def _assign(self, name: MessageQueue) -> bool:
        try:
            if self.settings.is_ordered and not self.settings.is_broadcast and not await self._lock([name]):
                return False
            position, is_new = await self._first_position(name)
            queue = AssignedQueue(name, position)
            queue.is_locked = self.settings.is_ordered
            if is_new:  # Another member that gets the queue before the first commit begins here, too.
                await self._commit([queue])
            else:
                queue.committed = position
        except RemotingError as error:
            _log.warning("group %s: queue %s is not read yet: %s", self.group, name, error)
            return False
        self._queues[name] = queue
        self._room[queue] = asyncio.Event()
        self._pulls[queue] = self._session.spawn(self._pull_always(queue), f"pull-{self.group}-{name.queue_id}")
        _log.info("group %s: has %r", self.group, queue)
        return True

    async def _give_up(self, queues: list[AssignedQueue]) -> None:
        """They are other members' now, who begin where this one commits."""
        pulls = []
        for queue in queues:
            _log.info("group %s: gives up %r", self.group, queue)
            del self._queues[queue.name]
            pulls.append(self._pulls.pop(queue))
            pulls[-1].cancel()
        await asyncio.gather(*pulls, return_exceptions=True)
        for queue in queues:
            self._forget_ready(queue)
            queue.stop_giving()
        deadline_s = time.monotonic() + FINISHED_S
        while time.monotonic() < deadline_s and any(queue.open_count for queue in queues):
            await asyncio.sleep(DONE_LOOK_S)
        await self._commit(queues, timeout_s=CLOSE_S)
        for queue in queues:
            queue.drop()
            self._room.pop(queue).set()
        if self.settings.is_ordered:
            await self._unlock(queues)

    def _forget_ready(self, queue: AssignedQueue) -> None:
        self._ready_count -= len(queue.ready)
        self._ready_bytes -= queue.ready_bytes
        if queue in self._with_ready:
            self._with_ready.remove(queue)

    # Offsets.

    async def _first_position(self, name: MessageQueue) -> tuple[int, bool]:
        """Where to begin, and whether the group has no offset for the queue yet."""
        if self.settings.is_broadcast:
            known = self.settings.offsets.position(name) if self.settings.offsets is not None else None
            if known is not None:
                return known, False
        else:
            answer = await self._session.ask(
                await self._address_of(name),
                RequestCode.QUERY_CONSUMER_OFFSET,
                expected=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
                consumerGroup=self.group,
                topic=name.topic,
                queueId=name.queue_id,
                setZeroIfNotFound=False,
            )
            if answer.code == ResponseCode.SUCCESS and (offset := int_field(answer, "offset")) != NONE_COMMITTED:
                return checked_offset(offset, f"of group {self.group} in {name}"), False
        is_all_new = is_retry_topic(name.topic) or name.topic in self._made_later
        start = "first" if is_all_new else self.settings.start
        return await self._bound(name, start), True

    async def _bound(self, name: MessageQueue, start: Literal["first", "last"] | int) -> int:
        address = await self._address_of(name)
        fields: dict[str, Any] = {"topic": name.topic, "queueId": name.queue_id}
        code = RequestCode.GET_MIN_OFFSET if start == "first" else RequestCode.GET_MAX_OFFSET
        if isinstance(start, int):
            code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
            fields["timestamp"] = start
        answer = await self._session.ask(address, code, **fields)
        return checked_offset(max(0, int_field(answer, "offset")), f"of {name}")

    async def move(self, queue: AssignedQueue, position: int) -> None:
        """Continue elsewhere. A pull that is held at the broker is given up: it would last seconds."""
        self._forget_ready(queue)
        queue.move_to(position)
        pull = self._pulls.get(queue)
        if pull is not None and pull is not asyncio.current_task():
            pull.cancel()
            self._pulls[queue] = self._session.spawn(self._pull_always(queue), f"pull-{self.group}")
        await self._commit([queue])

    async def _commit_always(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_S)
            await self._commit(list(self._queues.values()))

    async def commit(self) -> None:
        """Commit what is done now; it is done every five seconds anyway, and at the end."""
        self._require_started()
        await self._commit(list(self._queues.values()))

    async def _commit(self, queues: Iterable[AssignedQueue], *, timeout_s: float = CLOSE_S) -> None:
        changed = [(queue, queue.commit_offset) for queue in queues]
        changed = [(queue, offset) for queue, offset in changed if offset != queue.committed]
        if self.settings.is_broadcast:
            if self.settings.offsets is not None and changed:
                positions = {queue.name: offset for queue, offset in changed}
                try:
                    await asyncio.to_thread(self.settings.offsets.store, positions)
                except OSError as error:
                    _log.warning("group %s: its offsets are not stored: %s", self.group, error)
                    return
            for queue, offset in changed:
                queue.committed = offset
            return

        async def commit(queue: AssignedQueue, offset: int) -> None:
            try:
                await self._session.ask(
                    await self._address_of(queue.name),
                    RequestCode.UPDATE_CONSUMER_OFFSET,
                    timeout_s=timeout_s,
                    consumerGroup=self.group,
                    topic=queue.name.topic,
                    queueId=queue.name.queue_id,
                    commitOffset=offset,
                )
                queue.committed = offset
            except RemotingError as error:
                _log.warning("group %s: offset %d of %s is not committed: %s", self.group, offset, queue.name, error)

        await asyncio.gather(*(commit(queue, offset) for queue, offset in changed))

    # Order.

    async def _lock(self, names: list[MessageQueue]) -> set[MessageQueue]:
        """Which of the queues their brokers grant to this member."""
        granted: set[MessageQueue] = set()
        for broker_name in {name.broker_name for name in names}:
            asked = [name for name in names if name.broker_name == broker_name]
            answer = await self._ask_for_locks(RequestCode.LOCK_BATCH_MQ, asked)
            rows = (object_in(each, "a queue") for each in list_in(decode_object(answer.body), "lockOKMQSet"))
            granted |= {queue_in(row) for row in rows}.intersection(asked)
        return granted

    async def _unlock(self, queues: list[AssignedQueue]) -> None:
        for broker_name in {queue.name.broker_name for queue in queues}:
            names = [queue.name for queue in queues if queue.name.broker_name == broker_name]
            with suppress(RemotingError):  # The lock ends by itself.
                await self._ask_for_locks(RequestCode.UNLOCK_BATCH_MQ, names)

    async def _ask_for_locks(self, code: RequestCode, names: list[MessageQueue]) -> RemotingCommand:
        body = {
            "clientId": self._session.client_id,
            "consumerGroup": self.group,
            "mqSet": [name.described() for name in names],
            "onlyThisBroker": False,
        }
        return await self._session.ask(await self._address_of(names[0]), code, encode_body(body), timeout_s=CLOSE_S)

    async def _lock_always(self) -> None:
        while True:
            await asyncio.sleep(LOCK_S)
            names = list(self._queues)
            try:
                lost = set(names) - await self._lock(names)
            except RemotingError as error:
                _log.warning("group %s: its locks are not renewed: %s", self.group, error)
                continue
            async with self._rebalancing:
                await self._give_up([self._queues[name] for name in lost & self._queues.keys()])
            if lost:
                self._must_rebalance.set()

    # Retries.

    async def _send_back(self, message: ReceivedMessage, delay_level: int) -> None:
        stored = message.stored
        await self._session.ask(
            await self._address_of(message.queue),
            RequestCode.CONSUMER_SEND_MSG_BACK,
            offset=stored.physical_offset,
            group=self.group,
            delayLevel=delay_level,
            originMsgId=message.message_id,
            originTopic=message.topic,
            unitMode=False,
            maxReconsumeTimes=self.settings.max_attempts - 1,
            bname=message.queue.broker_name,
        )

    async def _send_again(self, message: ReceivedMessage, delay_level: int) -> None:
        """Where the broker cannot find its own message: a copy, as RocketMQ's clients send it."""
        topic, times = retry_topic(self.group), message.attempt
        place = (await self._session.writable(topic))[0]
        properties = {name: value for name, value in message.properties.items() if name not in _NOT_COPIED}
        properties[RETRY_TOPIC] = message.topic
        properties.setdefault(ORIGIN_MESSAGE_ID, message.message_id)
        properties[DELAY] = str(delay_level if delay_level > 0 else 3 + message.stored.reconsume_times)
        if delay_level == DEAD_LETTER_LEVEL or times >= self.settings.max_attempts:
            # The broker puts aside what was tried too often: above the limit, in RocketMQ 4.9 also at it.
            times = max(times, self.settings.max_attempts) + 1
        stored = message.stored
        flags = with_host_shapes(stored.sys_flag, born_v6=False, store_v6=False)
        fields: dict[str, Any] = send_fields(
            self.group,
            topic,
            place,
            encode_properties(properties),
            stored.born_timestamp_ms,
            sys_flag=flags,
            flag=stored.flag,
        )
        fields |= {"j": str(times), "l": str(self.settings.max_attempts)}
        await self._session.ask(place.address, RequestCode.SEND_MESSAGE_V2, stored.body, **fields)

    # What the session calls.

    def heartbeat(self) -> dict[str, Any]:
        return {
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET" if self.settings.start == "first" else _FROM_LAST,
            "consumeType": "CONSUME_PASSIVELY",
            "groupName": self.group,
            "messageModel": "BROADCASTING" if self.settings.is_broadcast else "CLUSTERING",
            "subscriptionDataSet": [each.described() for each in self._subscriptions.values()],
            "unitMode": False,
        }

    def topics(self) -> set[str]:
        return set(self._subscriptions)

    def on_request(self, address: str, command: RemotingCommand) -> Coroutine[Any, Any, RemotingCommand | None] | None:
        del address
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self._must_rebalance.set()
            return _nothing()
        return self._operators.work_for(command)

    async def _check_filters(self) -> None:
        """Ask a broker whether it understands an SQL92 condition, before anything depends on it."""
        for each in self._subscriptions.values():
            route = await self._session.route(each.topic)
            if route is None and not is_retry_topic(each.topic):
                _log.warning("topic %s: no broker has it yet; its messages are read once one does", each.topic)
                self._made_later.add(each.topic)
            if each.kind != SQL92 or route is None:
                continue
            body = {"clientId": self._session.client_id, "group": self.group, "subscriptionData": each.described()}
            for address in set(route.addresses.values()):
                await self._session.client.ask(address, RequestCode.CHECK_CLIENT_CONFIG, encode_body(body))


_FROM_LAST = "CONSUME_FROM_LAST_OFFSET"
FETCHED_MESSAGES = 128
_UNKNOWN_TO_BROKER = frozenset(
    (
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.FILTER_DATA_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_LATEST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    )
)
"""The broker has lost, or not seen, this member's heartbeat."""


async def _nothing() -> None:
    """A one-way request is not answered."""


_NOT_COPIED = frozenset((DELAY, TRAN_MSG, MSG_REGION, TRACE_ON, CLUSTER))
"""Of the delivery that failed."""
