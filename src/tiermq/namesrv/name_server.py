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
from typing import ClassVar

from tiermq.clock import Clock, SystemClock
from tiermq.namesrv.kv_config import KvConfig
from tiermq.namesrv.name_processor import NameProcessor
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.namesrv.route_table import RouteTable
from tiermq.remoting.connection import AccessCheck, Connection
from tiermq.remoting.limits import ServerLimits
from tiermq.remoting.server import DRAIN_S, RemotingServer, ThreadedServer
from tiermq.remoting.tls import TlsSettings

_log = logging.getLogger(__name__)


class NameServer(ThreadedServer):
    """See the module."""

    NAME: ClassVar[str] = "name server"
    LOOP_THREAD: ClassVar[str] = "namesrv-loop"

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
        super().__init__(
            RemotingServer(
                self.config.bind_address, self.config.listen_port, limits=limits, tls=tls, acl=acl, clock=self.clock
            )
        )
        self.processor = NameProcessor(self.config, self.table, self.kv)
        self.processor.serve_at(self.server)
        self._scanner: asyncio.TimerHandle | None = None

    async def open(self) -> None:
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
