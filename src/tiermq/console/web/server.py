"""ConsoleServer: the site on a port, in a thread and a loop of its own, so that a slow page blocks no broker.

Loopback unless configured otherwise. It can be stopped while live pages are open. Idle peers do not block new ones.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from concurrent.futures import Future, wait
from typing import Any

from tiermq.broker.http_endpoint import connection_class
from tiermq.console.sources import Sources
from tiermq.console.web.security import Gate
from tiermq.errors import BadConfig
from tiermq.message.hosts import LOOPBACK
from tiermq.remoting.loop_thread import LoopThread
from tiermq.remoting.permissions import AccessFile

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
PORT = 8080
CLOSE_S = 2
CONNECTIONS_MAX = 200
_log = logging.getLogger(__name__)
_access_log = logging.getLogger(f"{__name__}.requests")
_access_log.setLevel(logging.CRITICAL)  # uvicorn's: a line for each bad request would let a peer fill the log.


class ConsoleServer:
    """See the module. Started and stopped by one thread. Closes its sources."""

    def __init__(
        self,
        sources: Sources,
        *,
        host: str = LOOPBACK,
        port: int = PORT,
        hosts: tuple[str, ...] = (),
        accounts: AccessFile | None = None,
        allow_changes: bool = False,
    ) -> None:
        """`hosts`: further names under which browsers reach it. Raises BadConfig without jinja2."""
        try:
            from tiermq.console.web.site import Site
        except ModuleNotFoundError as error:
            from tiermq.errors import install_hint

            raise BadConfig(
                f"the console needs {error.name}, which is not installed here: {install_hint('console')}"
            ) from error
        self.host = host
        self.port = port
        self._sources = sources
        self.gate = Gate(
            sources, hosts=LOCAL | {host.lower()} | {each.lower() for each in hosts}, accounts=accounts,
            allow_changes=allow_changes,
        )  # fmt: skip
        self._site = Site(self.gate, allow_changes=allow_changes)
        self._thread: LoopThread | None = None
        self._server: Any = None
        self._serving: Future[None] | None = None

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}/"

    def start(self) -> None:
        """Bind and serve. Sets `port` to the bound one. Raises OSError; BadConfig for an address that others reach."""
        if self.host not in LOCAL and not self.gate.needs_log_in:
            raise BadConfig(
                f"--host {self.host}: expected accounts, found none: other machines could read everything without a "
                "log-in. Use accounts of the brokers (--acl), or listen at 127.0.0.1 and forward the port"
            )
        import uvicorn

        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listening = socket.create_server((self.host, self.port), family=family)
        self.port = listening.getsockname()[1]
        config = uvicorn.Config(
            self._site.application(), loop="none", http=connection_class(CONNECTIONS_MAX), ws="none", lifespan="off",
            log_config=None, access_log=False, proxy_headers=False, server_header=False, timeout_keep_alive=30,
            timeout_graceful_shutdown=CLOSE_S,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = LoopThread("console-loop")
        self._serving = self._thread.submit(self._server.serve(sockets=[listening]))
        self._serving.add_done_callback(_report_failure)

    def stop(self) -> None:
        """Close every connection, end the thread and close the sources. Twice does no harm."""
        if self._thread is not None and self._thread.is_running:
            self._server.should_exit = True
            self._thread.call(self._site.is_ending.set)
            self._sources.stop_work()
            if self._serving is not None:
                wait([self._serving])
            self._thread.stop()
        self._sources.close()


def _report_failure(serving: Future[None]) -> None:
    if (
        not serving.cancelled()
        and (error := serving.exception()) is not None
        and not isinstance(error, asyncio.CancelledError)
    ):
        _log.error("the console is not served", exc_info=error)
