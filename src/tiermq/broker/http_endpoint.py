"""HttpEndpoint: /metrics, /health and /ready of a broker over HTTP/1.1.

    GET /metrics    Prometheus' text, or OpenMetrics' if that is accepted, under RocketMQ's names where it has one
    GET /health     200 while the process serves; 503 with a reason when a restart would help
    GET /ready      200 when clients can be sent here; 503 with what is missing

Starlette routes, uvicorn's protocol parses and writes, on a thread and a loop of their own: a page that takes long does
not block clients of the broker. Only these pages are read, nothing can be changed, so it needs no secret; it listens
where the broker does, and that is loopback unless configured otherwise.

Invariants: a request head is at most 8 KiB, and a request with a body ends its connection; answers of a connection are
written one after the other, and the next request is read once the previous answer is written to within 64 KiB; of all
answers that peers have not taken 64 MiB are kept, or one, and beyond that the oldest ends with its connection; a
connection ends 30 s after its last answer, unless it waits for one and its peer reads; beyond 64 connections the one
that was silent the longest is closed, so that idle peers do not block a new one. The console's connections keep the
last two alike (`connection_class`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from tiermq.remoting.loop_thread import LoopThread
from tiermq.remoting.server import close_listener

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

REQUEST_BYTES_MAX = 8 * 1024
UNREAD_BYTES_MAX = 64 << 20
"""Of answers: the page of 30,000 groups has 22 MB."""
SLICE_BYTES = 64 << 10
"""What is written of an answer at once: the loop of the broker waits for as long as that takes."""
CLOSE_S = 0.5
LOOK_S = 0.01
IDLE_S = 30.0
KEEP_ALIVE_S = 5
CONNECTIONS_MAX = 64
BACKLOG = 128
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
JSON_TYPE = "application/json"
_log = logging.getLogger(__name__)
_requests_log = logging.getLogger(f"{__name__}.requests")
_requests_log.setLevel(logging.CRITICAL)  # uvicorn's: a line for each bad request would let a peer fill the log.


class Answer(NamedTuple):
    """Contents of a page."""

    status: int
    content_type: str
    body: bytes


Page = Callable[[str], Answer]
"""Gets the header Accept."""


def status_answer(problems: Mapping[str, str], warnings: Mapping[str, str] | None = None) -> Answer:
    """200 without problems, else 503 with them; warnings change nothing but the text."""
    body = {"status": "up" if not problems else "down", "problems": dict(problems)}
    if warnings:
        body["warnings"] = dict(warnings)
    return Answer(503 if problems else 200, JSON_TYPE, json.dumps(body).encode() + b"\n")


class HttpEndpoint:
    """See the module. Started and stopped once, by one thread; everything else happens on the loop."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Page]) -> None:
        self.host = host
        self.port = port
        self._pages = dict(pages)
        self._thread: LoopThread | None = None
        self._socket: socket.socket | None = None
        self._opening: Future[None] | None = None
        self._listener: asyncio.Server | None = None
        self.connections: set[Any] = set()

    def start(self) -> None:
        """Bind, and serve in a separate thread. Sets `port` to the bound one. Raises OSError.

        The libraries are imported in that thread: earlier connections wait in the backlog, and the broker does not
        block.
        """
        self._bind()
        self._thread = LoopThread("http-loop")
        self._opening = self._thread.submit(self.open())
        self._opening.add_done_callback(_report_failure)

    def _bind(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        self._socket = socket.create_server((self.host, self.port), family=family, backlog=BACKLOG)
        self.port = self._socket.getsockname()[1]
        return self._socket

    def stop(self) -> None:
        """Close every connection and end the thread, soon even if a peer takes nothing. Twice does no harm."""
        if self._thread is not None and self._thread.is_running:
            if self._opening is not None:
                wait([self._opening])
            self._thread.run(self.close())
            self._thread.stop()

    async def open(self) -> None:
        """Serve, on the running loop. Raises OSError when the address cannot be had."""
        # Imported here: commands that serve nothing must not wait for them.
        import uvicorn
        from uvicorn.server import ServerState

        config = uvicorn.Config(
            _application(self._pages),
            loop="none",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            h11_max_incomplete_event_size=REQUEST_BYTES_MAX,
        )
        config.load()
        state = ServerState()
        self.connections = state.connections
        connection = connection_class(CONNECTIONS_MAX)
        listening = self._socket or self._bind()
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: connection(config, state, {}, loop), sock=listening)

    async def close(self) -> None:
        """Listen no more and close every connection."""
        if self._listener is not None:
            await close_listener(self._listener)
            self._listener = None
        if self._socket is not None:
            self._socket.close()
        for connection in list(self.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                while self.connections:
                    await asyncio.sleep(LOOK_S)
        for connection in list(self.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # Aborted connections are closed in the next loop iteration.


def _report_failure(opening: Future[None]) -> None:
    if (error := opening.exception()) is not None:
        _log.error("metrics and health are not served", exc_info=error)


def connection_class(most: int) -> Any:
    """Connections of a server that has at most so many."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Connection(H11Protocol):
        """uvicorn's, with a deadline for peers that neither send nor read, and space for the next connection."""

        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            # Not checked by its class: uvloop's transports are not asyncio's.
            super().connection_made(cast(asyncio.Transport, transport))
            self.logger = _requests_log
            self._used()
            here = [
                each for each in self.connections if isinstance(each, Connection) and not each.transport.is_closing()
            ]
            if len(here) > most:
                min(here, key=lambda each: each.used_at).transport.abort()

        def _used(self) -> None:
            self.used_at = self.loop.time()
            if self._deadline is not None:
                self._deadline.cancel()
            self._deadline = self.loop.call_later(IDLE_S, self._end_idle)

        def _end_idle(self) -> None:
            is_served = self.cycle is not None and not self.cycle.response_complete
            if is_served and not self.flow.write_paused:
                self._deadline = self.loop.call_later(IDLE_S, self._end_idle)  # Such as a page that is kept up to date.
            else:
                self.transport.abort()

        def on_response_complete(self) -> None:
            self._used()
            super().on_response_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
            super().connection_lost(exc)

    return Connection


def _application(pages: Mapping[str, Page]) -> ASGIApp:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.responses import Response
    from starlette.routing import Route

    known = " ".join(sorted(pages))
    unread: dict[asyncio.Task[Any], int] = {}

    class SlicedResponse(Response):
        """A body that is written as its peer takes it."""

        async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
            task = asyncio.current_task()
            assert task is not None
            unread[task] = len(self.body)
            while sum(unread.values()) > UNREAD_BYTES_MAX and len(unread) > 1:
                oldest = next(iter(unread))
                del unread[oldest]
                oldest.cancel()
            try:
                head = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
                await send(head)
                for begin in range(0, max(1, len(self.body)), SLICE_BYTES):
                    piece = bytes(self.body[begin : begin + SLICE_BYTES])
                    is_last = begin + SLICE_BYTES >= len(self.body)
                    await send({"type": "http.response.body", "body": piece, "more_body": not is_last})
            finally:
                unread.pop(task, None)

    def response(request: Request, answer: Answer) -> Response:
        # Of a body nothing is read, so that nothing of it can be taken for the next request.
        has_body = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
        headers = {"connection": "close"} if has_body else None
        return SlicedResponse(answer.body, answer.status, headers, answer.content_type)

    async def page(request: Request) -> Response:
        try:
            return response(request, pages[request.url.path](request.headers.get("accept", "")))
        except Exception as error:  # noqa: BLE001 - the client gets an answer
            _log.exception("%s failed", request.url.path)
            return response(request, status_answer({"endpoint": f"{type(error).__name__}: {error}"}))

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            text = f"expected GET or HEAD, found {request.method[:20]}\n"
        else:
            text = f"expected one of {known}, found {request.url.path[:200]}\n"
        return response(request, Answer(error.status_code, "text/plain", text.encode()))

    application = Starlette(
        routes=[Route(path, page, methods=["GET"]) for path in pages], exception_handlers={404: refuse, 405: refuse}
    )
    application.router.redirect_slashes = False

    async def bounded(scope: Scope, receive: Receive, send: Send) -> None:
        """The protocol limits a head that arrives in chunks; a head that arrives at once is limited here."""
        if scope["type"] == "http" and _head_bytes(scope) > REQUEST_BYTES_MAX:
            text = f"expected a request head of at most {REQUEST_BYTES_MAX} bytes, found more\n"
            await Response(text, 431, {"connection": "close"}, "text/plain")(scope, receive, send)
        else:
            await application(scope, receive, send)

    return bounded


def _head_bytes(scope: Scope) -> int:
    """Of the request line and the fields, each with its colon and its end of line."""
    line = len(scope["method"]) + len(scope["raw_path"]) + len(scope["query_string"]) + len("  HTTP/1.1\r\n")
    return line + sum(len(name) + len(value) + 4 for name, value in scope["headers"])
