"""TelemetryCalls: Telemetry, Heartbeat, NotifyClientTermination."""

from __future__ import annotations

import logging
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


class TelemetryCalls:
    """See the module."""

    def __init__(self, clients: GrpcClients) -> None:
        self._clients = clients

    # The stream.

    def open(self, call: Call, caller: Caller) -> None:
        """A client has opened its stream."""
        call.on_message = partial(self._take, caller)
        call.on_half_close = partial(self._end, call, caller)
        call.on_cancel = partial(self._gone, call, caller)

    def _take(self, caller: Caller, call: Call, data: bytes) -> None:
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
            conversation = Conversation(self._settings(caller, call, command.settings), partial(self._settled, call))
            conversation.go_on()
            return
        client = self._clients.find(caller)
        if client is None:
            call.end(Outcome.INVALID_ARGUMENT, "expected settings first, found another command")
        elif kind == "thread_stack_trace":
            found = command.thread_stack_trace
            client.answered(found.nonce, partial(_threads, found.thread_stack_trace))
        elif kind == "verify_message_result":
            client.answered(command.verify_message_result.nonce, partial(_consumed, command.status.code))

    async def _settings(self, caller: Caller, call: Call, settings: Any) -> Any:
        self._clients.check(caller, settings)
        client = self._clients.take(caller, settings, call)
        await self._clients.register(client, call.metadata.get("x-mq-language", ""))
        return client.settings

    def _settled(self, call: Call, settings: Any, error: Exception | None) -> None:
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
