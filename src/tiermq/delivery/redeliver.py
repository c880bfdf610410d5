"""Puts a stored message again, to another topic: everything but its offset stays.

What was compressed stays compressed, its producer and birth time stay; the store gives it a new offset and time.

    REAL_TOPIC, REAL_QID ─► `redirected` ─► the message for a queue that its topic has, or IllegalMessage

Invariants: a record of an internal topic, of any writer, never creates a queue that its topic does not have, and never
goes back into a topic that feeds the reader of it (timers, delay levels, half messages, ops): it would loop for
ever. The only internal topic for delayed records is POP's revive log, since RocketMQ's brokers let a timer
bring their check points there. A message is not lost if its properties lack space: it is put without what would be
added (`fitting`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import lru_cache

from tiermq.clock import LINE_INTERVAL_S, Clock
from tiermq.errors import IllegalMessage
from tiermq.kernel import Message
from tiermq.message.crc import CRC_PROPERTY_BYTES
from tiermq.message.layout import I32, PROPERTIES_BYTES_MAX
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import HALF_TOPIC, REVIVE_PREFIX, is_broker_topic, topic_problem
from tiermq.status import PutStatus
from tiermq.store.local_store import LocalStore

NEVER = frozenset({PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED})
"""Statuses of a message that can never be put."""
STORED = frozenset({PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT})
QueueFor = Callable[[str, int], int]
"""Which queue of a topic gets a message that names one: see `within_topic`."""
Escape = Callable[[list[Message]], list[PutStatus]]
"""Puts messages to another master of the cluster, for a slave that acts for its own: the status of each."""
FITTING_BYTES_MAX = PROPERTIES_BYTES_MAX - CRC_PROPERTY_BYTES - 1
"""Properties that a record can hold, whether or not its store adds a checksum and a separator before it."""
_QUEUE_DIGITS = 10
_QUEUE_ID_END = 2**31
_log = logging.getLogger(__name__)

LINES_FIRST = 10
"""Logged one by one; what follows is summed up."""


def put_again(message: StoredMessage, topic: str, queue_id: int, properties: bytes | None = None) -> Message:
    """The message to put; with its own properties unless `properties` are given. Raises IllegalMessage."""
    return Message(
        topic,
        message.body,
        queue_id,
        encoded_properties=message.encoded_properties if properties is None else properties,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=message.born_address + I32.pack(message.born_port),
        reconsume_times=message.reconsume_times,
    )


def fitting(properties: bytes, message: StoredMessage) -> bytes:
    """`properties`, or those that the message is stored with where a record cannot hold what was added to them.

    A send reserves space for that; records of RocketMQ, of older versions and of puts without a broker may have none.
    """
    return properties if len(properties) <= FITTING_BYTES_MAX else message.encoded_properties


@lru_cache(maxsize=1024)
def undeliverable(topic: str | None, queue_id: str) -> str | None:
    """Why a message that names this topic and queue can never be delivered; None when it can."""
    if topic is None:
        return "it names no topic"
    if topic == HALF_TOPIC:
        return "half messages are not delayed"
    if is_broker_topic(topic) and not topic.startswith(REVIVE_PREFIX):
        return f"it names the internal topic {topic[:40]}"
    if queue_number(queue_id) is None:
        return f"it names the queue {queue_id[:40]!r}"
    return topic_problem(topic)


def queue_number(text: str) -> int | None:
    """The queue id in a property of a record; None if invalid."""
    if len(text) > _QUEUE_DIGITS or not (text.isascii() and text.isdigit()):
        return None
    return int(text) if int(text) < _QUEUE_ID_END else None


def as_named(_topic: str, queue_id: int) -> int:
    """Every queue is legal: there is no table of topics beside this store."""
    return queue_id


def within_topic(store: LocalStore, queues_of: Callable[[str], int]) -> QueueFor:
    """The same queue if the topic has it, or has messages in it from before; else one that it has.

    So a message is not lost because its topic has fewer queues than when it was sent, and no record makes a queue.
    `queues_of` is how many queues a topic has, 0 when it is not known.
    """

    def queue_for(topic: str, queue_id: int) -> int:
        queues = queues_of(topic)
        if queue_id < queues or store.max_offset(topic, queue_id, committed=False) > 0:
            return queue_id
        return queue_id % max(1, queues)

    return queue_for


def redirected(
    message: StoredMessage,
    topic: str | None,
    queue_id: str,
    properties: bytes | None = None,
    queue_for: QueueFor = as_named,
) -> Message:
    """The message as the topic and queue that it names get it. Raises IllegalMessage when it can never be delivered."""
    reason = undeliverable(topic, queue_id)
    if topic is None or reason is not None:
        raise IllegalMessage(reason or "it names no topic")
    return put_again(message, topic, queue_for(topic, int(queue_id)), properties)


class SkippedRecords:
    """Records of one internal log that its reader could not use. All are counted, few are logged.

    Anything may be stored in a log: bytes of another version, or what a client wrote while that was allowed. A reader
    skips what it cannot use and continues; a million such records must not become a million lines. Any thread may call.
    """

    def __init__(self, what: str, clock: Clock) -> None:
        self.count = 0
        self._what = what
        self._clock = clock
        self._lock = threading.Lock()
        self._unlogged = 0
        self._logged_s = clock.monotonic()

    def add(self, where: str, reason: object) -> None:
        """One record was skipped."""
        with self._lock:
            self.count += 1
            now_s = self._clock.monotonic()
            if self.count > LINES_FIRST and now_s - self._logged_s < LINE_INTERVAL_S:
                self._unlogged += 1
                return
            unlogged, self._unlogged, self._logged_s = self._unlogged, 0, now_s
        more = f"; {unlogged} others since the last line" if unlogged else ""
        _log.error("%s: skipped at %s: %s%s", self._what, where, str(reason)[:300], more)
