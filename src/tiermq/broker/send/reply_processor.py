"""ReplyProcessor: answers of request-reply (324, 325), pushed to the producer that waits for them (326).

    consumer ──reply──► broker ──push──► the client that REPLY_TO_CLIENT names ──took it──► broker ──SUCCESS──► consumer
                           └─► stored in <cluster>_REPLY_TOPIC, as RocketMQ does, if store_reply_message_enable

Invariants: a reply goes to a producer whose account may read the topic of replies; where several accounts use its
client id, to the account that has used it longest. The replier is answered once, when the other client has taken the
reply or has not within 3 s. A reply that cannot be pushed is answered SYSTEM_ERROR and stored nevertheless, so that
no message is lost.
"""

from __future__ import annotations

import asyncio
import logging
import random

from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.group.client_processor import may_take
from tiermq.broker.listen_address import store_host
from tiermq.broker.send.put_answers import STORED
from tiermq.broker.send.send_checks import (
    Destination,
    broker_properties,
    check_room,
    check_topic,
    completed,
    no_such_topic,
    queue_of,
    writes_with_light_queues,
)
from tiermq.broker.send.send_processor import message_to_store
from tiermq.errors import RemotingError, RequestRefused
from tiermq.kernel import SendRequest
from tiermq.message.ids import UniqueKeyGenerator
from tiermq.message.properties import REPLY_TO_CLIENT, get_property, with_property
from tiermq.remoting.access import serves
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.frame import send_request_of
from tiermq.remoting.permissions import Permission

_log = logging.getLogger(__name__)

PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
PUSH_TIMEOUT_S = 3.0


class ReplyProcessor:
    """See the module. Belongs to the loop's thread."""

    def __init__(self, parts: BrokerContext) -> None:
        self._parts = parts
        self._added = broker_properties(parts.config)
        self._new_key = UniqueKeyGenerator(clock=parts.clock).next_key
        self._chance = random.Random()  # noqa: S311 - it spreads messages over queues
        self._pushing = 0
        parts.hooks.busy_while(lambda: self._pushing > 0)

    @serves(RequestCode.SEND_REPLY_MESSAGE, access=writes_with_light_queues("topic", "properties"), large_body=True)
    @serves(RequestCode.SEND_REPLY_MESSAGE_V2, access=writes_with_light_queues("b", "i"), large_body=True)
    def reply(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        """Push a reply on. The answer comes later. Raises RequestRefused."""
        request = send_request_of(command)
        topic = self._parts.topics.get(request.topic)
        check_topic(request.topic, self._parts.config, topic)
        if topic is None:
            raise no_such_topic(request)
        queue_id = queue_of(request, topic, self._chance)
        properties, _ = completed(request.properties, self._added, self._new_key)
        check_room(topic.name, len(properties))  # Before anything is pushed: it is answered once.
        waits_for = (get_property(properties, REPLY_TO_CLIENT.encode()) or b"").decode("utf-8", "replace")
        failure = self._push(connection, command, request, Destination(topic.name, queue_id, properties), waits_for)
        self._store(connection, request, Destination(topic.name, queue_id, properties))
        if failure is not None:
            raise RequestRefused(failure, ResponseCode.SYSTEM_ERROR)
        return None

    def _push(
        self,
        connection: Connection,
        command: RemotingCommand,
        request: SendRequest,
        destination: Destination,
        waits_for: str,
    ) -> str | None:
        """Start to push; returns why it is not possible."""
        if not waits_for:
            return f"expected the client that waits in the property {REPLY_TO_CLIENT}, found none"
        waiting = self._parts.clients.find_producer(
            waits_for, lambda each: may_take(each, destination.topic, Permission.SUB)
        )
        if waiting is None:
            return (
                f"client {waits_for} waits for the reply, but is not connected here, or may not SUB {destination.topic}"
            )
        if self._pushing >= self._parts.config.send_thread_pool_queue_capacity:
            raise RequestRefused(f"{self._pushing} replies are pending already", ResponseCode.SYSTEM_BUSY)
        pushed = RemotingCommand(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
            ext=self._pushed_fields(connection, request, destination),
            body=request.body,
            header_type=command.header_type,
        )
        self._pushing += 1
        taken = waiting.request(pushed, PUSH_TIMEOUT_S)
        taken.add_done_callback(lambda done: self._pushed(connection, command, destination.queue_id, waits_for, done))
        return None

    def _pushed_fields(self, connection: Connection, request: SendRequest, destination: Destination) -> dict[str, str]:
        now_ms = str(self._parts.clock.now_ms())
        properties = with_property(destination.properties, PUSH_REPLY_TIME, now_ms)
        config, server = self._parts.config, self._parts.server
        host, port = connection.peer
        return {
            "bornHost": f"{host}:{port}",
            "bornTimestamp": str(request.born_ms),
            "defaultTopic": request.default_topic,
            "defaultTopicQueueNums": str(request.default_topic_queue_nums),
            "flag": str(request.flag),
            "producerGroup": request.producer_group,
            "properties": properties.decode("utf-8", "replace"),
            "queueId": str(destination.queue_id),
            "reconsumeTimes": str(request.reconsume_times),
            "storeHost": store_host(config.broker_ip1, server.port),
            "storeTimestamp": now_ms,
            "sysFlag": str(request.sys_flag),
            "topic": destination.topic,
            "unitMode": str(request.unit_mode).lower(),
        }

    def _pushed(
        self,
        connection: Connection,
        command: RemotingCommand,
        queue_id: int,
        waits_for: str,
        done: asyncio.Future[RemotingCommand],
    ) -> None:
        self._pushing -= 1
        if command.is_oneway:
            done.exception()  # Not reported; marks the exception as retrieved.
            return
        try:
            code = int(done.result().code)
            problem = None if code == ResponseCode.SUCCESS else f"client {waits_for} answered the reply with {code}"
        except RemotingError as error:
            problem = f"client {waits_for} did not take the reply: {error}"
        if problem is not None:
            connection.send(command.respond(ResponseCode.SYSTEM_ERROR, problem))
            return
        config = self._parts.config
        ext = {
            "MSG_REGION": config.region_id,
            "TRACE_ON": str(config.trace_on).lower(),
            "msgId": "0",
            "queueId": str(queue_id),
            "queueOffset": "0",
        }
        connection.send(command.respond(ext=ext))

    def _store(self, connection: Connection, request: SendRequest, destination: Destination) -> None:
        if not self._parts.config.store_reply_message_enable:
            return
        result = self._parts.local.append(message_to_store(connection, request, destination, request.sys_flag))
        if result.status not in STORED:
            _log.warning("a reply to %s is not stored: %s", request.topic, result.status.name)
