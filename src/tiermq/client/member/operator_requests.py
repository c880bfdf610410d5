"""What operators ask of a consumer, by way of its broker: `mqadmin`'s consumerStatus, resetOffsetByTime and the like.

220 RESET_CONSUMER_CLIENT_OFFSET     continue its queues elsewhere
221 GET_CONSUMER_STATUS_FROM_CLIENT  the offsets of its queues
307 GET_CONSUMER_RUNNING_INFO        what it is, and what it does now
309 CONSUME_MESSAGE_DIRECTLY         its handler runs for one message, whose record is in the request, and the result is
                                     reported: no offset changes, and nothing is tried again
"""

from __future__ import annotations

import logging
import time
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from tiermq.client.member.message_queue import MessageQueue, checked_offset, queue_in
from tiermq.client.member.received_message import ReceivedMessage
from tiermq.errors import CorruptRecord, RequestRefused
from tiermq.message.record import decode_record
from tiermq.message.topic_name import dead_letter_topic, retry_topic
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_dialect import ObjectKeyed, as_int, decode_object, encode_body, object_in

if TYPE_CHECKING:
    from tiermq.client.member.assigned_queue import AssignedQueue
    from tiermq.client.member.async_consumer import AsyncConsumer

_log = logging.getLogger(__name__)


class OperatorRequests:
    """See the module. Belongs to the consumer's loop."""

    def __init__(self, consumer: AsyncConsumer) -> None:
        self._consumer = consumer
        self._started_ms = time.time_ns() // 1_000_000

    def work_for(self, command: RemotingCommand) -> Coroutine[Any, Any, RemotingCommand | None] | None:
        """None for a request that is not in the list."""
        if command.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            return self._reset(command)
        if command.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
            return self._status(command)
        if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            return self._running_info(command)
        if command.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            return self._consume_directly(command)
        return None

    async def _reset(self, command: RemotingCommand) -> None:
        table = object_in(decode_object(command.body).get("offsetTable") or {}, "offsetTable")
        positions = {}  # All are checked before one is used.
        for text, offset in table.items():
            name = queue_in(decode_object(text.encode(errors="surrogatepass")))
            positions[name] = checked_offset(as_int(offset), f"of {name} in a reset")
        for queue in self._consumer.assigned:
            if (position := positions.get(queue.name)) is not None:
                _log.warning("group %s: %r is reset to %d", self._consumer.group, queue, position)
                await self._consumer.move(queue, position)

    async def _status(self, command: RemotingCommand) -> RemotingCommand:
        topic = command.ext.get("topic")
        offsets: list[tuple[Mapping[str, Any], int]] = [
            (queue.name.described(), queue.commit_offset)
            for queue in self._consumer.assigned
            if queue.name.topic == topic
        ]
        return command.respond(body=encode_body({"messageQueueTable": ObjectKeyed(offsets)}))

    async def _running_info(self, command: RemotingCommand) -> RemotingCommand:
        consumer = self._consumer
        queues: list[tuple[Mapping[str, Any], Any]] = [
            (queue.name.described(), _queue_info(queue)) for queue in consumer.assigned
        ]
        body = {
            "mqPopTable": {},
            "mqTable": ObjectKeyed(queues),
            "properties": {
                "PROP_CLIENT_VERSION": "PYTHON",
                "PROP_CONSUMEORDERLY": str(consumer.settings.is_ordered).lower(),
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
                "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
                "PROP_THREADPOOL_CORE_SIZE": str(consumer.handlers.workers if consumer.handlers is not None else 0),
            },
            "statusTable": {},
            "subscriptionSet": consumer.heartbeat()["subscriptionDataSet"],
            "userConsumerInfo": {name: str(count) for name, count in consumer.metrics.items()},
        }
        return command.respond(body=encode_body(body))

    async def _consume_directly(self, command: RemotingCommand) -> RemotingCommand:
        handlers = self._consumer.handlers
        if handlers is None:
            raise RequestRefused("expected a consumer with a handler (on_message), found one that a loop reads")
        try:
            stored = decode_record(bytes(command.body))
        except CorruptRecord as error:
            raise RequestRefused(f"expected one message in the request, found: {error}") from error
        group = self._consumer.group
        if stored.topic not in {*self._consumer.topics(), retry_topic(group), dead_letter_topic(group)}:
            raise RequestRefused(
                f"expected a message of a topic that group {group} reads, found one of {stored.topic[:300]!r}"
            )
        queue = MessageQueue(stored.topic, command.ext.get("brokerName", ""), stored.queue_id)
        began_s = time.monotonic()
        problem = await handlers.once(ReceivedMessage(stored, queue, _NoProgress()))
        body = {
            "autoCommit": True,
            "consumeResult": "CR_SUCCESS" if problem is None else "CR_THROW_EXCEPTION",
            "order": self._consumer.settings.is_ordered,
            "remark": None if problem is None else repr(problem),
            "spentTimeMills": round((time.monotonic() - began_s) * 1000),
        }
        return command.respond(ResponseCode.SUCCESS, body=encode_body(body))


class _NoProgress:
    """The receipt of a message that an operator gave: its group's offsets stay as they are."""

    is_current = True

    def done(self) -> None:
        """No queue's progress depends on it."""


def _queue_info(queue: AssignedQueue) -> dict[str, Any]:
    first, count = queue.commit_offset, queue.open_count
    return {
        "cachedMsgCount": count,
        "cachedMsgMaxOffset": first + queue.span if count else 0,
        "cachedMsgMinOffset": first if count else 0,
        "cachedMsgSizeInMiB": queue.ready_bytes >> 20,
        "commitOffset": first,
        "droped": queue.is_dropped,  # RocketMQ's spelling.
        "lastConsumeTimestamp": 0,
        "lastLockTimestamp": 0,
        "lastPullTimestamp": 0,
        "locked": queue.is_locked,
        "transactionMsgCount": 0,
        "transactionMsgMaxOffset": 0,
        "transactionMsgMinOffset": 0,
        "tryUnlockTimes": 0,
    }
