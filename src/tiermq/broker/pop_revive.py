"""PopRevive: gives back what was popped and not acknowledged in time.

    check point due ─► each open message is put to %RETRY%group_topic, tried once more than before ─► acknowledged
                       └► tried too often: to %DLQ%group

Invariants: a message is acknowledged in the log only after its copy was stored, so each comes back at least once, also
over crashes; twice when the process dies in between. A message that is gone (its file was deleted) cannot come back,
and is passed over. A put that fails for a while is tried again later. RocketMQ never gives up on a popped message; here
`retryMaxTimes` of the group holds for them, too.
Threads: `run_once` is the service's own.
"""

from __future__ import annotations

import logging

from tiermq.broker.parts import BrokerParts
from tiermq.broker.pop_checkpoints import CheckPoint
from tiermq.broker.pop_log import PopLog
from tiermq.broker.pop_topics import topic_to_come_back_to
from tiermq.errors import CorruptRecord, RequestRefused, TierMQError
from tiermq.kernel import Message
from tiermq.message.hosts import encode_host
from tiermq.message.properties import POP_CK, delete_property, with_property
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import DEAD_LETTER_PREFIX
from tiermq.service import Service

_log = logging.getLogger(__name__)

FIRST_POP_TIME = "1ST_POP_TIME"
DLQ_QUEUES = 1
AGAIN_MS = 1_000
ROUND_MAX = 1_000
"""Check points of one round before the log's offset is looked after."""


class PopRevive(Service):
    """See the module."""

    def __init__(self, parts: BrokerParts, log: PopLog) -> None:
        super().__init__("pop-revive")
        self.revived_count = 0
        self.dead_count = 0
        self.gone_count = 0
        self._parts = parts
        self._log = log

    def run_once(self) -> float:
        """Give back what is due; say how long to rest."""
        for _ in range(ROUND_MAX):
            point = None if self.stopping else self._log.points.take_due(self._parts.clock.now_ms())
            if point is None:
                break
            try:
                self._give_back(point)
            except (TierMQError, OSError) as error:
                _log.warning("%s: open messages could not be given back, trying again: %s", point.popped, error)
                self._log.points.put_off(point, self._parts.clock.now_ms() + AGAIN_MS)
        self._log.commit()
        rest_s = self._parts.config.revive_interval / 1000
        next_ms = self._log.points.next_due_ms()
        if next_ms is None:
            return rest_s
        return min(rest_s, max(0.001, (next_ms - self._parts.clock.now_ms()) / 1000))

    def _give_back(self, point: CheckPoint) -> None:
        popped = point.popped
        for offset in sorted(point.open):
            message = self._message(popped.topic, popped.queue_id, offset)
            if message is None:
                self.gone_count += 1
                _log.warning("%s: offset %d is gone and cannot be given back", popped, offset)
            else:
                self._put(point, message)
            self._log.acknowledge(popped, [offset])

    def _message(self, topic: str, queue_id: int, offset: int) -> StoredMessage | None:
        """None when it is gone, or damaged. Raises TierError when the tier cannot say."""
        page = self._parts.store.get(topic, queue_id, offset, 1)
        try:
            found = page.messages[0] if page.count else None
        except CorruptRecord as error:
            _log.error("%s, queue %d, offset %d is damaged: %s", topic, queue_id, offset, error)
            return None
        return found if found is not None and found.queue_offset == offset else None

    def _put(self, point: CheckPoint, message: StoredMessage) -> None:
        popped, parts = point.popped, self._parts
        group = parts.groups.get(popped.group)
        if group is not None and message.reconsume_times >= group.retry_max_times:
            name, queues = DEAD_LETTER_PREFIX + popped.group, DLQ_QUEUES
            self.dead_count += 1
        else:
            name = topic_to_come_back_to(popped.group, popped.topic)
            queues = 1
            self.revived_count += 1
        topic = parts.topics.make(name, queues, queues)
        result = parts.store.put(_again(message, topic.name, popped.pop_ms))
        if not result.ok:
            raise RequestRefused(f"the store does not take the message: {result.status.name}")


def _again(message: StoredMessage, topic: str, pop_ms: int) -> Message:
    properties = delete_property(message.encoded_properties, POP_CK.encode())
    if message.get_property(FIRST_POP_TIME) is None:
        properties = with_property(properties, FIRST_POP_TIME, str(pop_ms))
    return Message(
        topic,
        message.body,
        0,
        encoded_properties=properties,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=encode_host(message.born_host),
        reconsume_times=message.reconsume_times + 1,
    )
