"""Controller: the process that elects the masters of broker sets. Any number of them may share one state.

    controller = Controller(ControllerConfig(listen_port=9878), driver)
    controller.start()              # a thread and a loop of its own
    ...
    controller.stop()

    heartbeats ─► Heartbeats (this process)  ─┐
    requests   ─► ControllerProcessor ────────┴─► broker_set.py (pure) ─► SetStore ─► one object per set
    a broker is lost, or a scan ─► election ─► 1008 to the living brokers of the set

Controllers do not know each other. Each decides on the state that it reads and on the heartbeats that it hears, and
writes by compare-and-set: of two elections at once one is stored, and the other controller reads that one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import Any, ClassVar

from tiermq.clock import Clock, SystemClock
from tiermq.controller.broker_set import BrokerSet
from tiermq.controller.controller_config import ControllerConfig
from tiermq.controller.controller_processor import ControllerProcessor, role_change
from tiermq.controller.heartbeats import LISTEN_S, Heartbeats, SetKey
from tiermq.controller.set_store import SetStore
from tiermq.errors import BadConfig, PeerGone, RequestRefused
from tiermq.remoting.client import RemotingClient, parse_name_servers
from tiermq.remoting.codes import ResponseCode
from tiermq.remoting.connection import AccessCheck, Connection
from tiermq.remoting.permissions import Credentials
from tiermq.remoting.server import DRAIN_S, RemotingServer, ThreadedServer
from tiermq.remoting.tls import TlsMode, TlsSettings
from tiermq.tier.driver.contract import TierDriver

_log = logging.getLogger(__name__)

NOTIFY_TIMEOUT_S = 3.0
LATE_S = LISTEN_S / 2
"""A scan that comes this much later than planned: the process was suspended."""


class Controller(ThreadedServer):
    """See the module."""

    NAME: ClassVar[str] = "controller"
    LOOP_THREAD: ClassVar[str] = "controller-loop"

    def __init__(
        self,
        config: ControllerConfig,
        driver: TierDriver,
        *,
        clock: Clock | None = None,
        tls: TlsSettings | None = None,
        acl: AccessCheck | None = None,
        credentials: Credentials | None = None,
        identity: str = "",
    ) -> None:
        """`credentials` sign notifications of brokers, which go by TLS if `tls` enforces it. The driver stays its
        owner's.
        """
        self.clock = clock or SystemClock()
        self.heartbeats = Heartbeats(self.clock)
        super().__init__(RemotingServer(config.bind_address, config.listen_port, tls=tls, acl=acl, clock=self.clock))
        identity = identity or f"{socket.gethostname()}-{os.getpid()}"
        self.processor = ControllerProcessor(config, identity, self.heartbeats, SetStore(driver, identity))
        self.processor.on_elected = self._elected
        self.server.serve(self.processor)
        self.server.on_close.append(self._connection_closed)
        self._credentials = credentials
        self._brokers_tls = tls.client_context() if tls is not None and tls.mode is TlsMode.ENFORCING else None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._notifying: set[asyncio.Task[None]] = set()
        self._electing: set[str] = set()
        self.scanned_s = 0.0
        """When it last looked for silent brokers, by the monotonic clock."""
        self._is_ending = False

    async def open(self) -> None:
        await self.server.start()
        self.scanned_s = self.clock.monotonic()
        self._expire()
        self._scan()

    async def close(self, drain_s: float = DRAIN_S) -> None:
        self._is_ending = True  # Connections that this end closes say nothing about the brokers.
        for timer in self._timers.values():
            timer.cancel()
        await self.server.stop(drain_s)
        for task in self._notifying:
            task.cancel()
        await asyncio.gather(*self._notifying, return_exceptions=True)

    # Brokers that are lost. On the loop.

    def _connection_closed(self, connection: Connection) -> None:
        for broker in [] if self._is_ending else self.heartbeats.closed(connection):
            _log.warning("broker %d of set %s: its connection ended", broker.id, broker.set.name)
            self._look_at(broker.set)

    def _expire(self) -> None:
        interval_s = self.processor.config.scan_not_active_broker_interval / 1000
        now_s = self.clock.monotonic()
        if now_s - self.scanned_s > interval_s + LATE_S:
            _log.warning("no scan for %.0f s, this process was suspended: it listens again", now_s - self.scanned_s)
            self.heartbeats.listen_again()
        self.scanned_s = now_s
        for broker, connection in self.heartbeats.expire():
            _log.warning("broker %d of set %s: no heartbeat for too long", broker.id, broker.set.name)
            if isinstance(connection, Connection):
                connection.close()
            self._look_at(broker.set)
        self._timers["expire"] = self.server.loop.call_later(interval_s, self._expire)

    def _scan(self) -> None:
        """Look at every set of a living broker: another controller may have given it a master that is lost here."""
        for key in self.heartbeats.sets():
            self._look_at(key)
        interval_s = self.processor.config.scan_inactive_master_interval / 1000
        self._timers["scan"] = self.server.loop.call_later(interval_s, self._scan)

    def _look_at(self, key: SetKey) -> None:
        """Elect another master if that of the set is gone; one election of a set at a time."""
        if key.name in self._electing:
            return

        def work() -> None:
            state = self.processor.sets.read(key.name)
            if state is None or state.master is None or state.cluster != key.cluster:
                return
            if self.heartbeats.lives(key).is_gone(state.master):
                outcome = self.processor.elect(key.name)
                if outcome.code not in (ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST):
                    _log.warning("%s", outcome.remark)

        def done(_result: Any, failure: Exception | None) -> None:
            self._electing.discard(key.name)
            if isinstance(failure, RequestRefused):
                _log.warning("broker set %s: its master cannot be looked at: %s", key.name, failure)
            elif failure is not None:
                _log.error("broker set %s: looking at its master failed", key.name, exc_info=failure)

        try:
            self.server.run_in_pool(work, done)
        except RequestRefused as error:
            _log.warning("broker set %s: looked at by the next scan: %s", key.name, error)
        else:
            self._electing.add(key.name)

    # Notifications.

    def _elected(self, state: BrokerSet) -> None:
        """In any thread."""
        if self.processor.config.notify_broker_role_changed:
            self.server.call_threadsafe(self._notify, state)

    def _notify(self, state: BrokerSet) -> None:
        alive = self.heartbeats.lives(SetKey(state.cluster, state.name)).alive
        for broker, member in state.members.items():
            if (broker in alive or broker == state.master) and not self._is_ending:
                task = self.server.loop.create_task(self._notify_one(broker, member.address, state))
                self._notifying.add(task)
                task.add_done_callback(self._notifying.discard)

    async def _notify_one(self, broker: int, address: str, state: BrokerSet) -> None:
        """Brokers that miss it find the new master at their next poll."""
        try:
            (host, port), *_ = parse_name_servers(address)
            client = await RemotingClient.connect(
                host, port, tls=self._brokers_tls, credentials=self._credentials, timeout_s=NOTIFY_TIMEOUT_S
            )
            client.oneway(role_change(state))
            await client.close()
        except (PeerGone, BadConfig, ValueError) as error:
            _log.warning("broker %d of set %s at %s: not notified: %s", broker, state.name, address, error)
