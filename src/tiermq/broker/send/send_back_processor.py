"""SendBackProcessor: CONSUMER_SEND_MSG_BACK (36): a consumer could not consume a message and gets it again later.

    tried less than often enough ─► %RETRY%group, by way of the queue of its delay (10 s, 30 s, 1 min, … 2 h)
    tried too often, or delayLevel < 0 ─► %DLQ%group, also if it has no space for a retry's properties

Invariants: the copy has the original's body, flags, keys and born time, a higher retry count, and its first topic
(RETRY_TOPIC) and id (ORIGIN_MESSAGE_ID), and names no light queues; it is stored before the answer, and on disk under
SYNC_FLUSH.
(RocketMQ writes WAIT=false into it, as is done here, and waits for no disk: a crash loses what it took back.) A message
that came from the tier has another offset there than in the log: it is accepted only when its id
agrees, and looked for by its key otherwise.
"""

from __future__ import annotations

import logging
import random

from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.group.group_table import SubscriptionGroup
from tiermq.broker.pop.pop_topics import require_message
from tiermq.broker.send.put_answers import require_queue
from tiermq.broker.send.send_checks import FIRST_LEVEL, VERSION_MAX_RECONSUME_TIMES, Destination, delayed
from tiermq.broker.topic.topic_table import DLQ_QUEUES
from tiermq.config import FlushDiskType
from tiermq.errors import RequestRefused, TierError
from tiermq.kernel import Message
from tiermq.message.hosts import encode_host
from tiermq.message.properties import DELAY, ORIGIN_MESSAGE_ID, RETRY_TOPIC, WAIT, with_property, without_light_queues
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_broker_topic
from tiermq.namesrv.topic_config import PERM_WRITE
from tiermq.remoting.access import of_group, reaches, serves
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand, int32_field, int_field, text_field
from tiermq.remoting.connection import Connection
from tiermq.status import PutStatus

_log = logging.getLogger(__name__)

NO_DELAY = "0"
DLQ_LABELS = ("cluster", "node_type", "node_id", "topic", "consumer_group")


class SendBackProcessor:
    """See the module. Runs in the pool: topics may have to be made, and a put may wait for the disk."""

    def __init__(self, parts: BrokerContext) -> None:
        self._parts = parts
        self._levels = len(parts.local.config.delay_levels_ms)
        self._chance = random.Random()  # noqa: S311 - it spreads messages over queues
        self._owner = (parts.config.broker_cluster_name, "broker", parts.config.broker_name)
        self._dead = parts.metrics.counter(
            "rocketmq_send_to_dlq_messages_total", "messages that became dead letters", DLQ_LABELS
        )

    @serves(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        access=of_group("group") & reaches("SUB of the message's topic"),
        in_pool=True,
    )
    def send_back(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        name, level = text_field(command, "group"), int32_field(command, "delayLevel")
        parts = self._parts
        group = parts.groups.find_or_make(name)
        if group is None:
            raise RequestRefused(f"subscription group not exist, {name}", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
        if not parts.config.broker_permission & PERM_WRITE:
            raise RequestRefused(
                f"the broker[{parts.config.broker_ip1}] sending message is forbidden", ResponseCode.NO_PERMISSION
            )
        if group.retry_queue_nums <= 0:
            return command.respond()
        message = self._find(command, name)
        if is_broker_topic(message.topic):
            raise RequestRefused(
                f"the record at {command.ext.get('offset')} is the broker's own: expected a message that was consumed",
                ResponseCode.NO_PERMISSION,
            )
        require_message(command, message.topic, message.encoded_properties)
        if level < 0 or message.reconsume_times >= _most(command, group):
            destination = self._dead_letter(name, message)
        else:
            destination = self._retry(group, message, level or FIRST_LEVEL + message.reconsume_times)
        destination = self._store(name, message, destination)
        if parts.local.config.flush_disk_type is FlushDiskType.SYNC_FLUSH:
            parts.local.flush()
        if destination.topic.startswith(DEAD_LETTER_PREFIX):
            self._dead.labels(*self._owner, message.get_property(RETRY_TOPIC) or message.topic, name).add()
        return command.respond()

    def _store(self, group: str, message: StoredMessage, destination: Destination) -> Destination:
        """Where it is stored. A record that cannot hold what is added becomes a dead letter, without that if need be:
        sends reserve space for it, but records of RocketMQ, of older versions and of puts may have none.
        """
        status = self._parts.store.put(_copy(message, destination)).status
        if status is PutStatus.PROPERTIES_SIZE_EXCEEDED:
            dead = self._dead_letter(group, message)
            for destination in (dead, dead._replace(properties=message.encoded_properties)):
                status = self._parts.store.put(_copy(message, destination)).status
                if status is not PutStatus.PROPERTIES_SIZE_EXCEEDED:
                    break
            _log.error(
                "group %s: the message at %d has no space in its properties for a retry; it stays in %s",
                group, message.physical_offset, destination.topic,
            )  # fmt: skip
        if status is not PutStatus.PUT_OK:
            raise RequestRefused(f"the message could not be stored: {status.name}")
        return destination

    def _find(self, command: RemotingCommand, group: str) -> StoredMessage:
        offset = int_field(command, "offset")
        found = self._parts.store.stored_at(offset)
        if self._parts.tiered is not None:
            found = self._find_cold(command, group, found)
        if found is None:
            raise RequestRefused(f"look message by offset failed, {offset}")
        return found

    def _find_cold(self, command: RemotingCommand, group: str, found: StoredMessage | None) -> StoredMessage | None:
        """The requested message, hot or cold; `found` is the record at its offset in the local log."""
        wanted = command.ext.get("originMsgId")
        if not wanted:
            return found
        if found is not None and wanted in _ids(found):
            return found
        for topic in (command.ext.get("originTopic"), RETRY_PREFIX + group):
            if topic:
                try:
                    page = self._parts.store.query(topic, wanted, max_messages=1)
                except TierError as error:
                    raise RequestRefused(f"the message may be in the tier, which is unavailable: {error}") from error
                if page.messages:
                    return page.messages[-1]
        return None

    def _retry(self, group: SubscriptionGroup, message: StoredMessage, level: int) -> Destination:
        queues = group.retry_queue_nums
        topic = self._parts.topics.make(RETRY_PREFIX + group.name, queues, queues)
        if not topic.perm & PERM_WRITE:
            raise RequestRefused(f"the topic[{topic.name}] sending message is forbidden", ResponseCode.NO_PERMISSION)
        destination = Destination(topic.name, self._chance.randrange(max(1, queues)), _properties(message))
        require_queue(self._parts.local, topic.name, destination.queue_id)
        return delayed(destination, level, self._levels) if self._levels else destination

    def _dead_letter(self, group: str, message: StoredMessage) -> Destination:
        topic = self._parts.topics.make(DEAD_LETTER_PREFIX + group, DLQ_QUEUES, DLQ_QUEUES)
        require_queue(self._parts.local, topic.name, 0)
        return Destination(topic.name, 0, with_property(_properties(message), DELAY, NO_DELAY))


def _most(command: RemotingCommand, group: SubscriptionGroup) -> int:
    """How often a message is tried again."""
    if command.version >= VERSION_MAX_RECONSUME_TIMES:
        return int32_field(command, "maxReconsumeTimes", group.retry_max_times)
    return group.retry_max_times


def _properties(message: StoredMessage) -> bytes:
    encoded = message.encoded_properties
    if message.get_property(RETRY_TOPIC) is None:
        encoded = with_property(encoded, RETRY_TOPIC, message.topic)
    if message.get_property(ORIGIN_MESSAGE_ID) is None:
        encoded = with_property(encoded, ORIGIN_MESSAGE_ID, message.message_id)
    return with_property(encoded, WAIT, "false")


def _ids(message: StoredMessage) -> set[str | None]:
    return {message.unique_key, message.message_id, message.get_property(ORIGIN_MESSAGE_ID)}


def _copy(message: StoredMessage, destination: Destination) -> Message:
    return Message(
        destination.topic,
        message.body,
        destination.queue_id,
        encoded_properties=without_light_queues(destination.properties),
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=encode_host(message.born_host),
        reconsume_times=message.reconsume_times + 1,
    )
