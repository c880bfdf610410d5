"""OffsetProcessor: consumer offsets, and min and max offsets of queues.

    14 QUERY_CONSUMER_OFFSET    30 GET_MAX_OFFSET               29 SEARCH_OFFSET_BY_TIMESTAMP
    15 UPDATE_CONSUMER_OFFSET   31 GET_MIN_OFFSET               32 GET_EARLIEST_MSG_STORETIME

Where a group has no offset, the zero rule decides (14): a queue that still has its message 0 close to the log's end, or
has no message at all, is consumed from 0; for any other queue the client gets 22 and chooses where to start. Searches
by time may need the tier and run in the pool.

What a client may commit: of a group that is not the broker's own, for an existing queue, at most to its max offset.

    beyond the end   committed at the end, with a remark: after a crash that lost the tail, consumers are
                     ahead of it, and new messages at those offsets must not be skipped
    below -1         refused; -1 changes nothing, since some clients commit it before they have consumed anything

Every request that changes offsets for a client goes through here (15, and what a pull commits), or asks
`require_client_group` (pops, acknowledgements, resets, clones, deletes).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Literal

from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.send.send_processor import BATCH_QUEUE
from tiermq.errors import RequestRefused
from tiermq.message.topic_name import is_broker_group
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.access import knows, of_group, reads, serves
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand, bool_field, int32_field, int_field, text_field
from tiermq.remoting.connection import Connection
from tiermq.store.topic_attributes import ATTRIBUTE as QUEUE_TYPE

_log = logging.getLogger(__name__)
NOTHING_CONSUMED = -1


class OffsetProcessor:
    """See the module."""

    def __init__(self, parts: BrokerContext) -> None:
        self._parts = parts
        self._flushing: asyncio.Future[bool] | None = None
        parts.hooks.every(parts.config.flush_consumer_offset_interval / 1000, self._flush)
        parts.hooks.on_stop(self._last_flush)

    # Of groups.

    @serves(RequestCode.QUERY_CONSUMER_OFFSET, access=of_group("consumerGroup") & reads("topic"))
    def query(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        group, topic = text_field(command, "consumerGroup"), text_field(command, "topic")
        queue_id = int32_field(command, "queueId")
        offset = self._parts.offsets.query(group, topic, queue_id)
        if offset < 0:
            if not bool_field(command, "setZeroIfNotFound", default=True) or not self._is_young(topic, queue_id):
                raise RequestRefused(
                    f"group {group} has no offset for queue {queue_id} of {topic}: the client chooses where to start",
                    ResponseCode.QUERY_NOT_FOUND,
                )
            offset = 0
        return command.respond(ext={"offset": str(offset)})

    def _is_young(self, topic: str, queue_id: int) -> bool:
        """The zero rule: starting at 0 costs little."""
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
        """Also for an unknown topic: it is empty, as in RocketMQ."""
        return text_field(command, "topic"), int32_field(command, "queueId")

    # The disk.

    def _flush(self) -> None:
        """On the loop: let another thread write, one at a time."""
        if not self._parts.offsets.changed or (self._flushing is not None and not self._flushing.done()):
            return
        self._flushing = self._parts.server.loop.run_in_executor(None, self._parts.offsets.flush)
        self._flushing.add_done_callback(_note)

    def _last_flush(self) -> None:
        self._parts.offsets.flush(is_last=True)


def _note(flushed: asyncio.Future[bool]) -> None:
    if not flushed.cancelled() and (error := flushed.exception()) is not None:
        _log.error("consumer offsets could not be written, retrying: %s", error)


def require_client_group(group: str) -> None:
    """Raises RequestRefused (NO_PERMISSION) for a group whose offsets are a broker's own progress."""
    if is_broker_group(group):
        raise RequestRefused(
            f"group {group[:120]}: its offsets are the broker's own, clients may not change them",
            ResponseCode.NO_PERMISSION,
        )


def require_queue(parts: BrokerContext, topic: TopicConfig, queue_id: int) -> None:
    """Raises RequestRefused for a queue that the topic neither has nor had before it got fewer."""
    count = max(topic.read_queues, topic.write_queues)
    if 0 <= queue_id < count or (queue_id >= 0 and parts.store.max_offset(topic.name, queue_id) > 0):
        return
    raise RequestRefused(
        f"queueId[{queue_id}] is illegal: topic {topic.name} has {count} queues", ResponseCode.INVALID_PARAMETER
    )


def commit_for_client(parts: BrokerContext, group: str, topic: str, queue_id: int, offset: int) -> str | None:
    """Commit, and return the remark for the answer. The queue exists. Raises RequestRefused."""
    require_client_group(group)
    if offset < NOTHING_CONSUMED:
        raise RequestRefused(
            f"commitOffset: expected no negative offset, found {offset}", ResponseCode.INVALID_PARAMETER
        )
    if offset == NOTHING_CONSUMED:
        return None
    remark = None
    if offset > parts.local.max_offset(topic, queue_id):  # The common case does not need the tier.
        end = parts.store.max_offset(topic, queue_id, committed=False)
        if offset > end:
            offset, remark = end, f"committed {end}, the end of the queue, and not {offset}"
    if not parts.offsets.commit(group, topic, queue_id, offset):
        return "Offset has been previously reset"
    return remark
