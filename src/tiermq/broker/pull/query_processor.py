"""QueryProcessor: queries by key, by commit log offset, and by consume queue.

    QUERY_MESSAGE (12) by key     VIEW_MESSAGE_BY_ID (33) by physical offset     QUERY_CONSUME_QUEUE (321) units

They may have to read much, and 12 may ask the tier, so they run in the pool. Answers are records as they are stored,
and units as they are in the local consume queue.

While the key index lacks messages (a crash, a lost disk or RocketMQ's index left some out), "not found" would be a
false answer. Nothing found is then SYSTEM_ERROR with the reason; what is found is SUCCESS, with the reason as remark
and `indexComplete=false`. RocketMQ's clients log the code and the remark of any answer but SUCCESS, and ignore both on
SUCCESS, so they work as before.
"""

from __future__ import annotations

from typing import Any

from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.pop.pop_topics import may_read, require_message
from tiermq.consumequeue.ext_unit import ExtUnit
from tiermq.consumequeue.unit import is_ext_address
from tiermq.errors import RequestRefused
from tiermq.message.record import reencode
from tiermq.remoting.access import reaches, reads, require_group, serves
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand, bool_field, int32_field, int_field, text_field
from tiermq.remoting.connection import Connection
from tiermq.remoting.json_dialect import encode_body
from tiermq.remoting.permissions import UNIQUE_KEY_QUERY

UNIQUE_KEY_MESSAGES_MAX = 32
INDEX_COMPLETE = "indexComplete"
UNITS_MAX = 10_000
"""Of one answer; clients continue with a query from the offset behind them."""
BODY_BYTES_MAX = 15 * 1024 * 1024
"""Less than a frame may have; the newest messages are given when all together have more."""


class QueryProcessor:
    """See the module."""

    def __init__(self, parts: BrokerContext) -> None:
        self._parts = parts
        self._store = parts.store

    @serves(RequestCode.QUERY_MESSAGE, access=reads("topic"), in_pool=True)
    def query(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        self._parts.replication.require_settled()
        topic, key = text_field(command, "topic"), text_field(command, "key")
        most = max(1, int32_field(command, "maxNum"))
        if bool_field(command, UNIQUE_KEY_QUERY, default=False):
            most = UNIQUE_KEY_MESSAGES_MAX
        begin_ms, end_ms = int_field(command, "beginTimestamp"), int_field(command, "endTimestamp")
        page = self._store.query(topic, key, begin_ms, end_ms, most)
        local = self._parts.local
        if not page.messages and local.dispatched_where < local.max_physical_offset:
            local.dispatch_now()  # It may not be dispatched yet.
            page = self._store.query(topic, key, begin_ms, end_ms, most)
        fields = {
            "indexLastUpdateTimestamp": str(page.last_update_timestamp_ms),
            "indexLastUpdatePhyoffset": str(page.last_update_physical_offset),
        }
        incomplete = "" if page.complete else _incomplete(topic)
        found = [each for each in page.messages if may_read(command.account, topic, each.encoded_properties)]
        if incomplete and not found:
            raise RequestRefused(f"no message with the key was found, but {incomplete}")
        if not found:
            remark = "can not find message, maybe time range not correct"
            return command.respond(ResponseCode.QUERY_NOT_FOUND, remark, ext=fields)
        records: list[bytes] = []
        left = BODY_BYTES_MAX
        for message in reversed(found):
            record = reencode(message)
            left -= len(record)
            if records and left < 0:
                break
            records.append(record)
        body = b"".join(reversed(records))
        if incomplete:
            return command.respond(remark=incomplete, ext={**fields, INDEX_COMPLETE: "false"}, body=body)
        return command.respond(ext=fields, body=body)

    @serves(RequestCode.VIEW_MESSAGE_BY_ID, access=reaches("SUB of the message's topic"), in_pool=True)
    def view(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        self._parts.replication.require_settled()
        offset = int_field(command, "offset")
        message = self._store.stored_at(offset)
        if message is None:
            raise RequestRefused(f"can not find message by the offset, {offset}")
        require_message(command, message.topic, message.encoded_properties)
        return command.respond(body=reencode(message))

    @serves(
        RequestCode.QUERY_CONSUME_QUEUE,
        access=reads("topic") & reaches("SUB of the group, if it names one"),
        in_pool=True,
    )
    def units(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        group = command.ext.get("consumerGroup")
        if group:
            require_group(command, group)
        topic, queue_id = text_field(command, "topic"), int32_field(command, "queueId")
        index, count = int_field(command, "index"), int32_field(command, "count")
        local = self._parts.local
        if queue_id not in local.topics().get(topic, ()):
            raise RequestRefused(f"{queue_id}@{topic} is not exist!")
        low, high = max(0, local.min_offset(topic, queue_id)), max(0, local.max_offset(topic, queue_id))
        fields: dict[str, Any] = {"maxQueueIndex": high, "minQueueIndex": low}
        if group:
            wanted = self._parts.clients.subscription(group, topic)
            fields["subscriptionData"] = None if wanted is None else wanted.to_json()
            fields["filterData"] = f"{group}@{topic} is not online!" if wanted is None else wanted.expression
        remark = None
        if low <= index < high:
            units = local.queue_units(topic, queue_id, index, index + min(max(0, count), UNITS_MAX))
            fields["queueData"] = [_unit(*each) for each in units]
        else:
            remark = f"Index {index} of {queue_id}@{topic} is not exist!"
        return command.respond(remark=remark, body=encode_body(fields))


def _unit(physical: int, size: int, tags_code: int, ext: ExtUnit | None) -> dict[str, Any]:
    """As RocketMQ shows it, with the tags and time of the ext unit where there is one."""
    fields: dict[str, Any] = {"eval": False, "physicOffset": physical, "physicSize": size, "tagsCode": tags_code}
    if ext is not None:
        found = {"msgStoreTime": ext.store_timestamp_ms, "size": ext.size, "tagsCode": ext.tags_code}
        fields |= {"bitMap": ext.bit_map.hex(), "extendDataJson": encode_body(found).decode()}
    elif is_ext_address(tags_code):
        fields["msg"] = f"Cq extend not exist!addr: {tags_code}"
    return fields


def _incomplete(topic: str) -> str:
    return (
        f"the key index of topic {topic} is not complete: messages that are stored may be missing from the answer. Ask "
        "again when the broker has indexed them; if this stays, run `tiermq pipeline reindex`"
    )
