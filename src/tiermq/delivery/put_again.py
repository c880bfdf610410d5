"""A stored message as it is put once more, to another topic: everything of it stays but its place.

What was compressed stays compressed, who produced it and when stays as it was; the store gives it a new place and time.
"""

from __future__ import annotations

from functools import lru_cache

from tiermq.kernel import Message
from tiermq.message.layout import I32
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import HALF_TOPIC, topic_problem
from tiermq.status import PutStatus

NEVER = frozenset({PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED})
"""Statuses that say that a message cannot be put, however often it is tried."""
STORED = frozenset({PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT})


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
    if not (queue_id.isascii() and queue_id.isdigit() and int(queue_id) < 2**31):
        return f"it names the queue {queue_id[:40]!r}"
    return topic_problem(topic)
