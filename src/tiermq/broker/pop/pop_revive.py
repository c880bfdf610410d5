"""PopRevive: delivers popped messages again that were not acknowledged in time.

    check point due ─► each open message is put to %RETRY%group_topic, its retry count + 1 ─► acknowledged
                       └► retried too often, or too large to be delivered again: to %DLQ%group

Invariants: a message is acknowledged in the log only after its copy was stored, so each is delivered at least once
more, also over crashes. A process that dies in between leaves one copy at the end of its topic, which names its
original (`TIERMQ_GIVEN_BACK`); the next start acknowledges that (`recover`), so there is no second copy. A message that
was deleted with its file is skipped. A put that fails temporarily is retried. RocketMQ never gives up on a popped
message; here `retryMaxTimes` of the group applies to them, too. Sends reserve space for what a retry adds; a record of
another writer (RocketMQ, an older version, a put) without that space becomes a dead letter unchanged. Threads:
`run_once` is the service's own.
"""

from __future__ import annotations

import logging

from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.pop.pop_acks import Receipt
from tiermq.broker.pop.pop_checkpoints import CheckPoint, PoppedMessage
from tiermq.broker.pop.pop_log import PopLog
from tiermq.broker.pop.pop_topics import MARK_RETRY, is_of_pair, origin_group, topic_to_come_back_to
from tiermq.broker.pop.pop_waiting import INVISIBLE_MS_MAX
from tiermq.broker.topic.topic_table import DLQ_QUEUES
from tiermq.delivery.redeliver import NEVER, Escape, SkippedRecords
from tiermq.errors import CorruptRecord, RequestRefused, TierMQError
from tiermq.kernel import GetPage, Message
from tiermq.message.hosts import encode_host
from tiermq.message.properties import (
    FIRST_POP_TIME,
    GIVEN_BACK,
    POP_CK,
    delete_property,
    get_property,
    with_property,
    without_light_queues,
)
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import DEAD_LETTER_PREFIX, topic_problem
from tiermq.service import Service
from tiermq.status import PutStatus

_log = logging.getLogger(__name__)

LOOK_BACK = 32
"""Messages at the end of a topic that are searched for the last copy: clients may have put some behind it."""
AGAIN_MS = 1_000
ROUND_MAX = 1_000
"""Maximum check points of one round; then the log's offset is committed."""


class PopRevive(Service):
    """See the module."""

    def __init__(self, parts: BrokerContext, log: PopLog, escape: Escape | None = None) -> None:
        """`escape` is of a slave that acts for its master."""
        super().__init__("pop-revive")
        self.revived_count = 0
        self.dead_count = 0
        self.gone = SkippedRecords("popped messages that cannot be revived", parts.clock)
        self.too_large = SkippedRecords("popped messages that cannot be delivered again", parts.clock)
        self._parts = parts
        self._log = log
        self._escape = escape

    def recover(self) -> None:
        """Acknowledge messages that have a copy already: the process died after it was stored."""
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
            _log.warning("a revived message may be delivered twice: %s", error)

    def _is_copy(self, copy: StoredMessage, popped: PoppedMessage, offset: int) -> bool:
        """Clients may set this property, too: so the messages are compared."""
        message = self._message(popped.topic, popped.queue_id, offset)
        if message is None:
            return False
        same = (message.body_crc, message.born_timestamp_ms, message.reconsume_times + 1)
        return same == (copy.body_crc, copy.born_timestamp_ms, copy.reconsume_times)

    def run_once(self) -> float:
        """Return due messages to retry topics; returns the time until the next."""
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
                _log.warning("%s: open messages could not be revived, retrying: %s", point.popped, error)
                self._log.points.put_off(point, self._parts.clock.now_ms() + AGAIN_MS)
        self._log.commit()
        rest_s = self._parts.config.revive_interval / 1000
        next_ms = self._log.points.next_due_ms()
        if next_ms is None:
            return rest_s
        return min(rest_s, max(0.001, (next_ms - self._parts.clock.now_ms()) / 1000))

    def _take_delivered(self) -> None:
        timers, has_early = self._parts.timers, self._log.has_early
        if has_early:
            self._parts.local.dispatch_now()  # Or timers that are stored, and not enqueued yet, would not be known.
        delivered_ms = self._parts.clock.now_ms() if timers is None or timers.is_idle else timers.read_ms
        if has_early:
            self._parts.local.dispatch_now()  # Or a check point that a timer has just delivered would be read too late.
        self._log.take_delivered()
        self._log.forget_early(delivered_ms)

    def _has_all_acks(self, point: CheckPoint) -> bool:
        """Whether timers delivered all acknowledgements of a RocketMQ broker: they are due with the check point."""
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
                self.gone.add(where, "it was deleted")
            elif _is_another_s(popped, message):
                self.gone.add(where, f"it is not a retry of the group {popped.group}")
            else:
                self._put(point, message)
            self._log.acknowledge(popped, [offset])

    def _message(self, topic: str, queue_id: int, offset: int) -> StoredMessage | None:
        """None when it was deleted, or is damaged. Raises TierError when the tier is unavailable."""
        page = self._parts.store.get(topic, queue_id, offset, 1)
        try:
            found = page.messages[0] if page.count else None
        except CorruptRecord as error:
            _log.error("%s, queue %d, offset %d is damaged: %s", topic, queue_id, offset, error)
            return None
        return found if found is not None and found.queue_offset == offset else None

    def _put(self, point: CheckPoint, message: StoredMessage) -> None:
        popped = point.popped
        group = self._parts.groups.get(popped.group)
        where = f"{popped.topic}, queue {popped.queue_id}, offset {message.queue_offset}"
        own = delete_property(message.encoded_properties, POP_CK.encode())
        marked = _marked(own, popped, message.queue_offset)
        dead = DEAD_LETTER_PREFIX + popped.group
        if group is None or message.reconsume_times < group.retry_max_times:
            problem = self._no_receipt(own) or self._store(
                topic_to_come_back_to(popped.group, popped.topic), message, marked
            )
            if problem is None:
                self.revived_count += 1
                return
            self.too_large.add(where, f"{problem}: it is stored in {dead}")
        problem = self._store(dead, message, marked) and self._store(dead, message, own)
        if problem is None:
            self.dead_count += 1
        else:
            self.gone.add(where, problem)

    def _no_receipt(self, properties: bytes) -> str | None:
        """Why a copy with these properties cannot be delivered; None if it can, with any receipt."""
        most = 2**63 - 1
        widest = Receipt(
            most, most, INVISIBLE_MS_MAX, self._log.queues, MARK_RETRY, self._parts.config.broker_name, 2**31 - 1, most
        )
        if widest.added_to(properties) is not None:
            return None
        return f"its properties of {len(properties)} bytes leave no space for a receipt"

    def _store(self, name: str, message: StoredMessage, properties: bytes) -> str | None:
        """Put a copy to a topic; returns why the store never takes it, or None. Raises RequestRefused to retry."""
        if (problem := topic_problem(name)) is not None:
            return problem
        if self._escape is None:
            self._parts.topics.make(name, DLQ_QUEUES, DLQ_QUEUES)
        copy = Message(
            name,
            message.body,
            0,
            encoded_properties=without_light_queues(properties),
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_timestamp_ms=message.born_timestamp_ms,
            born_host=encode_host(message.born_host),
            reconsume_times=message.reconsume_times + 1,
        )
        status = self._parts.store.put(copy).status if self._escape is None else self._escape([copy])[0]
        if status in NEVER:
            return f"the store never takes it: {status.name}"
        if status is not PutStatus.PUT_OK:
            raise RequestRefused(f"the store does not take the message: {status.name}")
        return None


def _copied_from(copy: StoredMessage) -> tuple[PoppedMessage, int]:
    """The check point and the offset that a copy names; one that does not exist if it names none."""
    words = (copy.get_property(GIVEN_BACK) or "").split(" ")
    if len(words) != 6 or not all(word.isascii() and word.isdigit() and len(word) < 20 for word in words[2:]):
        return PoppedMessage("", "", -1, -1, -1), -1
    queue_id, start, pop_ms, offset = map(int, words[2:])
    return PoppedMessage(words[0], words[1], queue_id, start, pop_ms), offset


def _is_another_s(popped: PoppedMessage, message: StoredMessage) -> bool:
    """Whether a message of a shared retry topic is of another group: clients can forge receipts."""
    if not is_of_pair(popped.group, popped.topic):
        return False
    return origin_group(message.encoded_properties, popped.topic) not in (None, popped.group)


def _marked(properties: bytes, popped: PoppedMessage, offset: int) -> bytes:
    """The properties of a copy: the time of its first pop, and its original."""
    if get_property(properties, FIRST_POP_TIME.encode()) is None:
        properties = with_property(properties, FIRST_POP_TIME, str(popped.pop_ms))
    return with_property(properties, GIVEN_BACK, " ".join(map(str, (*popped, offset))))
