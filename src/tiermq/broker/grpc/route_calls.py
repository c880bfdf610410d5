"""RouteCalls: QueryRoute and QueryAssignment.

A topic that is not there and that a send may create has a route already, with the queues that it will have: a client
asks for the route before its first send, and sends nothing without one.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.grpc.grpc_clients import (
    MESSAGE_TYPES,
    MIXED,
    GrpcClients,
    check_consumer,
    check_topic,
    require_topic,
)
from tiermq.broker.grpc.grpc_message import Refused
from tiermq.broker.topic.attributes import MESSAGE_TYPE
from tiermq.grpc.messages import DOMAIN_NAME, IPV4, IPV6, Code, QueuePermission, message_class, status
from tiermq.message.topic_name import AUTO_CREATE_TOPIC
from tiermq.namesrv.topic_config import PERM_INHERIT, PERM_READ, PERM_WRITE, TopicConfig
from tiermq.remoting.codes import ANY_QUEUE
from tiermq.remoting.permissions import EITHER

if TYPE_CHECKING:
    from tiermq.broker.grpc.grpc_service import Ask

QueryRouteResponse = message_class("QueryRouteResponse")
QueryAssignmentResponse = message_class("QueryAssignmentResponse")
Endpoints = message_class("Endpoints")
SEND_QUEUES = 4
"""Queues of a topic that a send creates, as in RocketMQ's clients."""
ENDPOINTS_BYTES_MAX = 512
"""Of the addresses of a client's request: each queue of the answer has them."""
_PERMISSIONS = {
    (False, False): QueuePermission.NONE,
    (False, True): QueuePermission.WRITE,
    (True, False): QueuePermission.READ,
    (True, True): QueuePermission.READ_WRITE,
}


class RouteCalls:
    """See the module."""

    def __init__(self, parts: BrokerContext, clients: GrpcClients) -> None:
        self._parts = parts
        self._clients = clients

    async def query_route(self, ask: Ask) -> Any:
        """The queues of a topic."""
        request = ask.request
        topic = self._topic(request.topic.name)
        require_topic(ask.caller, topic.name, EITHER)
        answer = QueryRouteResponse(status=status(Code.OK))
        endpoints = self._endpoints(ask, request.endpoints)
        types = MESSAGE_TYPES.get(topic.attributes.get(MESSAGE_TYPE, MIXED), (0,))
        perm = topic.perm & self._parts.config.broker_permission
        if self._parts.topics.closed_for:
            perm &= PERM_READ
        reads = topic.read_queues if perm & PERM_READ else 0
        writes = topic.write_queues if perm & PERM_WRITE else 0
        for number in range(max(reads, writes, 1)):
            can_read, can_write = number < reads, number < writes
            permission = _PERMISSIONS[can_read, can_write]
            self._add(answer.message_queues.add(), topic.name, number, permission, endpoints, types)
            await ask.give_way()
        return answer

    async def query_assignment(self, ask: Ask) -> Any:
        """What a member of a group consumes: everything, or each queue of a group that consumes in order."""
        request = ask.request
        check_consumer(ask.caller, request.group.name, request.topic.name)
        self._clients.require_known_lite(ask.caller, request.group.name)
        topic = self._topic(request.topic.name)
        answer = QueryAssignmentResponse(status=status(Code.OK))
        if not topic.perm & self._parts.config.broker_permission & PERM_READ or not topic.read_queues:
            raise Refused(Code.FORBIDDEN, "no readable queue")
        endpoints = self._endpoints(ask, request.endpoints)
        group, client = self._parts.groups.get(request.group.name), self._clients.find(ask.caller)
        is_split = group is not None and group.consume_message_orderly and not (client is not None and client.is_lite)
        numbers = range(topic.read_queues) if is_split else (ANY_QUEUE,)
        permission = _PERMISSIONS[True, bool(topic.perm & PERM_WRITE)]
        for number in numbers:
            self._add(answer.assignments.add().message_queue, topic.name, number, permission, endpoints, ())
            await ask.give_way()
        return answer

    def _topic(self, name: str) -> TopicConfig:
        """The topic, or what a send would create. Raises Refused."""
        check_topic(name)
        parts = self._parts
        found = parts.topics.get(name)
        if found is not None:
            return found
        pattern = parts.topics.get(AUTO_CREATE_TOPIC)
        if not parts.config.auto_create_topic_enable or pattern is None or not pattern.perm & PERM_INHERIT:
            raise Refused(Code.TOPIC_NOT_FOUND, f"No topic route info: topic {name} does not exist: create it first")
        queues = max(1, min(SEND_QUEUES, pattern.write_queues))
        return TopicConfig(name, queues, queues, PERM_READ | PERM_WRITE)

    def _add(
        self, queue: Any, topic: str, number: int, permission: QueuePermission, endpoints: Any, types: tuple[int, ...]
    ) -> None:
        queue.topic.name = topic
        queue.id = number
        queue.permission = permission
        queue.broker.name = self._parts.config.broker_name
        queue.broker.id = 0
        queue.broker.endpoints.CopyFrom(endpoints)
        queue.accept_message_types.extend(types)

    def _endpoints(self, ask: Ask, asked: Any) -> Any:
        """What the client connected to, as it names it: right behind address translation, too. Several addresses may
        be those of several brokers: then the one that it reached, or, unless that is among them, the one that this
        broker registers. Raises Refused.
        """
        if asked.ByteSize() > ENDPOINTS_BYTES_MAX:
            raise Refused(Code.BAD_REQUEST, f"expected endpoints of at most {ENDPOINTS_BYTES_MAX} bytes, found more")
        host, port = ask.caller.local
        for address in asked.addresses:
            address.port = address.port or port  # Some clients leave it to the server.
        if len(asked.addresses) == 1:
            return asked
        if asked.addresses and (host, port) not in [(each.host, each.port) for each in asked.addresses]:
            config = self._parts.config
            host, port = config.broker_ip1, config.grpc_server_port
        return _endpoints_at(host, port)


def _endpoints_at(host: str, port: int) -> Any:
    try:
        scheme = IPV6 if ipaddress.ip_address(host).version == 6 else IPV4
    except ValueError:
        scheme = DOMAIN_NAME
    made = Endpoints(scheme=scheme)
    made.addresses.add(host=host, port=port)
    return made
