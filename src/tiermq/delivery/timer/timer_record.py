"""Messages of the timer topic: the fields that the wheel reads, and the message that is put when the slot has passed.

stored:      … TIMER_OUT_MS, REAL_TOPIC, REAL_QID [, TIMER_DEL_UNIQKEY]
delivered:   … and TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS, in REAL_TOPIC
rolled:      … also TIMER_ROLL_TIMES + 1, in the timer topic again

If the properties have no space for these, the message is put without them: nothing depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

from tiermq.delivery.redeliver import QueueFor, as_named, fitting, put_again, redirected, undeliverable
from tiermq.delivery.timer.timer_destination import TIMER_QUEUE, delete_key
from tiermq.errors import CorruptRecord, IllegalMessage
from tiermq.kernel import Message
from tiermq.message.java_hash import java_hash
from tiermq.message.properties import (
    PROPERTY_SEPARATOR,
    REAL_QID,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    UNIQ_KEY,
    get_property,
    with_property,
)
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import TIMER_TOPIC

AT_ONCE_MS = 2**63 - 1
"""TIMER_ENQUEUE_MS of a timer that was due before it could be enqueued."""
_OUT_MS, _REAL_TOPIC, _DELETE = TIMER_OUT_MS.encode(), REAL_TOPIC.encode(), TIMER_DEL_UNIQKEY.encode()
_UNIQ_KEY = UNIQ_KEY.encode()
_ROLLS_DIGITS = 9
_ENQUEUE, _DEQUEUE = TIMER_ENQUEUE_MS.encode(), TIMER_DEQUEUE_MS.encode()


_topic_hash = lru_cache(maxsize=1024)(java_hash)


class TimerRecord(NamedTuple):
    """One message of the timer topic, as far as the wheel needs it."""

    deliver_ms: int
    """Its slot (TIMER_OUT_MS): it is delivered when that slot has passed."""
    is_delete: bool
    topic: str

    @property
    def topic_hash(self) -> int:
        return _topic_hash(self.topic)


def read_timer(message: StoredMessage) -> TimerRecord:
    """Raises CorruptRecord when it is no message of the timer topic, or has no time."""
    if message.topic != TIMER_TOPIC:
        raise CorruptRecord(f"expected a message of the timer topic, found one of {message.topic[:80]!r}")
    properties = message.encoded_properties
    out_ms = get_property(properties, _OUT_MS) or b""
    if not out_ms.isdigit() or len(out_ms) > 18:
        raise CorruptRecord(f"expected a time in {TIMER_OUT_MS}, found {out_ms[:40]!r}")
    topic = (get_property(properties, _REAL_TOPIC) or b"").decode("utf-8", "replace")
    is_delete = _DELETE in properties and get_property(properties, _DELETE) is not None
    return TimerRecord(int(out_ms), is_delete, topic)


def cancel_key(message: StoredMessage) -> str | None:
    """The key of the timer that a cancellation cancels; None without one."""
    found = get_property(message.encoded_properties, _DELETE)
    return None if found is None else found.decode("utf-8", "replace")


def own_key(message: StoredMessage) -> str | None:
    """How a cancellation would name this timer; None when it has no unique key."""
    unique_key = get_property(message.encoded_properties, _UNIQ_KEY)
    topic = get_property(message.encoded_properties, _REAL_TOPIC)
    if unique_key is None or topic is None:
        return None
    return delete_key(topic.decode("utf-8", "replace"), unique_key.decode("utf-8", "replace"))


def check_destination(message: StoredMessage) -> None:
    """Raises IllegalMessage when the timer can never be delivered."""
    reason = undeliverable(message.get_property(REAL_TOPIC), message.get_property(REAL_QID) or "")
    if reason is not None:
        raise IllegalMessage(reason)


def delivered(message: StoredMessage, enqueue_ms: int, now_ms: int, queue_for: QueueFor = as_named) -> Message:
    """The message as its topic gets it. Raises IllegalMessage when it can never be delivered."""
    topic, queue_id = message.get_property(REAL_TOPIC), message.get_property(REAL_QID) or ""
    return redirected(message, topic, queue_id, fitting(_stamped(message, enqueue_ms, now_ms), message), queue_for)


def rolled(message: StoredMessage, enqueue_ms: int, now_ms: int) -> Message:
    """The message as it is put into the timer topic again. Raises IllegalMessage."""
    times = message.get_property(TIMER_ROLL_TIMES) or "0"
    count = int(times) + 1 if len(times) <= _ROLLS_DIGITS and times.isascii() and times.isdigit() else 1
    properties = with_property(_stamped(message, enqueue_ms, now_ms), TIMER_ROLL_TIMES, str(count))
    return put_again(message, TIMER_TOPIC, TIMER_QUEUE, fitting(properties, message))


def _stamped(message: StoredMessage, enqueue_ms: int, now_ms: int) -> bytes:
    properties = message.encoded_properties
    if _ENQUEUE in properties or _DEQUEUE in properties or properties[-1:] != PROPERTY_SEPARATOR:
        properties = with_property(properties, TIMER_ENQUEUE_MS, str(enqueue_ms))
        return with_property(properties, TIMER_DEQUEUE_MS, str(now_ms))
    return properties + stamps(enqueue_ms, now_ms)


def stamps(enqueue_ms: int, now_ms: int) -> bytes:
    """When a timer was enqueued and dequeued, as properties."""
    return b"%b\x01%d\x02%b\x01%d\x02" % (_ENQUEUE, enqueue_ms, _DEQUEUE, now_ms)


@dataclass(frozen=True, slots=True)
class TieredTimer:
    """One message of the timer topic, as it is stored."""

    deliver_ms: int
    is_delete: bool
    """Whether it cancels another timer that is due at the same time."""
    record: bytes
    """The whole commit-log record, as it was read."""


class TieredTimers(Protocol):
    """Storage of timers that are due beyond the horizon, for the timer wheel.

        enqueue:  due beyond the horizon ─► add … add ─► flush ─► the checkpoint passes them
        later:    pull ─► put into the timer topic again ─► the topic is on disk ─► pulled
        at last:  everything due before a time was delivered ─► forget

    A tiered timer that was added and flushed survives the loss of the broker's disk until it is forgotten. After a
    crash the same timer may be added twice or pulled twice; none may be lost. Methods raise TierError when the storage
    is unreachable, and can be called again. Threads: called by the timer service's thread only.
    """

    @property
    def horizon_ms(self) -> int:
        """A timer due later than now plus this is kept in the tier."""
        ...

    def add(self, timer: TieredTimer) -> None:
        """Buffer one timer; it is not durable before the next `flush`."""

    def flush(self) -> None:
        """Everything that was added is durable when it returns."""

    def pull(self, until_ms: int) -> Iterable[TieredTimer]:
        """Those due before `until_ms` that no earlier pull returned and `pulled` confirmed."""

    def pulled(self) -> None:
        """The timers of all pulls so far are durable in the local store: do not return them again."""

    def forget(self, before_ms: int) -> None:
        """Everything due before `before_ms` was delivered, and is no longer needed."""
