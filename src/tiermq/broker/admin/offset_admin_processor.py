"""OffsetAdminProcessor: offsets and lag of groups, and offset resets.

    208 offsets of a group     222 reset to a time or an offset       43 all offsets
    317 the same, all groups   314 clone another group's offsets   45 offsets of the delay levels
    303 lag in time

A reset is kept here: the group's next pull of each queue, from any client, is redirected, and offsets that it
commits before are refused (`consumer_offsets`). A group that is not connected starts there later.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from typing import Any

from tiermq.broker.admin.rates import NOTE_PERIOD_S
from tiermq.broker.admin.topic_admin_processor import queue_key
from tiermq.broker.broker_context import BrokerContext, config_directory
from tiermq.broker.group.consumer_offsets import encode_offsets
from tiermq.broker.group.group_table import check_group_name
from tiermq.broker.group.offset_processor import require_client_group, require_queue
from tiermq.errors import RequestRefused
from tiermq.files.os_file_access import OsFileAccess
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.access import ADMINISTRATOR, of_group, reads, serves
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand, bool_field, int32_field, int_field, text_field
from tiermq.remoting.connection import Connection
from tiermq.remoting.json_dialect import ObjectKeyed, encode_body
from tiermq.remoting.permissions import Permission
from tiermq.store.delay_offsets import FILE, decode_delay_offsets, encode_delay_offsets

ALL_QUEUES = -1
NO_OFFSET = -1
TOPIC_SEPARATOR = ";"


class OffsetAdminProcessor:
    """See the module. Everything runs in the pool: times of messages may have to be read from the tier."""

    def __init__(self, parts: BrokerContext) -> None:
        self._parts = parts
        self._delay_path = f"{config_directory(parts.local.config.root_path)}/{FILE}"
        parts.hooks.every(NOTE_PERIOD_S, self.note_rates)

    def note_rates(self) -> None:
        self._parts.given_rates.note(self._parts.hooks.given())

    # Offsets.

    @serves(RequestCode.GET_CONSUME_STATS, access=of_group("consumerGroup"), in_pool=True)
    def consume_stats(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        group = text_field(command, "consumerGroup")
        asked = [*(command.ext.get("topicList") or "").split(TOPIC_SEPARATOR), command.ext.get("topic") or ""]
        names = [name for name in asked if name] or self._parts.offsets.topics_of(group)
        return command.respond(body=encode_body(self._stats(group, list(self._topics_to_tell(group, names, command)))))

    @serves(RequestCode.GET_BROKER_CONSUME_STATS, access=ADMINISTRATOR, in_pool=True)
    def all_consume_stats(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """One entry for each topic of each group; `isOrder` leaves out topics that are not ordered."""
        ordered_only = bool_field(command, "isOrder", default=False)
        listed, behind, in_flight = [], 0, 0
        for group in self._parts.groups.table:
            stats = []
            for topic in self._topics_to_tell(group, self._parts.offsets.topics_of(group), command):
                if ordered_only and not topic.order:
                    continue
                stats.append(self._stats(group, [topic]))
                for _, each in stats[-1]["offsetTable"].items:
                    behind += each["brokerOffset"] - each["consumerOffset"]
                    in_flight += each["pullOffset"] - each["consumerOffset"]
            listed.append({group: stats})
        body = {
            "brokerAddr": f"{self._parts.config.broker_ip1}:{self._parts.server.port}",
            "consumeStatsList": listed,
            "totalDiff": behind,
            "totalInflightDiff": in_flight,
        }
        return command.respond(body=encode_body(body))

    def _stats(self, group: str, topics: list[TopicConfig]) -> dict[str, Any]:
        return {
            "consumeTps": sum((self._parts.given_rates.per_second((group, each.name)) for each in topics), 0.0),
            "offsetTable": ObjectKeyed(
                (queue_key(self._parts, each.name, queue_id), self._progress(group, each.name, queue_id))
                for each in topics
                for queue_id in range(each.read_queues)
            ),
        }

    def _topics_to_tell(self, group: str, names: Iterable[str], command: RemotingCommand) -> Iterator[TopicConfig]:
        """The existing topics; none that the group's members no longer want, or that the account may
        not read.
        """
        members = self._parts.clients.consumers(group)
        for name in dict.fromkeys(names):
            topic = self._parts.topics.get(name)
            is_wanted = members is None or not members.subscriptions or name in members.subscriptions
            may_read = command.account is None or command.account.may_use_topic(name, Permission.SUB)
            if topic is not None and is_wanted and may_read:
                yield topic

    def _progress(self, group: str, topic: str, queue_id: int) -> dict[str, int]:
        store, offsets = self._parts.store, self._parts.offsets
        consumed = max(0, offsets.query(group, topic, queue_id))
        return {
            "brokerOffset": max(0, store.max_offset(topic, queue_id)),
            "consumerOffset": consumed,
            "lastTimestamp": max(0, store.store_time_of(topic, queue_id, consumed - 1)) if consumed else 0,
            "pullOffset": max(consumed, offsets.query_pulled(group, topic, queue_id)),
        }

    @serves(RequestCode.QUERY_CONSUME_TIME_SPAN, access=of_group("group") & reads("topic"), in_pool=True)
    def time_span(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Times of the oldest and newest message of each queue, and of the last one that the group consumed."""
        topic, group = self._topic(text_field(command, "topic")), text_field(command, "group")
        spans = []
        for queue_id in range(max(topic.read_queues, topic.write_queues)):
            store = self._parts.store
            end = store.max_offset(topic.name, queue_id)
            consumed = self._parts.offsets.query(group, topic.name, queue_id)
            oldest_ms = store.earliest_time(topic.name, queue_id)
            newest_ms = store.store_time_of(topic.name, queue_id, end - 1) if end > 0 else -1
            consumed_ms = store.store_time_of(topic.name, queue_id, consumed - 1) if consumed > 0 else oldest_ms
            waits_since_ms = store.store_time_of(topic.name, queue_id, max(0, consumed)) if consumed < end else -1
            spans.append(
                {
                    "consumeTimeStamp": consumed_ms,
                    "consumeTimeStampStr": _time_text(consumed_ms),
                    "delayTime": max(0, self._parts.clock.now_ms() - waits_since_ms) if waits_since_ms > 0 else 0,
                    "maxTimeStamp": newest_ms,
                    "maxTimeStampStr": _time_text(newest_ms),
                    "messageQueue": queue_key(self._parts, topic.name, queue_id),
                    "minTimeStamp": oldest_ms,
                    "minTimeStampStr": _time_text(oldest_ms),
                }
            )
        return command.respond(body=encode_body({"consumeTimeSpanSet": spans}))

    # Elsewhere.

    @serves(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, access=ADMINISTRATOR, in_pool=True)
    def reset(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        topic, group = self._topic(text_field(command, "topic")), text_field(command, "group")
        require_client_group(group)
        self._require_group(group)
        time_ms = int_field(command, "timestamp")
        queue_id = int32_field(command, "queueId", ALL_QUEUES)
        offset = int_field(command, "offset", NO_OFFSET)
        if queue_id >= 0:
            require_queue(self._parts, topic, queue_id)
        goals = {}
        for each in range(topic.read_queues) if queue_id < 0 else (queue_id,):
            if queue_id >= 0 and offset != NO_OFFSET:
                goals[each] = self._within(topic.name, each, offset)
            else:
                goals[each] = self._offset_at(topic.name, each, time_ms)
        for each, goal in goals.items():
            self._parts.offsets.reset(group, topic.name, each, goal)
        self._parts.offsets.flush()
        table = ObjectKeyed((queue_key(self._parts, topic.name, each), goal) for each, goal in goals.items())
        return command.respond(body=encode_body({"offsetTable": table}))

    def _offset_at(self, topic: str, queue_id: int, time_ms: int) -> int:
        """Before the epoch means the end, as in RocketMQ."""
        store = self._parts.store
        if time_ms < 0:
            return max(0, store.max_offset(topic, queue_id))
        return max(0, store.offset_at(topic, queue_id, time_ms))

    def _within(self, topic: str, queue_id: int, offset: int) -> int:
        low, high = self._parts.store.min_offset(topic, queue_id), self._parts.store.max_offset(topic, queue_id)
        if not max(0, low) <= offset <= max(0, high):
            raise RequestRefused(f"Target offset {offset} not in consume queue range [{max(0, low)}-{max(0, high)}]")
        return offset

    @serves(RequestCode.CLONE_GROUP_OFFSET, access=ADMINISTRATOR, in_pool=True)
    def clone(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        source, target = text_field(command, "srcGroup"), text_field(command, "destGroup")
        require_client_group(target)
        check_group_name(target)
        asked = command.ext.get("topic")
        for topic in [asked] if asked else self._parts.offsets.topics_of(source):
            if self._parts.topics.get(topic) is not None:
                self._parts.offsets.clone(source, target, topic)
        return command.respond()

    def _topic(self, name: str) -> TopicConfig:
        found = self._parts.topics.get(name)
        if found is None:
            raise RequestRefused(f"Topic {name} does not exist", ResponseCode.TOPIC_NOT_EXIST)
        return found

    def _require_group(self, name: str) -> None:
        if self._parts.groups.get(name) is None:
            raise RequestRefused(f"Group {name} does not exist", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)

    # Whole tables, for a broker that follows this one.

    @serves(RequestCode.GET_ALL_CONSUMER_OFFSET, access=ADMINISTRATOR, in_pool=True)
    def all_offsets(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        offsets = self._parts.offsets
        table = offsets.snapshot()
        opened = {} if offsets.take_open is None else offsets.take_open()
        return command.respond(body=encode_offsets(table, offsets.data_version, pop_open=opened))

    @serves(RequestCode.GET_ALL_DELAY_OFFSET, access=ADMINISTRATOR, in_pool=True)
    def delay_offsets(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """As they were written last."""
        found = OsFileAccess().read_config(self._delay_path, decode_delay_offsets)
        offsets, counter = found or ({}, 0)
        return command.respond(body=encode_delay_offsets(offsets, counter, self._parts.clock.now_ms()))


def _time_text(time_ms: int) -> str:
    moment = dt.datetime.fromtimestamp(time_ms // 1000).astimezone()
    return f"{moment:%Y-%m-%d#%H:%M:%S}:{time_ms % 1000:03d}"
