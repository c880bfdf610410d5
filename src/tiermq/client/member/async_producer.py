"""AsyncProducer: sends messages, each until a broker has stored it or the producer's patience ends.

    async with cluster.producer("shop") as producer:
        await producer.send(Message("orders", b"two coffees", keys=["order-42"]))          # waits for the receipt
        later = await producer.send_later(Message("orders", b"a tea"))                     # waits for room alone
        await producer.send_all([…])                                                       # in batches
        await producer.send(…, sharding_key="order-42")                                    # one queue, in order
        async with producer.transaction(Message("orders", b"42 is paid")): pay(42)         # visible when paid
        answer = await producer.request(Message("prices", b"a tea?"))                      # a consumer replies

Invariants: a receipt means stored. A try that fails goes to another broker, where there is one; brokers that failed or
were slow are avoided for a while (`BrokerHealth`). A try without an answer may have been stored: then the message is
stored twice, with one unique key. A message with a sharding key or a named queue is sent to no other queue, and after
those sent before it. What is on its way is limited by count and bytes (`Room`).

A message of `send_later` needs no task while nothing has to be waited for but its answer: its queues are known, its
broker knows this client, and stores it. Everything else is one, which goes on from the first try.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future as ThreadFuture
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from uuid import uuid4

from tiermq.client.cluster_client import QueuePlace
from tiermq.client.member.broker_health import BrokerHealth
from tiermq.client.member.outgoing import (
    AT_ONCE,
    Delay,
    Outgoing,
    Preparation,
    SendReceipt,
    SendStatus,
    batches_of,
    message_ids_of,
    require_sharding_key,
)
from tiermq.client.member.received_message import ReceivedMessage
from tiermq.client.member.replies import reply_in
from tiermq.client.member.room import Room
from tiermq.client.member.send_frame import SendTemplate
from tiermq.client.member.session import Session
from tiermq.client.member.transactions import AsyncTransaction, Transactions
from tiermq.client.producer import BATCH_BYTES, BATCH_MESSAGES
from tiermq.client.send_fields import send_fields
from tiermq.errors import (
    IllegalMessage,
    NotConfirmed,
    PeerGone,
    RemotingError,
    RequestRefused,
    RequestTimedOut,
    TierMQError,
)
from tiermq.kernel import Message
from tiermq.kernel.message import batch_of
from tiermq.message.client_batch import BatchElement, encode_client_batch
from tiermq.message.java_hash import java_hash
from tiermq.message.properties import CORRELATION_ID, REPLY_TO_CLIENT, TTL
from tiermq.message.topic_name import check_group
from tiermq.remoting.client import RemotingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand, int_field

if TYPE_CHECKING:
    from tiermq.client.member.message_trace import MessageTrace

_log = logging.getLogger(__name__)

FIRST_REST_S, SEND_REST_MAX_S = 0.05, 2.0
V5_0_0 = 413
"""Brokers before this version take timers for ordinary messages and deliver them at once."""
TRIED_ELSEWHERE = frozenset(
    (
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
    )
)
"""Refusals of one broker that another one, or the same one later, may not repeat."""
FINAL_ALONE = frozenset((ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST))
"""Of these, those that waiting does not change."""
QueueChoice = Callable[[Sequence[QueuePlace]], QueuePlace]
Once = Callable[[QueuePlace], Coroutine[Any, Any, RemotingCommand]]
AnyFuture = asyncio.Future[SendReceipt] | ThreadFuture[SendReceipt]


class FirstTry(NamedTuple):
    """Of a message that was sent without a task: where, out of which queues, when, and the answer that will come."""

    place: QueuePlace
    places: tuple[QueuePlace, ...]
    began_s: float
    answer: asyncio.Future[RemotingCommand]


class _Later(asyncio.Future[SendReceipt]):
    """Of `send_later`: a message whose future is cancelled is not tried again."""

    def __init__(self, producer: AsyncProducer) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self._producer = producer

    def cancel(self, msg: Any | None = None) -> bool:
        is_cancelled = super().cancel(msg)
        if is_cancelled:
            self._producer.give_up(self)
        return is_cancelled


class AsyncProducer:
    """Sends messages of a producer group, each until a broker has stored it or the producer's patience ends. Made by
    `AsyncCluster.producer`; belongs to the cluster's loop.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        preparation: Preparation,
        *,
        check: Callable[[ReceivedMessage], Any] | None,
        room: Room,
        timeout_s: float,
        patience_s: float,
        trace: MessageTrace | None = None,
    ) -> None:
        check_group(group)
        self._trace = trace
        self.group = group
        self._session = session
        self.preparation = preparation
        self.room = room
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._health = BrokerHealth()
        self._turns: dict[str, itertools.count[int]] = {}
        self._templates: dict[tuple[str, QueuePlace], SendTemplate] = {}
        self._choosing: dict[str, asyncio.Lock] = {}
        self._last_in_order: dict[tuple[str, str, int], asyncio.Future[None]] = {}
        self._topics: set[str] = set()
        self._stored_topics: set[str] = set()
        self._open: dict[AnyFuture, asyncio.Future[Any]] = {}
        """What the sender has of each message on its way, and what it waits for: an answer, or a task."""
        self._none_is_open = asyncio.Event()
        self._replies: dict[str, asyncio.Future[ReceivedMessage]] = {}
        self._transactions = Transactions(session, group, check, self._send_half)
        self._is_closed = False
        self._sent_count = self._failed_count = self._tried_again_count = 0
        session.producers.append(self)

    # Life.

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Wait for what is on its way, and leave the group. Twice does no harm."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            await self.flush()
            await self._transactions.close()
        finally:  # Also of a close that is cancelled: the next one would not do it.
            await self._session.leave(self, is_consumer=False)

    def __repr__(self) -> str:
        return f"AsyncProducer({self.group!r}{', closed' if self._is_closed else ''})"

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def metrics(self) -> dict[str, int]:
        """Sends (a batch is one) since the producer was made, and messages of `send_later` on their way."""
        return {
            "sent": self._sent_count,
            "failed": self._failed_count,
            "tried_again": self._tried_again_count,
            "in_flight": len(self._open),
        }

    async def flush(self) -> None:
        """Wait until each message of `send_later` is stored or has failed; its future has which."""
        while self._open:
            self._none_is_open.clear()
            await self._none_is_open.wait()

    async def queues(self, topic: str) -> tuple[QueuePlace, ...]:
        """The queues of a topic that take messages, in the order in which `queue=` counts them."""
        return await self._session.writable(topic)

    async def serve(self, topic: str) -> None:
        """Be known to a topic's brokers before anything is sent, to be asked about another sender's transactions."""
        self._topics.add(topic)
        await self._session.greet_all({topic})

    # Sending.

    async def send(
        self,
        message: Message,
        *,
        queue: int | QueueChoice | None = None,
        sharding_key: str | None = None,
        delay_level: int | None = None,
        delay_s: float | None = None,
        deliver_at: datetime | None = None,
    ) -> SendReceipt:
        """Store a message. Raises RemotingError when no broker stored it, or none answered; NotConfirmed when it is
        stored, but not as durably as the broker is configured to; IllegalMessage before anything is sent.
        """
        outgoing = await self._prepared(message, delay_of(delay_level, delay_s, deliver_at), sharding_key)
        await self.room.take(outgoing.size)
        try:
            return await self._store(outgoing, choice_of(queue, sharding_key))
        finally:
            self.room.release(outgoing.size)

    async def send_later(
        self,
        message: Message,
        *,
        queue: int | QueueChoice | None = None,
        sharding_key: str | None = None,
        delay_level: int | None = None,
        delay_s: float | None = None,
        deliver_at: datetime | None = None,
    ) -> asyncio.Future[SendReceipt]:
        """The same without waiting for the receipt: this waits only for room. `flush` waits for all of them."""
        outgoing = await self._prepared(message, delay_of(delay_level, delay_s, deliver_at), sharding_key)
        await self.room.take(outgoing.size)
        later = _Later(self)
        self.launch(outgoing, choice_of(queue, sharding_key), later)
        return later

    def launch(self, outgoing: Outgoing, choose: QueueChoice | None, later: AnyFuture) -> None:
        """Begin a send whose room is taken. `later` gets the receipt, or why there is none."""
        if self._is_closed:
            later.set_exception(self._closed_error())
            later.exception()  # Seen: the sender has the future.
            self.room.release(outgoing.size)
            return
        first = None
        if choose is None and self._trace is None and not outgoing.is_timer:
            try:
                first = self._begin(outgoing)
            except TierMQError as error:  # Such as a message larger than a frame: the task meets and reports it.
                _log.debug("topic %s: %s", outgoing.topic, error)
        if first is None:
            self._go_on(outgoing, choose, later, None)
        else:
            self._open[later] = first.answer
            first.answer.add_done_callback(partial(self._answered, outgoing, later, first))

    def give_up(self, later: AnyFuture) -> None:
        """Its sender does not wait for it any more: it is not tried again."""
        work = self._open.get(later)
        if work is not None:
            work.cancel()

    def _begin(self, outgoing: Outgoing) -> FirstTry | None:
        """None: something has to be waited for before it is sent."""
        topic, began_s = outgoing.topic, time.monotonic()
        places = self._session.known_writable(topic, began_s)
        if not places:
            return None
        place = self._turn_of(topic, places, None, began_s)
        client = self._session.greeted(place.address)
        if client is None or client.credentials is not None:
            return None
        return FirstTry(place, places, began_s, self._encoded(client, RequestCode.SEND_MESSAGE_V2, place, outgoing))

    def _answered(
        self, outgoing: Outgoing, later: AnyFuture, first: FirstTry, answer: asyncio.Future[RemotingCommand]
    ) -> None:
        if answer.cancelled():
            self._settle(outgoing, later, None, _given_up(outgoing))
        elif answer.exception() is None and (command := answer.result()).code == ResponseCode.SUCCESS:
            try:
                receipt = _receipt_of(outgoing, first.place, command)
            except RemotingError as error:
                self._failed_count += 1
                self._settle(outgoing, later, None, error)
                return
            self._note_stored(outgoing.topic, first.place, first.began_s)
            self._topics.add(outgoing.topic)
            self._sent_count += 1
            self._settle(outgoing, later, receipt, None)
        else:
            self._go_on(outgoing, None, later, first)

    def _go_on(self, outgoing: Outgoing, choose: QueueChoice | None, later: AnyFuture, first: FirstTry | None) -> None:
        """In a task: it may wait, and try again."""

        def ended(task: asyncio.Task[SendReceipt]) -> None:
            if task.cancelled():
                self._settle(outgoing, later, None, _given_up(outgoing))
            elif (problem := task.exception()) is not None:
                self._settle(outgoing, later, None, problem)
            else:
                self._settle(outgoing, later, task.result(), None)

        task = asyncio.get_running_loop().create_task(self._store(outgoing, choose, first))
        self._open[later] = task
        task.add_done_callback(ended)

    def _settle(
        self, outgoing: Outgoing, later: AnyFuture, receipt: SendReceipt | None, problem: BaseException | None
    ) -> None:
        del self._open[later]
        try:
            if receipt is not None:
                later.set_result(receipt)
            elif problem is not None:
                later.set_exception(problem)
                later.exception()  # Seen: the sender has the future.
        except asyncio.InvalidStateError:
            _log.debug("topic %s: its sender has cancelled a message's future", outgoing.topic)
        self.room.release(outgoing.size)
        if not self._open:
            self._none_is_open.set()

    async def send_oneway(
        self, message: Message, *, queue: int | QueueChoice | None = None, sharding_key: str | None = None
    ) -> None:
        """Hand a message to the network, and no more: no broker answers, and a loss is not noticed."""
        outgoing = await self._prepared(message, AT_ONCE, sharding_key)
        choose, places = choice_of(queue, sharding_key), await self._session.writable(outgoing.topic)
        place = choose(places) if choose else self._turn_of(outgoing.topic, places, None, time.monotonic())
        client = await self._session.greet(place.address)
        if client.credentials is not None:
            client.oneway(self._command(RequestCode.SEND_MESSAGE_V2, place, outgoing))
            return
        template = self._template(outgoing.topic, place)
        assert client.connection is not None
        client.connection.send_bytes(
            template.encode(
                RequestCode.SEND_MESSAGE_V2,
                0,
                outgoing.properties,
                len(outgoing.body),
                sys_flag=outgoing.sys_flag,
                born_ms=outgoing.born_ms,
                flag=outgoing.flag,
                is_oneway=True,
            ),
            outgoing.body,
        )

    async def send_all(
        self, messages: Iterable[Message], *, queue: int | QueueChoice | None = None, sharding_key: str | None = None
    ) -> list[SendReceipt]:
        """Store messages in batches, each of which a broker stores whole or not at all, in one queue; their receipts
        in the same order. Raises as `send` does: then some batches may be stored.
        """
        batch = batch_of(messages)
        prepared = [self.preparation.prepare(each, sharding_key=sharding_key, may_compress=False) for each in batch]
        delayed = next((each for each in prepared if each.is_timer or b"DELAY\x01" in each.properties), None)
        if delayed is not None:
            raise IllegalMessage(f"topic {delayed.topic}: expected messages without delay in a batch, found one with")
        choose = choice_of(queue, sharding_key)
        batches = batches_of(prepared, BATCH_BYTES, BATCH_MESSAGES)

        async def store(numbers: list[int]) -> list[SendReceipt]:
            batch = [prepared[number] for number in numbers]
            size = sum(each.size for each in batch)
            await self.room.take(size)
            try:
                return await self._store_batch(batch, choose)
            finally:
                self.room.release(size)

        receipts: dict[int, SendReceipt] = {}
        if choose is not None:  # In order, one after the other.
            for numbers in batches:
                receipts |= zip(numbers, await store(numbers), strict=True)
        else:
            for numbers, stored in zip(batches, await asyncio.gather(*map(store, batches)), strict=True):
                receipts |= zip(numbers, stored, strict=True)
        return [receipts[number] for number in range(len(prepared))]

    async def request(self, message: Message, *, timeout_s: float | None = None) -> ReceivedMessage:
        """Send a message and wait for the reply of a consumer, which calls `reply`. Raises RequestTimedOut."""
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        correlation = uuid4().hex
        more = {
            CORRELATION_ID: correlation,
            REPLY_TO_CLIENT: self._session.client_id,
            TTL: str(round(timeout_s * 1000)),
        }
        outgoing = self.preparation.prepare(message, more=more)
        reply: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._replies[correlation] = reply
        try:
            async with asyncio.timeout(timeout_s):
                await self.serve(message.topic)  # The reply comes by a connection that the broker knows.
                await self._store(outgoing, None)
                return await reply
        except TimeoutError as error:
            raise RequestTimedOut(
                f"topic {message.topic}: expected a reply within {timeout_s} s, found none: does a consumer reply?"
            ) from error
        finally:
            del self._replies[correlation]

    def transaction(self, message: Message, *, queue: int | QueueChoice | None = None) -> AsyncTransaction:
        """A block: the message is stored before it, and becomes visible when the block ends without an error."""
        return self._transactions.begin(message, choice_of(queue, None))

    # How it works inside.

    def check_open(self) -> None:
        """Raises RemotingError after `close`. Any thread may call."""
        if self._is_closed:
            raise self._closed_error()

    def _closed_error(self) -> RemotingError:
        return RemotingError(f"producer group {self.group}: expected an open producer, found it closed")

    async def _prepared(self, message: Message, delay: Delay, sharding_key: str | None) -> Outgoing:
        self.check_open()
        if (
            type(message) is Message and len(message.body) > _COMPRESSED_AT_ONCE_BYTES
        ):  # A loop should not compress megabytes.
            return await asyncio.to_thread(self.preparation.prepare, message, delay=delay, sharding_key=sharding_key)
        return self.preparation.prepare(message, delay=delay, sharding_key=sharding_key)

    async def _send_half(self, message: Message, choose: QueueChoice | None, **more: Any) -> tuple[SendReceipt, str]:
        """A half message, and the address of its broker."""
        outgoing = self.preparation.prepare(message, **more)
        receipt = await self._store(outgoing, choose)
        route = await self._session.route(message.topic)
        places = route.addresses if route is not None else {}
        if not places:
            places = {each.broker_name: each.address for each in await self._session.writable(message.topic)}
        return receipt, places[receipt.broker_name]

    async def _store(
        self, outgoing: Outgoing, choose: QueueChoice | None, first: FirstTry | None = None
    ) -> SendReceipt:
        async def once(place: QueuePlace) -> RemotingCommand:
            if outgoing.is_timer and await self._session.version_of(place.address) < V5_0_0:
                raise IllegalMessage(
                    f"topic {outgoing.topic}: expected a broker with timers (5.0 or newer), found {place.broker_name}, "
                    "which would deliver the message at once: use delay_level"
                )
            return await self._ask(RequestCode.SEND_MESSAGE_V2, place, outgoing)

        if first is None:
            place, answer = await self._traced([outgoing], outgoing.topic, choose, once)
        else:
            place, answer = await self._until_stored(outgoing.topic, choose, once, first)
        receipt = _receipt_of(outgoing, place, answer)
        if answer.code != ResponseCode.SUCCESS:
            raise NotConfirmed(f"topic {outgoing.topic}: the message is stored, but: {receipt.status.name}", [receipt])
        return receipt

    async def _store_batch(self, batch: list[Outgoing], choose: QueueChoice | None) -> list[SendReceipt]:
        first = batch[0]
        body = encode_client_batch(BatchElement(each.flag, each.body, each.properties) for each in batch)
        whole = Outgoing(first.topic, body, b"", 0, 0, first.unique_key, first.born_ms)

        async def once(place: QueuePlace) -> RemotingCommand:
            return await self._ask(RequestCode.SEND_BATCH_MESSAGE, place, whole)

        place, answer = await self._traced(batch, first.topic, choose, once)
        queue_id, offset = _stored_at(first.topic, place, answer)
        ids = message_ids_of(answer.ext.get("msgId", ""), len(batch))
        status = SendStatus(answer.code)
        receipts = [
            SendReceipt(each.topic, place.broker_name, queue_id, offset + number, ids[number], each.unique_key, status)
            for number, each in enumerate(batch)
        ]
        if status is not SendStatus.SEND_OK:
            raise NotConfirmed(f"topic {first.topic}: the batch is stored, but: {status.name}", receipts)
        return receipts

    async def _traced(
        self, sent: list[Outgoing], topic: str, choose: QueueChoice | None, once: Once
    ) -> tuple[QueuePlace, RemotingCommand]:
        """Let them be stored, and record it."""
        trace, began_s = self._trace, time.monotonic()
        if trace is None:
            return await self._until_stored(topic, choose, once)
        try:
            place, answer = await self._until_stored(topic, choose, once)
        except BaseException:
            for each in sent:
                trace.sent(self.group, each, began_s, "", "", success=False)
            raise
        ids = message_ids_of(answer.ext.get("msgId", ""), len(sent))
        for each, offset_id in zip(sent, ids, strict=True):
            trace.sent(self.group, each, began_s, place.address, offset_id, success=True)
        return place, answer

    async def _until_stored(
        self, topic: str, choose: QueueChoice | None, once: Once, first: FirstTry | None = None
    ) -> tuple[QueuePlace, RemotingCommand]:
        """Try until a broker has stored it; where, and its answer."""
        self._topics.add(topic)
        try:
            if choose is None:
                stored = await self._try(topic, None, once, first)
            else:
                stored = await self._in_turn(topic, choose, once)
        except BaseException:
            self._failed_count += 1
            raise
        self._sent_count += 1
        return stored

    async def _in_turn(self, topic: str, choose: QueueChoice, once: Once) -> tuple[QueuePlace, RemotingCommand]:
        """To a queue that is chosen, after those that were sent to it before."""
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        async with self._choosing.setdefault(topic, asyncio.Lock()):
            place = choose(await self._writable(topic, time.monotonic() + self._patience_s))
            key = (topic, place.broker_name, place.queue_id)
            before = self._last_in_order.get(key)
            self._last_in_order[key] = mine
        try:
            if before is not None:
                await asyncio.shield(before)
            return await self._try(topic, choose, once)
        finally:
            _resolve_after(before, mine)
            if self._last_in_order.get(key) is mine and mine.done():
                del self._last_in_order[key]

    async def _writable(self, topic: str, deadline_s: float) -> tuple[QueuePlace, ...]:
        """The topic's queues; while its brokers are gone, for as long as the producer's patience, if it has been there.

        Raises RemotingError at once for a topic that this producer has not sent to.
        """
        if known := self._session.known_writable(topic, time.monotonic()):
            return known
        rest_s = FIRST_REST_S
        while True:
            try:
                return await self._route_in_time(topic, deadline_s)
            except RemotingError:
                if topic not in self._stored_topics or time.monotonic() + rest_s > deadline_s:
                    raise
            await asyncio.sleep(rest_s)
            rest_s = min(2 * rest_s, SEND_REST_MAX_S)

    async def _route_in_time(self, topic: str, deadline_s: float) -> tuple[QueuePlace, ...]:
        """Where it can be sent to: within the patience, or the time of one try where that is more."""
        limit_s = max(deadline_s - time.monotonic(), self._timeout_s)
        try:
            async with asyncio.timeout(limit_s):
                return await self._session.writable(topic)
        except TimeoutError as error:
            raise RequestTimedOut(
                f"topic {topic}: expected its route from a name server within {limit_s:.1f} s, found no answer"
            ) from error

    async def _try(
        self, topic: str, choose: QueueChoice | None, once: Once, first: FirstTry | None = None
    ) -> tuple[QueuePlace, RemotingCommand]:
        deadline_s = (time.monotonic() if first is None else first.began_s) + self._patience_s
        rest_s, failed = FIRST_REST_S, None
        while True:
            if first is not None:
                place, places, began_s = first.place, first.places, first.began_s
            else:
                places = await self._writable(topic, deadline_s)
                began_s = time.monotonic()
                place = self._turn_of(topic, places, failed, began_s) if choose is None else choose(places)
            others = choose is None and any(each.broker_name != place.broker_name for each in places)
            try:
                answer = await (once(place) if first is None else first.answer)
                if answer.code in _STORED:
                    self._note_stored(topic, place, began_s)
                    return place, answer
                problem: RemotingError = RequestRefused(
                    f"topic {topic}: {place.broker_name} at {place.address} refuses: {answer.remark or answer.code}",
                    answer.code,
                )
                if answer.code not in TRIED_ELSEWHERE or (answer.code in FINAL_ALONE and not others):
                    raise problem
            except (PeerGone, RequestTimedOut) as error:
                problem = error
            first, now_s, failed = None, time.monotonic(), place.broker_name
            self._health.failed(failed, now_s)
            self._session.forget_route(topic)
            if now_s + rest_s > deadline_s:
                raise problem
            self._tried_again_count += 1
            _log.info("topic %s: sent again: %s", topic, problem)
            if others:
                rest_s += FIRST_REST_S  # Each failure counts, so that brokers that refuse are not asked forever.
            else:
                await asyncio.sleep(rest_s)
                rest_s = min(2 * rest_s, SEND_REST_MAX_S)

    def _note_stored(self, topic: str, place: QueuePlace, began_s: float) -> None:
        self._health.answered(place.broker_name, time.monotonic() - began_s, began_s)
        self._stored_topics.add(topic)

    def _turn_of(self, topic: str, places: Sequence[QueuePlace], failed: str | None, now_s: float) -> QueuePlace:
        """The next queue by turns, of a broker that has not just failed and is not avoided, if there is one."""
        turns = self._turns.get(topic)
        if turns is None:
            turns = self._turns[topic] = itertools.count()
        turn, count = next(turns), len(places)
        second = None
        for step in range(count):
            place = places[(turn + step) % count]
            if place.broker_name != failed:
                if not self._health.is_avoided(place.broker_name, now_s):
                    return place
                second = second or place
        return second or places[turn % count]

    def _template(self, topic: str, place: QueuePlace) -> SendTemplate:
        template = self._templates.get((topic, place))
        if template is None:
            template = SendTemplate(self.group, topic, place)
            self._templates[topic, place] = template
        return template

    async def _ask(self, code: RequestCode, place: QueuePlace, outgoing: Outgoing) -> RemotingCommand:
        client = await self._session.greet(place.address)
        if client.credentials is not None:
            return await client.request(self._command(code, place, outgoing), self._timeout_s)
        return await self._encoded(client, code, place, outgoing)

    def _encoded(
        self, client: RemotingClient, code: RequestCode, place: QueuePlace, outgoing: Outgoing
    ) -> asyncio.Future[RemotingCommand]:
        template = self._template(outgoing.topic, place)
        body = outgoing.body

        def encode(opaque: int) -> tuple[bytes, bytes]:
            head = template.encode(
                code,
                opaque,
                outgoing.properties,
                len(body),
                sys_flag=outgoing.sys_flag,
                born_ms=outgoing.born_ms,
                flag=outgoing.flag,
            )
            return head, body

        return client.request_encoded(encode, self._timeout_s, code)

    def _command(self, code: RequestCode, place: QueuePlace, outgoing: Outgoing) -> RemotingCommand:
        """The same as a command, whose fields can be signed."""
        ext = send_fields(
            self.group,
            outgoing.topic,
            place,
            outgoing.properties,
            outgoing.born_ms,
            sys_flag=outgoing.sys_flag,
            flag=outgoing.flag,
            is_batch=code == RequestCode.SEND_BATCH_MESSAGE,
        )
        return RemotingCommand(code, ext=ext, body=outgoing.body)

    # What the session calls.

    def topics(self) -> set[str]:
        return set(self._topics)

    def on_request(self, address: str, command: RemotingCommand) -> Coroutine[Any, Any, RemotingCommand | None] | None:
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            return self._transactions.on_check(address, command)
        reply = reply_in(command)
        waiting = self._replies.get(reply.properties.get(CORRELATION_ID, "")) if reply is not None else None
        if reply is None or waiting is None:
            return None

        async def take() -> RemotingCommand:
            if not waiting.done():
                waiting.set_result(reply)
            return command.respond(ResponseCode.SUCCESS)

        return take()


_STATUSES = {int(status.value): status for status in SendStatus}
_STORED = frozenset(_STATUSES)
_COMPRESSED_AT_ONCE_BYTES = 64 << 10


def _receipt_of(outgoing: Outgoing, place: QueuePlace, answer: RemotingCommand) -> SendReceipt:
    ext = answer.ext
    queue_id, offset = _stored_at(outgoing.topic, place, answer)
    return SendReceipt(
        outgoing.topic,
        place.broker_name,
        queue_id,
        offset,
        ext.get("msgId", ""),
        outgoing.unique_key,
        _STATUSES[answer.code],
        ext.get("recallHandle"),
    )


def _stored_at(topic: str, place: QueuePlace, answer: RemotingCommand) -> tuple[int, int]:
    """The queue and offset of an answer. Raises RemotingError for one that has none."""
    try:
        queue_id, offset = int_field(answer, "queueId"), int_field(answer, "queueOffset")
    except RequestRefused as error:
        found = str(error)
    else:
        if queue_id >= 0 and offset >= 0:
            return queue_id, offset
        found = f"queue {queue_id}, offset {offset}"
    raise RemotingError(
        f"topic {topic}: expected the queue and offset of the message in the answer of {place.broker_name} at "
        f"{place.address}, found {found}. The broker may have stored it: a second send may store it twice"
    )


def _given_up(outgoing: Outgoing) -> RemotingError:
    return RemotingError(
        f"topic {outgoing.topic}: the message was given up before a broker had answered that it has it"
    )


def _resolve_after(before: asyncio.Future[None] | None, mine: asyncio.Future[None]) -> None:
    """The next in order may begin: not before those ahead have ended, where this one was given up early."""
    if before is None or before.done():
        mine.set_result(None)
    else:
        before.add_done_callback(lambda _: mine.set_result(None))


def delay_of(delay_level: int | None, delay_s: float | None, deliver_at: datetime | None) -> Delay:
    if delay_level is None and delay_s is None and deliver_at is None:
        return AT_ONCE
    return Delay(delay_level, delay_s, deliver_at)


def _chosen(choose: QueueChoice, places: Sequence[QueuePlace]) -> QueuePlace:
    place = choose(places)
    if not isinstance(place, QueuePlace):
        raise IllegalMessage(
            f"queue: expected a function that gives one of the topic's {len(places)} queues, as it was given them; "
            f"found {place!r}"
        )
    return place


def choice_of(queue: int | QueueChoice | None, sharding_key: str | None) -> QueueChoice | None:
    """How the queue is chosen; None: by turns. Raises IllegalMessage for two ways at once, and for what is neither."""
    if queue is None:
        if sharding_key is None:
            return None
        require_sharding_key(sharding_key)
        number = abs(java_hash(sharding_key))
        return lambda places: places[number % len(places)]
    if callable(queue):
        return partial(_chosen, queue)
    if sharding_key is not None:
        raise IllegalMessage(f"expected a sharding key or a queue, found both: {sharding_key!r} and {queue}")
    if type(queue) is not int:
        raise IllegalMessage(
            f"queue: expected its number, or a function that gives one of the topic's queues, found {queue!r}"
        )
    wanted = queue

    def named(places: Sequence[QueuePlace]) -> QueuePlace:
        if not 0 <= wanted < len(places):
            raise IllegalMessage(f"expected one of the topic's {len(places)} queues, found queue {wanted}")
        return places[wanted]

    return named
