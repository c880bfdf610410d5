"""AsyncCluster: a connection to a cluster of TierMQ or RocketMQ brokers, for asyncio.

    async with tiermq.aconnect("127.0.0.1:9876") as cluster:
        async with cluster.producer("shop") as producer:
            await producer.send(tiermq.Message("orders", b"two coffees", keys=["order-42"], tags="paid"))
        async with cluster.consumer("audit", topic="orders", start="first") as consumer:
            async for message in consumer:
                ...

Nothing is connected before it is needed. One client id stands for all members of a cluster object: two consumers of one
group need two of them.
"""

from __future__ import annotations

import math
import os
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from tiermq.client.cluster_client import ACCESS_KEY, SECRET_KEY, ClusterClient
from tiermq.client.member.async_consumer import AsyncConsumer, ConsumerSettings, check_take
from tiermq.client.member.async_producer import AsyncProducer
from tiermq.client.member.handlers import Handler
from tiermq.client.member.message_trace import GROUP as TRACE_GROUP
from tiermq.client.member.message_trace import MessageTrace
from tiermq.client.member.offset_file import OffsetFile
from tiermq.client.member.outgoing import Compression, Preparation
from tiermq.client.member.pop_consumer import AsyncSimpleConsumer
from tiermq.client.member.room import Room
from tiermq.client.member.session import HEARTBEAT_S, REQUEST_S, Session
from tiermq.client.member.start_position import Start, checked_start
from tiermq.client.member.subscription import Subscription
from tiermq.client.member.transactions import Check
from tiermq.clock import SystemClock
from tiermq.errors import BadConfig, RemotingError
from tiermq.message.ids import UniqueKeyGenerator
from tiermq.remoting.client import parse_name_servers
from tiermq.remoting.permissions import Credentials
from tiermq.remoting.tls import ANY_SERVER, ClientTls

NAME_SERVERS = "NAMESRV_ADDR"
COMPRESSED_ABOVE_BYTES = 4096
IN_FLIGHT_MAX, IN_FLIGHT_BYTES_MAX = 10_000, 64 << 20
SEND_PATIENCE_S = 10.0
WORKERS = 16


@dataclass(frozen=True, slots=True)
class Connecting:
    """How a cluster is reached: what `connect` and `aconnect` were given, checked."""

    name_servers: str
    credentials: Credentials | None
    tls: ssl.SSLContext | None
    heartbeat_s: float

    @classmethod
    def of(
        cls,
        name_servers: str | Iterable[str] | None,
        *,
        access_key: str | None,
        secret_key: str | None,
        security_token: str | None,
        tls: bool | ClientTls | ssl.SSLContext,
        heartbeat_s: float,
    ) -> Self:
        """Raises BadConfig for what does not go together, or when no name server is given anywhere."""
        if name_servers is None:
            name_servers = os.environ.get(NAME_SERVERS, "")
        is_one = isinstance(name_servers, str) or not isinstance(name_servers, Iterable)
        texts: list[Any] = [name_servers] if is_one else list(name_servers)
        if not all(isinstance(each, str) for each in texts):
            raise BadConfig(
                f"expected name servers as text, host:port;host:port, or a list of them, found {name_servers!r}"
            )
        text = ";".join(texts)
        check_time("heartbeat_s", heartbeat_s)
        if not parse_name_servers(text):
            raise BadConfig(
                f"expected name servers as host:port;host:port, or in the environment's {NAME_SERVERS}, found neither"
            )
        if access_key is None and secret_key is None:
            access_key, secret_key = os.environ.get(ACCESS_KEY), os.environ.get(SECRET_KEY)
        if (access_key is None) != (secret_key is None):
            raise BadConfig("expected both access_key and secret_key, found one of them")
        credentials = None
        if access_key is not None and secret_key is not None:
            credentials = Credentials(access_key, secret_key, security_token)
        return cls(text, credentials, _tls_context(tls), heartbeat_s)


def check_time(option: str, seconds: float) -> None:
    """Raises BadConfig for what is no time to wait."""
    if not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise BadConfig(f"{option}: expected a number of seconds above 0, found {seconds!r}")


def _tls_context(tls: bool | ClientTls | ssl.SSLContext) -> ssl.SSLContext | None:
    """None: no TLS, which only False asks for. Raises BadConfig."""
    if isinstance(tls, ssl.SSLContext):
        return tls
    if isinstance(tls, bool):
        return ANY_SERVER.context() if tls else None
    if isinstance(tls, ClientTls):
        return tls.context()
    raise BadConfig(f"tls: expected True, a tiermq.client.ClientTls with certificates or an SSLContext, found {tls!r}")


class AsyncCluster:
    """A connection to a cluster, for asyncio. Made by `tiermq.aconnect`; belongs to the loop that enters it."""

    def __init__(self, connecting: Connecting) -> None:
        self._connecting = connecting
        self._session: Session | None = None
        self._members: list[AsyncProducer | AsyncConsumer | AsyncSimpleConsumer] = []
        self._trace: MessageTrace | None = None

    async def __aenter__(self) -> Self:
        self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def open(self) -> None:
        """On the loop."""
        if self._session is not None:
            raise RemotingError("expected a cluster that is not open, found it open: one block at a time")
        how = self._connecting
        client = ClusterClient(how.name_servers, credentials=how.credentials, tls=how.tls)
        self._session = Session(client, how.name_servers, heartbeat_s=how.heartbeat_s)
        self._session.start()

    async def close(self) -> None:
        """Close every member that is open, then all connections. Twice does no harm.

        Raises RemotingError in a handler of one of its consumers: it would wait for itself.
        """
        self.require_outside()
        session, self._session = self._session, None
        if session is None:
            return
        try:
            for member in reversed(self._members):
                await member.close()
            if self._trace is not None:
                await self._trace.close()
        finally:
            self._trace = None
            self._members.clear()
            await session.close()

    def __repr__(self) -> str:
        return f"AsyncCluster({self._connecting.name_servers!r}{'' if self._session is not None else ', closed'})"

    def require_outside(self) -> None:
        """Raises RemotingError in a handler of a consumer of this cluster. Any thread may call."""
        for member in tuple(self._members):
            if isinstance(member, AsyncConsumer):
                member.require_outside()

    def _traced(self) -> MessageTrace:
        if self._trace is None:
            producer = AsyncProducer(
                self.session,
                TRACE_GROUP,
                Preparation(_UNIQUE_KEYS.next_key, _CLOCK.now_ms, COMPRESSED_ABOVE_BYTES, Compression.ZLIB),
                check=None,
                room=Room(IN_FLIGHT_MAX, IN_FLIGHT_BYTES_MAX),
                timeout_s=REQUEST_S,
                patience_s=REQUEST_S,
            )
            self._trace = MessageTrace(self.session, producer)
        return self._trace

    def _add(self, member: AsyncProducer | AsyncConsumer | AsyncSimpleConsumer) -> None:
        """Those that are closed are forgotten: a program may make many."""
        self._members = [each for each in self._members if not each.is_closed]
        self._members.append(member)

    @property
    def session(self) -> Session:
        """Raises RemotingError when the cluster is not open."""
        if self._session is None:
            raise RemotingError("expected a cluster that is open, found it closed: use it inside its `with` block")
        return self._session

    @property
    def client_id(self) -> str:
        """By which brokers and operators know this client."""
        return self.session.client_id

    def producer(
        self,
        group: str,
        *,
        check: Check | None = None,
        timeout_s: float = REQUEST_S,
        patience_s: float = SEND_PATIENCE_S,
        max_in_flight: int = IN_FLIGHT_MAX,
        max_in_flight_bytes: int = IN_FLIGHT_BYTES_MAX,
        compress_above: int | None = COMPRESSED_ABOVE_BYTES,
        compression: str = "zlib",
        trace: bool = False,
    ) -> AsyncProducer:
        """A producer of a group.

        check: answers brokers that ask about transactions. timeout_s: of one try; patience_s: for how long a send is
        tried. max_in_flight, max_in_flight_bytes: sends beyond wait. compress_above: bodies above this size (None:
        none) are compressed by zlib, lz4 or zstd. trace: each send is recorded in RocketMQ's trace topic.
        Raises IllegalMessage for what is no group.
        """
        try:
            kind = Compression[compression.upper()]
        except (KeyError, AttributeError) as error:
            raise BadConfig(f"compression: expected zlib, lz4 or zstd, found {compression!r}") from error
        if check is not None and not callable(check):
            raise BadConfig(f"check: expected a function of one message, found {check!r}")
        check_time("timeout_s", timeout_s)
        if not patience_s >= 0:
            raise BadConfig(f"patience_s: expected a time of 0 or above, found {patience_s}")
        producer = AsyncProducer(
            self.session,
            group,
            Preparation(_UNIQUE_KEYS.next_key, _CLOCK.now_ms, compress_above, kind),
            check=check,
            room=Room(max_in_flight, max_in_flight_bytes),
            timeout_s=timeout_s,
            patience_s=patience_s,
            trace=self._traced() if trace else None,
        )
        self._add(producer)
        return producer

    def consumer(
        self,
        group: str,
        *,
        topic: str | None = None,
        topics: Mapping[str, str] | Iterable[str] | None = None,
        tags: str | None = None,
        sql: str | None = None,
        start: Start = "last",
        on_message: Handler | None = None,
        workers: int = WORKERS,
        ordered: bool = False,
        broadcast: bool = False,
        offsets_file: Path | str | None = None,
        auto_ack: bool = True,
        max_buffered: int = 1000,
        max_buffered_bytes: int = 64 << 20,
        max_attempts: int = 16,
        idle_s: float | None = None,
        trace: bool = False,
    ) -> AsyncConsumer:
        """A member of a consumer group; it joins when its block begins, and leaves when it ends.

        topic, with tags (`paid || open`) or sql (an SQL92 condition over properties); or several topics, each with its
        tags. start: where the group begins when it has no offsets. on_message: called for each message, by `workers`
        tasks or threads. ordered: one at a time from each queue. broadcast: this consumer gets every message, and keeps
        its offsets in offsets_file, if any. auto_ack=False: a message is done at its `ack`. idle_s: a loop over
        messages ends when none came for so long. max_attempts: deliveries of a message that fails, the first one
        counted, before it becomes a dead letter. trace: calls of on_message are recorded in RocketMQ's trace topic.
        Raises BadConfig, BadExpression and IllegalMessage.
        """
        version = _CLOCK.now_ms()
        if (topic is None) == (topics is None):
            raise BadConfig(f"group {group}: expected topic or topics, found {'both' if topic else 'neither'}")
        if topic is not None:
            wanted = [Subscription.of(topic, tags, sql, version)]
        else:
            if tags is not None or sql is not None:
                raise BadConfig("expected tags or sql with one topic; of several, each has its tags: {topic: tags}")
            if isinstance(topics, str):
                raise BadConfig(f"topics: expected a list, or tags by topic, found {topics!r}: give one with topic=")
            named = topics if isinstance(topics, Mapping) else dict.fromkeys(topics or ())
            if not named:
                raise BadConfig(f"group {group}: expected topics, found an empty list")
            wanted = [Subscription.of(each, its_tags, None, version) for each, its_tags in named.items()]
        if offsets_file is not None and not broadcast:
            raise BadConfig("offsets_file: expected a broadcasting consumer, found one whose offsets the broker keeps")
        if max_buffered < 1 or max_buffered_bytes < 1 or max_attempts < 1:
            raise BadConfig("expected max_buffered, max_buffered_bytes and max_attempts above 0")
        check_take(max_buffered, idle_s)
        if on_message is not None and not callable(on_message):
            raise BadConfig(f"on_message: expected a function of one message, found {on_message!r}")
        if trace:
            if on_message is None:
                raise BadConfig("trace: expected a consumer with on_message, whose work begins and ends, found none")
            on_message = self._traced().handling(group, on_message)
        settings = ConsumerSettings(
            start=checked_start(start),
            is_broadcast=broadcast,
            is_ordered=ordered,
            auto_ack=auto_ack,
            max_buffered=max_buffered,
            max_buffered_bytes=max_buffered_bytes,
            max_attempts=max_attempts,
            idle_s=idle_s,
            offsets=OffsetFile(offsets_file) if offsets_file is not None else None,
        )
        consumer = AsyncConsumer(self.session, group, wanted, settings, on_message=on_message, workers=workers)
        self._add(consumer)
        return consumer

    def simple_consumer(
        self,
        group: str,
        *,
        topic: str,
        tags: str | None = None,
        sql: str | None = None,
        invisible_s: float = 60.0,
        start: Literal["first", "last"] = "last",
    ) -> AsyncSimpleConsumer:
        """A consumer that pops messages, and acknowledges each in `invisible_s`. Raises BadConfig and BadExpression."""
        check_time("invisible_s", invisible_s)
        if start not in ("first", "last"):
            raise BadConfig(f"start: expected 'first' or 'last' of a simple consumer, found {start!r}")
        wanted = Subscription.of(topic, tags, sql, _CLOCK.now_ms())
        consumer = AsyncSimpleConsumer(self.session, group, wanted, invisible_s=invisible_s, start=start)
        self._add(consumer)
        return consumer

    async def create_topic(self, topic: str, queues: int = 4, **settings: Any) -> None:
        """Create or change a topic at every broker. Returns when clients can find it."""
        await self.session.client.create_topic(topic, queues, **settings)


_CLOCK = SystemClock()
_UNIQUE_KEYS = UniqueKeyGenerator()
"""One of a process: the keys of all its producers differ."""


def aconnect(
    name_servers: str | Iterable[str] | None = None,
    *,
    access_key: str | None = None,
    secret_key: str | None = None,
    security_token: str | None = None,
    tls: bool | ClientTls | ssl.SSLContext = False,
    heartbeat_s: float = HEARTBEAT_S,
) -> AsyncCluster:
    """A cluster of TierMQ or RocketMQ brokers, for `async with`.

    name_servers: `host:port;host:port` or a list; without any, the environment's NAMESRV_ADDR. access_key, secret_key:
    of an account, else the environment's ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY. tls: True for any server, a
    `ClientTls` with certificates, or an SSLContext. heartbeat_s: how often brokers hear of this client. Raises
    BadConfig.
    """
    return AsyncCluster(
        Connecting.of(
            name_servers,
            access_key=access_key,
            secret_key=secret_key,
            security_token=security_token,
            tls=tls,
            heartbeat_s=heartbeat_s,
        )
    )
