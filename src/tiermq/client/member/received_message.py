"""ReceivedMessage: one message as a consumer gets it.

The body is as the producer sent it, also where it travelled compressed; the topic is the one that it was sent to, also
where it comes again by a group's retry topic.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Protocol

from tiermq.client.member.message_queue import MessageQueue
from tiermq.message.properties import RETRY_TOPIC, SHARDING_KEY
from tiermq.message.stored_message import StoredMessage
from tiermq.message.system_flag import COMPRESSED
from tiermq.message.topic_name import RETRY_PREFIX


class Receipt(Protocol):
    """What binds a message to the consumer that has it."""

    @property
    def is_current(self) -> bool:
        """False once another member may have the message."""

    def done(self) -> None:
        """The message need not come again."""


class ReceivedMessage:
    """One message as a consumer gets it. Immutable; may be passed between threads.

    topic: the one that it was sent to, also where it comes again by a group's retry topic. queue: where it is stored.
    A copy by pickle has no receipt: the message itself is acknowledged, where it was received.
    """

    __slots__ = ("_body", "queue", "receipt", "stored", "topic")

    def __init__(self, stored: StoredMessage, queue: MessageQueue, receipt: Receipt | None = None) -> None:
        """`receipt`: by which it is acknowledged."""
        self.stored = stored
        self.queue = queue
        self.receipt = receipt
        self.topic = stored.topic
        self._body: bytes | None = None if stored.sys_flag & COMPRESSED else stored.body
        if self.topic.startswith(RETRY_PREFIX):
            self.topic = stored.get_property(RETRY_TOPIC) or self.topic

    @property
    def body(self) -> bytes:
        """As the producer sent it, also where it travelled compressed. Raises CorruptRecord for one that is damaged."""
        if self._body is None:
            self._body = self.stored.decompressed_body()
        return self._body

    @property
    def queue_id(self) -> int:
        """The number of its queue at its broker."""
        return self.queue.queue_id

    @property
    def offset(self) -> int:
        """Where it is stored in its queue."""
        return self.stored.queue_offset

    @property
    def keys(self) -> list[str]:
        """As sent."""
        return self.stored.keys

    @property
    def tags(self) -> str | None:
        """As sent."""
        return self.stored.tags

    @property
    def sharding_key(self) -> str | None:
        """As sent; None without one."""
        return self.stored.get_property(SHARDING_KEY)

    @property
    def properties(self) -> dict[str, str]:
        """All properties, also those of the protocol. Decoded once: do not change the dict."""
        return self.stored.properties

    @property
    def message_id(self) -> str:
        """The broker's id of the stored message."""
        return self.stored.message_id

    @property
    def unique_key(self) -> str | None:
        """The producer's id of the message, which its retries have as well."""
        return self.stored.unique_key

    @property
    def attempt(self) -> int:
        """1 for the first delivery."""
        return self.stored.reconsume_times + 1

    @property
    def born_at(self) -> datetime:
        """When its producer made it."""
        return _time_of(self.stored.born_timestamp_ms)

    @property
    def stored_at(self) -> datetime:
        """When its broker stored it."""
        return _time_of(self.stored.store_timestamp_ms)

    def __reduce__(self) -> tuple[type[ReceivedMessage], tuple[StoredMessage, MessageQueue]]:
        return type(self), (self.stored, self.queue)

    def __repr__(self) -> str:
        return (
            f"ReceivedMessage(topic={self.topic!r}, queue={self.queue.broker_name}:{self.queue_id}, "
            f"offset={self.offset}, keys={self.keys}, tags={self.tags!r}, body=<{len(self.stored.body)} bytes>)"
        )


def require_received(message: object) -> None:
    """Raises TypeError for what is no message of a consumer."""
    if not isinstance(message, ReceivedMessage):
        raise TypeError(f"expected a message that the consumer gave, found {message!r}")


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def _time_of(timestamp_ms: int) -> datetime:
    """The nearest time that there is: a peer may write any number. Not `fromtimestamp`, which Windows limits."""
    try:
        return _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return _LAST if timestamp_ms > 0 else _FIRST
