"""TelemetryCalls: Telemetry, Heartbeat, NotifyClientTermination."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tiermq.broker.grpc.grpc_clients import GrpcClient, GrpcClients, check_group, require_group
from tiermq.broker.grpc.grpc_message import Refused, check_length
from tiermq.broker.grpc.local_request import Caller, Conversation
from tiermq.errors import RequestRefused
from tiermq.grpc.call import Call, Outcome
from tiermq.grpc.messages import Code, TelemetryCommand, message_class, status
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_dialect import encode_body

if TYPE_CHECKING:
    from tiermq.broker.grpc.grpc_service import Ask

_log = logging.getLogger(__name__)

HeartbeatResponse = message_class("HeartbeatResponse")
NotifyClientTerminationResponse = message_class("NotifyClientTerminationResponse")
CLIENT_ERRORS = range(40_000, 50_000)


class Waiting:
    """Settings of one stream that wait for their turn."""

    __slots__ = ("caller", "is_busy", "settings")

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.is_busy = False
        self.settings: Any = None


class TelemetryCalls:
    """See the module."""

    def __init__(self, clients: GrpcClients, caller_of: Callable[[Call], Caller]) -> None:
        self._clients = clients
        self._caller_of = caller_of

    # The stream.

    def open(self, call: Call, caller: Caller) -> None:
        """A client has opened its stream."""
        call.on_message = partial(self._take, Waiting(caller))
        call.on_half_close = partial(self._end, call, caller)
        call.on_cancel = partial(self._gone, call, caller)

    def _take(self, waiting: Waiting, call: Call, data: bytes) -> None:
        try:
            check_length("Telemetry", data)
        except Refused as error:
            call.end(Outcome.INVALID_ARGUMENT, str(error))
            return
        try:
            command = TelemetryCommand.FromString(data)
        except Exception as error:  # noqa: BLE001 - protobuf's own kind differs by its implementation
            call.end(Outcome.INVALID_ARGUMENT, f"expected a telemetry command, found other bytes: {error}"[:300])
            return
        kind = command.WhichOneof("command")
        if kind == "settings":
            waiting.settings = command.settings
            if not waiting.is_busy:
                self._take_settings(waiting, call)
            return
        client = self._clients.find(waiting.caller)
        if client is None:
            call.end(Outcome.INVALID_ARGUMENT, "expected settings first, found another command")
        elif kind == "thread_stack_trace":
            found = command.thread_stack_trace
            client.answered(found.nonce, partial(_threads, found.thread_stack_trace))
        elif kind == "verify_message_result":
            client.answered(command.verify_message_result.nonce, partial(_consumed, command.status.code))

    def _take_settings(self, waiting: Waiting, call: Call) -> None:
        """The newest settings; those that come meanwhile wait for their turn, and replace each other."""
        settings, waiting.settings = waiting.settings, None
        waiting.is_busy = settings is not None and not call.ended
        if waiting.is_busy:
            found = self._settings(call, settings)
            Conversation(found, partial(self._settled, waiting, call)).go_on()

    async def _settings(self, call: Call, settings: Any) -> Any:
        caller = self._caller_of(call)  # Its account may be another one since the stream began, or none.
        self._clients.check(caller, settings)
        client = self._clients.take(caller, settings, call)
        await self._clients.register(client, call.metadata.get("x-mq-language", ""))
        return client.settings

    def _settled(self, waiting: Waiting, call: Call, settings: Any, error: Exception | None) -> None:
        self._clients.give_way(partial(self._take_settings, waiting, call))
        if error is None:
            answer = TelemetryCommand()
            answer.status.CopyFrom(status(Code.OK))
            answer.settings.CopyFrom(settings)
            call.send(answer.SerializeToString())
            return
        is_own = isinstance(error, RequestRefused) or (isinstance(error, Refused) and error.code in CLIENT_ERRORS)
        if not isinstance(error, RequestRefused | Refused):
            _log.error("settings of %s failed", call.connection, exc_info=error)
        text = str(error) if isinstance(error, RequestRefused | Refused) else "the server's log has the details"
        call.end(Outcome.INVALID_ARGUMENT if is_own else Outcome.INTERNAL, text)

    def _end(self, call: Call, caller: Caller) -> None:
        self._gone(call, caller)
        call.end()

    def _gone(self, call: Call, caller: Caller) -> None:
        if (client := self._clients.find(caller)) is not None:
            self._clients.stream_ended(client, call)

    # Calls.

    async def heartbeat(self, ask: Ask) -> Any:
        """Refresh a client's registration."""
        client = self._known(ask)
        if client.is_consumer and ask.request.HasField("group"):
            check_group(ask.request.group.name)
            require_group(ask.caller, ask.request.group.name)
        client.account = ask.caller.account
        await self._clients.register(client, ask.call.metadata.get("x-mq-language", ""))
        return HeartbeatResponse(status=status(Code.OK))

    async def terminate(self, ask: Ask) -> Any:
        """A client ends."""
        client = self._known(ask)
        self._clients.terminate(client)
        return NotifyClientTerminationResponse(status=status(Code.OK))

    def _known(self, ask: Ask) -> GrpcClient:
        client = self._clients.find(ask.caller)
        if client is None:
            raise Refused(Code.UNRECOGNIZED_CLIENT_TYPE, "cannot find client settings for this client")
        return client


def _threads(trace: str, command: RemotingCommand) -> RemotingCommand:
    return command.respond(
        body=encode_body({"jstack": trace, "properties": {}, "statusTable": {}, "subscriptionSet": []})
    )


def _consumed(code: int, command: RemotingCommand) -> RemotingCommand:
    results = {
        Code.OK: "CR_SUCCESS",
        Code.FAILED_TO_CONSUME_MESSAGE: "CR_LATER",
        Code.MESSAGE_CORRUPTED: "CR_RETURN_NULL",
    }
    result = results.get(code, "CR_LATER")  # type: ignore[call-overload]
    fields = {
        "autoCommit": True,
        "consumeResult": result,
        "order": False,
        "remark": "from gRPC client",
        "spentTimeMills": 0,
    }
    return command.respond(body=encode_body(fields))
