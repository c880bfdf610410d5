"""LocalBroker: a broker and its name server in this process, on free ports of loopback, with a clock that can be moved.

    with LocalBroker(directory) as broker:
        broker.create_topic("orders", queues=2)
        client_under_test(broker.name_server)
        assert [message.body for message in broker.messages("orders")] == [b"paid"]
        broker.advance(hours=2)                 # the delayed are due, the expired expire
        broker.restart()                        # the same ports, the same store

It is the real broker: real sockets, real files in `directory`, every client works. Invariants: ports stay the same for
the object's life; clients are not dropped for being silent, however far the clock is moved (a test moves it while its
clients are connected). Started and stopped by one thread.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from copy import copy
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig, FastListenPort
from tiermq.broker.listen_address import bound_socket
from tiermq.broker.send.send_checks import Destination, stored_destination
from tiermq.clock import Clock, SystemClock
from tiermq.errors import BadConfig, RemotingError, RequestRefused, StoreError
from tiermq.kernel import Message
from tiermq.message.crc import body_crc
from tiermq.message.hosts import LOOPBACK
from tiermq.message.stored_message import StoredMessage
from tiermq.message.system_flag import is_compressed, without_compression
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_dialect import decode_object
from tiermq.remoting.limits import ServerLimits
from tiermq.settings import INT_MAX, settings_of


class MovableClock:
    """The machine's clock, and as far ahead of it as a test has moved it.

    It advances with real time, since clients measure real time: a long poll that never ended would make them
    reconnect. Invariants: it never goes back; wall time and monotonic time are moved together.

    A `tiermq.clock.Clock`. Any thread may read it and move it.
    """

    __slots__ = ("_ahead_ms", "_base", "_lock")

    def __init__(self, base: Clock | None = None) -> None:
        self._base = base or SystemClock()
        self._ahead_ms = 0
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        return self._base.now_ms() + self._ahead_ms

    def monotonic(self) -> float:
        return self._base.monotonic() + self._ahead_ms / 1000

    @property
    def ahead(self) -> timedelta:
        """The distance it was moved."""
        return timedelta(milliseconds=self._ahead_ms)

    def advance(self, by: timedelta | float) -> None:
        """Move it ahead, by seconds if a number is given. Raises ValueError for a step back."""
        seconds = by.total_seconds() if isinstance(by, timedelta) else by
        if seconds < 0:
            raise ValueError(f"expected a step ahead, found one of {seconds} s: a clock of a broker never goes back")
        with self._lock:
            self._ahead_ms += round(seconds * 1000)


SMALL: Mapping[str, Any] = {
    "mapped_file_size_commit_log": 4 * 1024 * 1024,
    "mapped_file_size_consume_queue": 20 * 5_000,
    "max_hash_slot_num": 5_000,
    "max_index_num": 20_000,
}
"""Files of a size that a test can afford; `settings` win over it."""
NEVER_S = 10 * 365 * 86_400.0
LOOK_S = 0.002
REGISTERED_S = 60.0


class LocalBroker:
    """See the module."""

    def __init__(self, directory: str | os.PathLike[str], *, tier: str | None = None, **settings: Any) -> None:
        """`settings` are those of the broker and of its store, by RocketMQ's names in snake_case. Nothing is started.

        Raises BadConfig for a setting that neither has.
        """
        self.directory = os.fspath(directory)
        self.clock = MovableClock()
        self._tier = tier
        names = settings_of(BrokerConfig).keys()
        wanted = {
            "bind_address": LOOPBACK,
            "broker_name": "broker-a",
            "channel_expired_timeout": INT_MAX,
            "fast_listen_port": FastListenPort.OFF,  # Another test's port may be two below,
            "ha_listen_port": 0,  # or one above: this broker would take it, or have no HA port.
            "listen_port": 0,
        }
        self._config = BrokerConfig(**{**wanted, **{name: settings[name] for name in names & settings.keys()}})
        self._store_settings = {**SMALL, **{name: settings[name] for name in settings.keys() - names}}
        self._name_server: NameServer | None = None
        self._broker: Broker | None = None
        self._port: socket.socket | None = None

    # Life.

    def start(self) -> None:
        """Returns when clients can find the broker. Raises what opening the store raises."""
        if self._broker is not None:
            raise RemotingError("expected a broker that is stopped, found it running: stop it first")
        limits = ServerLimits(idle_s=NEVER_S)
        if self._name_server is None:
            # On the machine's own clock: a broker must not expire there because a test has moved time.
            self._name_server = NameServer(
                NameServerConfig(bind_address=LOOPBACK, listen_port=0, kv_config_path=""), limits=limits
            )
            self._name_server.start()
        self._keep_port()
        self._config = self._config.with_settings(namesrv_addr=self.name_server)
        broker = Broker.open(
            self.directory, tier=self._tier, config=self._config, clock=self.clock, limits=limits,
            **self._store_settings,
        )  # fmt: skip
        try:
            broker.start()
        except BaseException:
            broker.stop()
            raise
        self._broker = broker
        self._config = self._config.with_settings(listen_port=broker.port)
        registration = broker.registration
        if registration is None or not registration.wait_registered(REGISTERED_S):
            raise RemotingError(f"expected the broker registered at {self.name_server}, found it not within 60 s")

    def _keep_port(self) -> None:
        """Bind the broker's port as long as this object runs, or another program may have it after a restart: another
        process that binds any port, or a reconnecting client of this one.

        Linux lets two sockets be bound to a port while only one of them listens, and does not assign the port again.
        """
        if self._port is None and sys.platform == "linux":
            self._port = bound_socket(self._config.bind_address, self._config.listen_port)
            self._config = self._config.with_settings(listen_port=self._port.getsockname()[1])

    def stop(self) -> None:
        """End the broker cleanly, and the name server. Twice does no harm."""
        self._stop_broker()
        port, self._port = self._port, None
        if port is not None:
            port.close()
        name_server, self._name_server = self._name_server, None
        if name_server is not None:
            name_server.stop(0.0)

    def restart(self) -> None:
        """End the broker cleanly and start it again, at the same address. The name server keeps running."""
        self._stop_broker()
        self.start()

    def _stop_broker(self) -> None:
        broker, self._broker = self._broker, None
        if broker is not None:
            broker.stop()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # Where it is.

    @property
    def name_server(self) -> str:
        """The address for clients: host:port."""
        if self._name_server is None:
            raise RemotingError("expected a broker that was started, found one that was not: call start()")
        return f"{LOOPBACK}:{self._name_server.port}"

    @property
    def address(self) -> str:
        """The broker's own host:port."""
        return self.broker.address

    @property
    def broker(self) -> Broker:
        """All of it, for what is not made easy here."""
        if self._broker is None:
            raise RemotingError("expected a broker that runs, found it stopped: call start()")
        return self._broker

    # Time.

    def advance(self, **by: float) -> None:
        """Move the broker's clock: `advance(minutes=30)`, by the names of `datetime.timedelta`.

        What is due then follows within a moment, by the broker's own threads: wait for what you expect.
        """
        self.clock.advance(timedelta(**by))

    # Messages.

    def create_topic(self, name: str, queues: int = 4) -> None:
        """Make a topic, or change how many queues it has. Clients can find it when this returns."""
        self.broker.parts.topics.put(TopicConfig(name, queues, queues))
        self._wait_for_route(name, queues)

    def _wait_for_route(self, topic: str, queues: int) -> None:
        """Wait until the name server has this number: the broker registers in a separate thread."""
        host, _, port = self.name_server.rpartition(":")
        asked = {"topic": topic}
        with BlockingClient(host, int(port), timeout_s=REGISTERED_S) as client:
            while True:
                answer = client.request(RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=asked))
                rows = decode_object(answer.body).get("queueDatas") if answer.code == ResponseCode.SUCCESS else None
                if rows and rows[0].get("readQueueNums") == queues:
                    return
                time.sleep(LOOK_S)  # The processor is the registering thread's meanwhile.

    def send(
        self,
        topic: str,
        body: bytes,
        queue_id: int = 0,
        *,
        tags: str = "",
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> StoredMessage:
        """Store a message as if a producer had sent it, and return it as stored. The topic is created if needed, and
        clients can find it when this returns. With the property DELAY (a level), or a timer's, it waits as one that was
        sent does: what is returned is the record that waits, and `advance` makes it due.

        Raises StoreError when the store refuses it, and IllegalMessage for values that no message can have.
        """
        parts = self.broker.parts
        if parts.topics.get(topic) is None:
            made = parts.topics.make(topic, max(queue_id + 1, 4), max(queue_id + 1, 4))
            self._wait_for_route(topic, made.read_queues)
        message = Message(topic, body, queue_id, tags=tags, keys=keys, properties=dict(properties or {}))
        place = self._place_of(message)
        if place.topic != topic:
            message = Message(place.topic, body, place.queue_id, encoded_properties=place.properties)
        result = parts.local.put(message)
        if not result.ok:
            raise StoreError(f"topic {topic}: expected the message stored, found {result.status.name}")
        parts.local.dispatch_now()
        [stored] = parts.store.get(place.topic, place.queue_id, result.queue_offset, max_messages=1).messages
        return stored

    def _place_of(self, message: Message) -> Destination:
        """Where the broker stores it now. Raises StoreError."""
        parts = self.broker.parts
        levels = len(parts.local.config.delay_levels_ms)
        destination = Destination(message.topic, message.queue_id, message.encoded_properties)
        try:
            return stored_destination(destination, message.sys_flag, levels, parts.timers)
        except RequestRefused as error:
            raise StoreError(f"topic {message.topic}: expected a delay that this broker keeps: {error}") from error

    def messages(self, topic: str, queue_id: int | None = None, *, as_stored: bool = False) -> list[StoredMessage]:
        """The stored messages of a topic, queue by queue in order, with the bodies that their producers sent; [] for an
        unknown topic. as_stored: bodies that a client has compressed stay so. Raises CorruptRecord for a body that
        cannot be decompressed.
        """
        parts = self.broker.parts
        parts.local.dispatch_now()
        queues = sorted(parts.local.topics().get(topic, [])) if queue_id is None else [queue_id]
        found: list[StoredMessage] = []
        for queue in queues:
            offset = max(0, parts.store.min_offset(topic, queue))
            while (page := parts.store.get(topic, queue, offset, max_messages=1_000)).count:
                found += page.messages
                offset = page.next_offset
        return found if as_stored else [_as_sent(each) for each in found]

    def committed_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """A consumer group's offset in a queue; None if it has committed none."""
        offset = self.broker.parts.offsets.query(group, topic, queue_id)
        return None if offset < 0 else offset


def _as_sent(message: StoredMessage) -> StoredMessage:
    if not is_compressed(message.sys_flag):
        return message
    sent = copy(message)
    sent.body = message.decompressed_body()
    sent.body_crc = body_crc(sent.body)
    sent.sys_flag = without_compression(message.sys_flag)
    return sent


def check_settings(settings: object) -> dict[str, Any]:
    """The broker settings of a test. Raises BadConfig for anything but a dictionary by name."""
    if not isinstance(settings, dict) or not all(isinstance(name, str) for name in settings):
        raise BadConfig(f"tiermq_broker_settings: expected a dictionary of settings by name, found {settings!r}")
    return dict(settings)
