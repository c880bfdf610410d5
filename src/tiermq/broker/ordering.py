"""LockProcessor: LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42), for consumers that consume in order.

A queue that another live client holds is no error: it is missing from the answer.
"""

from __future__ import annotations

from tiermq.broker.groups import check_group_name
from tiermq.broker.parts import BrokerParts
from tiermq.broker.queue_locks import QueueName
from tiermq.broker.topics import check_topic_name
from tiermq.errors import RequestRefused
from tiermq.namesrv.topic_config import int32_in, object_in, text_in
from tiermq.remoting.access import Handler, reaches, require_group, require_topic, serves
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.json_dialect import decode_object, encode_body
from tiermq.remoting.limits import INLINE_BODY_BYTES, LOCKED_QUEUES_MAX, check_count
from tiermq.remoting.permissions import Permission

EXPIRY_PERIOD_S = 30.0


class LockProcessor:
    """See the module."""

    def __init__(self, parts: BrokerParts) -> None:
        self._locks = parts.clients.locks
        self._server = parts.server
        parts.holds_locks = parts.clients.locks.holds_any
        parts.periodic.append((EXPIRY_PERIOD_S, self._drop_expired))

    @serves(RequestCode.LOCK_BATCH_MQ, access=reaches("SUB of the group, SUB of each topic"))
    def lock(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        return self._in_place(connection, command, self._lock)

    @serves(RequestCode.UNLOCK_BATCH_MQ, access=reaches("SUB of the group, SUB of each topic"))
    def unlock(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        return self._in_place(connection, command, self._unlock)

    def _in_place(self, connection: Connection, command: RemotingCommand, handler: Handler) -> RemotingCommand | None:
        """On the loop, or in the pool when there are many queues: locks are anybody's to call."""
        if len(command.body) <= INLINE_BODY_BYTES:
            return handler(connection, command)
        self._server.hand_to_pool(handler, connection, command)
        return None

    def _lock(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        group, client_id, queues = _decode(command)
        held = self._locks.lock(group, client_id, queues)
        told = [{"brokerName": each.broker, "queueId": each.queue_id, "topic": each.topic} for each in held]
        return command.respond(body=encode_body({"lockOKMQSet": told}))

    def _unlock(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        group, client_id, queues = _decode(command)
        self._locks.unlock(group, client_id, queues)
        return command.respond()

    def _drop_expired(self) -> None:
        self._locks.drop_expired()


def _decode(command: RemotingCommand) -> tuple[str, str, list[QueueName]]:
    """Group, client and queues of a request's body. Raises RequestRefused."""
    table = decode_object(command.body)
    group = text_in(table.get("consumerGroup"), "consumerGroup")
    client_id = text_in(table.get("clientId"), "clientId")
    if not group or not client_id:
        raise RequestRefused(f"request {int(command.code)}: expected a consumerGroup and a clientId, found less")
    queues = table.get("mqSet") or []
    if not isinstance(queues, list):
        raise RequestRefused(f"expected a list in mqSet, found a {type(queues).__name__}")
    check_count("queues in mqSet", len(queues), LOCKED_QUEUES_MAX)
    require_group(command, group)
    check_group_name(group)
    found = [_queue_in(each) for each in queues]
    for each in found if command.account is not None else ():
        require_topic(command, each.topic, Permission.SUB)
    return group, client_id, found


def _queue_in(value: object) -> QueueName:
    table = object_in(value, "a queue of mqSet")
    topic, queue_id = text_in(table.get("topic"), "topic"), int32_in(table, "queueId")
    check_topic_name(topic)
    if queue_id < 0:
        raise RequestRefused(f"queueId: expected 0 or more, found {queue_id}", ResponseCode.INVALID_PARAMETER)
    return QueueName(topic, text_in(table.get("brokerName"), "brokerName"), queue_id)
