"""RemotingServer: accepts peers and hands their requests to handlers.

A handler declares its request codes, who may ask for them, and where it runs (`access`): on the loop, where it must not
block, or in a bounded pool of threads. A handler answers by returning a response, or None when it answers later with
`connection.send(request.respond(...))`.

Invariants: a one-way request is never answered, not even with an error; an unknown code is answered with 3, a
handler's exception with 1 and a log line, `RequestRefused` with its code; a line of waiting requests that is full with
2. Handlers are registered before `start`; all state belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from tiermq.clock import Clock, SystemClock
from tiermq.errors import RemotingError, RequestRefused
from tiermq.kernel import SendLane, SendRequest
from tiermq.remoting.access import Access, Handler, declared_by
from tiermq.remoting.codes import ResponseCode
from tiermq.remoting.command import FLAG_ONEWAY, FLAG_RESPONSE, RemotingCommand
from tiermq.remoting.connection import NOBODY, Connection, TakeSends
from tiermq.remoting.limits import INLINE_BODY_BYTES, TURN_S, ServerLimits
from tiermq.remoting.listener_end import close_listener
from tiermq.remoting.permissions import Account
from tiermq.remoting.receiving import SEND_CODES, command_of_send, send_request_of
from tiermq.remoting.tls import TlsMode, TlsSettings

_log = logging.getLogger(__name__)

SendHandler = Callable[[Connection, SendRequest], bytes | None]
REMARK_CHARACTERS_MAX = 500
Decoded = TypeVar("Decoded")


def remark_of(error: Exception) -> str:
    """What a peer is told of an error: the words of a refusal. Others may quote what was read, and are for the log."""
    if isinstance(error, RequestRefused):
        return str(error)[:REMARK_CHARACTERS_MAX]
    return f"the request failed with {type(error).__name__}: the server's log has the details"


class AccessCheck(Protocol):
    """Who signed a request; None may do everything. Raises RequestRefused for one that nobody has signed."""

    def signer_of(self, command: RemotingCommand, peer_host: str) -> Account | None: ...


class RemotingServer:
    """See the module."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        limits: ServerLimits | None = None,
        tls: TlsSettings | None = None,
        acl: AccessCheck | None = None,
        clock: Clock | None = None,
        listening: Sequence[socket.socket] = (),
    ) -> None:
        """`tls=None` refuses TLS peers; the clock is for idle peers only. `listening` are sockets that are bound
        already, for an owner who must know the port before anything else; they are the server's from now on. Every
        one is served alike.
        """
        self.host = host
        self.port = port
        self.limits = limits or ServerLimits()
        self.clock = clock or SystemClock()
        self.acl = acl
        self._tls = None if tls is None or tls.mode is TlsMode.DISABLED else tls
        self.tls_context: ssl.SSLContext | None = None if self._tls is None else self._tls.server_context()
        self.plain_allowed = tls is None or tls.mode is not TlsMode.ENFORCING
        self.connections: set[Connection] = set()
        self.refused_connections = 0
        self.handler_errors = 0
        self.on_open: list[Callable[[Connection], None]] = []
        self.on_close: list[Callable[[Connection], None]] = []
        self._handlers: dict[int, Handler] = {}
        self._blocking: dict[int, Handler] = {}
        self._access: dict[int, Access] = {}
        self._large_bodies: set[int] = set()
        self._send_handler: SendHandler | None = None
        self.send_lane: SendLane | None = None
        self.take_sends: TakeSends | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._waiting_blocking = 0
        self._partial_bytes = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sockets = listening
        self._listeners: list[asyncio.Server] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._empty: asyncio.Event | None = None
        self._draining = False
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._calls_lock = threading.Lock()
        self._calls_are_due = False

    # Before the start.

    def serve(self, processor: object) -> None:
        """Serve every request that the methods of `processor` declare. Raises ValueError for one served already."""
        for declared, handler in declared_by(processor):
            if declared.code in self._access:
                raise ValueError(f"request {declared.code}: expected one handler, found {handler!r} beside another")
            self.register(declared.code, handler, declared.access, in_pool=declared.in_pool)
            if declared.large_body:
                self._large_bodies.add(declared.code)

    def register(self, code: int, handler: Handler, access: Access, *, in_pool: bool = False) -> None:
        """Requests of `code` go to `handler`, on the loop or in a thread of the pool; whoever `access` lets may ask."""
        self._handlers.pop(int(code), None)
        self._blocking.pop(int(code), None)
        (self._blocking if in_pool else self._handlers)[int(code)] = handler
        self._access[int(code)] = access

    def register_send(
        self,
        handler: SendHandler,
        access: Mapping[int, Access],
        lane: SendLane | None = None,
        take_sends: TakeSends | None = None,
    ) -> None:
        """Sends (10, 310, 320) go to `handler`, on the loop, ready parsed. It returns the bytes of the answer.

        With a lane, sends that it takes never reach the handler, once that has said where a connection's messages are
        born (`Connection.born_host`), and unless somebody must be asked who may send. `take_sends` is the same for
        those who answer later.
        """
        if access.keys() != SEND_CODES:
            raise ValueError(f"expected who may ask for each of {sorted(SEND_CODES)}, found {sorted(access)}")
        self._send_handler = handler
        self._access.update(access)
        self.send_lane, self.take_sends = (lane, take_sends) if self.acl is None else (None, None)

    @property
    def codes(self) -> frozenset[int]:
        """What is served, sends left aside."""
        return frozenset(self._handlers) | frozenset(self._blocking)

    @property
    def declared(self) -> dict[int, tuple[Access, bool]]:
        """Every code that is served: who may ask for it, and whether it runs in the pool."""
        return {code: (access, code in self._blocking) for code, access in self._access.items()}

    def reload_tls(self) -> None:
        """Read the certificates again, for connections from now on. Any thread. Raises BadConfig, and keeps the old."""
        if self._tls is not None:
            self.tls_context = self._tls.server_context()

    # Life.

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RemotingError("expected a server that was started, found one that was not: call start() first")
        return self._loop

    async def start(self) -> None:
        """Listen. `port` is the real one from now on, of the first socket. Raises OSError if one cannot be had."""
        self._loop = loop = asyncio.get_running_loop()
        self._empty = asyncio.Event()
        self._pool = ThreadPoolExecutor(self.limits.blocking_threads, thread_name_prefix="remoting")
        places: list[dict[str, Any]] = [{"sock": each} for each in self._sockets]
        for place in places or [{"host": self.host, "port": self.port}]:
            made = await loop.create_server(lambda: Connection(self, loop), backlog=self.limits.backlog, **place)
            self._listeners.append(made)
        self.port = self.ports[0]
        self._sweep()

    @property
    def ports(self) -> list[int]:
        """Those that it listens at, once it was started."""
        return [each.sockets[0].getsockname()[1] for each in self._listeners if each.sockets]

    async def stop(self, drain_s: float = 0.0) -> None:
        """Take no new peers, let open ones finish what they asked for at most `drain_s`, then close them all."""
        if not self._listeners or self._empty is None:
            return
        for listener in self._listeners:
            await close_listener(listener)
        self._draining = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        deadline = self.loop.time() + drain_s
        while self.is_busy and self.loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.close()
        try:
            async with asyncio.timeout(max(0.5, deadline - self.loop.time())):
                await self._wait_until_empty()
        except TimeoutError:
            for connection in list(self.connections):
                connection.abort()
            await self._wait_until_empty()
        if self._pool is not None:
            await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)
        self._listeners = []

    async def _wait_until_empty(self) -> None:
        assert self._empty is not None
        while self.connections:
            self._empty.clear()
            await self._empty.wait()

    @property
    def is_busy(self) -> bool:
        """Whether a request is with the pool, or an answer has not been taken."""
        return self._waiting_blocking > 0 or any(connection.unsent_bytes for connection in self.connections)

    @property
    def waiting_blocking(self) -> int:
        """How many requests are with the pool, or wait for it."""
        return self._waiting_blocking

    def call_threadsafe(self, call: Callable[..., object], *arguments: Any) -> None:
        """Run `call` on the loop, from any thread. Calls of one burst cost one wake-up of the loop.

        Once the loop has ended it does nothing: whoever waited for the call was closed with it.
        """
        with self._calls_lock:
            self._calls.append((call, arguments))
            if self._calls_are_due:
                return
            self._calls_are_due = True
        try:
            self.loop.call_soon_threadsafe(self._run_calls)
        except RuntimeError:
            if not self.loop.is_closed():
                raise

    def _run_calls(self) -> None:
        with self._calls_lock:
            calls, self._calls = self._calls, deque()
            self._calls_are_due = False
        for call, arguments in calls:
            try:
                call(*arguments)
            except Exception:  # noqa: BLE001 - one call's mistake must not stop the others of its burst
                self.handler_errors += 1
                _log.exception("a call that another thread asked for failed")

    def run_in_pool(self, work: Callable[[], Any], done: Callable[[Any, Exception | None], None]) -> None:
        """Run `work` in a thread of the pool, then `done(what it gave, what it raised)` on the loop.

        Raises RequestRefused with SYSTEM_BUSY when too many wait already. Called on the loop.
        """
        assert self._pool is not None
        self._require_room_in_line(self._waiting_blocking)
        self._waiting_blocking += 1
        self._pool.submit(self._run_work, work, done)

    def _require_room_in_line(self, waiting: int) -> None:
        if waiting >= self.limits.blocking_line_max:
            raise RequestRefused(
                f"{waiting} requests wait already; try again, or another broker", ResponseCode.SYSTEM_BUSY
            )

    def _run_work(self, work: Callable[[], Any], done: Callable[[Any, Exception | None], None]) -> None:
        result, failure = None, None
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - whoever asked for the work is told
            failure = error
        self.call_threadsafe(self._work_done, done, result, failure)

    def _work_done(self, done: Callable[[Any, Exception | None], None], result: Any, failure: Exception | None) -> None:
        self._waiting_blocking -= 1
        done(result, failure)

    def close_idle(self) -> int:
        """Close peers without traffic either way for `idle_s`; says how many."""
        now = self.clock.monotonic()
        idle = [each for each in self.connections if now - each.last_active_s > self.limits.idle_s]
        for connection in idle:
            _log.info("%s: closed, since nothing was said for %s s", connection, self.limits.idle_s)
            connection.close()
            if connection.unsent_bytes:
                connection.abort()  # It has not taken its answers for as long.
        return len(idle)

    def _sweep(self) -> None:
        self.close_idle()
        self._sweeper = self.loop.call_later(min(10.0, self.limits.idle_s / 4), self._sweep)

    # What connections call.

    def now_s(self) -> float:
        return self.clock.monotonic()

    def opened(self, connection: Connection) -> bool:
        if connection.peer == NOBODY:  # It was reset before it was taken: what it sent would come from nowhere.
            return False
        if self._draining or len(self.connections) >= self.limits.connections_max:
            self.refused_connections += 1
            return False
        self.connections.add(connection)
        for callback in self.on_open:
            callback(connection)
        return True

    def closed(self, connection: Connection) -> None:
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        if not self.connections and self._empty is not None:
            self._empty.set()
        for callback in self.on_close:
            callback(connection)

    def partial_changed(self, connection: Connection, delta_bytes: int) -> None:
        self._partial_bytes += delta_bytes
        if delta_bytes > 0 and self._partial_bytes > self.limits.partial_bytes_max:
            _log.warning(
                "%s: closed, since peers hold %d bytes of frames that are not complete", connection, self._partial_bytes
            )
            connection.abort()

    def take_send(self, connection: Connection, request: SendRequest) -> None:
        handler = self._send_handler
        if handler is None or self.acl is not None:
            self.take_request(connection, command_of_send(request))
            return
        try:
            answer = handler(connection, request)
        except Exception as error:  # noqa: BLE001 - a request's outermost edge: it is answered, counted and logged
            if refused := self._refusal_of(command_of_send(request), error):
                connection.send(refused)
            return
        if answer is not None and not request.is_oneway:
            connection.send_bytes(answer)

    def take_request(self, connection: Connection, command: RemotingCommand) -> None:
        code = command.code
        try:
            if self.acl is not None:
                self._require_access(self.acl, connection, command)
            if code in SEND_CODES and self._send_handler is not None:
                answer = self._send_handler(connection, send_request_of(command))
                if answer is not None and not command.is_oneway:
                    connection.send_bytes(answer)
                return
            if len(command.body) > self.limits.body_bytes_max:
                self._check_body(command)
            if (handler := self._handlers.get(code)) is not None:
                response = handler(connection, command)
            elif (handler := self._blocking.get(code)) is not None:
                response = self._take_blocking(handler, connection, command)
            else:
                response = command.respond(
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"request code {int(code)} is not supported"
                )
        except Exception as error:  # noqa: BLE001 - a request's outermost edge: it is answered, counted and logged
            response = self._refusal_of(command, error)
        if response is not None and not command.flag & FLAG_ONEWAY:
            connection.send(response)

    def _require_access(self, acl: AccessCheck, connection: Connection, command: RemotingCommand) -> None:
        """Raises RequestRefused unless the request is signed, and its signer has what the handler declares."""
        command.account = account = acl.signer_of(command, connection.peer[0])
        access = self._access.get(command.code)
        if account is not None and access is not None:  # What is not declared is not served.
            access.check(account, command)

    def _check_body(self, command: RemotingCommand) -> None:
        most = self.limits.body_bytes_max
        if command.code not in self._large_bodies:
            raise RequestRefused(
                f"request {int(command.code)}: expected a body of at most {most} bytes, found {len(command.body)}: "
                "split the request",
                ResponseCode.INVALID_PARAMETER,
            )

    def decode_first(
        self,
        connection: Connection,
        command: RemotingCommand,
        decode: Callable[[RemotingCommand], Decoded],
        handle: Callable[[Connection, RemotingCommand, Decoded], RemotingCommand | None],
    ) -> RemotingCommand | None:
        """From a handler on the loop: `decode` the body, in the pool if it is long, then `handle` it on the loop.

        What either raises is answered as for any request.
        """
        if len(command.body) <= INLINE_BODY_BYTES:
            return handle(connection, command, decode(command))

        def done(decoded: Any, failure: Exception | None) -> None:
            try:
                if failure is not None:
                    raise failure
                response = None if connection.closing else handle(connection, command, decoded)
            except Exception as error:  # noqa: BLE001 - a request's outermost edge: it is answered, counted and logged
                response = self._refusal_of(command, error)
            if response is not None and not command.flag & FLAG_ONEWAY:
                connection.send(response)

        self.run_in_pool(lambda: decode(command), done)
        return None

    def in_turns(
        self, connection: Connection, command: RemotingCommand, steps: Generator[None, None, RemotingCommand]
    ) -> RemotingCommand | None:
        """From a handler on the loop: run `steps` until they return the answer; others are served in between.

        The answer when it was there at once, else None, and it is sent later. What the steps raise is answered.
        """
        until_s = self.loop.time() + TURN_S
        try:
            while self.loop.time() < until_s:
                next(steps)
        except StopIteration as done:
            answer: RemotingCommand = done.value
            return answer
        except Exception as error:  # noqa: BLE001 - a request's outermost edge: it is answered, counted and logged
            return self._refusal_of(command, error)
        self.loop.call_soon(self._next_turn, connection, command, steps)
        return None

    def _next_turn(
        self, connection: Connection, command: RemotingCommand, steps: Generator[None, None, RemotingCommand]
    ) -> None:
        if connection.closing:
            steps.close()
            return
        response = self.in_turns(connection, command, steps)
        if response is not None and not command.flag & FLAG_ONEWAY:
            connection.send(response)

    def hand_to_pool(self, handler: Handler, connection: Connection, command: RemotingCommand) -> None:
        """From a handler on the loop: let `handler` answer in a thread of the pool instead."""
        busy = self._take_blocking(handler, connection, command)
        if busy is not None and not command.flag & FLAG_ONEWAY:
            connection.send(busy)

    def _take_blocking(
        self, handler: Handler, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | None:
        assert self._pool is not None
        self._require_room_in_line(self._waiting_blocking)
        self._waiting_blocking += 1
        self._pool.submit(self._run_blocking, handler, connection, command)
        return None

    def _run_blocking(self, handler: Handler, connection: Connection, command: RemotingCommand) -> None:
        try:
            response = None if connection.closing else handler(connection, command)
        except Exception as error:  # noqa: BLE001 - a request's outermost edge: it is answered, counted and logged
            response = self._refusal_of(command, error)
        self.call_threadsafe(self._blocking_done, connection, command, response)

    def _blocking_done(
        self, connection: Connection, command: RemotingCommand, response: RemotingCommand | None
    ) -> None:
        self._waiting_blocking -= 1
        if response is not None and not command.flag & FLAG_ONEWAY:
            connection.send(response)

    def _refusal_of(self, command: RemotingCommand, error: Exception) -> RemotingCommand | None:
        if isinstance(error, RequestRefused):
            code = error.code
        else:
            self.handler_errors += 1
            _log.error("request %r failed", command, exc_info=error)
            code = ResponseCode.SYSTEM_ERROR
        if command.flag & (FLAG_ONEWAY | FLAG_RESPONSE):
            return None
        return command.respond(code, remark_of(error))
