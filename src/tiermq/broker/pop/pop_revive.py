"""PopRevive: gives back what was popped and not acknowledged in time.

    check point due ─► each open message is put to %RETRY%group_topic, tried once more than before ─► acknowledged
                       └► tried too often: to %DLQ%group

Invariants: a message is acknowledged in the log only after its copy was stored, so each comes back at least once, also
over crashes. A process that dies in between leaves one copy at the end of its topic, which says what it is a copy of
(`TIERMQ_GIVEN_BACK`), and the next one acknowledges that (`recover`): it does not come twice. A message that is gone
(its file was deleted) cannot come back, and is passed over. A put that fails for a while is tried again later. RocketMQ
never gives up on a popped message; here `retryMaxTimes` of the group holds for them, too.
Threads: `run_once` is the service's own.
"""

from __future__ import annotations

import logging

from tiermq.broker.parts import BrokerParts
from tiermq.broker.pop_checkpoints import CheckPoint, Popped
from tiermq.broker.pop_log import PopLog
from tiermq.broker.pop_topics import GIVEN_BACK, is_of_pair, origin_group, topic_to_come_back_to
from tiermq.delivery.put_again import NEVER
from tiermq.delivery.skipped_records import SkippedRecords
from tiermq.errors import CorruptRecord, RequestRefused, TierMQError
from tiermq.kernel import GetPage, Message
from tiermq.message.hosts import encode_host
from tiermq.message.properties import POP_CK, delete_property, with_property
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import DEAD_LETTER_PREFIX, topic_problem
from tiermq.service import Service

_log = logging.getLogger(__name__)

FIRST_POP_TIME = "1ST_POP_TIME"
LOOK_BACK = 32
"""Messages at the end of a topic among which the last copy is: clients may have put some behind it."""
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
        self.gone = SkippedRecords("popped messages that cannot be given back", parts.clock)
        self._parts = parts
        self._log = log

    def recover(self) -> None:
        """Acknowledge what has a copy already: the process died after it was stored."""
        for group, topic in {point.popped[:2] for point in self._log.points}:
            for name in (topic_to_come_back_to(group, topic), DEAD_LETTER_PREFIX + group):
                end = self._parts.local.max_offset(name, 0)
                for offset in range(max(0, end - LOOK_BACK), end):
                    self._recover_copy(self._parts.local.get(name, 0, offset, 1))

    def _recover_copy(self, page: GetPage) -> None:
        try:
            for copy in page.messages:
                popped, offset = _copied_from(copy)
                point = self._log.points.find(popped)
                if point is not None and offset in point.open and self._is_copy(copy, popped, offset):
                    self._log.acknowledge(popped, [offset])
        except TierMQError as error:
            _log.warning("a message that was given back may come twice: %s", error)

    def _is_copy(self, copy: StoredMessage, popped: Popped, offset: int) -> bool:
        """A client may write such a property, too: it must have the message besides."""
        message = self._message(popped.topic, popped.queue_id, offset)
        if message is None:
            return False
        same = (message.body_crc, message.born_timestamp_ms, message.reconsume_times + 1)
        return same == (copy.body_crc, copy.born_timestamp_ms, copy.reconsume_times)

    def run_once(self) -> float:
        """Give back what is due; say how long to rest."""
        self._take_delivered()
        for _ in range(ROUND_MAX):
            point = None if self.stopping else self._log.points.take_due(self._parts.clock.now_ms())
            if point is None:
                break
            if point.is_read and not self._has_all_acks(point):
                self._log.points.put_off(point, self._parts.clock.now_ms() + AGAIN_MS)
                continue
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

    def _take_delivered(self) -> None:
        timers = self._parts.timers
        delivered_ms = self._parts.clock.now_ms() if timers is None or timers.is_idle else timers.read_ms
        if self._log.has_early:
            self._parts.local.dispatch_now()  # Or a check point that a timer has just brought would come too late.
        self._log.take_delivered()
        self._log.forget_early(delivered_ms)

    def _has_all_acks(self, point: CheckPoint) -> bool:
        """Whether timers brought all that was acknowledged at a broker of RocketMQ: it is due with the check point."""
        timers = self._parts.timers
        if timers is None or timers.settings.stop_dequeue:
            return True
        if timers.read_ms <= point.due_ms and not timers.is_idle:
            return False
        self._parts.local.dispatch_now()
        self._log.take_delivered()
        return True

    def _give_back(self, point: CheckPoint) -> None:
        popped = point.popped
        for offset in sorted(point.open):
            message = self._message(popped.topic, popped.queue_id, offset)
            where = f"{popped.topic}, queue {popped.queue_id}, offset {offset}"
            if message is None:
                self.gone.add(where, "it is gone")
            elif _is_another_s(popped, message):
                self.gone.add(where, f"it did not come back for the group {popped.group}")
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
        where = f"{popped.topic}, queue {popped.queue_id}, offset {message.queue_offset}"
        if (problem := topic_problem(name)) is not None:
            self.gone.add(where, problem)
            return
        topic = parts.topics.make(name, queues, queues)
        result = parts.store.put(_again(message, topic.name, popped))
        if result.status in NEVER:
            self.gone.add(where, f"the store never takes it: {result.status.name}")
        elif not result.ok:
            raise RequestRefused(f"the store does not take the message: {result.status.name}")


def _copied_from(copy: StoredMessage) -> tuple[Popped, int]:
    """The check point and the offset that a copy names; a name of none where it names nothing."""
    words = (copy.get_property(GIVEN_BACK) or "").split(" ")
    if len(words) != 6 or not all(word.isascii() and word.isdigit() and len(word) < 20 for word in words[2:]):
        return Popped("", "", -1, -1, -1), -1
    queue_id, start, pop_ms, offset = map(int, words[2:])
    return Popped(words[0], words[1], queue_id, start, pop_ms), offset


def _is_another_s(popped: Popped, message: StoredMessage) -> bool:
    """Whether a message of a retry topic came back for a group that shares it: receipts can be invented."""
    if not is_of_pair(popped.group, popped.topic):
        return False
    return origin_group(message.encoded_properties, popped.topic) not in (None, popped.group)


def _again(message: StoredMessage, topic: str, popped: Popped) -> Message:
    properties = delete_property(message.encoded_properties, POP_CK.encode())
    if message.get_property(FIRST_POP_TIME) is None:
        properties = with_property(properties, FIRST_POP_TIME, str(popped.pop_ms))
    properties = with_property(properties, GIVEN_BACK, " ".join(map(str, (*popped, message.queue_offset))))
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
