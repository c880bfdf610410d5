"""RemotingClient: one connection to a server, for our tools and tests.

    client = await RemotingClient.connect("127.0.0.1", 10911)
    answer = await client.request(RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO))
    await client.close()

`BlockingClient` is the same for code without a loop. Requests that the server sends go to handlers registered with
`on_request`; others are answered with "not supported".
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from concurrent.futures import Future as ThreadFuture
from types import TracebackType
from typing import Self

from tiermq.errors import BadConfig, PeerGone
from tiermq.kernel import FRAME_BYTES_MAX, AckRequest, FastSendPath, SendRequest
from tiermq.remoting.codes import ResponseCode
from tiermq.remoting.command import HeaderType, RemotingCommand
from tiermq.remoting.connection import Connection, RoundRobin, TakeSends
from tiermq.remoting.frame import command_of_ack, command_of_send
from tiermq.remoting.limits import ServerLimits
from tiermq.remoting.loop_thread import LoopThread
from tiermq.remoting.permissions import Credentials

CLOSE_S = 1.0
"""How long a peer is given to take what was sent to it before a client that is closed goes without."""
_PLAIN_HINT = ". A server that accepts TLS only closes such a connection: try TLS (--tls)"
_TLS_HINT = (
    ". The TLS handshake may have failed: the server may have no TLS, may need a client's certificate (--tls-cert, "
    "--tls-key), or its own may not be signed by one that is trusted (--tls-ca)"
)
ClientHandler = Callable[[RemotingCommand], RemotingCommand | None]
Address = tuple[str, int]


class RemotingClient:
    """See the module. Belongs to the loop that it was connected on."""

    speaks_tls = False
    tls_context: ssl.SSLContext | None = None  # The transport does it; the connection sees plain bytes.
    plain_allowed = True
    fast_path: FastSendPath | None = None
    take_sends: TakeSends | None = None
    may_answer: Callable[[], bool] | None = None

    def __init__(self, header_type: int = HeaderType.JSON, credentials: Credentials | None = None) -> None:
        # The answer to a batch has an id for each message in its header.
        self.limits = ServerLimits(header_bytes_max=FRAME_BYTES_MAX)
        self.header_type = header_type
        self.credentials = credentials
        self.round_robin = RoundRobin()
        self.connection: Connection | None = None
        self._handlers: dict[int, ClientHandler] = {}
        self._closed = asyncio.Event()
        self._has_answer = False
        self._hint = _PLAIN_HINT

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        header_type: int = HeaderType.JSON,
        timeout_s: float = 3.0,
    ) -> Self:
        """Raises PeerGone when the server does not answer."""
        loop = asyncio.get_running_loop()
        client, made = cls(header_type, credentials), False
        client._hint = _PLAIN_HINT if tls is None else _TLS_HINT
        try:
            # Not wait_for, which in Python 3.11 may swallow a cancellation.
            async with asyncio.timeout(timeout_s):
                await loop.create_connection(lambda: Connection(client, loop), host, port, ssl=tls)
            made = True
        except (ssl.SSLError, ConnectionResetError) as error:
            raise PeerGone(f"{host}:{port}: expected a connection, found {error}{client._hint}") from error
        except (OSError, TimeoutError) as error:
            raise PeerGone(
                f"expected a server at {host}:{port}, found none: {str(error) or 'it does not answer'}"
            ) from error
        finally:
            if client.connection is not None and not made:
                # It was connected while being given up: no other owner closes it.
                client.connection.abort()
        return client

    def on_request(self, code: int, handler: ClientHandler) -> None:
        """Requests of `code` that the server sends go to `handler`."""
        self._handlers[int(code)] = handler

    async def request(self, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        """The answer, whatever its code. Raises PeerGone and RequestTimedOut."""
        try:
            answer = await self._open().request(self._prepared(command), timeout_s)
        except PeerGone as error:
            if self._has_answer:
                raise
            raise PeerGone(f"{error}{self._hint}") from error
        self._has_answer = True
        return answer

    def request_encoded(
        self, encode: Callable[[int], tuple[bytes | memoryview, ...]], timeout_s: float, code: int
    ) -> asyncio.Future[RemotingCommand]:
        """The same for a frame that the caller encodes, given the request's number. It is not signed."""
        return self._open().request_encoded(encode, timeout_s, code)

    def oneway(self, command: RemotingCommand) -> None:
        """Send without an answer."""
        self._open().oneway(self._prepared(command))

    async def close(self) -> None:
        """Close, and wait until it is: not for a peer that does not take what was sent to it."""
        if self.connection is not None:
            self.connection.close()
            try:
                # Not wait_for, which in Python 3.11 may swallow a cancellation.
                async with asyncio.timeout(CLOSE_S):
                    await self._closed.wait()
            except TimeoutError:
                self.connection.abort()
                await self._closed.wait()

    @property
    def open_requests(self) -> int:
        """How many have no answer yet."""
        return 0 if self.connection is None else self.connection.open_requests

    async def wait_closed(self) -> None:
        """Wait until either side has closed."""
        await self._closed.wait()

    @property
    def is_open(self) -> bool:
        return self.connection is not None and not self.connection.closing

    def _open(self) -> Connection:
        if self.connection is None:
            raise PeerGone("expected a client that is connected, found one that is not: call connect() first")
        return self.connection

    def _prepared(self, command: RemotingCommand) -> RemotingCommand:
        command.header_type = self.header_type
        if self.credentials is not None:
            self.credentials.sign(command)
        return command

    # What the connection calls.

    def now_s(self) -> float:
        return 0.0  # A client closes no idle connection.

    def opened(self, connection: Connection) -> bool:
        self.connection = connection
        return True

    def closed(self, connection: Connection) -> None:
        del connection
        self._closed.set()

    def partial_changed(self, delta_bytes: int) -> None:
        """One connection with a bounded frame needs no account."""

    def unsent_changed(self, delta_bytes: int) -> None:
        """The same."""

    def flush_soon(self, flush: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(flush)

    def take_send(self, connection: Connection, request: SendRequest) -> None:
        self.take_request(connection, command_of_send(request))

    def take_acks(self, connection: Connection, acks: list[AckRequest]) -> None:
        for ack in acks:
            self.take_request(connection, command_of_ack(ack))

    def refuses_body(self, _connection: Connection, _command: RemotingCommand, _body_bytes: int) -> bool:
        """A server may ask with any body."""
        return False

    def take_request(self, connection: Connection, command: RemotingCommand) -> None:
        handler = self._handlers.get(command.code)
        if handler is not None:
            response = handler(command)
        else:
            response = command.respond(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "this client does not do that")
        if response is not None and not command.is_oneway:
            connection.send(response)


class BlockingClient:
    """A client for code without a loop: a separate thread runs one. Threads may share it."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        header_type: int = HeaderType.JSON,
        timeout_s: float = 3.0,
    ) -> None:
        """Connects. Raises PeerGone when the server does not answer."""
        self.timeout_s = timeout_s
        self._thread = LoopThread(f"client-{host}:{port}")
        try:
            self.client: RemotingClient = self._thread.run(
                RemotingClient.connect(
                    host, port, tls=tls, credentials=credentials, header_type=header_type, timeout_s=timeout_s
                )
            )
        except BaseException:
            self._thread.stop()
            raise

    def request(self, command: RemotingCommand, timeout_s: float | None = None) -> RemotingCommand:
        """The answer, whatever its code. Raises PeerGone and RequestTimedOut."""
        return self.request_later(command, timeout_s).result()

    def request_later(self, command: RemotingCommand, timeout_s: float | None = None) -> ThreadFuture[RemotingCommand]:
        """The same without waiting for it."""
        return self._thread.submit(self.client.request(command, self.timeout_s if timeout_s is None else timeout_s))

    def oneway(self, command: RemotingCommand) -> None:
        self._thread.call(self.client.oneway, command)

    def on_request(self, code: int, handler: ClientHandler) -> None:
        """`handler` runs in the client's own thread."""
        self._thread.call(self.client.on_request, code, handler)

    def close(self) -> None:
        if self._thread.is_running:
            self._thread.run(self.client.close())
            self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


NOT_A_NAME_SERVER = (
    "that is a broker, not a name server. Give the address of its name server: the usual port is 9876, and 10911 a "
    "broker's"
)
"""Of a peer that does not know the requests that every name server serves."""


def parse_name_servers(text: str) -> list[Address]:
    """`host:port;host:port`, as in `namesrvAddr`. Raises BadConfig."""
    found: list[Address] = []
    for part in filter(None, (piece.strip() for piece in text.replace(",", ";").split(";"))):
        host, _, port = part.rpartition(":")
        if (
            not host
            or "/" in host
            or not (port.isascii() and port.isdigit() and len(port) <= 5)
            or not 0 < int(port) < 65_536
        ):
            raise BadConfig(f"expected name servers as host:port;host:port, found {part!r}")
        address = (host.removeprefix("[").removesuffix("]"), int(port))
        if address not in found:
            found.append(address)
    return found
