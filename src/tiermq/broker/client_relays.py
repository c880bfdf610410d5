"""RelayProcessor: what operators ask of one client, asked by way of the broker, which the client is connected to.

    307 GET_CONSUMER_RUNNING_INFO       what a consumer does now
    309 CONSUME_MESSAGE_DIRECTLY        let it consume one message, whose record goes along

The client's answer is given back as it is. A client that is not there, says nothing in time or goes meanwhile is told
as an error; nobody waits on the loop.
"""

from __future__ import annotations

import asyncio

from tiermq.broker.clients import Client
from tiermq.broker.parts import BrokerParts
from tiermq.errors import RemotingError, RequestRefused, RequestTimedOut, TierMQError
from tiermq.message.ids import decode_message_id
from tiermq.message.record import reencode
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.fields import text_field
from tiermq.remoting.server import RemotingServer

PATIENCE_S = 10.0
RUNNING_INFO_VERSION = 57
"""V3_1_8_SNAPSHOT: older clients do not know the question."""


class RelayProcessor:
    """See the module. Runs on the loop, but for reading the message."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts

    def register(self, server: RemotingServer) -> None:
        server.register(RequestCode.GET_CONSUMER_RUNNING_INFO, self.running_info)
        server.register_blocking(RequestCode.CONSUME_MESSAGE_DIRECTLY, self.consume_directly)

    def running_info(self, connection: Connection, command: RemotingCommand) -> None:
        client = self._client(command)
        if client.version < RUNNING_INFO_VERSION:
            raise RequestRefused(f"The Consumer <{client.client_id}> Version <{client.version}> too low to finish")
        self._relay(connection, command, client, b"")

    def consume_directly(self, connection: Connection, command: RemotingCommand) -> None:
        """In the pool, since the message may have to be read from disk."""
        client = self._client(command)
        record = self._record(text_field(command, "msgId", ""))
        command.ext["brokerName"] = self._parts.config.broker_name
        self._parts.server.call_threadsafe(self._relay, connection, command, client, record)

    def _record(self, message_id: str) -> bytes:
        try:
            place = decode_message_id(message_id)
            message = self._parts.store.message_at(place.physical_offset)
        except (TierMQError, ValueError) as error:
            raise RequestRefused(f"no message with the id {message_id[:64]}: {error}") from error
        if message is None:
            raise RequestRefused(f"no message with the id {message_id[:64]}")
        return reencode(message)

    def _client(self, command: RemotingCommand) -> Client:
        group, client_id = text_field(command, "consumerGroup"), text_field(command, "clientId", "")
        found = self._parts.clients.find_consumer(group, client_id)
        if found is None:
            raise RequestRefused(f"The Consumer <{group}> <{client_id}> not online")
        return found

    def _relay(self, connection: Connection, command: RemotingCommand, client: Client, body: bytes) -> None:
        asked = RemotingCommand(command.code, ext=command.ext, body=body, header_type=command.header_type)
        answer = client.connection.request(asked, PATIENCE_S)
        answer.add_done_callback(lambda done: _give_back(connection, command, client, done))


def _give_back(
    connection: Connection, command: RemotingCommand, client: Client, done: asyncio.Future[RemotingCommand]
) -> None:
    error = None if done.cancelled() else done.exception()
    if not done.cancelled() and error is None:
        found = done.result()
        answer = command.respond(found.code, found.remark, ext=found.ext, body=bytes(found.body))
    elif error is None or isinstance(error, RemotingError):
        late = isinstance(error, RequestTimedOut)
        code = ResponseCode.CONSUME_MSG_TIMEOUT if late else ResponseCode.SYSTEM_ERROR
        answer = command.respond(code, f"consumer {client.client_id} did not answer: {error or 'the broker stops'}")
    else:
        raise error
    if not command.is_oneway:
        connection.send(answer)
