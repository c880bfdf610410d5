"""OffsetProcessor: where consumers are and where queues begin and end.

    14 QUERY_CONSUMER_OFFSET    30 GET_MAX_OFFSET               29 SEARCH_OFFSET_BY_TIMESTAMP
    15 UPDATE_CONSUMER_OFFSET   31 GET_MIN_OFFSET               32 GET_EARLIEST_MSG_STORETIME

Where a group has no offset, the zero rule decides (14): a queue that still has its message 0 close to the log's end, or
has no message at all, is consumed from 0; of any other the client chooses where to begin, since it is told 22. Searches
by time may have to ask the tier and go to the pool.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Literal

from tiermq.broker.client_commit import commit_for_client, require_queue
from tiermq.broker.parts import BrokerParts
from tiermq.broker.sending import BATCH_QUEUE
from tiermq.errors import RequestRefused
from tiermq.remoting.access import knows, of_group, reads, serves
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.fields import bool_field, int32_field, int_field, text_field
from tiermq.store.topic_attributes import ATTRIBUTE as QUEUE_TYPE

_log = logging.getLogger(__name__)


class OffsetProcessor:
    """See the module."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        self._flushing: asyncio.Future[bool] | None = None
        parts.periodic.append((parts.config.flush_consumer_offset_interval / 1000, self._flush))
        parts.on_stop.append(self._last_flush)

    # Of groups.

    @serves(RequestCode.QUERY_CONSUMER_OFFSET, access=of_group("consumerGroup") & reads("topic"))
    def query(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        group, topic = text_field(command, "consumerGroup"), text_field(command, "topic")
        queue_id = int32_field(command, "queueId")
        offset = self._parts.offsets.query(group, topic, queue_id)
        if offset < 0:
            if not bool_field(command, "setZeroIfNotFound", default=True) or not self._is_young(topic, queue_id):
                raise RequestRefused(
                    f"group {group} has no offset for queue {queue_id} of {topic}: begin where you like",
                    ResponseCode.QUERY_NOT_FOUND,
                )
            offset = 0
        return command.respond(ext={"offset": str(offset)})

    def _is_young(self, topic: str, queue_id: int) -> bool:
        """The zero rule: nobody would miss much, or wait long, by beginning at 0."""
        store, local = self._parts.store, self._parts.local
        if store.max_offset(topic, queue_id) <= 0:
            return True
        if store.min_offset(topic, queue_id) > 0:
            return False
        physical = local.physical_offset_of(topic, queue_id, 0)
        return physical >= 0 and local.max_physical_offset - physical <= local.memory_window_bytes

    @serves(RequestCode.UPDATE_CONSUMER_OFFSET, access=of_group("consumerGroup") & reads("topic"))
    def update(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        group, topic = text_field(command, "consumerGroup"), text_field(command, "topic")
        queue_id, offset = int32_field(command, "queueId"), int_field(command, "commitOffset")
        parts = self._parts
        if parts.groups.get(group) is None:
            raise RequestRefused(f"Group {group} not exist!", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
        if (found := parts.topics.get(topic)) is None:
            raise RequestRefused(f"Topic {topic} not exist!", ResponseCode.TOPIC_NOT_EXIST)
        require_queue(parts, found, queue_id)
        return command.respond(remark=commit_for_client(parts, group, topic, queue_id, offset))

    # Of queues.

    @serves(RequestCode.GET_MAX_OFFSET, access=knows("topic"))
    def max_offset(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        topic, queue_id = self._queue(command)
        committed = bool_field(command, "committed", default=True)
        return command.respond(ext={"offset": str(self._parts.store.max_offset(topic, queue_id, committed=committed))})

    @serves(RequestCode.GET_MIN_OFFSET, access=knows("topic"))
    def min_offset(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        topic, queue_id = self._queue(command)
        store, config = self._parts.store, self._parts.topics.get(topic)
        found = max(0, store.min_offset(topic, queue_id))
        is_batch = config is not None and config.attributes.get(QUEUE_TYPE) == BATCH_QUEUE
        if is_batch and store.max_offset(topic, queue_id) == 0:
            found = -1  # RocketMQ's answer for a batch queue that never had a message.
        return command.respond(ext={"offset": str(found)})

    @serves(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, access=knows("topic"), in_pool=True)
    def offset_at(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        topic, queue_id = self._queue(command)
        boundary: Literal["lower", "upper"] = "lower"
        if command.ext.get("boundaryType", "").upper() == "UPPER":
            boundary = "upper"
        found = self._parts.store.offset_at(topic, queue_id, int_field(command, "timestamp"), boundary)
        return command.respond(ext={"offset": str(found)})

    @serves(RequestCode.GET_EARLIEST_MSG_STORETIME, access=knows("topic"), in_pool=True)
    def earliest_time(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        topic, queue_id = self._queue(command)
        return command.respond(ext={"timestamp": str(self._parts.store.earliest_time(topic, queue_id))})

    @staticmethod
    def _queue(command: RemotingCommand) -> tuple[str, int]:
        """Of a topic that nobody knows, too: it is empty, as in RocketMQ."""
        return text_field(command, "topic"), int32_field(command, "queueId")

    # The disk.

    def _flush(self) -> None:
        """On the loop: let another thread write, one at a time."""
        if not self._parts.offsets.changed or (self._flushing is not None and not self._flushing.done()):
            return
        self._flushing = self._parts.server.loop.run_in_executor(None, self._parts.offsets.flush)
        self._flushing.add_done_callback(_note)

    def _last_flush(self) -> None:
        self._parts.offsets.flush()


def _note(flushed: asyncio.Future[bool]) -> None:
    if not flushed.cancelled() and (error := flushed.exception()) is not None:
        _log.error("consumer offsets could not be written, trying again: %s", error)
