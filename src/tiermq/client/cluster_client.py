"""ClusterClient: what everything that talks to brokers shares. It asks a name server where topics are, and goes there.

    async with ClusterClient("127.0.0.1:9876") as cluster:
        route = await cluster.route("orders")
        answer = await cluster.ask(route.queues[0].address, RequestCode.GET_MAX_OFFSET, topic="orders", queueId=0)

Invariants: one connection to each address, made when it is first needed; connecting does not block requests to other
addresses. A connection that left a request without an answer gets no new ones, since its other end may be gone; what
was asked on it before may still be answered. An answer with another code than those that were expected is an error with
the peer's own words. A name server that fails is tried last from then on. Belongs to the loop that it is used on.

`Access` holds a cluster's address and credentials. Secrets come from the environment of the process that talks,
never from a command line or a plan that travels: ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY, and
TIERMQ_TLS_KEY_PASSWORD for the key of a client's certificate.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

from tiermq.errors import BadConfig, NoNameServer, PeerGone, RemotingError, RequestRefused, RequestTimedOut
from tiermq.message.topic_name import AUTO_CREATE_TOPIC, TOPIC_QUEUES_MAX
from tiermq.namesrv.topic_config import PERM_READ, PERM_WRITE
from tiermq.remoting.client import NOT_A_NAME_SERVER, RemotingClient, parse_name_servers
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_dialect import as_int, decode_object, list_in, object_in, text_in, text_map_in
from tiermq.remoting.loop_thread import LoopThread
from tiermq.remoting.permissions import Credentials
from tiermq.remoting.tls import ANY_SERVER, ClientTls

MASTER = "0"
ROUTE_CODES = (
    RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
)  # fmt: skip
"""Every name server serves them."""
ROUTE_QUEUES_MAX = 4 * TOPIC_QUEUES_MAX
"""Queues of one topic at all brokers: a route with more is not the answer of a name server that means well."""
TIMEOUT_S = 30.0
NAME_SERVER_S = 3.0
"""How long one name server may take, its connection included, before the next is asked: as RocketMQ's clients wait."""
KNOWN_WITHIN_S, LOOK_AGAIN_S = 5.0, 0.02
REFUSED_REST_S = 1.0
T = TypeVar("T")
ACCESS_KEY = "ROCKETMQ_ACCESS_KEY"
SECRET_KEY = "ROCKETMQ_SECRET_KEY"  # noqa: S105 - the name of a variable


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """One queue of a topic at one broker."""

    broker_name: str
    address: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class Route:
    """Where a topic can be written and where it can be read."""

    topic: str
    writable: tuple[QueuePlace, ...]
    readable: tuple[QueuePlace, ...]
    replicas: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By broker name: the addresses of its master and slaves, by broker id."""

    def address_of(self, broker_name: str, broker_id: int = 0) -> str | None:
        """Of that replica, or the master where there is none; None for an unknown broker."""
        replicas = self.replicas.get(broker_name, {})
        return replicas.get(str(broker_id)) or replicas.get(MASTER)

    @property
    def addresses(self) -> dict[str, str]:
        """Broker names to addresses."""
        return {place.broker_name: place.address for place in (*self.readable, *self.writable)}


@dataclass(frozen=True, slots=True)
class MasterTable:
    """The masters of all clusters, by (cluster, broker).

    A name server has one table of addresses by broker name. Where two clusters have a broker of one name, it gives the
    address that was registered last, whichever cluster that is of: such brokers are `shared`, and only the broker's own
    settings can show what it is.
    """

    members: frozenset[tuple[str, str]]
    addresses: dict[tuple[str, str], str]
    problems: dict[tuple[str, str], str]
    """Brokers whose entry cannot be used, and why. A broker without a master has none."""
    shared: frozenset[str]

    @property
    def why_without_master(self) -> str:
        """Which brokers have no master, in words; empty when each has one."""
        if not self.members:
            return (
                "no broker is registered at the name server: it has not started, or its replicas change roles; try "
                "again in a few seconds"
            )
        names = sorted({name for each, name in self.members - self.addresses.keys() - self.problems.keys()})
        if not names:
            return ""
        return (
            f"{', '.join(names)} has no master at the moment: a replica takes over within seconds, if there is one "
            f"(`tiermq broker status {names[0]}`); try again then"
        )

    @classmethod
    def of(cls, document: dict[str, Any]) -> Self:
        """Of the answer to GET_BROKER_CLUSTER_INFO. Raises RequestRefused unless its tables can be read."""
        named = object_in(document.get("clusterAddrTable") or {}, "clusterAddrTable")
        entries = object_in(document.get("brokerAddrTable") or {}, "brokerAddrTable")
        members = sorted((cluster, text_in(name, cluster)) for cluster in named for name in list_in(named, cluster))
        counts = Counter(name for _, name in members)
        addresses, problems = {}, {}
        for cluster, name in members:
            try:
                entry = object_in(entries.get(name) or {}, f"the entry of broker {name}")
                of = text_in(entry.get("cluster"), f"the cluster of broker {name}") or cluster
                address = text_map_in(entry.get("brokerAddrs") or {}, f"the addresses of broker {name}").get(MASTER)
                if of != cluster:
                    problems[cluster, name] = (
                        f"expected its address at the name server, found that of the broker of the same name of "
                        f"cluster {of}; give one of the two another brokerName"
                    )
                elif address is not None:
                    split_address(address)
                    addresses[cluster, name] = address
            except RemotingError as error:
                problems[cluster, name] = str(error)
        return cls(
            frozenset(members), addresses, problems, frozenset(name for name, count in counts.items() if count > 1)
        )


def split_address(address: str) -> tuple[str, int]:
    """`host:port`, as name servers give it. Raises PeerGone: no server can be there."""
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise PeerGone(f"expected the address of a server as host:port, found {address[:80]!r}")
    return host, int(port)


class ClusterClient:
    """See the module."""

    def __init__(
        self, name_servers: str, *, credentials: Credentials | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        """Raises BadConfig for an invalid address."""
        self._name_servers = parse_name_servers(name_servers)
        self._credentials = credentials
        self._tls = tls
        self._clients: dict[str, RemotingClient] = {}
        self._retired: set[RemotingClient] = set()
        self._connecting: dict[str, asyncio.Lock] = {}
        self._silent: dict[str, tuple[float, RemotingError]] = {}
        self._closed = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        clients = [*self._clients.values(), *self._retired]
        self._clients.clear()
        self._retired.clear()
        await asyncio.gather(*(client.close() for client in clients))

    # Asking.

    async def at(self, address: str) -> RemotingClient:
        """The connection to an address. Raises PeerGone when the server does not answer, or this client is closed."""
        client = self._clients.get(address)
        if client is not None and client.is_open:
            return client
        async with self._connecting.setdefault(address, asyncio.Lock()):
            client = self._clients.get(address)
            if client is None or not client.is_open:
                if client is not None and client.connection is not None:
                    client.connection.abort()  # It may still be connecting, and no request needs it any more.
                client = await self._connect(address)
            return client

    async def _connect(self, address: str) -> RemotingClient:
        host, port = split_address(address)
        if not self._closed.is_set():
            client = await RemotingClient.connect(
                host, port, tls=self._tls, credentials=self._credentials, timeout_s=TIMEOUT_S
            )
            if not self._closed.is_set():
                self._clients[address] = client
                return client
            await client.close()  # This client was closed meanwhile, and would not close the new connection.
        raise PeerGone(f"expected a client to reach {address} by, found it closed")

    async def ask(
        self,
        address: str,
        code: RequestCode,
        body: bytes = b"",
        *,
        expected: tuple[int, ...] = (ResponseCode.SUCCESS,),
        timeout_s: float = TIMEOUT_S,
        **fields: Any,
    ) -> RemotingCommand:
        """One answer. Raises RequestRefused for a code that is not expected, PeerGone and RequestTimedOut."""
        ext = {name: _text(value) for name, value in fields.items() if value is not None}
        if self._silent and (silence := self.silent.get(address)) is not None:
            raise PeerGone(str(silence))
        client = await self.at(address)
        try:
            answer = await client.request(RemotingCommand(code, ext=ext, body=body), timeout_s)
        except RequestTimedOut:
            self.retire(address, client)
            raise
        finally:
            if client in self._retired:
                self._end_retired()
        if answer.code not in expected:
            text = f"{address} refuses: {answer.remark or 'no reason given'}"
            if answer.code == ResponseCode.NO_PERMISSION and self._credentials is None:
                text += ". This request was not signed: set ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY of an account"
            raise RequestRefused(text, answer.code)
        return answer

    async def answers(self, address: str, within_s: float, rest_s: float) -> bool:
        """Whether a broker answers at all. One that does not is `silent` for `rest_s`: asking it fails at once."""
        if address in self.silent:
            return False
        try:
            async with asyncio.timeout(within_s):
                await self.ask(address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        except RequestRefused:
            return True
        except (PeerGone, RequestTimedOut) as error:
            # A refused connection costs no time, and may be that of a broker that is starting.
            self._silent[address] = time.monotonic() + min(rest_s, REFUSED_REST_S), error
            return False
        except TimeoutError:
            silent = RequestTimedOut(f"{address}: expected an answer within {within_s:g} s, found none")
            self._silent[address] = time.monotonic() + rest_s, silent
            if (client := self.connected(address)) is not None:
                self.retire(address, client)
            return False
        return True

    @property
    def silent(self) -> dict[str, RemotingError]:
        """The addresses that did not answer lately, and how that showed."""
        now_s = time.monotonic()
        return {address: error for address, (until_s, error) in list(self._silent.items()) if until_s > now_s}

    def connected(self, address: str) -> RemotingClient | None:
        """The connection to an address, if there is one."""
        client = self._clients.get(address)
        return client if client is not None and client.is_open else None

    def retire(self, address: str, client: RemotingClient) -> None:
        """The next request to the address makes a connection of its own; this one ends with its last request."""
        if self._clients.get(address) is client:
            del self._clients[address]
            self._retired.add(client)
            self._end_retired()
            asyncio.get_running_loop().call_later(TIMEOUT_S, self._end_retired)  # Its last one may be given up.

    def _end_retired(self) -> None:
        for client in [each for each in self._retired if not each.open_requests]:
            self._retired.discard(client)
            if client.connection is not None:
                client.connection.abort()

    async def ask_name_server(
        self, code: RequestCode, *, expected: tuple[int, ...] = (ResponseCode.SUCCESS,), **fields: Any
    ) -> RemotingCommand:
        """The answer of the first name server that answers within NAME_SERVER_S."""
        return (await self._name_server_and_answer(code, expected, **fields))[1]

    async def _name_server_and_answer(
        self, code: RequestCode, expected: tuple[int, ...], **fields: Any
    ) -> tuple[str, RemotingCommand]:
        problem: RemotingError | None = None
        for server in tuple(self._name_servers):
            address = f"{server[0]}:{server[1]}"
            try:
                async with asyncio.timeout(NAME_SERVER_S):
                    return address, await self.ask(address, code, expected=expected, **fields)
            except RequestRefused as error:
                if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED or code not in ROUTE_CODES:
                    raise
                raise RemotingError(f"{address}: {NOT_A_NAME_SERVER}") from error
            except (PeerGone, RequestTimedOut) as error:
                problem = error
            except TimeoutError:
                problem = RequestTimedOut(f"{address}: expected an answer within {NAME_SERVER_S:g} s, found none")
                if (client := self.connected(address)) is not None:
                    self.retire(address, client)
            self._name_servers.sort(key=lambda each, failed=server: each == failed)  # type: ignore[misc]
        servers = ", ".join(f"{host}:{port}" for host, port in sorted(self._name_servers))
        raise NoNameServer(
            f"no name server can be reached at {servers}: check the address (host:port), and that one "
            f"runs there; the last answer: {problem}"
        )

    # Where things are.

    async def find_route(self, topic: str) -> Route | None:
        """None for an unknown topic. Raises RemotingError for an answer that is no route."""
        known = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
        server, answer = await self._name_server_and_answer(RequestCode.GET_ROUTEINFO_BY_TOPIC, known, topic=topic)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        try:
            return self._route_in(topic, answer)
        except RemotingError as error:
            raise RemotingError(f"name server {server}: expected the route of topic {topic}, found: {error}") from error

    @staticmethod
    def _route_in(topic: str, answer: RemotingCommand) -> Route:
        document = decode_object(answer.body)
        replicas = {}
        for data in list_in(document, "brokerDatas"):
            broker = object_in(data, "an entry of brokerDatas")
            addresses = text_map_in(broker.get("brokerAddrs") or {}, "brokerAddrs")
            replicas[text_in(broker.get("brokerName"), "brokerName")] = addresses
        masters = {name: addresses[MASTER] for name, addresses in replicas.items() if MASTER in addresses}
        writable: list[QueuePlace] = []
        readable: list[QueuePlace] = []
        for data in list_in(document, "queueDatas"):
            queue = object_in(data, "an entry of queueDatas")
            name, perm = text_in(queue.get("brokerName"), "brokerName"), as_int(queue.get("perm"))
            if name not in masters:
                continue
            for places, bit, count in (
                (writable, PERM_WRITE, "writeQueueNums"),
                (readable, PERM_READ, "readQueueNums"),
            ):
                if perm & bit:
                    queues = as_int(queue.get(count))
                    if queues > TOPIC_QUEUES_MAX:
                        raise RemotingError(
                            f"topic {topic}: expected at most {TOPIC_QUEUES_MAX} queues at {name}, found {queues}"
                        )
                    if len(places) + queues > ROUTE_QUEUES_MAX:
                        raise RemotingError(
                            f"topic {topic}: expected at most {ROUTE_QUEUES_MAX} queues in all, found more"
                        )
                    places += (QueuePlace(name, masters[name], each) for each in range(queues))
        return Route(topic, tuple(writable), tuple(readable), replicas)

    async def route(self, topic: str) -> Route:
        """The same; raises RequestRefused for an unknown topic."""
        found = await self.find_route(topic)
        if found is None:
            raise await self.unknown_topic(topic, "no broker has it")
        return found

    async def unknown_topic(self, topic: str, found: str) -> RequestRefused:
        """The error for a topic that name servers do not know: it does not exist, or its broker has no master now."""
        if without := (await self.master_table()).why_without_master:
            return RequestRefused(f"topic {topic}: expected a broker that has it, found that {without}")
        return RequestRefused(
            f"expected the topic {topic}, found that {found}: `tiermq topic create {topic}` makes it",
            ResponseCode.TOPIC_NOT_EXIST,
        )

    async def master_table(self) -> MasterTable:
        """The masters of all clusters."""
        return MasterTable.of(decode_object((await self.ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)).body))

    async def masters(self, cluster: str | None = None) -> dict[str, str]:
        """Broker names to addresses. Raises RemotingError when there are no brokers."""
        table = await self.master_table()
        masters = {name: address for (each, name), address in table.addresses.items() if cluster in (None, each)}
        if not masters:
            raise RemotingError(
                f"expected a broker{f' of cluster {cluster}' if cluster else ''} at the name server, found "
                f"{f'that {table.why_without_master}' if cluster is None and table.members else 'none'}"
            )
        return masters

    async def create_topic(
        self,
        topic: str,
        queues: int,
        *,
        perm: int = PERM_READ | PERM_WRITE,
        order: bool = False,
        attributes: str | None = None,
        cluster: str | None = None,
    ) -> tuple[list[str], bool]:
        """Create or update a topic at every broker; their names, and whether the name server knows it everywhere yet.

        Brokers register a topic after they respond: this waits for it, for KNOWN_WITHIN_S.
        """
        masters = await self.masters(cluster)
        for address in masters.values():
            await self.ask(
                address,
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                topic=topic,
                defaultTopic=AUTO_CREATE_TOPIC,
                readQueueNums=queues,
                writeQueueNums=queues,
                perm=perm,
                topicFilterType="SINGLE_TAG",
                topicSysFlag=0,
                order=order,
                attributes=attributes,
            )
        deadline = time.monotonic() + KNOWN_WITHIN_S
        while time.monotonic() < deadline:
            route = await self.find_route(topic)
            if route is not None and set(masters) <= set(route.addresses):
                return sorted(masters), True
            await asyncio.sleep(LOOK_AGAIN_S)
        return sorted(masters), False

    async def tell_name_servers(self, code: RequestCode, **fields: Any) -> None:
        """All of them that can be reached."""
        for host, port in self._name_servers:
            with contextlib.suppress(PeerGone, RequestTimedOut):
                await self.ask(f"{host}:{port}", code, **fields)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class Access:
    """How the cluster is reached."""

    name_servers: str
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    tls: bool = False
    certificates: ClientTls = ANY_SERVER
    """Any of them means TLS."""

    @classmethod
    def of_environment(cls, name_servers: str, *, tls: bool = False, certificates: ClientTls = ANY_SERVER) -> Self:
        """With the keys of this process's environment, if it has any."""
        return cls(name_servers, os.environ.get(ACCESS_KEY), os.environ.get(SECRET_KEY), tls, certificates)

    def client(self) -> ClusterClient:
        """Raises BadConfig for options that do not go together."""
        if (self.access_key is None) != (self.secret_key is None):
            raise BadConfig("expected both ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY, found one of them")
        credentials = None
        if self.access_key is not None and self.secret_key is not None:
            credentials = Credentials(self.access_key, self.secret_key)
        tls = self.certificates.context() if self.tls or self.certificates else None
        return ClusterClient(self.name_servers, credentials=credentials, tls=tls)

    def run(self, work: Callable[[ClusterClient], Awaitable[T]]) -> T:
        """What the work gives, done with a client that is closed afterwards."""

        async def working() -> T:
            async with self.client() as cluster:
                return await work(cluster)

        return asyncio.run(working())


class BlockingCluster:
    """A cluster for code without a loop, such as a task of Spark. A separate thread runs one.

        with BlockingCluster(Access("127.0.0.1:9876")) as cluster:
            route = cluster.run(cluster.client.route("orders"))

    Any thread may ask. Nothing is connected before it is needed.
    """

    def __init__(self, access: Access) -> None:
        """Raises BadConfig for an access that cannot be."""
        self._thread = LoopThread("cluster-client")
        try:
            self.client: ClusterClient = self._thread.call(access.client)
        except BaseException:
            self._thread.stop()
            raise

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work gives, when it is done."""
        return self._thread.run(work)

    def later(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """The same without waiting for it."""
        return self._thread.submit(work)

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """What the function returns, called on the loop. Raises RemotingError after `close`."""
        return self._thread.call(function, *arguments)

    def close(self) -> None:
        """Close all connections. Twice does no harm."""
        if self._thread.is_running:
            self._thread.run(self.client.__aexit__(None, None, None))
            self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
