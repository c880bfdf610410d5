"""GrpcService: the calls of RocketMQ 5's clients, from metadata to the outcome.

    call ─► method declared (`grpc_access`)? client id? signature? ─► its message ─► may it? ─► handler
        ─► answer: a status and what was asked for
        └► RequestRefused, Refused ─► a status with its code

A handler is a coroutine that awaits answers of the broker's processors (`LocalRequest`): a call that found its answer
at once costs no task. Failures of a call that the protocol has a code for are gRPC's OK with that code; what is no call
of this service ends with an outcome of gRPC.

Invariants: a call is answered once, also when a handler fails; a call whose client is gone is cancelled, and what it
waited for is dropped. All state belongs to the loop's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from functools import partial
from time import monotonic
from typing import Any

from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.grpc.grpc_access import ACCESS
from tiermq.broker.grpc.grpc_clients import GrpcClients, code_of
from tiermq.broker.grpc.grpc_leases import GrpcLeases
from tiermq.broker.grpc.grpc_message import Refused, check_length
from tiermq.broker.grpc.lite_calls import LiteCalls
from tiermq.broker.grpc.lite_expiration import LiteExpiration
from tiermq.broker.grpc.local_request import Asking, Caller, Conversation, LocalRequest, Pending
from tiermq.broker.grpc.offset_calls import OffsetCalls
from tiermq.broker.grpc.receive_calls import ReceiveCalls
from tiermq.broker.grpc.route_calls import RouteCalls
from tiermq.broker.grpc.send_calls import SendCalls
from tiermq.broker.grpc.telemetry_calls import TelemetryCalls
from tiermq.broker.pop.pop_processor import PopProcessor
from tiermq.broker.send.send_processor import born_host_of
from tiermq.errors import RequestRefused
from tiermq.grpc.call import Call, CallFailed, Outcome
from tiermq.grpc.http2 import Http2Connection
from tiermq.grpc.messages import (
    BESIDE_BYTES_MAX,
    LONG_FIELDS,
    METHODS,
    SERVICE,
    Code,
    answer_class,
    request_class,
    status,
)
from tiermq.grpc.signature import signature_in, signed
from tiermq.kernel import AckRequest
from tiermq.remoting.limits import SLICE_S
from tiermq.remoting.permissions import Account
from tiermq.remoting.server import remark_of

_log = logging.getLogger(__name__)

CLIENT_ID = "x-mq-client-id"
CLIENT_ID_CHARACTERS_MAX = 512
TELEMETRY_BYTES_MAX = 1024 * 1024
"""Of what a client sends on its stream: a dump of its threads."""
NODE = ("cluster", "node_type", "node_id", "proxy_mode")


class Ask:
    """What a handler gets: who calls, the request, and how to ask the broker's processors."""

    __slots__ = ("_asking", "_open", "_until_s", "call", "caller", "request")

    def __init__(self, call: Call, caller: Caller, request: Any, asking: Asking) -> None:
        self.call = call
        self.caller = caller
        self.request = request
        self._asking = asking
        self._open: list[LocalRequest] = []
        self._until_s = monotonic() + SLICE_S

    def broker(self, code: int, ext: dict[str, str]) -> Pending:
        """Ask a processor."""
        request = self._asking.ask(self.caller, code, ext)
        if not request.pending.is_done:
            self._open.append(request)
        return request.pending

    def send(self, send: Any) -> Pending:
        """Let a message be stored."""
        request = self._asking.send(self.caller, send)
        if not request.pending.is_done:
            self._open.append(request)
        return request.pending

    async def give_way(self) -> None:
        """Between steps of long work: let others be served once this call has used its slice of the loop."""
        if monotonic() >= self._until_s:
            await self._asking.give_way()
            self._until_s = monotonic() + SLICE_S

    async def in_pool(self, work: Callable[[], Any]) -> Any:
        """What `work` returns, or raises, in a thread of the server's pool."""
        return await self._asking.in_pool(work)

    def acknowledge(self, acks: list[AckRequest]) -> list[AckRequest]:
        """Acknowledge messages at once; returns those that must be asked for one by one."""
        return self._asking.server.take_checked_acks(acks)

    def cancel(self) -> None:
        """The caller is gone."""
        for request in self._open:
            self._asking.drop(request)


Handler = Callable[[Ask], Coroutine[Pending, None, Any]]


class GrpcService:
    """See the module."""

    def __init__(self, parts: BrokerContext, pops: PopProcessor) -> None:
        self._parts = parts
        self._acl = parts.server.acl
        self._proxies = parts.config.grpc_proxies
        self._asking = Asking(parts.server)
        self.clients = clients = GrpcClients(parts)
        self._telemetry = TelemetryCalls(clients, self._caller)
        self.leases = GrpcLeases(parts, clients, pops)
        routes = RouteCalls(parts, clients)
        lite = LiteCalls(parts, clients, pops, self.leases)
        self.expiration = LiteExpiration(parts, pops.orders)
        self._sends = sends = SendCalls(parts, clients, lite)
        receives, offsets = ReceiveCalls(parts, clients, pops, self.leases, lite), OffsetCalls(parts)
        self._handlers: dict[str, Handler] = {
            "QueryRoute": routes.query_route,
            "QueryAssignment": routes.query_assignment,
            "Heartbeat": self._telemetry.heartbeat,
            "NotifyClientTermination": self._telemetry.terminate,
            "SendMessage": sends.send,
            "EndTransaction": sends.end_transaction,
            "RecallMessage": sends.recall,
            "ReceiveMessage": receives.receive,
            "AckMessage": receives.acknowledge,
            "ChangeInvisibleDuration": receives.change_time,
            "ForwardMessageToDeadLetterQueue": receives.forward,
            "SyncLiteSubscription": lite.sync,
            "PullMessage": offsets.pull,
            "UpdateOffset": offsets.update,
            "GetOffset": offsets.get,
            "QueryOffset": offsets.query,
        }
        self._requests = {name: request_class(name) for name in METHODS}
        self._answers = {name: answer_class(name) for name in METHODS}
        self.counts: dict[tuple[str, str], int] = {}
        self._register_metrics()

    def _register_metrics(self) -> None:
        metrics, config = self._parts.metrics, self._parts.config
        owner = (config.broker_cluster_name, "proxy", config.broker_name, "local")
        metrics.gauge("rocketmq_proxy_up", "whether gRPC is served", NODE).labels(*owner).set_function(lambda: 1)
        self._calls = metrics.counter("tiermq_grpc_calls_total", "calls of gRPC that were answered", ("call", "code"))
        self._reported: dict[tuple[str, str], int] = {}
        metrics.add_collector(self._collect)

    def _collect(self) -> None:
        for labels, count in tuple(self.counts.items()):
            self._calls.labels(*labels).add(count - self._reported.get(labels, 0))
            self._reported[labels] = count

    # Calls.

    def open(self, call: Call) -> None:
        """A call has begun: its metadata is there."""
        method = call.path.removeprefix(SERVICE)
        if method not in LONG_FIELDS:
            call.message_bytes_max = BESIDE_BYTES_MAX
        if method not in ACCESS:
            words = "is not served here" if method in METHODS else "is no call of RocketMQ's messaging service"
            call.end(Outcome.UNIMPLEMENTED, f"{call.path[:200]} {words}")
        elif method == "Telemetry":
            call.message_bytes_max = TELEMETRY_BYTES_MAX
            self._open_telemetry(call)
        else:
            call.on_message = partial(self._begin, method)
            call.on_half_close = partial(_end_empty, call)

    def _begin(self, method: str, call: Call, data: bytes) -> None:
        call.on_message = None
        call.on_half_close = None
        try:
            caller = self._caller(call)
            if (known := self.clients.find(caller)) is not None:
                known.seen_ms = self._parts.clock.now_ms()
            if method == "SendMessage" and (answer := self._sends.take_plain(caller, data)) is not None:
                self._count(method, Code.OK)
                call.reply(answer)
                return
            check_length(method, data)
        except (RequestRefused, Refused) as error:
            self._failed(method, call, error)
            return
        try:
            request = self._requests[method].FromString(data)
        except Exception as error:  # noqa: BLE001 - protobuf's own kind differs by its implementation
            call.end(Outcome.INTERNAL, f"expected a {method} request, found other bytes: {error}"[:300])
            return
        if caller.account is not None:
            try:
                ACCESS[method].check(caller.account, request)
            except RequestRefused as error:
                self._failed(method, call, error)
                return
        ask = Ask(call, caller, request, self._asking)
        conversation = Conversation(self._handlers[method](ask), partial(self._finish, method, call))
        call.on_cancel = partial(_cancel, conversation, ask)
        conversation.go_on()

    def _caller(self, call: Call) -> Caller:
        """Raises Refused and RequestRefused."""
        connection, metadata = call.connection, call.metadata
        client_id = metadata.get(CLIENT_ID, "")
        if not client_id or len(client_id) > CLIENT_ID_CHARACTERS_MAX:
            raise Refused(Code.CLIENT_ID_REQUIRED, "client id cannot be empty, nor too long")
        account: Account | None = None
        if self._acl is not None:
            found = signature_in(metadata)
            try:
                account = self._acl.signer_by(
                    found.access_key, found.signature, connection.peer[0], lambda secret: signed(secret, metadata)
                )
            except RequestRefused as error:
                raise Refused(Code.UNAUTHORIZED, str(error)) from error
        before = connection.caller
        if isinstance(before, Caller) and before.client_id == client_id and before.account is account:
            return before
        address = "{}:{}".format(*connection.peer).encode()
        born_host = born_host_of(connection)
        caller = Caller(client_id, account, connection.peer, connection.local, born_host, connection.loop, address)
        connection.caller = caller
        return caller

    def _finish(self, method: str, call: Call, answer: Any, error: Exception | None) -> None:
        call.on_cancel = None
        if error is not None:
            self._failed(method, call, error)
            return
        if answer is None:  # A stream of answers, which the handler has sent.
            self._count(method, Code.OK)
            call.end()
            return
        self._count(method, answer.status.code)
        call.reply(answer.SerializeToString())

    def _failed(self, method: str, call: Call, error: Exception) -> None:
        if isinstance(error, Refused):
            code, text = error.code, str(error)
        elif isinstance(error, RequestRefused):
            code, text = code_of(error.code), str(error)
        elif isinstance(error, CallFailed):
            call.end(error.outcome, str(error))
            return
        else:
            self._parts.server.handler_errors += 1
            _log.error("%s of %s failed", method, call.connection, exc_info=error)
            code, text = Code.INTERNAL_SERVER_ERROR, remark_of(error)
        self._count(method, code)
        answer = self._answers[method]()
        answer.status.CopyFrom(status(code, text[:1_000]))
        call.reply(answer.SerializeToString())

    def _count(self, method: str, code: int) -> None:
        label = (method, str(int(code)))
        self.counts[label] = self.counts.get(label, 0) + 1

    def _open_telemetry(self, call: Call) -> None:
        try:
            caller = self._caller(call)
        except (RequestRefused, Refused) as error:
            call.end(Outcome.INVALID_ARGUMENT, str(error))
            return
        self._telemetry.open(call, caller)

    def connection(self, server: Any, loop: Any) -> Http2Connection:
        """For a peer that has connected."""
        return Http2Connection(server, loop, self.open, self._proxies)


def _end_empty(call: Call) -> None:
    call.end(Outcome.INTERNAL, "expected a message, found none")


def _cancel(conversation: Conversation, ask: Ask) -> None:
    conversation.cancel()
    ask.cancel()
