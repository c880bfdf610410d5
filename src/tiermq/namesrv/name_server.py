"""NameServer: the process that clients ask first. Alone, or beside a broker in one process.

    server = NameServer(NameServerConfig(listen_port=9876))
    server.start()                  # a thread and a loop of its own
    ...
    server.stop()

On a loop that runs already: `await server.open()` and `await server.close()`.

Every `scanNotActiveBrokerInterval` brokers that were silent for too long are dropped and their connections closed.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from types import TracebackType
from typing import Self

from tiermq.clock import Clock, SystemClock
from tiermq.errors import RemotingError
from tiermq.namesrv.kv_config import KvConfig
from tiermq.namesrv.name_processor import NameProcessor
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.namesrv.route_table import RouteTable
from tiermq.remoting.connection import Connection
from tiermq.remoting.limits import ServerLimits
from tiermq.remoting.loop_thread import LoopThread
from tiermq.remoting.server import DRAIN_S, AccessCheck, RemotingServer
from tiermq.remoting.tls import TlsSettings

_log = logging.getLogger(__name__)


class NameServer:
    """See the module. Started and stopped once, by one thread."""

    def __init__(
        self,
        config: NameServerConfig | None = None,
        *,
        clock: Clock | None = None,
        tls: TlsSettings | None = None,
        acl: AccessCheck | None = None,
        limits: ServerLimits | None = None,
    ) -> None:
        """Reads the key-value file. Raises StoreDamaged when it cannot be read."""
        self.config = config or NameServerConfig()
        self.clock = clock or SystemClock()
        self.kv = KvConfig(self.config.kv_config_path)
        self.table = RouteTable(
            self.clock,
            delete_missing_topics=self.config.delete_topic_with_broker_registration,
            support_acting_master=self.config.support_acting_master,
        )
        self.server = RemotingServer(
            self.config.bind_address, self.config.listen_port, limits=limits, tls=tls, acl=acl, clock=self.clock
        )
        self.processor = NameProcessor(self.config, self.table, self.kv)
        self.processor.serve_at(self.server)
        self._scanner: asyncio.TimerHandle | None = None
        self._thread: LoopThread | None = None

    @property
    def port(self) -> int:
        """The real one, once it was started."""
        return self.server.port

    # On a loop of its own.

    def start(self) -> None:
        """Listen, in a separate thread. Raises OSError when the address cannot be bound."""
        if self._thread is not None:
            raise RemotingError("expected a name server that was not started, found one that was: make another")
        self._thread = LoopThread("namesrv-loop")
        try:
            self._thread.run(self.open())
        except BaseException:
            self._thread.stop()
            raise

    def stop(self, drain_s: float = DRAIN_S) -> None:
        """Answer what was asked, close every connection, end the thread. Twice does no harm."""
        if self._thread is not None and self._thread.is_running:
            self._thread.run(self.close(drain_s))
            self._thread.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # On the caller's loop.

    async def open(self) -> None:
        """Listen, on the running loop. Raises OSError when the address cannot be had."""
        await self.server.start()
        self.processor.config = replace(self.processor.config, listen_port=self.port)
        self._rest_and_scan()

    async def close(self, drain_s: float = DRAIN_S) -> None:
        if self._scanner is not None:
            self._scanner.cancel()
            self._scanner = None
        await self.server.stop(drain_s)

    # Silent brokers.

    def scan(self) -> int:
        """Drop brokers that were silent for too long; returns their number. On the loop's thread."""
        expired = self.table.expire()
        for name, address, channel in expired:
            _log.warning("broker %s at %s: unregistered, since it was silent for too long", name, address)
            if isinstance(channel, Connection):
                channel.close()
        self.processor.notify_min_ids()
        self.processor.sweep()
        return len(expired)

    def _rest_and_scan(self) -> None:
        self.scan()
        interval_s = self.processor.config.scan_not_active_broker_interval / 1000
        self._scanner = self.server.loop.call_later(interval_s, self._rest_and_scan)
