"""Half messages: a message that no consumer sees until its producer commits it. Values only: nothing here is stored.

    sent to orders, queue 1 ─► RMQ_SYS_TRANS_HALF_TOPIC, queue 0   + __transactionId__, REAL_TOPIC, REAL_QID
    committed               ─► orders, queue 1                     sys flag 8, prepared offset = offset of the half
    asked about             ─► a copy at the queue's end           + TRANSACTION_CHECK_TIMES, TRAN_PREPARED_QUEUE_OFFSET
    asked about too often   ─► TRANS_CHECK_MAX_TIME_TOPIC, queue 0

Invariants: each has the body, the flags, the keys and the birth of the message that was sent. A committed record keeps
every property of its half, as RocketMQ stores it. Copies name the half that was sent first (their origin), so that
ending one of them ends all. RocketMQ's own copies lose the user's flag; ours do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tiermq.clock import HOUR_MS
from tiermq.delivery.redeliver import QueueFor, as_named, fitting
from tiermq.errors import CorruptRecord
from tiermq.kernel import DeferredRecord, Message, PutResult
from tiermq.kernel.deferred_record import CHECKED, DEFERRED
from tiermq.message.hosts import encode_host
from tiermq.message.properties import (
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    TIERMQ_SENDER,
    TRAN_MSG,
    TRAN_PREPARED_QUEUE_OFFSET,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_ID,
    UNIQ_KEY,
    delete_property,
    get_property,
    get_text_property,
    with_property,
)
from tiermq.message.record import encode_record
from tiermq.message.stored_message import StoredMessage
from tiermq.message.system_flag import TransactionType, with_transaction_type
from tiermq.message.topic_name import HALF_TOPIC, TRANSACTION_CHECK_MAX_TIME_TOPIC, is_broker_topic, topic_problem

HALF_QUEUE = 0
_I64_DIGITS = 19
Identity = tuple[str, str, int, int]


@dataclass(frozen=True, slots=True)
class TransactionRules:
    """RocketMQ's settings: transactionTimeOut, transactionCheckMax, transactionCheckInterval, fileReservedTime."""

    timeout_ms: int = 6_000
    check_max: int = 15
    interval_ms: int = 30_000
    reserved_ms: int = 72 * HOUR_MS


@dataclass(frozen=True, slots=True)
class HalfMessage:
    """A record of the half topic, and its properties."""

    record: StoredMessage
    topic: str
    queue_id: int
    group: str
    sender: str | None
    """The account that sent it, where the broker had accounts."""
    transaction_id: str
    origin: int
    """The offset in the half queue that the message had first."""
    check_times: int
    immunity_s: int | None
    """The immunity time that its producer set; None if unset."""

    @property
    def identity(self) -> Identity:
        """The same for all copies, RocketMQ's too, which name no origin. An id alone is not enough: two
        messages may have one UNIQ_KEY."""
        return self.transaction_id, self.topic, self.record.born_timestamp_ms, self.record.body_crc


class PlainHalf:
    """A half message as most are: sent without an account and an immunity time, and never checked. Cheap to read."""

    __slots__ = ("group", "identity", "origin", "queue_id", "record", "topic", "transaction_id")
    immunity_s = None

    def __init__(self, record: DeferredRecord) -> None:
        self.record = record
        self.topic = record.real_topic
        self.queue_id = record.real_queue
        self.group = record.group
        self.transaction_id = record.unique_key
        self.origin = record.queue_offset
        self.identity: Identity = (self.transaction_id, self.topic, record.born_timestamp_ms, record.body_crc)


AnyHalf = HalfMessage | PlainHalf


def plain_half(record: DeferredRecord) -> PlainHalf | None:
    """A record of the half topic; None when `read_half` must look at it, also where a commit must be deferred."""
    if record.has & (CHECKED | DEFERRED) or record.queue_id != HALF_QUEUE or not _may_be_for(record.real_topic):
        return None
    return PlainHalf(record)


@lru_cache(maxsize=1024)
def _may_be_for(topic: str) -> bool:
    return topic_problem(topic) is None and not is_broker_topic(topic)


def immunity_ms(half: AnyHalf, timeout_ms: int) -> int:
    """How long after its birth a message is not checked."""
    return timeout_ms if half.immunity_s is None else max(half.immunity_s * 1000, timeout_ms)


def is_half(encoded: bytes) -> bool:
    """Whether a producer sent it as the first half of a transaction."""
    return (get_property(encoded, TRAN_MSG.encode()) or b"").lower() == b"true"


def half_properties(encoded: bytes, topic: str, queue_id: int) -> bytes:
    """The properties of a half message: its target when committed, and its transaction id."""
    if key := get_text_property(encoded, UNIQ_KEY):
        encoded = with_property(encoded, TRANSACTION_ID, key)
    return with_property(with_property(encoded, REAL_TOPIC, topic), REAL_QID, str(queue_id))


def read_half(record: StoredMessage) -> HalfMessage:
    """Raises CorruptRecord for a record that is no half message."""
    topic, queue = record.get_property(REAL_TOPIC), record.get_property(REAL_QID)
    problem = "it names no topic" if topic is None else topic_problem(topic)
    queue_id = _number(queue)
    if record.topic != HALF_TOPIC:
        problem = f"it is in {record.topic}"
    elif topic is not None and is_broker_topic(topic):
        problem = f"it names the internal topic {topic[:40]}"
    elif queue_id is None or not 0 <= queue_id < 2**31:
        problem = f"it names the queue {queue!r}"
    if topic is None or queue_id is None or problem is not None:
        raise CorruptRecord(
            f"{record.topic}, offset {record.queue_offset}: expected a half message, found another: {problem}"
        )
    origin = _number(record.get_property(TRAN_PREPARED_QUEUE_OFFSET))
    return HalfMessage(
        record=record,
        topic=topic,
        queue_id=queue_id,
        group=record.get_property(PGROUP) or "",
        sender=record.get_property(TIERMQ_SENDER),
        transaction_id=record.get_property(UNIQ_KEY) or "",
        origin=record.queue_offset if origin is None or not 0 <= origin < record.queue_offset else origin,
        check_times=max(0, _number(record.get_property(TRANSACTION_CHECK_TIMES)) or 0),
        immunity_s=_immunity(record.get_property(CHECK_IMMUNITY_TIME_IN_SECONDS)),
    )


def committed(half: AnyHalf, queue_for: QueueFor = as_named) -> Message:
    """What a commit stores in the message's own topic."""
    if isinstance(half, PlainHalf):
        sys_flag = with_transaction_type(half.record.sys_flag, TransactionType.COMMIT)
        queue_id = queue_for(half.topic, half.queue_id)
        return half.record.message(half.topic, queue_id, b"", sys_flag, half.record.physical_offset)
    record = half.record
    return Message(
        half.topic,
        record.body,
        queue_for(half.topic, half.queue_id),
        encoded_properties=delete_property(record.encoded_properties, TIERMQ_SENDER.encode()),
        flag=record.flag,
        sys_flag=with_transaction_type(record.sys_flag, TransactionType.COMMIT),
        born_timestamp_ms=record.born_timestamp_ms,
        born_host=encode_host(record.born_host),
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.physical_offset,
    )


def copied(half: HalfMessage, *, check_times: int) -> Message:
    """The copy of an open half message at the end of the queue.

    If its properties lack space, it is copied without the addition, as in RocketMQ: it is checked until it is too old.
    """
    encoded = with_property(half.record.encoded_properties, TRAN_PREPARED_QUEUE_OFFSET, str(half.origin))
    if check_times:
        encoded = with_property(encoded, TRANSACTION_CHECK_TIMES, str(check_times))
    return _moved(half.record, HALF_TOPIC, fitting(encoded, half.record))


def escaped(half: HalfMessage) -> Message:
    """An open half message as it is sent to another master, which then asks its producer."""
    encoded = half.record.encoded_properties
    for name in (REAL_TOPIC, REAL_QID, TRANSACTION_ID, TIERMQ_SENDER, TRAN_PREPARED_QUEUE_OFFSET):
        encoded = delete_property(encoded, name.encode())
    return _moved(half.record, half.topic, encoded, half.queue_id)


def discarded(half: HalfMessage) -> Message:
    """The record kept for operators of a message that was never ended."""
    return _moved(half.record, TRANSACTION_CHECK_MAX_TIME_TOPIC, half.record.encoded_properties)


def question(half: HalfMessage, copy: Message, put: PutResult) -> bytes:
    """The record that a check sends to a producer: the copy, as if in its own topic already."""
    record = half.record
    return encode_record(
        topic=half.topic,
        body=record.body,
        queue_id=half.queue_id,
        flag=record.flag,
        queue_offset=put.queue_offset,
        physical_offset=put.physical_offset,
        sys_flag=record.sys_flag,
        born_timestamp_ms=record.born_timestamp_ms,
        born_host=record.born_host,
        store_timestamp_ms=record.store_timestamp_ms,
        store_host=record.store_host,
        reconsume_times=record.reconsume_times,
        properties=copy.encoded_properties,
    )


def _moved(record: StoredMessage, topic: str, encoded: bytes, queue_id: int = HALF_QUEUE) -> Message:
    return Message(
        topic,
        record.body,
        queue_id,
        encoded_properties=encoded,
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_timestamp_ms=record.born_timestamp_ms,
        born_host=encode_host(record.born_host),
        reconsume_times=record.reconsume_times,
    )


def _immunity(text: str | None) -> int | None:
    """RocketMQ takes what is no number for 0, which the transaction timeout then replaces."""
    return None if text is None else (_number(text) or 0)


def _number(text: str | None) -> int | None:
    """A decimal of a record, or None for anything else."""
    if text is None or not text.isascii() or not text.removeprefix("-").isdigit() or len(text) > _I64_DIGITS:
        return None
    return int(text)
