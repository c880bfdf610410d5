"""MessageTrace: records of what was sent and handled, in RocketMQ's trace topic, where its tools find them.

    Pub        time region group topic id tags keys storeHost bodyBytes costMs type offsetId success
    SubBefore  time region group request id retries keys
    SubAfter   request id costMs success keys contextCode time group          byte 1 between fields, byte 2 behind each

`mqadmin queryMsgTraceById` shows them. Records wait for a second at most, or until there are a hundred, and go out in
one message, whose keys are the ids and keys of their messages.

Invariants: nothing waits for a trace; records that no broker takes, or that come while too many wait, are dropped and
counted. `add` may be called by any thread, everything else belongs to the loop.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import deque
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tiermq.errors import RemotingError
from tiermq.kernel import Message
from tiermq.message.properties import DELAY, KEYS, SHARDING_KEY, TAGS, TRAN_MSG, get_property
from tiermq.message.topic_name import TRACE_TOPIC

if TYPE_CHECKING:
    from tiermq.client.member.async_producer import AsyncProducer
    from tiermq.client.member.outgoing import Outgoing
    from tiermq.client.member.received_message import ReceivedMessage
    from tiermq.client.member.session import Session

_log = logging.getLogger(__name__)

GROUP = "_INNER_TRACE_PRODUCER"
REGION = "DefaultRegion"
BETWEEN, BEHIND = "\x01", "\x02"
RECORDS = 100
"""Of one message."""
WAIT_S = 1.0
WAITING_MAX = 20_000
NORMAL, HALF, DELAYED, ORDERED = 0, 1, 3, 4
"""Kinds of messages, as RocketMQ numbers them."""


class MessageTrace:
    """See the module. One of a cluster's connection, made with its first producer or consumer that traces."""

    def __init__(self, session: Session, producer: AsyncProducer) -> None:
        self._producer = producer
        self._records: deque[tuple[str, tuple[str, ...]]] = deque()
        self._due = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._dropped_count = 0
        self._is_closing = False
        self._task = session.spawn(self._run(), "message-trace")

    async def close(self) -> None:
        """Send what waits."""
        self._is_closing = True
        self._due.set()
        await self._task
        await self._producer.close()

    def add(self, fields: tuple[object, ...], *keys: str | None) -> None:
        """A record, and by what it is found."""
        if len(self._records) >= WAITING_MAX:
            self._dropped_count += 1
            return
        text = BETWEEN.join("" if each is None else str(each) for each in fields)
        self._records.append((text + BEHIND, tuple(each for each in keys if each)))
        if len(self._records) == RECORDS:
            self._loop.call_soon_threadsafe(self._due.set)

    async def _run(self) -> None:
        while not self._is_closing or self._records:
            try:
                async with asyncio.timeout(None if self._is_closing else WAIT_S):
                    await self._due.wait()
            except TimeoutError:
                pass
            if not self._is_closing:
                self._due.clear()
            while self._records:
                await self._send([self._records.popleft() for _ in range(min(RECORDS, len(self._records)))])
            if self._dropped_count:
                dropped, self._dropped_count = self._dropped_count, 0
                _log.warning("%d trace records are dropped: more than %d waited to be sent", dropped, WAITING_MAX)

    async def _send(self, records: list[tuple[str, tuple[str, ...]]]) -> None:
        keys = dict.fromkeys(key for _, own in records for key in own)
        try:
            body = "".join(text for text, _ in records).encode()
            await self._producer.send(Message(TRACE_TOPIC, body, keys=list(keys)))
        except RemotingError as error:
            _log.warning("%d trace records are dropped: %s", len(records), error)

    # Events.

    def sent(
        self, group: str, outgoing: Outgoing, began_s: float, place: str, offset_id: str, *, success: bool
    ) -> None:
        """A send has ended. `place`: the broker's address; `offset_id`: by which it knows the message."""
        own = {name: _text(outgoing.properties, name) for name in (TAGS, KEYS)}
        now_ms = time.time_ns() // 1_000_000
        cost_ms = round((time.monotonic() - began_s) * 1000)
        fields = (
            *("Pub", now_ms - cost_ms, REGION, group, outgoing.topic, outgoing.unique_key, own[TAGS], own[KEYS]),
            *(place, len(outgoing.body), cost_ms, _kind(outgoing), offset_id, str(success).lower()),
        )
        self.add(fields, outgoing.unique_key, *own[KEYS].split())

    def handling(self, group: str, handler: Callable[[ReceivedMessage], Any]) -> Callable[[ReceivedMessage], Any]:
        """The handler, with records before and after each message."""

        def before(message: ReceivedMessage) -> Callable[[bool], None]:
            request, began_s = uuid4().hex, time.monotonic()
            own_id, keys = message.unique_key or message.message_id, " ".join(message.keys)
            now_ms = time.time_ns() // 1_000_000
            self.add(
                ("SubBefore", now_ms, REGION, group, request, own_id, message.attempt - 1, keys), own_id, *message.keys
            )

            def after(success: bool) -> None:
                cost_ms, code = round((time.monotonic() - began_s) * 1000), 0 if success else 4
                now_ms = time.time_ns() // 1_000_000
                fields = ("SubAfter", request, own_id, cost_ms, str(success).lower(), keys, code, now_ms, group)
                self.add(fields, own_id, *message.keys)

            return after

        if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None)):  # noqa: B004

            @wraps(handler)
            async def awaited(message: ReceivedMessage) -> None:
                after = before(message)
                try:
                    await handler(message)
                except BaseException:
                    after(False)
                    raise
                after(True)

            return awaited

        def called(message: ReceivedMessage) -> Any:
            after = before(message)
            try:
                found = handler(message)
            except BaseException:
                after(False)
                raise
            after(True)
            return found

        return called


def _text(properties: bytes, name: str) -> str:
    found = get_property(properties, name.encode())
    return "" if found is None else found.decode("utf-8", "replace")


def _kind(outgoing: Outgoing) -> int:
    if _text(outgoing.properties, TRAN_MSG) == "true":
        return HALF
    if outgoing.is_timer or _text(outgoing.properties, DELAY):
        return DELAYED
    return ORDERED if _text(outgoing.properties, SHARDING_KEY) else NORMAL
