"""A stored message as it is put once more, to another topic: everything of it stays but its place.

What was compressed stays compressed, who produced it and when stays as it was; the store gives it a new place and time.

    REAL_TOPIC, REAL_QID ─► `redirected` ─► the message for a queue that its topic has, or IllegalMessage

Invariants: a record of an internal topic, whoever wrote it, never makes a queue that its topic does not have, and never
goes back into a topic that feeds the reader of it (timers, delay levels, half messages, ops): it would go round for
ever. The one internal topic that delayed records may go to is POP's revive log, since RocketMQ's brokers let a timer
bring their check points there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from tiermq.errors import IllegalMessage
from tiermq.kernel import Message
from tiermq.message.layout import I32
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import HALF_TOPIC, REVIVE_PREFIX, is_broker_topic, topic_problem
from tiermq.status import PutStatus
from tiermq.store.local_store import LocalStore

NEVER = frozenset({PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED})
"""Statuses that say that a message cannot be put, however often it is tried."""
STORED = frozenset({PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT})
QueueFor = Callable[[str, int], int]
"""Which queue of a topic gets a message that names one: see `within_topic`."""
_QUEUE_DIGITS = 10
_QUEUE_ID_END = 2**31


def put_again(message: StoredMessage, topic: str, queue_id: int, properties: bytes | None = None) -> Message:
    """The message to put; with its own properties unless others are given. Raises IllegalMessage."""
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
    """The queue id in a property of a record; None for what is none."""
    if len(text) > _QUEUE_DIGITS or not (text.isascii() and text.isdigit()):
        return None
    return int(text) if int(text) < _QUEUE_ID_END else None


def as_named(_topic: str, queue_id: int) -> int:
    """Every queue is legal: there is no table of topics beside this store."""
    return queue_id


def within_topic(store: LocalStore, queues_of: Callable[[str], int]) -> QueueFor:
    """The queue itself where the topic has it, or has messages in it from when it had more; else one that it has.

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
