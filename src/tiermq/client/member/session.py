"""Session: what the producers and consumers of one client share: routes, heartbeats, and the brokers' requests.

A broker knows a client by its connection: so each new connection to a broker begins with a heartbeat, and a lost one is
made again, with its heartbeat, when it is needed or at the next beat. Requests of brokers (a group has changed, a
transaction is to be checked, a reply has come) go to the member of the group that they name.

Belongs to the loop that it is used on.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import os
import socket
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from tiermq.client.cluster_client import NAME_SERVER_S, ClusterClient, QueuePlace, Route
from tiermq.client.send_fields import DEFAULT_QUEUES
from tiermq.errors import PeerGone, RemotingError, RequestRefused, RequestTimedOut
from tiermq.message.topic_name import AUTO_CREATE_TOPIC
from tiermq.remoting.client import RemotingClient, parse_name_servers
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand

_log = logging.getLogger(__name__)

HEARTBEAT_S = 30.0
KNOWN_ROUTE_S = 0.25
"""How long a route that is known is waited for when it is asked for again; after that it is used meanwhile."""
ROUTE_S = 30.0
"""How long a route is used before it is asked for again; a failure of one of its brokers ends it earlier."""
UNKNOWN_S = 0.5
"""How soon a topic that no broker has is asked for again: it may have just been created."""
REQUEST_S = 3.0
ANYWHERE = "192.0.2.1"
"""An address that no machine has (TEST-NET-1): the way to it is the way out."""
CLOSE_S = 3.0
"""How long leaving may take for each broker: one that is gone keeps no program from ending."""


class Member(Protocol):
    """A producer or consumer, as the session sees it."""

    group: str

    def topics(self) -> set[str]:
        """Whose brokers must know the member."""

    def on_request(self, address: str, command: RemotingCommand) -> Coroutine[Any, Any, RemotingCommand | None] | None:
        """The work for a broker's request; None where this member does not know it."""


class ConsumerMember(Member, Protocol):
    """A consumer."""

    def heartbeat(self) -> dict[str, Any]:
        """Its part of the client's heartbeat."""


@dataclass(frozen=True, slots=True)
class _KnownRoute:
    route: Route | None
    at_s: float


class Session:
    """See the module."""

    def __init__(self, client: ClusterClient, name_servers: str, *, heartbeat_s: float = HEARTBEAT_S) -> None:
        self.client = client
        self.client_id = make_client_id(name_servers)
        self.producers: list[Member] = []
        self.consumers: dict[str, ConsumerMember] = {}
        self.is_closing = False
        self._heartbeat_s = heartbeat_s
        self._routes: dict[str, _KnownRoute] = {}
        self._asking: dict[str, asyncio.Task[Route | None]] = {}
        self._greeted: dict[str, RemotingClient] = {}
        self._greeting: dict[str, asyncio.Lock] = {}
        self._versions: dict[str, int] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self) -> None:
        self.spawn(self._beat(), "heartbeat")

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """A task that ends with the session; what it raises is logged."""
        task = asyncio.get_running_loop().create_task(work, name=f"tiermq-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s ended: %s", task.get_name(), error, exc_info=error)

    async def close(self) -> None:
        """After the members have left."""
        self.is_closing = True
        tasks: list[asyncio.Task[Any]] = [*self._tasks, *self._asking.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.client.__aexit__(None, None, None)

    # Routes.

    async def route(self, topic: str) -> Route | None:
        """None for a topic that no broker has. Raises RemotingError when no name server answers and none is known.

        A known route is used while name servers take longer than KNOWN_ROUTE_S to give a newer one.
        """
        known = self._routes.get(topic)
        if known is not None and time.monotonic() - known.at_s < (ROUTE_S if known.route else UNKNOWN_S):
            return known.route
        asking = self._asking.get(topic)
        if asking is None:
            asking = self._asking[topic] = asyncio.get_running_loop().create_task(self.client.find_route(topic))
            asking.add_done_callback(partial(self._route_came, topic))
        if known is None or known.route is None:
            return await asyncio.shield(asking)
        await asyncio.wait((asking,), timeout=KNOWN_ROUTE_S)
        if not asking.done():
            self._routes[topic] = _KnownRoute(known.route, time.monotonic() - ROUTE_S + NAME_SERVER_S)
            return known.route
        return known.route if isinstance(asking.exception(), RemotingError) else asking.result()

    def known_writable(self, topic: str, now_s: float) -> tuple[QueuePlace, ...]:
        """The queues that take messages, where that need not be asked for; else none."""
        known = self._routes.get(topic)
        if known is None or known.route is None or now_s - known.at_s >= ROUTE_S:
            return ()
        return known.route.writable

    def _route_came(self, topic: str, asking: asyncio.Task[Route | None]) -> None:
        self._asking.pop(topic, None)
        if asking.cancelled():
            return
        known = self._routes.get(topic)
        if (error := asking.exception()) is None:  # Seen, also where the caller has given up.
            self._routes[topic] = _KnownRoute(asking.result(), time.monotonic())
        elif known is not None and known.route is not None:
            _log.warning("the route of %s from before is used: %s", topic, error)
            self._routes[topic] = _KnownRoute(known.route, time.monotonic())

    def forget_route(self, topic: str) -> None:
        """A broker of it has failed: ask again."""
        known = self._routes.get(topic)
        if known is not None:
            self._routes[topic] = _KnownRoute(known.route, time.monotonic() - ROUTE_S)

    async def writable(self, topic: str) -> tuple[QueuePlace, ...]:
        """The queues that take messages, in order; of a topic that does not exist yet, those that it will have.

        Raises RequestRefused when there are none.
        """
        route = await self.route(topic)
        found: tuple[QueuePlace, ...] = ()
        if route is not None:
            found = route.writable
        else:
            self._routes.pop(topic, None)  # The first message makes it.
            pattern = await self.route(AUTO_CREATE_TOPIC)
            if pattern is not None:
                found = tuple(place for place in pattern.writable if place.queue_id < DEFAULT_QUEUES)
        if not found:
            what = "its brokers take no messages for it" if route is not None else "no broker has it or creates it"
            raise await self.client.unknown_topic(topic, what)
        return found

    # Being known to brokers.

    async def ask(
        self,
        address: str,
        code: RequestCode,
        body: bytes = b"",
        *,
        expected: tuple[int, ...] = (ResponseCode.SUCCESS,),
        timeout_s: float = REQUEST_S,
        **fields: Any,
    ) -> RemotingCommand:
        """One answer of a broker that knows this client. Raises RequestRefused, PeerGone and RequestTimedOut."""
        await self.greet(address)
        return await self.client.ask(address, code, body, expected=expected, timeout_s=timeout_s, **fields)

    def greeted(self, address: str) -> RemotingClient | None:
        """The connection to a broker that knows this client, if there is one now."""
        client = self._greeted.get(address)
        return client if client is not None and client.is_open else None

    async def greet(self, address: str, *, again: bool = False) -> RemotingClient:
        """The connection to a broker, which has had a heartbeat on it."""
        client = self._greeted.get(address)
        if client is not None and client.is_open and not again:
            return client
        async with self._greeting.setdefault(address, asyncio.Lock()):
            client = self._greeted.get(address)
            if client is not None and client.is_open and not again:
                return client
            client = await self.client.at(address)
            for code in _BROKER_REQUESTS:
                client.on_request(code, partial(self._asked, address, client))
            beat = json.dumps(self._heartbeat()).encode()
            answer = await self.client.ask(address, RequestCode.HEART_BEAT, beat, timeout_s=REQUEST_S)
            self._versions[address] = answer.version
            self._greeted[address] = client
            return client

    async def version_of(self, address: str) -> int:
        """The broker's version, as its last answer to a heartbeat had it. Raises PeerGone and RequestTimedOut."""
        await self.greet(address)
        return self._versions[address]

    async def greet_all(self, topics: set[str]) -> None:
        """A heartbeat to every broker of the topics: a member came, changed or goes. Brokers that are down get it when
        they are back.
        """
        addresses = set()
        for topic in topics:
            route = await self.route(topic)
            if route is not None:
                addresses |= set(route.addresses.values())
        found = await asyncio.gather(*(self.greet(each, again=True) for each in addresses), return_exceptions=True)
        for address, result in zip(addresses, found, strict=True):
            if isinstance(result, RemotingError):
                _log.warning("%s: no heartbeat: %s", address, result)
            elif isinstance(result, BaseException):
                raise result

    def _heartbeat(self) -> dict[str, Any]:
        return {
            "clientID": self.client_id,
            "producerDataSet": [{"groupName": group} for group in {member.group for member in self.producers}],
            "consumerDataSet": [member.heartbeat() for member in self.consumers.values()],
        }

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            topics = {topic for each in (*self.producers, *self.consumers.values()) for topic in each.topics()}
            try:
                await self.greet_all(topics)
            except RemotingError as error:
                _log.warning("no heartbeat: %s", error)

    async def leave(self, member: Member, *, is_consumer: bool) -> None:
        """The member is gone: its brokers are notified at once, so that the group does not wait for heartbeats."""
        if is_consumer:
            if self.consumers.get(member.group) is not member:
                return  # It has never joined, and another one of the group may have.
            del self.consumers[member.group]
        if not is_consumer:
            self.producers.remove(member)
            if any(each.group == member.group for each in self.producers):
                return
        field = "consumerGroup" if is_consumer else "producerGroup"
        fields: dict[str, Any] = {"clientID": self.client_id, field: member.group}
        open_ones = [address for address, client in self._greeted.items() if client.is_open]

        async def unregister(address: str) -> None:
            with suppress(PeerGone, RequestTimedOut, RequestRefused):
                await self.client.ask(address, RequestCode.UNREGISTER_CLIENT, timeout_s=CLOSE_S, **fields)

        await asyncio.gather(*(unregister(address) for address in open_ones))

    # Requests of brokers.

    def _asked(self, address: str, client: RemotingClient, command: RemotingCommand) -> RemotingCommand | None:
        """Find the member; what it answers is sent when it is there."""
        if command.code in _OF_PRODUCERS:
            members = list(self.producers)
        else:
            named = self.consumers.get(command.ext.get("consumerGroup") or command.ext.get("group") or "")
            members = [] if named is None else [named]
        for member in members:
            try:
                work = member.on_request(address, command)
            except RemotingError as error:
                _log.warning("%s: its request %d is refused: %s", address, int(command.code), error)
                return command.respond(ResponseCode.SYSTEM_ERROR, str(error))
            if work is not None:
                self.spawn(self._answer(client, command, work), f"request-{int(command.code)}")
                return None
        return command.respond(ResponseCode.SYSTEM_ERROR, "no member of this client takes that request")

    async def _answer(
        self, client: RemotingClient, command: RemotingCommand, work: Coroutine[Any, Any, RemotingCommand | None]
    ) -> None:
        try:
            answer = await work
        except RemotingError as error:
            _log.warning("a broker's request %d failed: %s", int(command.code), error)
            answer = command.respond(ResponseCode.SYSTEM_ERROR, str(error))
        if answer is not None and not command.is_oneway and client.connection is not None:
            client.connection.send(answer)


_BROKER_REQUESTS = (
    RequestCode.CHECK_TRANSACTION_STATE,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
)
_OF_PRODUCERS = frozenset((RequestCode.CHECK_TRANSACTION_STATE, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT))
"""They name a message, and no group."""


def make_client_id(name_servers: str) -> str:
    """As RocketMQ's clients make it: address, process and a moment. The address is for operators: nothing connects."""
    host, port = parse_name_servers(name_servers)[0]
    address = "127.0.0.1"
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        host = ANYWHERE  # A name would be looked up here, and hold the loop meanwhile.
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # Of a datagram socket: it finds the way out and sends nothing.
        address = probe.getsockname()[0]
    return f"{address}@{os.getpid()}#{time.time_ns()}"


def closed_consumer(group: str) -> RemotingError:
    return RemotingError(f"group {group}: expected an open consumer, found it closed")


def not_started(group: str, call: str) -> RemotingError:
    """Of a consumer that is used outside of its block: it would wait for messages for ever."""
    return RemotingError(
        f"group {group}: expected a consumer that has joined its group, found one that has not: "
        f"use `with {call} as consumer`, with aconnect() `async with`"
    )
