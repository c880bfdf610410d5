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
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any, ClassVar, Self, cast

from tiermq.clock import Clock, SystemClock
from tiermq.errors import RemotingError, RequestRefused
from tiermq.kernel import AckRequest, FastSendPath, SendRequest, ack_answers
from tiermq.remoting.access import ANY_ACCOUNT, Access, Declaration, Handler, declared_by
from tiermq.remoting.codes import VERSION, RequestCode, ResponseCode
from tiermq.remoting.command import FLAG_ONEWAY, FLAG_RESPONSE, RemotingCommand
from tiermq.remoting.connection import UNKNOWN_PEER, AccessCheck, Connection, RoundRobin, TakeSends
from tiermq.remoting.frame import SEND_CODES, command_of_ack, command_of_send, send_request_of
from tiermq.remoting.limits import INLINE_BODY_BYTES, SLICE_S, ServerLimits
from tiermq.remoting.loop_thread import LoopThread
from tiermq.remoting.tls import TlsMode, TlsSettings
from tiermq.service import COLLECTOR_PAUSE, SHORT_TURNS

_log = logging.getLogger(__name__)

DRAIN_S = 3.0
"""How long a server that stops waits until its peers have taken their answers."""
MakeConnection = Callable[["RemotingServer", asyncio.AbstractEventLoop], Connection]
SendHandler = Callable[[Connection, SendRequest], bytes | None]
TakeAcks = Callable[["list[AckRequest]"], "list[AckRequest]"]
"""Takes acknowledgements, and returns those that the general path must answer."""
Steps = Generator[None, None, RemotingCommand]
REMARK_CHARACTERS_MAX = 500
TURNS_UNTIL_SERVED = 4
"""Loop iterations until an accepted connection is known to its protocol, and the task of one made by
`asyncio.start_server` runs; one to spare."""


def remark_of(error: Exception) -> str:
    """The remark for an error: the text of a refusal. Other errors may quote data, and are for the log only."""
    if isinstance(error, RequestRefused):
        return str(error)[:REMARK_CHARACTERS_MAX]
    return f"the request failed with {type(error).__name__}: the server's log has the details"


class _SteppedRequest:
    """A request that a handler serves in steps (`Sliced`)."""

    __slots__ = ("_command", "_connection", "_server", "_steps", "loop")

    def __init__(self, server: RemotingServer, connection: Connection, command: RemotingCommand, steps: Steps) -> None:
        self.loop = server.loop
        self._server = server
        self._connection = connection
        self._command = command
        self._steps = steps

    def take_slice(self) -> bool:
        if self._connection.closing:
            self._steps.close()
            return True
        is_over, answer = self._server.run_slice(self._command, self._steps)
        if is_over and answer is not None and not self._command.flag & FLAG_ONEWAY:
            self._connection.send(answer)
        return is_over


class _Resumed:
    """Work of another kind that has given way, and goes on by a function."""

    __slots__ = ("loop", "resume")

    def __init__(self, loop: asyncio.AbstractEventLoop, resume: Callable[[], None]) -> None:
        self.loop = loop
        self.resume = resume

    def take_slice(self) -> bool:
        self.resume()
        return True


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
        self.speaks_tls = self._tls is not None
        self._tls_context = None if self._tls is None else self._tls.server_context_at_start()
        self.plain_allowed = tls is None or tls.mode is not TlsMode.ENFORCING
        self.connections: set[Connection] = set()
        self.refused_connections = 0
        self.handler_errors = 0
        self.note_latency: Callable[[int, int, float, bool], None] | None = None
        """Called on the loop's thread with the request's code, the answer's, the seconds between them, and whether the
        request was held. Who answers a request without returning the answer calls it, too.
        """
        self.on_open: list[Callable[[Connection], None]] = []
        self.on_close: list[Callable[[Connection], None]] = []
        self._handlers: dict[int, Handler] = {}
        self._blocking: dict[int, Handler] = {}
        self._long: dict[int, Handler] = {}
        self._access: dict[int, Access] = {}
        self._large_bodies: set[int] = set()
        self._send_handler: SendHandler | None = None
        self.fast_path: FastSendPath | None = None
        self.checked_fast_path: FastSendPath | None = None
        """The same for sends that their peer may make, as is known already."""
        self.take_sends: TakeSends | None = None
        self._take_acks: TakeAcks | None = None
        self._take_checked_acks: TakeAcks | None = None
        self.may_answer: Callable[[], bool] | None = None
        self._ungated: frozenset[int] = frozenset()
        self._pool: ThreadPoolExecutor | None = None
        self._waiting_blocking = 0
        self.round_robin = RoundRobin()
        self._stepped = RoundRobin()
        self._partial_bytes = 0
        self._unsent_bytes = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._sockets = listening
        self._listeners: list[asyncio.Server] = []
        self._others: list[tuple[socket.socket, MakeConnection]] = []
        self._other_listeners: list[asyncio.Server] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._empty: asyncio.Event | None = None
        self._draining = False
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._calls_lock = threading.Lock()
        self._calls_are_due = False
        self._flushes: list[Callable[[], None]] | None = None  # Those of `_run_calls`, while it runs.

    # Before the start.

    def serve(self, processor: object) -> None:
        """Serve every request that the methods of `processor` declare. Raises ValueError for one served already."""
        for declared, handler in declared_by(processor):
            if declared.code in self._access:
                raise ValueError(f"request {declared.code}: expected one handler, found {handler!r} beside another")
            if declared.code in SEND_CODES:
                self._send_handler = cast("SendHandler", handler)
                self._access[declared.code] = declared.access
                continue
            self._declare(declared, handler)

    def _declare(self, declared: Declaration, handler: Callable[..., RemotingCommand | None]) -> None:
        code, in_pool = declared.code, declared.in_pool
        usual: Handler = handler
        if (decode := declared.decode) is not None:
            self._long[code] = partial(self._decode_in_pool, decode, handler)
            short: Handler = lambda connection, command: handler(connection, command, decode(command))  # noqa: E731
            usual, in_pool = self._long[code] if in_pool else short, False
        elif declared.long_in_pool:
            self._long[code] = partial(self._take_blocking, handler)
        elif declared.large_body and not in_pool:
            self._long[code] = handler
        if declared.large_body:
            self._large_bodies.add(code)
        self.register(code, usual, declared.access, in_pool=in_pool)

    def refuse(self, codes: Iterable[int], handler: Handler) -> None:
        """Let `handler`, which raises RequestRefused, answer these requests, also those that are served already."""
        for code in codes:
            if code == RequestCode.ACK_MESSAGE:
                self._take_acks = self._take_checked_acks = None
            self._long[code] = handler
            self.register(code, handler, self._access.get(code, ANY_ACCOUNT))

    def also_listen(self, bound: socket.socket, make: MakeConnection) -> None:
        """Serve peers of another protocol at a socket that is bound: within the same limits, and with the same TLS."""
        self._others.append((bound, make))

    def settle_after(self, codes: Iterable[int], settle: Callable[[], None]) -> None:
        """Call `settle` in the pool between a handler of these requests and its answer; it may raise RequestRefused."""

        def settled(handler: Handler, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
            answer = handler(connection, command)
            settle()
            return answer

        for code in map(int, codes):
            self._blocking[code] = partial(settled, self._blocking[code])

    def register(self, code: int, handler: Handler, access: Access, *, in_pool: bool = False) -> None:
        """Requests of `code` go to `handler`, on the loop or in a thread of the pool; `access` declares who may send.

        On the loop it takes bodies of up to `INLINE_BODY_BYTES`: `serve` is for those that declare more.
        """
        self._handlers.pop(int(code), None)
        self._blocking.pop(int(code), None)
        (self._blocking if in_pool else self._handlers)[int(code)] = handler
        self._access[int(code)] = access

    def take_sends_by(self, taker: FastSendPath | TakeSends) -> None:
        """Sends that the fast path takes never reach the handler, once that has set where a connection's messages are
        born (`Connection.born_host`), and unless accounts must be asked who may send. A function takes sends and
        answers them later.
        """
        if isinstance(taker, FastSendPath):
            self.checked_fast_path = taker
        if self.acl is not None:
            return
        if isinstance(taker, FastSendPath):
            self.fast_path = taker
        else:
            self.take_sends = taker

    def take_acks_by(self, taker: TakeAcks) -> None:
        """Acknowledgements that `taker` takes never reach the handler, unless accounts must be asked who may send them.

        One that was taken is answered with success.
        """
        self._take_checked_acks = taker
        if self.acl is None:
            self._take_acks = taker

    def answer_while(self, may_answer: Callable[[], bool], *, also: Iterable[int]) -> None:
        """Serve requests only while `may_answer` returns True, which is asked again when an answer leaves: one that may
        not is dropped with its connection. The requests of the codes `also` are answered nevertheless.
        """
        self.may_answer, self._ungated = may_answer, frozenset(map(int, also))

    def _is_gated(self, connection: Connection, command: RemotingCommand) -> bool:
        """Whether a request is refused, because answers may not leave now."""
        if self.may_answer is None or self.may_answer() or command.code in self._ungated:
            return False
        if not command.flag & (FLAG_ONEWAY | FLAG_RESPONSE):
            connection.send_at_once(
                command.respond(
                    ResponseCode.SERVICE_NOT_AVAILABLE,
                    "this broker is not known to be the master now: its lease has ended, another replica has it, or "
                    "one in sync lacks a part of its log; ask a name server for the route again",
                )
            )
        return True

    @property
    def codes(self) -> frozenset[int]:
        """What is served, sends left aside."""
        return frozenset(self._handlers) | frozenset(self._blocking)

    @property
    def declared(self) -> dict[int, tuple[Access, bool]]:
        """Every code that is served: who may ask for it, and whether it runs in the pool."""
        return {code: (access, code in self._blocking) for code, access in self._access.items()}

    @property
    def tls_context(self) -> ssl.SSLContext | None:
        """None without TLS. A certificate for this process alone is made for the first TLS peer: most have none."""
        if self._tls_context is None and self._tls is not None:
            self._tls_context = self._tls.server_context()
        return self._tls_context

    def reload_tls(self) -> None:
        """Read the certificates again, for connections from now on. Any thread. Raises BadConfig, and keeps the old."""
        if self._tls is not None:
            self._tls_context = self._tls.server_context_at_start()

    # Life.

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RemotingError("expected a server that was started, found one that was not: call start() first")
        return self._loop

    async def start(self) -> None:
        """Listen. `port` is the real one from now on, of the first socket. Raises OSError if one cannot be had."""
        self._loop = loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._empty = asyncio.Event()
        self._pool = ThreadPoolExecutor(self.limits.blocking_threads, thread_name_prefix="remoting")
        places: list[dict[str, Any]] = [{"sock": each} for each in self._sockets]
        for place in places or [{"host": self.host, "port": self.port}]:
            made = await loop.create_server(lambda: Connection(self, loop), backlog=self.limits.backlog, **place)
            self._listeners.append(made)
        for bound, make in self._others:
            other = await loop.create_server(partial(make, self, loop), backlog=self.limits.backlog, sock=bound)
            self._other_listeners.append(other)
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
        for listener in (*self._listeners, *self._other_listeners):
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
        """Whether a request is in the pool or done in steps, or an answer is unsent."""
        if self._waiting_blocking > 0 or not self._stepped.is_empty:
            return True
        return any(connection.unsent_bytes for connection in self.connections)

    @property
    def waiting_blocking(self) -> int:
        """How many requests are with the pool, or wait for it."""
        return self._waiting_blocking

    @property
    def is_on_loop(self) -> bool:
        """Whether the caller is on the loop's thread."""
        return threading.get_ident() == self._loop_thread

    def call_threadsafe(self, call: Callable[..., object], *arguments: Any) -> None:
        """Run `call` on the loop, from any thread. Calls of one burst cost one wake-up of the loop.

        After the loop's end it does nothing: the waiting connections were closed with it.
        """
        with self._calls_lock:
            self._calls.append((call, arguments))
            if self._calls_are_due:
                return
            self._calls_are_due = True
        try:
            if self.is_on_loop:
                self.loop.call_soon(self._run_calls)
            else:
                self.loop.call_soon_threadsafe(self._run_calls)
        except RuntimeError:
            if not self.loop.is_closed():
                raise

    def _run_calls(self) -> None:
        """Also calls that these make, and the answers of all of them leave at the end.

        What is left after SLICE_S waits until the peers that are ready were served.
        """
        until_s = monotonic() + SLICE_S
        flushes: list[Callable[[], None]] = []
        self._flushes = flushes
        try:
            while self._calls and monotonic() < until_s:
                self._run_call(*self._calls.popleft())
        finally:
            self._flushes = None
            with self._calls_lock:
                self._calls_are_due = are_due = bool(self._calls)
            if are_due:
                self.loop.call_soon(self._run_calls)
            for flush in flushes:
                self._run_call(flush, ())

    def _run_call(self, call: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        try:
            call(*arguments)
        except Exception:  # noqa: BLE001 - one call's error must not stop the rest of its burst
            self.handler_errors += 1
            _log.exception("a call from another thread failed")

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
        result: Any = None
        failure: Exception | None = None
        try:
            with SHORT_TURNS:
                result = work()
        except RequestRefused as error:
            failure = without_frames(error)
        except Exception as error:  # noqa: BLE001 - the requester gets the error
            failure = error
        try:
            self.call_threadsafe(self._work_done, done, result, failure)
        finally:
            del failure  # Its traceback names this frame: a cycle, which only a collection would free.

    def _work_done(self, done: Callable[[Any, Exception | None], None], result: Any, failure: Exception | None) -> None:
        self._waiting_blocking -= 1
        done(result, failure)

    def close_idle(self) -> int:
        """Close peers without traffic either way for `idle_s`; returns their number."""
        now = self.clock.monotonic()
        idle = [each for each in self.connections if now - each.last_active_s > self.limits.idle_s]
        for connection in idle:
            _log.info("%s: closed: no traffic for %s s", connection, self.limits.idle_s)
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

    def flush_soon(self, flush: Callable[[], None]) -> None:
        if self._flushes is None:
            self.loop.call_soon(flush)
        else:
            self._flushes.append(flush)

    def opened(self, connection: Connection) -> bool:
        if connection.peer == UNKNOWN_PEER:  # It was reset before it was accepted: its requests have no peer.
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
        self.forget(connection)

    def forget(self, connection: Connection) -> None:
        """Drop what handlers keep for a peer: it is gone."""
        for callback in self.on_close:
            callback(connection)

    def partial_changed(self, delta_bytes: int) -> None:
        self._partial_bytes += delta_bytes
        if delta_bytes > 0 and self._partial_bytes > self.limits.partial_bytes_max:
            # Not the newest, which may be a client: peers that fill memory hold the most.
            self._close_heaviest(lambda each: each.partial_bytes, self.limits.partial_bytes_max, "frames begun")

    def unsent_changed(self, delta_bytes: int) -> None:
        self._unsent_bytes += delta_bytes
        if delta_bytes > 0 and self._unsent_bytes > self.limits.write_bytes_total_max:
            self._close_heaviest(lambda each: each.unsent_bytes, self.limits.write_bytes_total_max, "answers not taken")

    def _close_heaviest(self, weight: Callable[[Connection], int], most_bytes: int, what: str) -> None:
        """Close the peer that holds the most, unless those that are open hold no more than they may together."""
        held = [(weight(each), -each.id, each) for each in self.connections if not each.closing]
        if (total := sum(each[0] for each in held)) > most_bytes:
            own, _, heaviest = max(held)
            _log.warning("%s: closed for its %d bytes of %s: all peers hold %d", heaviest, own, what, total)
            heaviest.abort()

    def take_send(self, connection: Connection, request: SendRequest) -> None:
        if self._send_handler is None or self.acl is not None:
            self.take_request(connection, command_of_send(request))
        else:
            self.take_checked_send(connection, request, command_of_send)

    def take_checked_send(
        self, connection: Connection, request: SendRequest, command_of: Callable[[SendRequest], RemotingCommand]
    ) -> None:
        """Serve a send that its peer may make, as is known already. `command_of`: what a refusal answers."""
        handler = self._send_handler
        if self.may_answer is not None and self._is_gated(connection, command_of(request)):
            return
        try:
            if handler is None:
                raise RequestRefused("no messages are taken here", ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
            answer = handler(connection, request)
        except Exception as error:  # noqa: BLE001 - a request's outermost edge: it is answered, counted and logged
            if refused := self._refusal_of(command_of(request), error):
                connection.send(refused)
            return
        if answer is not None and not request.is_oneway:
            connection.send_bytes(answer)

    def take_checked_acks(self, acks: list[AckRequest]) -> list[AckRequest]:
        """Take acknowledgements that their peer may send, as is known already; returns those that the general path must
        answer.
        """
        return self._taken(self._take_checked_acks, acks)

    def _taken(self, taker: TakeAcks | None, acks: list[AckRequest]) -> list[AckRequest]:
        if taker is not None and (self.may_answer is None or self.may_answer()):
            try:
                return taker(acks)
            except Exception:  # noqa: BLE001 - the general path takes them one by one, and answers with their errors
                _log.exception("%d acknowledgements failed together", len(acks))
        return acks

    def take_acks(self, connection: Connection, acks: list[AckRequest]) -> None:
        left = self._taken(self._take_acks, acks)
        if left is not acks:
            over = set(map(id, left))
            connection.send_bytes(
                ack_answers([each for each in acks if id(each) not in over] if over else acks, VERSION)
            )
        for ack in left:
            self.take_request(connection, command_of_ack(ack))

    def take_request(self, connection: Connection, command: RemotingCommand) -> None:
        code = command.code
        began = time.perf_counter()
        if self.may_answer is not None and self._is_gated(connection, command):
            return
        try:
            if self.acl is not None:
                self._require_access(self.acl, connection, command)
            if code in SEND_CODES and self._send_handler is not None:
                answer = self._send_handler(connection, send_request_of(command))
                if answer is not None and not command.is_oneway:
                    connection.send_bytes(answer)
                return
            handlers = self._handlers if len(command.body) <= INLINE_BODY_BYTES else self._takers_of_long(command)
            if (handler := handlers.get(code)) is not None:
                response = handler(connection, command)
            elif (handler := self._blocking.get(code)) is not None:
                response = self._take_blocking(handler, connection, command)
            else:
                response = command.respond(
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"request code {int(code)} is not supported"
                )
        except Exception as error:  # noqa: BLE001 - a request's outermost edge: it is answered, counted and logged
            response = self._refusal_of(command, error)
        if response is not None:
            if self.note_latency is not None:
                self.note_latency(code, response.code, time.perf_counter() - began, False)
            if not command.flag & FLAG_ONEWAY:
                self._send(connection, command, response)

    def _send(self, connection: Connection, command: RemotingCommand, response: RemotingCommand) -> None:
        if self.may_answer is not None and command.code in self._ungated:
            connection.send_at_once(response)
        else:
            connection.send(response)

    def _require_access(self, acl: AccessCheck, connection: Connection, command: RemotingCommand) -> None:
        """Raises RequestRefused unless the request is signed, and its signer has what the handler declares."""
        command.account = account = connection.signer_of(acl, command)
        access = self._access.get(command.code)
        if account is not None and access is not None:  # What is not declared is not served.
            access.check(account, command)

    def _takers_of_long(self, command: RemotingCommand) -> Mapping[int, Handler]:
        """Handlers on the loop for bodies above INLINE_BODY_BYTES. Raises RequestRefused for one that is too long."""
        self._check_body(command.code, len(command.body))
        return self._long

    def refuses_body(self, connection: Connection, command: RemotingCommand, body_bytes: int) -> bool:
        if command.code in SEND_CODES:
            return False  # The store knows how long a message may be.
        try:
            self._check_body(command.code, body_bytes)
        except RequestRefused as error:
            response = self._refusal_of(command, error)
        else:
            return False
        if response is not None and not command.flag & FLAG_ONEWAY:
            self._send(connection, command, response)
        return True

    def _check_body(self, code: int, body_bytes: int) -> None:
        """Raises RequestRefused for a body above INLINE_BODY_BYTES that is too long for its request."""
        most = INLINE_BODY_BYTES if code in self._handlers and code not in self._long else self.limits.body_bytes_max
        if body_bytes > most and code not in self._large_bodies:
            raise RequestRefused(
                f"request {int(code)}: expected a body of at most {most} bytes, found {body_bytes}: split the request",
                ResponseCode.INVALID_PARAMETER,
            )

    def _decode_in_pool(
        self,
        decode: Callable[[RemotingCommand], Any],
        handle: Callable[[Connection, RemotingCommand, Any], RemotingCommand | None],
        connection: Connection,
        command: RemotingCommand,
    ) -> None:
        """`decode` the body in the pool, then `handle` it on the loop. What either raises is answered."""

        def done(decoded: Any, failure: Exception | None) -> None:
            if failure is not None:
                response = self._refusal_of(command, failure)
            else:
                try:
                    response = None if connection.closing else handle(connection, command, decoded)
                except Exception as error:  # noqa: BLE001 - a request's outermost edge: answered, counted and logged
                    response = self._refusal_of(command, error)
            if response is not None and not command.flag & FLAG_ONEWAY:
                connection.send(response)

        def work() -> Any:
            with COLLECTOR_PAUSE:
                return decode(command)

        self.run_in_pool(work, done)

    def in_steps(self, connection: Connection, command: RemotingCommand, steps: Steps) -> RemotingCommand | None:
        """From a handler on the loop: run `steps` until they return the answer; other requests are served in between.

        Returns the answer if it is ready at once, else None, and sends it later. Errors of the steps are answered. All
        work in steps shares one slice per loop iteration: together it holds the loop for SLICE_S.
        """
        if self._stepped.is_empty:
            is_over, answer = self.run_slice(command, steps)
            if is_over:
                return answer
        self._stepped.add(_SteppedRequest(self, connection, command, steps))
        return None

    def give_way(self, resume: Callable[[], None]) -> None:
        """Call `resume` when it is this work's turn among all work in steps: it has used its slice of the loop."""
        self._stepped.add(_Resumed(self.loop, resume))

    def run_slice(self, command: RemotingCommand, steps: Steps) -> tuple[bool, RemotingCommand | None]:
        """Whether the steps are over, and the answer to them."""
        until_s = monotonic() + SLICE_S
        try:
            while monotonic() < until_s:
                next(steps)
        except StopIteration as done:
            return True, done.value
        except Exception as error:  # noqa: BLE001 - a request's outermost edge: it is answered, counted and logged
            return True, self._refusal_of(command, error)
        return False, None

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
        self._pool.submit(self._run_blocking, handler, connection, command, time.perf_counter())
        return None

    def _run_blocking(self, handler: Handler, connection: Connection, command: RemotingCommand, began: float) -> None:
        try:
            with SHORT_TURNS:
                response = None if connection.closing else handler(connection, command)
        except Exception as error:  # noqa: BLE001 - a request's outermost edge: it is answered, counted and logged
            response = self._refusal_of(command, error)
        self.call_threadsafe(self._blocking_done, connection, command, response, began)

    def _blocking_done(
        self, connection: Connection, command: RemotingCommand, response: RemotingCommand | None, began: float
    ) -> None:
        self._waiting_blocking -= 1
        if response is not None and self.note_latency is not None:
            self.note_latency(command.code, response.code, time.perf_counter() - began, False)
        if response is not None and not command.flag & FLAG_ONEWAY:
            self._send(connection, command, response)

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


def without_frames(error: RequestRefused) -> RequestRefused:
    """The same, without the frames that raised it and its causes.

    They hold the body as far as it was read. Freed here, they do not wait for a collection, which would free those of
    many requests at once while every thread waits.
    """
    each: BaseException | None = error
    while each is not None:
        each = each.with_traceback(None).__context__
    return error


async def close_listener(listener: asyncio.Server) -> None:
    """Accept nothing more, let accepted connections reach their protocol, then close. Twice does no harm.

    asyncio accepts a connection in one loop iteration and creates its protocol in the next, where its transport
    attaches to the listener. A listener that was closed between the two fails an assertion there, and the socket stays
    open without an owner.
    """
    loop = asyncio.get_running_loop()
    if isinstance(loop, asyncio.SelectorEventLoop):
        for taking in listener.sockets:
            loop.remove_reader(taking.fileno())
    else:  # Others, such as uvloop, take a connection in one go.
        listener.close()
    for _ in range(TURNS_UNTIL_SERVED):
        await asyncio.sleep(0)
    listener.close()


class ThreadedServer(ABC):
    """The life of a server: on a loop thread of its own (`start`, `stop`), or on the caller's (`open`, `close`).

    Started and stopped once, by one thread. Its class names the server, and its loop's thread.
    """

    NAME: ClassVar[str]
    LOOP_THREAD: ClassVar[str]

    def __init__(self, server: RemotingServer) -> None:
        self.server = server
        self._thread: LoopThread | None = None

    @property
    def port(self) -> int:
        """The real one, once it was started."""
        return self.server.port

    @abstractmethod
    async def open(self) -> None:
        """Listen, on the running loop. Raises OSError when the address cannot be bound."""

    @abstractmethod
    async def close(self, drain_s: float = DRAIN_S) -> None:
        """Respond to open requests and close every connection."""

    def start(self) -> None:
        """Listen, in a separate thread. Raises OSError when the address cannot be bound."""
        if self._thread is not None:
            raise RemotingError(f"expected a {self.NAME} that was not started, found one that was: make another")
        self._thread = LoopThread(self.LOOP_THREAD)
        try:
            self._thread.run(self.open())
        except BaseException:
            self._thread.stop()
            raise

    def stop(self, drain_s: float = DRAIN_S) -> None:
        """Close it and end the thread. Twice does no harm."""
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
