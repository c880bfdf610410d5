"""RelayProcessor: what operators ask of clients, asked by way of the broker, which these are connected to.

    307 GET_CONSUMER_RUNNING_INFO               what a consumer does now
    309 CONSUME_MESSAGE_DIRECTLY                let it consume one message, whose record is in the request
    223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS    offsets of all consumers of a group, or of one; each is sent 221

One client's answer is returned unchanged. A client that is not connected, times out or disconnects is returned
as an error, or is left out if other clients answer; the loop never blocks.
"""

from __future__ import annotations

import asyncio
import logging

from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.group.client_table import Client
from tiermq.errors import RemotingError, RequestRefused, RequestTimedOut, TierMQError
from tiermq.message.ids import decode_message_id
from tiermq.message.record import reencode
from tiermq.remoting.access import ADMINISTRATOR, of_group, reads, serves
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand, text_field
from tiermq.remoting.connection import Connection
from tiermq.remoting.json_dialect import ObjectKeyed, as_int, decode_object, encode_body, object_in
from tiermq.remoting.permissions import SIGNED_FIELDS

_log = logging.getLogger(__name__)

PATIENCE_S = 10.0
RUNNING_INFO_VERSION = 62
"""V3_1_8_SNAPSHOT: older clients do not know the request."""
STATUS_VERSION = 28
"""V3_0_7_SNAPSHOT: the same for the other request."""


class RelayProcessor:
    """See the module. Runs on the loop, but for reading the message."""

    def __init__(self, parts: BrokerContext) -> None:
        self._parts = parts

    @serves(RequestCode.GET_CONSUMER_RUNNING_INFO, access=ADMINISTRATOR)
    def running_info(self, connection: Connection, command: RemotingCommand) -> None:
        client = self._client(command)
        if client.version < RUNNING_INFO_VERSION:
            raise RequestRefused(f"The Consumer <{client.client_id}> Version <{client.version}> too low to finish")
        self._relay(connection, command, client, b"")

    @serves(RequestCode.CONSUME_MESSAGE_DIRECTLY, access=ADMINISTRATOR, in_pool=True)
    def consume_directly(self, connection: Connection, command: RemotingCommand) -> None:
        """In the pool, since the message may have to be read from disk."""
        client = self._client(command)
        record = self._record(text_field(command, "msgId", ""))
        command.ext["brokerName"] = self._parts.config.broker_name
        self._parts.server.call_threadsafe(self._relay, connection, command, client, record)

    @serves(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, access=of_group("group") & reads("topic"))
    def status(self, connection: Connection, command: RemotingCommand) -> None:
        topic, group = text_field(command, "topic"), text_field(command, "group")
        wanted = text_field(command, "clientAddr", "")
        members = self._parts.clients.consumers(group)
        clients = (
            [] if members is None else [each for each in members.clients.values() if wanted in ("", each.client_id)]
        )
        if not clients:
            raise RequestRefused(f"No Any Consumer online in the consumer group: [{group}]")
        for client in clients:
            if client.version < STATUS_VERSION:
                raise RequestRefused(f"the client does not support this feature. version={client.version}")
        code, fields = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": topic, "group": group}
        asked = [each.connection.request(RemotingCommand(code, ext=fields), PATIENCE_S) for each in clients]
        ids = [each.client_id for each in clients]
        answers = asyncio.gather(*asked, return_exceptions=True)
        answers.add_done_callback(lambda done: _give_statuses(connection, command, ids, done))

    def _record(self, message_id: str) -> bytes:
        try:
            place = decode_message_id(message_id)
        except (TierMQError, ValueError) as error:
            raise RequestRefused(f"no message with the id {message_id[:64]}: {error}") from error
        message = self._parts.store.stored_at(place.physical_offset)
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
        # The client gets no administrator's signature: it could send the same request with it.
        fields = {name: value for name, value in command.ext.items() if name not in SIGNED_FIELDS}
        asked = RemotingCommand(command.code, ext=fields, body=body, header_type=command.header_type)
        answer = client.connection.request(asked, PATIENCE_S)
        answer.add_done_callback(lambda done: _give_back(connection, command, client, done))


def _give_statuses(
    connection: Connection,
    command: RemotingCommand,
    ids: list[str],
    done: asyncio.Future[list[RemotingCommand | BaseException]],
) -> None:
    table: dict[str, ObjectKeyed] = {}
    for client_id, found in zip(ids, [] if done.cancelled() else done.result(), strict=not done.cancelled()):
        if isinstance(found, BaseException) or found.code != ResponseCode.SUCCESS:
            _log.warning("consumer %s does not report its offsets: %s", client_id, found)
            continue
        try:
            table[client_id] = _offsets_of(found)
        except RequestRefused as error:
            _log.warning("consumer %s sent an answer that cannot be decoded: %s", client_id, error)
    if not command.is_oneway:
        connection.send(command.respond(body=encode_body({"consumerTable": table, "messageQueueTable": {}})))


def _offsets_of(answer: RemotingCommand) -> ObjectKeyed:
    """Queues and offsets as a client sent them. Raises RequestRefused."""
    table = object_in(decode_object(answer.body).get("messageQueueTable") or {}, "messageQueueTable")
    return ObjectKeyed((decode_object(queue.encode()), as_int(offset)) for queue, offset in table.items())


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
