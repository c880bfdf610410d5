"""HttpEndpoint: /metrics, /health and /ready of a broker over HTTP/1.1, for whoever watches it.

    GET /metrics    Prometheus' text, under RocketMQ's metric names where it has one
    GET /health     200 while the process serves; 503 with a reason when a restart would help
    GET /ready      200 when clients can be sent here; 503 with what is missing

Nothing but these three is read, nothing can be changed, so it needs no secret; it listens where it is told, and that is
loopback unless somebody says otherwise. Invariants: a request is at most 8 KiB, a connection ends after 30 s without
one and answers one request at a time; figures are gathered in the server's pool, never on the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

from tiermq.remoting.listener_end import close_listener

REQUEST_BYTES_MAX = 8 * 1024
CLOSE_S = 0.5
LOOK_S = 0.01
IDLE_S = 30.0
CONNECTIONS_MAX = 64
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
JSON_TYPE = "application/json"


class Answer(NamedTuple):
    """What a page says."""

    status: int
    content_type: str
    body: bytes


Page = Callable[[], Answer]
RunInPool = Callable[[Callable[[], Any], Callable[[Any, Exception | None], None]], None]


def told(problems: Mapping[str, str]) -> Answer:
    """200 without problems, else 503 with them."""
    body = {"status": "up" if not problems else "down", "problems": dict(problems)}
    return Answer(503 if problems else 200, JSON_TYPE, json.dumps(body).encode() + b"\n")


class HttpEndpoint:
    """See the module. Belongs to the loop that it was started on."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Page], run_in_pool: RunInPool) -> None:
        self.host = host
        self.port = port
        self._pages = dict(pages)
        self._run_in_pool = run_in_pool
        self._connections: set[_HttpConnection] = set()
        self._listener: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen. `port` is the real one from now on. Raises OSError when the address cannot be had."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: _HttpConnection(self, loop), self.host, self.port)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Listen no more and close every connection, soon even if its peer takes nothing. Twice does no harm."""
        if self._listener is None:
            return
        await close_listener(self._listener)
        self._listener = None
        for connection in list(self._connections):
            connection.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                while self._connections:
                    await asyncio.sleep(LOOK_S)
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)  # What was aborted is closed in the next turn.

    # What connections call.

    def came(self, connection: _HttpConnection) -> bool:
        if len(self._connections) >= CONNECTIONS_MAX:
            return False
        self._connections.add(connection)
        return True

    def went(self, connection: _HttpConnection) -> None:
        self._connections.discard(connection)

    def answer(self, method: str, path: str, done: Callable[[Answer], None]) -> None:
        """Give the page to `done`, on the loop, at once or later."""
        page = self._pages.get(path.partition("?")[0])
        if page is None:
            known = " ".join(sorted(self._pages))
            done(Answer(404, "text/plain", f"expected one of {known}, found {path[:200]}\n".encode()))
        elif method not in ("GET", "HEAD"):
            done(Answer(405, "text/plain", f"expected GET or HEAD, found {method[:20]}\n".encode()))
        else:
            self._run_in_pool(page, lambda found, error: done(found if error is None else _failed(error)))


def _failed(error: Exception) -> Answer:
    return told({"endpoint": f"{type(error).__name__}: {error}"})


class _HttpConnection(asyncio.Protocol):
    def __init__(self, endpoint: HttpEndpoint, loop: asyncio.AbstractEventLoop) -> None:
        self._endpoint = endpoint
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._answering = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked by its class: uvloop's transports are none of asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        if not self._endpoint.came(self):
            transport.abort()
        self._timer = self._loop.call_later(IDLE_S, self.close)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._endpoint.went(self)
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._take()

    def _take(self) -> None:
        if self._answering:
            if len(self._received) > REQUEST_BYTES_MAX:
                self.close()
            return
        head, end, rest = self._received.partition(b"\r\n\r\n")
        if not end:
            if len(self._received) > REQUEST_BYTES_MAX:
                self._reply("GET", False, Answer(400, "text/plain", b"expected a request of at most 8 KiB\n"))
            return
        self._received = rest
        line, _, fields = head.partition(b"\r\n")
        words = line.decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            self._reply("GET", False, Answer(400, "text/plain", b"expected a request line of HTTP/1.1\n"))
            return
        method, path, version = words
        stays = version == "HTTP/1.1" and b"connection: close" not in fields.lower()
        self._answering = True
        self._endpoint.answer(method, path, lambda answer: self._reply(method, stays, answer))

    def _reply(self, method: str, stays: bool, answer: Answer) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        head = (
            f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}\r\n"
            f"Content-Type: {answer.content_type}\r\n"
            f"Content-Length: {len(answer.body)}\r\n"
            f"Connection: {'keep-alive' if stays else 'close'}\r\n\r\n"
        )
        self._transport.write(head.encode() + (b"" if method == "HEAD" else answer.body))
        self._answering = False
        if not stays:
            self._transport.close()
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(IDLE_S, self.close)
        if self._received:
            self._take()
