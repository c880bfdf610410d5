"""Registration: registers this broker and its topics at name servers of TierMQ or RocketMQ.

Each name server gets the whole topic table at the start, after each lost connection and every 30 s, and between
those only what has changed, at once. A name server that refuses a change (it was restarted and has never seen the
whole) gets the whole. One that cannot be reached is tried again, first after a second, later every 30 s.

    per name server:   connect ─► whole ─► wait for a change, the period, or the end ─► changes, or whole ─► …
                          ▲                                                               │ lost, refused
                          └────────────────────────── rest ◄──────────────────────────────┘

Invariants: name servers never wait for each other, and the broker for none of them: everything here happens in one
thread with a loop of its own, and `topics_changed` only sets a flag. Admin requests can wait until a change is
known (`wait_accepted`), for a while, and never for a name server that is away. `stop` takes the broker off every name
server that can be reached, and does not wait longer than the request timeout for one that cannot.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tiermq.errors import RemotingError, RequestRefused
from tiermq.namesrv.topic_config import DataVersion, TopicConfig, body_checksum, encode_register_body
from tiermq.remoting.client import NOT_A_NAME_SERVER, Address, RemotingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_dialect import decode_object, text_map_in
from tiermq.remoting.loop_thread import LoopThread
from tiermq.remoting.permissions import Credentials

_log = logging.getLogger(__name__)

PERIOD_S = 30.0
TIMEOUT_S = 6.0
REST_FIRST_S = 1.0
BEGIN_LOOK_S = 0.005
PART_TOPICS = 5_000
"""Topics of one request."""
OrderTopics = Callable[[Mapping[str, str]], None]
OnMaster = Callable[[str, str], None]
"""(HA address, address) of a slave's master, as a name server knows it; either may be empty."""


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """The whole topic table, and a version: what it shows is of that version or newer. It may change while it is read,
    so it is read with single calls."""

    topics: Mapping[str, TopicConfig]
    data_version: DataVersion


class TopicSource(Protocol):
    """The source of topics: the broker's topic table. Called in the registration's thread."""

    def registration_snapshot(self) -> TopicSnapshot: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdentity:
    """The broker's identity. `address` is what clients connect to; `timeout_ms` None is the name server's default."""

    cluster: str
    name: str
    address: str
    broker_id: int = 0
    ha_address: str = ""
    timeout_ms: int | None = None
    acting_master: bool = False
    """Whether slaves of this broker's set act for its master."""

    def ext(self) -> dict[str, str]:
        """The identity as fields of a request."""
        return {
            "brokerAddr": self.address,
            "brokerId": str(self.broker_id),
            "brokerName": self.name,
            "clusterName": self.cluster,
        }


@dataclass(frozen=True, slots=True)
class NameServerStatus:
    """The registration state of one name server."""

    address: str
    is_registered: bool
    accepted_count: int
    failed_count: int
    last_error: str | None


class BrokerRegistration:
    """See the module. `start` and `stop` are called by one thread, the rest by any."""

    def __init__(
        self,
        identity: BrokerIdentity,
        source: TopicSource,
        name_servers: Sequence[Address],
        *,
        period_s: float = PERIOD_S,
        timeout_s: float = TIMEOUT_S,
        rest_first_s: float = REST_FIRST_S,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
        on_order_topics: OrderTopics | None = None,
        on_master: OnMaster | None = None,
        may_begin: Callable[[], bool] | None = None,
    ) -> None:
        """`may_begin`: nothing is registered before it returned True; a broker that is registered stays so."""
        self.identity = identity
        self.source = source
        self.period_s = period_s
        self.timeout_s = timeout_s
        self.rest_first_s = rest_first_s
        self.credentials = credentials
        self.tls = tls
        self.on_order_topics = on_order_topics
        self.on_master = on_master
        self.may_begin = may_begin
        self._sessions = [_Session(self, address) for address in name_servers]
        self._thread: LoopThread | None = None
        self._changed: set[str] = set()
        self._note_is_left = False
        self._notes = 0
        self._lock = threading.Lock()
        self._went_on = threading.Condition(self._lock)
        self._registered = threading.Event()

    def start(self) -> None:
        """Begin, and return at once."""
        if self._sessions and self._thread is None:
            self._thread = LoopThread("broker-registration")
            for session in self._sessions:
                self._thread.call(session.start)

    def stop(self) -> None:
        """Unregister everywhere and end the thread. Twice does no harm."""
        thread, self._thread = self._thread, None
        self.went_on()
        if thread is not None:
            thread.run(self._end())
            thread.stop()

    async def _end(self) -> None:
        await asyncio.gather(*(session.end() for session in self._sessions))

    def topics_changed(self, names: Iterable[str]) -> None:
        """These topics were created, changed or deleted. Sets a flag; a burst of calls becomes one request."""
        thread = self._thread
        if thread is None:
            return
        with self._lock:
            self._changed.update(names)
            self._notes += 1
            if self._note_is_left or not self._changed:
                return
            self._note_is_left = True
        try:
            thread.loop.call_soon_threadsafe(self._hand_over)
        except RuntimeError:  # The loop was closed meanwhile: the broker stops, and no registration is needed.
            _log.debug("a change of topics came after the end of the registration")

    def _hand_over(self) -> None:
        with self._lock:
            names, self._changed, self._note_is_left = self._changed, set(), False
            notes = self._notes
        for session in self._sessions:
            session.topics_changed(names, notes)

    def wait_accepted(self, timeout_s: float) -> bool:
        """Wait until every name server that knows the broker has accepted what was changed before this call, or is
        lost; False when the time was over first.
        """
        with self._went_on:
            notes = self._notes
            return self._went_on.wait_for(
                lambda: self._thread is None or not any(session.owes(notes) for session in self._sessions), timeout_s
            )

    def went_on(self) -> None:
        """Something was accepted, or a name server lost: waiting threads check again."""
        with self._went_on:
            self._went_on.notify_all()

    def wait_registered(self, timeout_s: float | None = None) -> bool:
        """Wait until some name server has accepted the whole table; False when the time was over first."""
        return self._registered.wait(timeout_s)

    def status(self) -> list[NameServerStatus]:
        return [session.status() for session in self._sessions]

    def accepted(self, answer: RemotingCommand) -> None:
        """A whole registration was accepted; the name server may have sent the ordered topics, and a slave's master."""
        self._registered.set()
        if self.on_master is not None:
            self.on_master(answer.ext.get("haServerAddr") or "", answer.ext.get("masterAddr") or "")
        if self.on_order_topics is not None and len(answer.body):
            table = decode_object(answer.body).get("table")
            self.on_order_topics(text_map_in({} if table is None else table, "ORDER_TOPIC_CONFIG"))


class _Session:
    """One name server. Everything happens on the registration's loop."""

    def __init__(self, owner: BrokerRegistration, address: Address) -> None:
        self._owner = owner
        self._address = address
        self._client: RemotingClient | None = None
        self._changed: set[str] = set()
        self._noted = 0  # How many notes of changes have come here, and how many of them were accepted.
        self._accepted_notes = 0
        self._is_registered = False
        self._is_underway = False
        self._version: DataVersion | None = None
        self._accepted_count = 0
        self._failed_count = 0
        self._failures_in_row = 0
        self._last_error: str | None = None
        self._news: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None

    def __str__(self) -> str:
        return f"name server {self._address[0]}:{self._address[1]}"

    def status(self) -> NameServerStatus:
        address = f"{self._address[0]}:{self._address[1]}"
        return NameServerStatus(
            address, self._is_registered, self._accepted_count, self._failed_count, self._last_error
        )

    def start(self) -> None:
        self._news = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def topics_changed(self, names: set[str], notes: int) -> None:
        self._changed |= names
        self._noted = notes
        if self._news is not None and self._is_registered:
            self._news.set()

    def owes(self, notes: int) -> bool:
        """Whether the name server will still get changes up to this number. Any thread may call."""
        return (self._is_registered or self._is_underway) and self._accepted_notes < notes

    async def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._client is not None:
            try:
                if self._is_registered and self._client.is_open:
                    request = RemotingCommand(RequestCode.UNREGISTER_BROKER, ext=self._owner.identity.ext())
                    await self._client.request(request, self._owner.timeout_s)
            except RemotingError as error:
                _log.info("%s: the broker could not be unregistered: %s", self, error)
            self._is_registered = False
            await self._drop_client()

    async def _run(self) -> None:
        while self._owner.may_begin is not None and not self._owner.may_begin():
            await asyncio.sleep(BEGIN_LOOK_S)
        while True:
            try:
                await self._register()
                rest_s = self._owner.period_s
            except RemotingError as error:
                rest_s = await self._failed(error)
            except Exception as error:  # noqa: BLE001 - the task's outermost edge: logged, counted, tried again
                _log.exception("%s: the registration failed", self)
                rest_s = await self._failed(error)
            await self._rest(rest_s)

    async def _register(self) -> None:
        """Send what is due: changes if the name server knows this broker, else the whole table."""
        await self._connected()
        self._is_underway = True  # From before the snapshot: a name server may soon know less than the broker.
        try:
            await self._register_connected()
        finally:
            self._is_underway = False

    async def _register_connected(self) -> None:
        changed, self._changed = self._changed, set()
        noted = self._noted
        snapshot = self._owner.source.registration_snapshot()
        if changed and self._is_registered and len(changed) <= PART_TOPICS:
            some = [topic for name in sorted(changed) if (topic := snapshot.topics.get(name)) is not None]
            if len(some) == len(changed):
                answer = await self._send(some, snapshot.data_version)
                if answer.code == ResponseCode.SUCCESS:
                    self._succeeded(noted, snapshot.data_version)
                    return
        answer = await self._send_whole(list(snapshot.topics.values()), snapshot.data_version)
        self._succeeded(noted, snapshot.data_version)
        self._owner.accepted(answer)

    async def _send_whole(self, topics: list[TopicConfig], version: DataVersion) -> RemotingCommand:
        """In parts: fifty thousand topics at once would hold a name server up, and exceed a frame before long. What
        comes behind the first part is a change to it. A lone topic could not be distinguished from a change, and joins
        the part before it. A name server takes topics that it has only from a version that it has not, so each part
        brings one of its own, and the last the true one; unless it knows that one, then nothing has changed but what it
        lost.
        """
        begins = list(range(0, max(1, len(topics) - 1), PART_TOPICS))
        is_known = self._is_registered and self._version == version
        answer: RemotingCommand | None = None
        for begin, end in zip(begins, [*begins[1:], len(topics)], strict=True):
            left = 0 if is_known else (begins[-1] - begin) // PART_TOPICS
            answer = await self._send(topics[begin:end], replace(version, timestamp=version.timestamp - left))
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise RequestRefused(f"{self}: {NOT_A_NAME_SERVER}")
            if answer.code != ResponseCode.SUCCESS:
                raise RequestRefused(f"{self}: refused the registration with {int(answer.code)}: {answer.remark}")
        assert answer is not None
        return answer

    async def _send(self, topics: Iterable[TopicConfig], version: DataVersion) -> RemotingCommand:
        client = await self._connected()
        identity = self._owner.identity
        body = encode_register_body(topics, version)
        timeout = {} if identity.timeout_ms is None else {"heartbeatTimeoutMillis": str(identity.timeout_ms)}
        ext = {
            **identity.ext(),
            **timeout,
            "bodyCrc32": str(body_checksum(body)),
            "compressed": "false",
            "enableActingMaster": str(identity.acting_master).lower(),
            "haServerAddr": identity.ha_address,
        }
        return await client.request(
            RemotingCommand(RequestCode.REGISTER_BROKER, ext=ext, body=body), self._owner.timeout_s
        )

    async def _connected(self) -> RemotingClient:
        if self._client is None or not self._client.is_open:
            await self._drop_client()
            owner = self._owner
            self._client = await RemotingClient.connect(
                *self._address, tls=owner.tls, credentials=owner.credentials, timeout_s=owner.timeout_s
            )
        return self._client

    async def _drop_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _succeeded(self, noted: int, version: DataVersion) -> None:
        self._version = version
        if not self._is_registered:
            _log.info("%s: registered", self)
        self._is_registered = True
        self._accepted_notes = noted
        self._accepted_count += 1
        self._failures_in_row = 0
        self._last_error = None
        self._owner.went_on()

    def _lost(self) -> None:
        self._is_registered = False
        self._owner.went_on()

    async def _failed(self, error: Exception) -> float:
        """Record the failure, and return the delay. It is logged once, not every 30 s."""
        if self._failures_in_row == 0:
            _log.warning("%s: the registration failed, retrying: %s", self, error)
        self._lost()
        self._failed_count += 1
        self._failures_in_row += 1
        self._last_error = str(error)
        await self._drop_client()
        return float(min(self._owner.rest_first_s * 2 ** min(self._failures_in_row - 1, 16), self._owner.period_s))

    async def _rest(self, rest_s: float) -> None:
        """Until the time is over, topics have changed, or the connection has ended."""
        assert self._news is not None
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._news.wait())]
        if self._client is not None:
            waits.append(asyncio.ensure_future(self._client.wait_closed()))
        try:
            if not (self._is_registered and self._changed):
                await asyncio.wait(waits, timeout=rest_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        self._news.clear()
        if self._client is not None and not self._client.is_open:
            # It has forgotten us: the next word must be the whole, not what has changed.
            self._lost()
            await asyncio.sleep(self._owner.rest_first_s)
