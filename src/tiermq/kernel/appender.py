"""QueueHandle and Appender in pure Python.

The append critical section is everything under the appender's lock: read the tail's position, write the record, publish
the new position, count the queue. CRC and sizes are computed before the lock is taken.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from tiermq.kernel.message import Message, PutResult, PutResults, batch_of
from tiermq.kernel.stop_reasons import Refusal
from tiermq.kernel.write_cursor import WriteCursor
from tiermq.message.crc import crc32, encode_crc_property
from tiermq.message.layout import (
    BLANK_BYTES_MIN,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    OVERHEAD_V1_BYTES,
    PROPERTIES_BYTES_MAX,
    SIZE_AND_MAGIC,
    TOPIC_BYTES_MAX_V1,
)
from tiermq.status import PutStatus

RECORD_SLACK_BYTES = 65536  # A record may exceed the body limit by this much.
SHAPES_MAX = 8192  # Cached record layouts before the cache is cleared.
NOW = -1  # Instead of a time: the time of the write.
SAMPLE_MASK = 1023  # One put in 1024 of a queue is timed.

PUT_OK = PutStatus.PUT_OK


_new_tuple = tuple.__new__


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class QueueHandle:
    """A queue of one store, looked up once: the cheapest way to put. Counts change under the appender's lock."""

    __slots__ = (
        "_appender",
        "magic",
        "next_offset",
        "puts",
        "queue_id",
        "shapes",
        "stored_bytes",
        "topic",
        "topic_bytes",
    )

    def __init__(self, appender: Appender, topic: str, queue_id: int, next_offset: int = 0) -> None:
        self._appender = appender
        self.topic = topic
        self.topic_bytes = topic.encode()
        self.magic = MAGIC_V2 if appender.is_version2(len(self.topic_bytes)) else MAGIC_V1
        self.queue_id = queue_id
        self.next_offset = next_offset
        self.puts = 0
        self.stored_bytes = 0
        self.shapes: dict[int, tuple[int, Callable[..., None]]] = {}

    def put(self, body: bytes, properties: bytes = b"") -> PutResult:
        """Put `body` with already encoded properties. Same checks and statuses as a put of a Message."""
        appender = self._appender
        message = Message(self.topic, body, self.queue_id, encoded_properties=properties)
        return appender.put(message) if appender.sync_put is None else appender.sync_put(message)


class Appender:
    """Writes records at the end of the active commit-log file; special ones go to `slow_path(message, refusal)`."""

    __slots__ = (
        "_auto_version",
        "_clock",
        "_crc_property",
        "_host",
        "_lock",
        "_queues",
        "_sample",
        "_sampling",
        "_slow_path",
        "_unusual",
        "_wake",
        "closed",
        "is_sync",
        "last_store_timestamp_ms",
        "max_body_bytes",
        "raise_refusal",
        "reput_idle",
        "sync_put",
        "tail",
    )

    def __init__(
        self,
        host: bytes,
        *,
        slow_path: Callable[[Message, Refusal], PutResult],
        wake: Callable[[], None],
        clock: Callable[[], int] | None = None,
        sample: Callable[[Message], PutResult] | None = None,
        max_body_bytes: int,
        crc_property: bool = False,
        auto_version: bool = True,
        lock: Any,
    ) -> None:
        self._host = host
        self._slow_path = slow_path
        self._wake = wake
        self._clock = clock or _now_ms
        self._sample = sample
        self._sampling = False
        self._lock = lock
        self._crc_property = crc_property
        self._unusual = crc_property or len(host) != 8
        self._auto_version = auto_version
        self._queues: dict[str, dict[int, QueueHandle]] = {}
        self.max_body_bytes = max_body_bytes
        self.sync_put: Callable[[Message], PutResult] | None = None
        self.raise_refusal: Callable[[Message, PutResult], NoReturn] | None = None
        self.closed = True
        self.reput_idle = False
        self.is_sync = False
        self.last_store_timestamp_ms = 0
        self.tail: WriteCursor | None = None

    @property
    def host(self) -> bytes:
        """The store host, as encoded in records."""
        return self._host

    @property
    def puts(self) -> int:
        """Records put by every handle that is bound."""
        return sum(handle.puts for handle in self.handles())

    @property
    def stored_bytes(self) -> int:
        return sum(handle.stored_bytes for handle in self.handles())

    def attach(self, tail: WriteCursor | None) -> None:
        """Append to this file from now on."""
        with self._lock:
            self.tail = tail

    def roll(self, tail: WriteCursor) -> None:
        """End the active file with a blank record and continue in `tail`, atomically for puts."""
        with self._lock:
            old = self.tail
            if old is not None and old.buffer is not None and old.position < old.size:
                SIZE_AND_MAGIC.pack_into(old.buffer, old.position, old.size - old.position, MAGIC_BLANK)
                old.position = old.size
            self.tail = tail

    def is_version2(self, topic_length: int) -> bool:
        return topic_length > TOPIC_BYTES_MAX_V1 and self._auto_version

    def bind(self, handle: QueueHandle) -> None:
        self._queues.setdefault(handle.topic, {})[handle.queue_id] = handle

    def unbind(self, topic: str) -> None:
        self._queues.pop(topic, None)

    def now_ms(self) -> int:
        return self._clock()

    def handles(self) -> list[QueueHandle]:
        return [handle for by_id in list(self._queues.values()) for handle in list(by_id.values())]

    def handle(self, topic: str, queue_id: int) -> QueueHandle | None:
        return self._queues.get(topic, {}).get(queue_id)

    def put(self, message: Message) -> PutResult:
        """Store one message; special cases go to the slow path."""
        if self.closed:
            return self._slow_path(message, Refusal.CLOSED)
        if message.needs_offset:
            return self._slow_path(message, Refusal.NEEDS_OFFSET)
        try:
            handle = self._queues[message.topic][message.queue_id]
        except KeyError:
            return self._slow_path(message, Refusal.UNBOUND)
        if handle.puts & SAMPLE_MASK == SAMPLE_MASK and self._sample is not None and not self._sampling:
            return self._put_sampled(message)
        result = self._write(handle, message, NOW, -1, 1)
        if result.__class__ is Refusal:
            return self._slow_path(message, result)
        if self.reput_idle:
            self.reput_idle = False
            self._wake()
        return result  # type: ignore[return-value]

    def put_or_raise(self, message: Message) -> PutResult:
        """`put` for callers that want refusals raised: `raise_refusal(message, result)` does that."""
        result = self.put(message)
        if result[0] is not PUT_OK:
            assert self.raise_refusal is not None
            self.raise_refusal(message, result)
        return result

    def try_put_fast(self, message: Message) -> PutResult | None:
        """Store one message, without slow path or sample; None, with nothing stored, when either is due."""
        handle = self.handle(message.topic, message.queue_id)
        if self.closed or message.needs_offset or handle is None:
            return None
        if handle.puts & SAMPLE_MASK == SAMPLE_MASK and self._sample is not None:
            return None
        result = self._write(handle, message, NOW, -1, 1)
        if isinstance(result, Refusal):
            return None
        if self.reput_idle:
            self.reput_idle = False
            self._wake()
        return result

    def _put_sampled(self, message: Message) -> PutResult:
        assert self._sample is not None
        self._sampling = True
        try:
            return self._sample(message)
        finally:
            self._sampling = False

    def put_expecting(self, message: Message, expected_offset: int, count: int) -> PutResult | Refusal:
        """Store `message` as `count` queue positions, only if its queue is still at `expected_offset`.

        For records whose properties contain their queue offset. Returns a PutResult, or the Refusal.
        """
        handle = self.handle(message.topic, message.queue_id)
        if self.closed:
            return Refusal.CLOSED
        if handle is None:
            return Refusal.UNBOUND
        result = self._write(handle, message, NOW, expected_offset, count)
        if self.reput_idle and type(result) is PutResult:
            self.reput_idle = False
            self._wake()
        return result

    def put_many(self, messages: Iterable[Message]) -> PutResults:
        """Store a list in one call: each message has its own result."""
        results: list[PutResult] = []
        for at, message in enumerate(batch_of(messages)):
            if type(message) is not Message:
                raise TypeError(f"put_many takes Messages, found {type(message).__name__} at {at}")
            handle = self.handle(message.topic, message.queue_id)
            if self.closed:
                results.append(self._slow_path(message, Refusal.CLOSED))
                continue
            if message.needs_offset or handle is None:
                results.append(
                    self._slow_path(message, Refusal.NEEDS_OFFSET if message.needs_offset else Refusal.UNBOUND)
                )
                continue
            result = self._write(handle, message, NOW, -1, 1)
            results.append(self._slow_path(message, result) if isinstance(result, Refusal) else result)
        if self.reput_idle and results:
            self.reput_idle = False
            self._wake()
        return PutResults(results, self._clock())

    def record_bytes(self, message: Message) -> int:
        """The record size of a message."""
        properties = message.encoded_properties
        extra = self._crc_bytes(message)
        topic_length = len(message.topic.encode())
        return (
            OVERHEAD_V1_BYTES - 16 + len(message.born_host or self._host) + len(self._host) + topic_length
            + self.is_version2(topic_length) + len(message.body) + len(properties) + extra
        )  # fmt: skip

    def put_together(self, messages: list[Message]) -> PutResults | Refusal:
        """Store messages of one queue side by side in one file, with one store time; PutResults, or the Refusal
        of the first that cannot be stored, with nothing written. No other put comes between them."""
        if self.closed:
            return Refusal.CLOSED
        if not messages:
            return Refusal.EMPTY
        handle = self.handle(messages[0].topic, messages[0].queue_id)
        if handle is None:
            return Refusal.UNBOUND
        total = 0
        for message in messages:
            size = self.record_bytes(message)
            if len(message.encoded_properties) + self._crc_bytes(message) > PROPERTIES_BYTES_MAX:
                return Refusal.PROPERTIES_TOO_LARGE
            if len(message.body) > self.max_body_bytes:
                return Refusal.BODY_TOO_LARGE
            if size > self.max_body_bytes + RECORD_SLACK_BYTES:
                return Refusal.RECORD_TOO_LARGE
            total += size
        now = self._clock()
        with self._lock:  # Reentrant: the single writes below take it again.
            if self.tail is None or self.tail.position + total + BLANK_BYTES_MIN > self.tail.limit:
                return Refusal.ROOM
            # `closed` is not checked again: a started batch is completed.
            results = [self._write(handle, message, now, -1, 1) for message in messages]
        if self.reput_idle:
            self.reput_idle = False
            self._wake()
        return PutResults([result for result in results if isinstance(result, PutResult)], now)

    def _crc_bytes(self, message: Message) -> int:
        """What the whole-record CRC property adds to a message's properties, the separator before it included."""
        return 20 + (message.encoded_properties[-1:] not in (b"", b"\x02")) if self._crc_property else 0

    def _write(
        self, handle: QueueHandle, message: Message, now: int, expected_offset: int, count: int
    ) -> PutResult | Refusal:
        """Encode one record in place and publish it, or refuse with nothing written."""
        body = message.body
        properties = message.encoded_properties
        host = self._host
        born_host = message.born_host or host
        # Host bits are set and cleared: a forwarded message may have those of its former hosts.
        sys_flag = message.sys_flag & ~0x30
        body_length = len(body)
        properties_length = len(properties)
        if self._unusual or len(born_host) != 8:
            return self._write_unusual(handle, message, now, expected_offset, count)
        shape = handle.shapes.get(body_length << 16 | properties_length)
        if shape is None or body_length > self.max_body_bytes:  # The limit may have changed since the shape was made.
            made = self._shape_of(handle, body_length, properties_length, 8, 8)
            if isinstance(made, Refusal):
                return made
            shape = handle.shapes[body_length << 16 | properties_length] = made
        total, pack_into = shape
        topic_bytes = handle.topic_bytes
        crc = crc32(body) & 0x7FFFFFFF
        with self._lock:
            tail = self.tail
            if tail is None or (position := tail.position) + total + BLANK_BYTES_MIN > tail.limit:
                return Refusal.ROOM
            if now == NOW:  # Under the lock, so that store times never go back.
                now = self._clock()
            queue_offset = handle.next_offset
            if expected_offset >= 0 and queue_offset != expected_offset:
                return Refusal.OFFSET_MOVED
            if sys_flag & 4:  # Prepared or rolled back: such a record has no queue offset.
                queue_offset = count = 0
            physical = tail.base + position
            pack_into(
                tail.buffer, position, total, handle.magic, crc, handle.queue_id, message.flag, queue_offset, physical,
                sys_flag, message.born_timestamp_ms or now, born_host, now, host, message.reconsume_times,
                message.prepared_transaction_offset, body_length, body, len(topic_bytes), topic_bytes,
                properties_length, properties,
            )  # fmt: skip
            tail.position = position + total
            handle.next_offset += count
            handle.puts += 1
            handle.stored_bytes += total
            self.last_store_timestamp_ms = now
        return _new_tuple(PutResult, (PUT_OK, host, physical, queue_offset, now, total, count or 1))

    def _shape_of(
        self, handle: QueueHandle, body_length: int, properties_length: int, born_length: int, host_length: int
    ) -> tuple[int, Callable[..., None]] | Refusal:
        """The record's size and its packer, after the checks that depend on sizes alone."""
        if properties_length > PROPERTIES_BYTES_MAX:
            return Refusal.PROPERTIES_TOO_LARGE
        if body_length > self.max_body_bytes:
            return Refusal.BODY_TOO_LARGE
        topic_length = len(handle.topic_bytes)
        version2 = self.is_version2(topic_length)
        total = (
            OVERHEAD_V1_BYTES
            - 16
            + born_length
            + host_length
            + version2
            + body_length
            + topic_length
            + properties_length
        )
        if total > self.max_body_bytes + RECORD_SLACK_BYTES:
            return Refusal.RECORD_TOO_LARGE
        if len(handle.shapes) >= SHAPES_MAX:
            handle.shapes.clear()
        layout = struct.Struct(
            ">iiiii"  # total, magic, body CRC, queue id, flag
            "qqiq"  # queue offset, physical offset, system flag, born time
            f"{born_length}sq{host_length}s"  # born host, store time, store host
            "iqi"  # reconsume times, prepared transaction offset, body length
            f"{body_length}s{'H' if version2 else 'B'}{topic_length}sH{properties_length}s"
        )
        assert layout.size == total
        return total, layout.pack_into

    def _write_unusual(
        self, handle: QueueHandle, message: Message, now: int, expected_offset: int, count: int
    ) -> PutResult | Refusal:
        """As `_write`, for IPv6 hosts and for the whole-record CRC property."""
        body = message.body
        host = self._host
        born_host = message.born_host or host
        properties = message.encoded_properties
        if self._crc_property:
            if properties and properties[-1] != 2:
                properties += b"\x02"
            properties += bytes(20)
        made = self._shape_of(handle, len(body), len(properties), len(born_host), len(host))
        if isinstance(made, Refusal):
            return made
        total, pack_into = made
        sys_flag = message.sys_flag & ~0x30 | (0x10 if len(born_host) == 20 else 0) | (0x20 if len(host) == 20 else 0)
        crc = crc32(body) & 0x7FFFFFFF
        with self._lock:
            tail = self.tail
            if tail is None or tail.buffer is None or tail.position + total + BLANK_BYTES_MIN > tail.limit:
                return Refusal.ROOM
            if now == NOW:  # Under the lock, so that store times never go back.
                now = self._clock()
            queue_offset = handle.next_offset
            if expected_offset >= 0 and queue_offset != expected_offset:
                return Refusal.OFFSET_MOVED
            if sys_flag & 4:
                queue_offset = count = 0
            position = tail.position
            pack_into(
                tail.buffer, position, total, handle.magic, crc, handle.queue_id, message.flag,
                queue_offset, tail.base + position, sys_flag, message.born_timestamp_ms or now, born_host, now, host,
                message.reconsume_times, message.prepared_transaction_offset, len(body), body,
                len(handle.topic_bytes), handle.topic_bytes, len(properties), properties,
            )  # fmt: skip
            if self._crc_property:
                end = position + total
                value = crc32(tail.buffer[position : end - 20]) & 0x7FFFFFFF
                tail.buffer[end - 20 : end] = encode_crc_property(value)
            tail.position = position + total
            handle.next_offset += count
            handle.puts += 1
            handle.stored_bytes += total
            self.last_store_timestamp_ms = now
        return PutResult(PUT_OK, host, tail.base + position, queue_offset, now, total, count or 1)
