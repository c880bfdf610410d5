"""FastSendPath: the fast path of sends, from the request to the response, in one step.

    topic open here ─► queue below its count ─► plain properties, one key ─► append ─► answer
         └──────────────────┴──────────────────────┴──────────────────────────┴─► None: the general path, nothing stored

The fast path takes a message or a batch, with a body, without transaction and delay, for a queue that was put to
before; the request's properties are well-formed (`name 1 value 2`), have a unique key in plain ASCII, and none that a
broker sets or acts on; the same holds for the messages in a batch. It does not take a message whose properties exceed
`properties_bytes_max` with the added ones, a batch that the store would refuse, or messages with special encoding.

Contract of both twins: the stored record and the response are those of the general path, byte for byte; a request
that is not surely a fast-path one is refused before anything is written. The response has SUCCESS once the record is in
the log: a broker with sync flush holds responses until then. The owner opens and closes topics from any thread, and
calls `take` from one thread only.
"""

from __future__ import annotations

import re

from tiermq.errors import CorruptRecord, IllegalMessage
from tiermq.kernel.appender import Appender
from tiermq.kernel.frame_reader import Frame, SendRequest, message_of_send, messages_of_batch, send_answer
from tiermq.kernel.message import offset_message_id
from tiermq.kernel.stop_reasons import Refusal
from tiermq.message.layout import PROPERTIES_BYTES_MAX

UNUSUAL_SYS_FLAGS = 0xCC
"""Bits of a message's system flag that the fast path does not take: transactions, batches in one record."""
KEY_BYTES_MAX = 512
REGION_BYTES_MAX = 512
_KEY_NAME = b"UNIQ_KEY"
_WAIT_NAME = b"WAIT"
_BROKERS_NAMES = frozenset((b"DELAY", b"POP_CK", b"CLUSTER", b"TRACE_ON", b"TRAN_MSG", b"MSG_REGION"))
_BROKERS_NAMES_IN_BATCH = (*(name + b"\x01" for name in sorted(_BROKERS_NAMES)), b"TIMER_")
_PLAIN_KEY = re.compile(rb"[ !#-\[\]-~]{1,%d}\Z" % KEY_BYTES_MAX)


def plain_lane(added: bytes, region: str, trace_on: str) -> bool:
    """Whether the fast path can add what a broker adds to every message and every response."""
    if usual_key(_KEY_NAME + b"\x01K\x02" + re.sub(b"MSG_REGION|TRACE_ON|CLUSTER", b"x", added)) is None:
        return False
    return all(
        _PLAIN_KEY.match(text.encode()) is not None and len(text) <= REGION_BYTES_MAX for text in (region, trace_on)
    )


def usual_key(properties: bytes) -> bytes | None:
    """The unique key of properties that the fast path takes; None for all others."""
    if not properties.endswith(b"\x02") or b"\0" in properties or b"INNER_" in properties or b"__CRC32#" in properties:
        return None
    key = None
    waits = 0
    for each in properties[:-1].split(b"\x02"):
        name, split, value = each.partition(b"\x01")
        if not name or not split or not value or b"\x01" in value:
            return None
        if name in _BROKERS_NAMES or name.startswith(b"TIMER_"):
            return None
        if name == _KEY_NAME:
            if key is not None or _PLAIN_KEY.match(value) is None:
                return None
            key = value
        elif name == _WAIT_NAME:
            waits += 1
            if waits > 1 or value != b"true":
                return None
    return key


def names_broker_s(batch: bytes) -> bool:
    """Whether a message of a batch may have a property that a broker sets or acts on: it contains such a name."""
    return any(name in batch for name in _BROKERS_NAMES_IN_BATCH)


class FastSendPath:
    """See the module. While `is_open` is False nothing is taken."""

    __slots__ = (
        "_added", "_appender", "_is_plain", "_properties_bytes_max", "_region", "_topics", "_trace_on", "_version",
        "is_open",
    )  # fmt: skip

    def __init__(
        self, appender: Appender, added: bytes, version: int, region: str, trace_on: str,
        properties_bytes_max: int = PROPERTIES_BYTES_MAX,
    ) -> None:  # fmt: skip
        """`added` are encoded properties that every message gets; region and trace are in every response."""
        self.is_open = True
        self._appender = appender
        self._added = added
        self._properties_bytes_max = properties_bytes_max
        self._version = version
        self._region = region
        self._trace_on = trace_on
        self._topics: dict[str, tuple[int, list[int]]] = {}
        self._is_plain = plain_lane(added, region, trace_on)

    def open_topic(self, topic: str, write_queues: int, counts: list[int]) -> None:
        """Take sends to queues below `write_queues` of a topic; messages and bytes are added to `counts`."""
        self._topics[topic] = (write_queues, counts)

    def close_topic(self, topic: str) -> None:
        """Take no sends to a topic. Idempotent."""
        self._topics.pop(topic, None)

    def admits(self, request: SendRequest) -> bool:
        """Whether the fast path takes a send of one message, by the request alone."""
        return self._key_of(request) is not None

    def _key_of(self, request: SendRequest) -> bytes | None:
        if not self.is_open or not self._is_plain or request.batch or request.sys_flag & UNUSUAL_SYS_FLAGS:
            return None
        if len(request.properties) + len(self._added) > self._properties_bytes_max:
            return None
        return usual_key(request.properties) if request.body and request.queue_id >= 0 else None

    def take(self, request: SendRequest, born_host: bytes) -> bytes | None:
        """Store a send and return its response; None, with nothing stored, for one that needs the general path.

        `born_host` is the client's address in its stored form of 8 or 20 bytes.
        """
        found = self._topics.get(request.topic)
        if found is None or request.queue_id >= found[0] or len(born_host) not in (8, 20):
            return None
        if request.batch:
            return self._take_batch(request, found[1], born_host)
        key = self._key_of(request)
        if key is None:
            return None
        properties = request.properties + self._added
        result = self._appender.try_put_fast(message_of_send(request, request.queue_id, properties, born_host))
        if result is None:
            return None
        counts = found[1]
        counts[0] += 1
        counts[1] += result.size
        return send_answer(
            request.header_type, request.opaque, 0, self._version,
            offset_message_id(self._appender.host, result.physical_offset), request.queue_id, result.queue_offset,
            key.decode(), self._region, self._trace_on,
        )  # fmt: skip

    def _take_batch(self, request: SendRequest, counts: list[int], born_host: bytes) -> bytes | None:
        if not self.is_open or not self._is_plain or request.sys_flag & UNUSUAL_SYS_FLAGS or request.queue_id < 0:
            return None
        key = usual_key(request.properties)
        if key is None or not 0 < len(request.body) <= self._appender.max_body_bytes or names_broker_s(request.body):
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
        counts[0] += len(results)
        counts[1] += results.end_offset - results[0].physical_offset
        ids = ",".join(offset_message_id(self._appender.host, result.physical_offset) for result in results)
        return send_answer(
            request.header_type, request.opaque, 0, self._version, ids, request.queue_id, results[0].queue_offset,
            key.decode(), self._region, self._trace_on,
        )  # fmt: skip

    def take_all(self, frames: list[Frame | SendRequest], born_host: bytes) -> tuple[int, bytes]:
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
