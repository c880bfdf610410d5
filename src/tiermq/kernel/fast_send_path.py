"""FastSendPath: the fast path of sends, from the request to the response, in one step.

    topic open here ─► queue below its count ─► plain properties, one key ─► append ─► answer
         └──────────────────┴──────────────────────┴──────────────────────────┴─► None: the general path, nothing stored

The fast path takes a message or a batch, with a body, for a queue that was put to before; the request's properties are
well-formed (`name 1 value 2`), have a unique key in plain ASCII, and none that a broker sets; the same holds for the
messages in a batch. It does not take a message whose properties exceed `properties_bytes_max` with the added ones, a
batch that the store would refuse or with more than `BATCH_ELEMENTS_MAX` messages, or messages with special encoding.

A single message may have one property that defers it (`Later`), which names the topic that it is stored in first:

    DELAY                                               SCHEDULE_TOPIC_XXXX, the queue of its level
    TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS   rmq_sys_wheel_timer; the response has a recall handle
    TRAN_MSG                                            RMQ_SYS_TRANS_HALF_TOPIC

with the request's properties, the added ones, the new one (level, slot, transaction id), REAL_TOPIC and REAL_QID.

Contract of both twins: the stored record and the response are those of the general path, byte for byte; a request
that is not surely a fast-path one is refused before anything is written. The response has SUCCESS once the record is in
the log: a broker with sync flush holds responses until then. The owner opens and closes topics from any thread, and
calls `take` from one thread only.
"""

from __future__ import annotations

import base64
import re
from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

from tiermq.errors import CorruptRecord, IllegalMessage
from tiermq.kernel.appender import Appender
from tiermq.kernel.frame_reader import AckRequest, Frame, SendRequest, message_of_send, messages_of_batch, send_answer
from tiermq.kernel.message import Message, offset_message_id
from tiermq.kernel.stop_reasons import Refusal
from tiermq.message.client_batch import BATCH_ELEMENTS_MAX, has_more_elements
from tiermq.message.layout import PROPERTIES_BYTES_MAX
from tiermq.message.topic_name import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC

UNUSUAL_SYS_FLAGS = 0xCC
"""Bits of a message's system flag that the fast path does not take: transactions, batches in one record."""
TRANSACTION_FLAGS = 0x0C
"""Of these, the ones of transactions: the first half of one is stored without them."""
KEY_BYTES_MAX = 512
HANDLE_TEXT_BYTES_MAX = 700
"""Topic, broker name and unique key of a recall handle; with longer ones a response might not fit."""
REGION_BYTES_MAX = 512
_KEY_NAME = b"UNIQ_KEY"
_WAIT_NAME = b"WAIT"
_BROKERS_NAMES = frozenset((b"DELAY", b"POP_CK", b"CLUSTER", b"TRACE_ON", b"TRAN_MSG", b"MSG_REGION"))
_BROKERS_NAMES_IN_BATCH = (*(name + b"\x01" for name in sorted(_BROKERS_NAMES)), b"TIMER_")
_LATER_NAMES = frozenset(
    (b"REAL_QID", b"REAL_TOPIC", b"TIERMQ_SENDER", b"__transactionId__", b"TRANSACTION_CHECK_TIMES",
     b"TRAN_PREPARED_QUEUE_OFFSET")
)  # fmt: skip
_DEFERRING = {b"DELAY": 9, b"TIMER_DELAY_SEC": 12, b"TIMER_DELAY_MS": 12, b"TIMER_DELIVER_MS": 15, b"TRAN_MSG": 0}
"""How many digits the fast path reads of each."""
_PLAIN_NUMBER = re.compile(rb"[1-9][0-9]*\Z")
_PLAIN_KEY = re.compile(rb"[ !#-\[\]-~]{1,%d}\Z" % KEY_BYTES_MAX)


def plain_lane(added: bytes, region: str, trace_on: str) -> bool:
    """Whether the fast path can add what a broker adds to every message and every response."""
    if usual_send(_KEY_NAME + b"\x01K\x02" + re.sub(b"MSG_REGION|TRACE_ON|CLUSTER", b"x", added)) is None:
        return False
    return all(
        _PLAIN_KEY.match(text.encode()) is not None and len(text) <= REGION_BYTES_MAX for text in (region, trace_on)
    )


SIZE_BOUNDS = (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
"""Bytes of a record: RocketMQ's buckets of message sizes. The compiled twin has them in `count_sent`."""


def new_counts() -> list[int]:
    """How much was sent to a topic: messages, bytes of their records, and messages by `SIZE_BOUNDS`."""
    return [0] * (2 + len(SIZE_BOUNDS) + 1)


def count_sent(counts: list[int], messages: int, size_bytes: int) -> None:
    """Add messages of one send; those of a batch count with their mean size, as at RocketMQ."""
    counts[0] += messages
    counts[1] += size_bytes
    counts[2 + bisect_left(SIZE_BOUNDS, size_bytes // max(1, messages))] += messages


class Later(NamedTuple):
    """Which messages the fast path may store in another topic first."""

    delay_levels: int = 0
    takes_halves: Callable[[], bool] = bool
    """Whether halves of transactions are taken now."""
    precision_ms: int = 0
    """Of the timer wheel; 0: no timers."""
    timer_delay_max_ms: int = 0
    broker_name: str = ""


class UsualSend(NamedTuple):
    """The unique key of a fast-path send, and the name and value of the property that defers it, if any."""

    key: bytes
    deferring: bytes = b""
    value: bytes = b""

    @property
    def number(self) -> int:
        return int(self.value)


def usual_send(properties: bytes) -> UsualSend | None:
    """What the fast path reads of properties that it takes; None for all others."""
    if not properties.endswith(b"\x02") or b"\0" in properties or b"INNER_" in properties or b"__CRC32#" in properties:
        return None
    key = None
    waits = 0
    deferring = value_of = b""
    named_later = False
    for each in properties[:-1].split(b"\x02"):
        name, split, value = each.partition(b"\x01")
        if not name or not split or not value or b"\x01" in value:
            return None
        if name in _BROKERS_NAMES or name.startswith(b"TIMER_"):
            if deferring or not _defers(name, value):
                return None
            deferring, value_of = name, value
        named_later = named_later or name in _LATER_NAMES
        if name == _KEY_NAME:
            if key is not None or _PLAIN_KEY.match(value) is None:
                return None
            key = value
        elif name == _WAIT_NAME:
            waits += 1
            if waits > 1 or value != b"true":
                return None
    if key is None or (deferring and named_later):
        return None
    return UsualSend(key, deferring, value_of)


def _defers(name: bytes, value: bytes) -> bool:
    """Whether a property defers a message in a way that the fast path knows."""
    if name == b"TRAN_MSG":
        return value == b"true"
    return len(value) <= _DEFERRING.get(name, 0) and _PLAIN_NUMBER.match(value) is not None


def names_broker_s(batch: bytes) -> bool:
    """Whether a message of a batch may have a property that a broker sets or acts on: it contains such a name."""
    return any(name in batch for name in _BROKERS_NAMES_IN_BATCH)


def recall_handle_text(topic: str, broker_name: str, time_ms: int, unique_key: str) -> str:
    """The handle by which a producer takes a timer back: url-safe base64 of its version and fields."""
    return base64.urlsafe_b64encode(f"v1 {topic} {broker_name} {time_ms} {unique_key}".encode()).decode()


class FastSendPath:
    """See the module. While `is_open` is False nothing is taken."""

    __slots__ = (
        "_added", "_appender", "_is_plain", "_later", "_properties_bytes_max", "_region", "_topics", "_trace_on",
        "_version", "is_open",
    )  # fmt: skip

    def __init__(
        self, appender: Appender, added: bytes, version: int, region: str, trace_on: str,
        properties_bytes_max: int = PROPERTIES_BYTES_MAX, later: Later | None = None,
    ) -> None:  # fmt: skip
        """`added` are encoded properties that every message gets; region and trace are in every response."""
        self.is_open = True
        self._appender = appender
        self._added = added
        self._properties_bytes_max = properties_bytes_max
        self._version = version
        self._region = region
        self._trace_on = trace_on
        self._later = later or Later()
        self._topics: dict[str, tuple[int, list[int]]] = {}
        self._is_plain = plain_lane(added, region, trace_on)

    def open_topic(self, topic: str, write_queues: int, counts: list[int]) -> None:
        """Take sends to queues below `write_queues` of a topic, and count them in `counts`, see `new_counts`."""
        self._topics[topic] = (write_queues, counts)

    def close_topic(self, topic: str) -> None:
        """Take no sends to a topic. Idempotent."""
        self._topics.pop(topic, None)

    def admits(self, request: SendRequest) -> bool:
        """Whether the fast path takes a send of one message, by the request alone."""
        return self._usual(request) is not None

    def _usual(self, request: SendRequest) -> UsualSend | None:
        if not self.is_open or not self._is_plain or request.batch or not request.body or request.queue_id < 0:
            return None
        if len(request.properties) + len(self._added) > self._properties_bytes_max:
            return None
        usual = usual_send(request.properties)
        if usual is None:
            return None
        is_half = usual.deferring == b"TRAN_MSG"
        if request.sys_flag & (UNUSUAL_SYS_FLAGS & ~TRANSACTION_FLAGS if is_half else UNUSUAL_SYS_FLAGS):
            return None
        if not usual.deferring:
            return usual
        if is_half:
            return usual if self._later.takes_halves() else None
        limit = self._later.delay_levels if usual.deferring == b"DELAY" else self._later.precision_ms
        return usual if limit else None

    def take(self, request: SendRequest, born_host: bytes) -> bytes | None:
        """Store a send and return its response; None, with nothing stored, for one that needs the general path.

        `born_host` is the client's address in its stored form of 8 or 20 bytes.
        """
        found = self._topics.get(request.topic)
        if found is None or request.queue_id >= found[0] or len(born_host) not in (8, 20):
            return None
        if request.batch:
            return self._take_batch(request, found[1], born_host)
        usual = self._usual(request)
        if usual is None or self._appender.handle(request.topic, request.queue_id) is None:
            return None
        message = message_of_send(request, request.queue_id, request.properties + self._added, born_host)
        handle = ""
        if usual.deferring:
            deferred = self._deferred(request, message, usual)
            if deferred is None:
                return None
            message, handle = deferred
        result = self._appender.try_put_fast(message)
        if result is None:
            return None
        counts = found[1]
        count_sent(counts, 1, result.size)
        return send_answer(
            request.header_type, request.opaque, 0, self._version,
            offset_message_id(self._appender.host, result.physical_offset), request.queue_id, result.queue_offset,
            usual.key.decode(), self._region, self._trace_on, recall_handle=handle,
        )  # fmt: skip

    def take_offset(self, request: SendRequest, born_host: bytes) -> int:
        """Store one message that nothing defers, and return its queue offset; -1, with nothing stored, for any other
        send."""
        found = self._topics.get(request.topic)
        if found is None or request.queue_id >= found[0] or len(born_host) not in (8, 20) or request.batch:
            return -1
        usual = self._usual(request)
        if usual is None or usual.deferring or self._appender.handle(request.topic, request.queue_id) is None:
            return -1
        message = message_of_send(request, request.queue_id, request.properties + self._added, born_host)
        result = self._appender.try_put_fast(message)
        if result is None:
            return -1
        found[1][0] += 1
        found[1][1] += result.size
        return result.queue_offset

    def _deferred(self, request: SendRequest, message: Message, usual: UsualSend) -> tuple[Message, str] | None:
        """The message as it is stored first, and its recall handle."""
        later, properties, handle, sys_flag = self._later, message.encoded_properties, "", message.sys_flag
        if usual.deferring == b"DELAY":
            level = min(usual.number, later.delay_levels)
            topic, queue_id = SCHEDULE_TOPIC, level - 1
            properties = properties.replace(b"DELAY\x01" + usual.value + b"\x02", b"", 1)
            name, value = b"DELAY", b"%d" % level
        elif usual.deferring == b"TRAN_MSG":
            topic, queue_id, name, value = HALF_TOPIC, 0, b"__transactionId__", usual.key
            sys_flag &= ~TRANSACTION_FLAGS
        else:
            now_ms = self._appender.now_ms()
            factor = 1000 if usual.deferring == b"TIMER_DELAY_SEC" else 1
            time_ms = usual.number * factor + (0 if usual.deferring == b"TIMER_DELIVER_MS" else now_ms)
            text_bytes = len(request.topic.encode()) + len(later.broker_name.encode()) + len(usual.key)
            if not now_ms < time_ms <= now_ms + later.timer_delay_max_ms or text_bytes > HANDLE_TEXT_BYTES_MAX:
                return None
            slot_ms = (time_ms - 1) // later.precision_ms * later.precision_ms  # It ends at the time or later.
            topic, queue_id, name, value = TIMER_TOPIC, 0, b"TIMER_OUT_MS", b"%d" % slot_ms
            handle = recall_handle_text(request.topic, later.broker_name, slot_ms + 1, usual.key.decode())
        real = b"REAL_TOPIC\x01%s\x02REAL_QID\x01%d\x02" % (request.topic.encode(), request.queue_id)
        properties += name + b"\x01" + value + b"\x02" + real
        if len(properties) > self._properties_bytes_max:
            return None
        stored = Message(
            topic,
            request.body,
            queue_id,
            encoded_properties=properties,
            flag=request.flag,
            sys_flag=sys_flag,
            born_timestamp_ms=request.born_ms,
            born_host=message.born_host,
            reconsume_times=request.reconsume_times,
        )
        return stored, handle

    def _take_batch(self, request: SendRequest, counts: list[int], born_host: bytes) -> bytes | None:
        if not self.is_open or not self._is_plain or request.sys_flag & UNUSUAL_SYS_FLAGS or request.queue_id < 0:
            return None
        usual = usual_send(request.properties)
        if usual is None or usual.deferring:
            return None
        if not 0 < len(request.body) <= self._appender.max_body_bytes or names_broker_s(request.body):
            return None
        if has_more_elements(request.body, BATCH_ELEMENTS_MAX):
            return None
        try:
            messages = messages_of_batch(
                message_of_send(request, request.queue_id, request.properties + self._added, born_host)
            )
        except (CorruptRecord, IllegalMessage):
            return None  # The general path reports the error.
        for message in messages:
            if message.needs_offset or len(message.encoded_properties) > self._properties_bytes_max:
                return None
        results = self._appender.put_together(messages)
        if isinstance(results, Refusal):
            return None
        count_sent(counts, len(results), results.end_offset - results[0].physical_offset)
        ids = ",".join(offset_message_id(self._appender.host, result.physical_offset) for result in results)
        return send_answer(
            request.header_type, request.opaque, 0, self._version, ids, request.queue_id, results[0].queue_offset,
            usual.key.decode(), self._region, self._trace_on,
        )  # fmt: skip

    def take_all(self, frames: list[Frame | SendRequest | AckRequest], born_host: bytes) -> tuple[int, bytes]:
        """Take the leading fast-path sends of `frames`: how many, and their joined responses (none for one-way)."""
        answers: list[bytes] = []
        taken = 0
        for frame in frames:
            answer = self.take(frame, born_host) if type(frame) is SendRequest else None
            if answer is None:
                break
            taken += 1
            if not frame.is_oneway:  # type: ignore[union-attr]
                answers.append(answer)
        return taken, b"".join(answers)
