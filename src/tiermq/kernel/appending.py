"""Message, PutResult, QueueHandle and Appender in pure Python.

The append critical section is everything under the appender's lock: read the tail's position, write the record, publish
the new position, count the queue. CRC and sizes are worked out before the lock is taken.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tiermq.kernel.message_values import offset_message_id, prepare_message, properties_of
from tiermq.kernel.reasons import Refusal
from tiermq.kernel.tails import Tail
from tiermq.message.crc import crc32, encode_crc_property
from tiermq.message.layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from tiermq.status import PutStatus

FIXED_BYTES = 91  # V1, both hosts IPv4, without body, topic and properties.
PROPERTIES_BYTES_MAX = 32767
RECORD_SLACK_BYTES = 65536  # A record may exceed the body limit by this much.
BLANK_BYTES = 8
SHAPES_MAX = 8192  # Cached record layouts before the cache is started anew.
SAMPLE_EVERY = 1024

_BLANK = struct.Struct(">ii")
PUT_OK = PutStatus.PUT_OK


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Message:
    """One message to put. Values are checked here once; sizes are checked by the store that gets it. Immutable."""

    __slots__ = (
        "body",
        "born_host",
        "born_timestamp_ms",
        "encoded_properties",
        "flag",
        "prepared_transaction_offset",
        "queue_id",
        "reconsume_times",
        "special",
        "sys_flag",
        "topic",
        "waits_for_store",
    )

    def __init__(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        queue_id: int = 0,
        *,
        keys: str | Iterable[str] = (),
        tags: str = "",
        properties: Mapping[str, str] | None = None,
        encoded_properties: bytes | None = None,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp_ms: int = 0,
        born_host: str | bytes = b"",
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
    ) -> None:
        values = prepare_message(
            topic, body, queue_id, keys, tags, properties, encoded_properties, flag, sys_flag,
            born_timestamp_ms, born_host, reconsume_times, prepared_transaction_offset,
        )  # fmt: skip
        self.topic, self.body, self.encoded_properties, self.born_host, self.waits_for_store, self.special = values
        self.queue_id = queue_id
        self.flag = flag
        self.sys_flag = sys_flag
        self.reconsume_times = reconsume_times
        self.born_timestamp_ms = born_timestamp_ms
        self.prepared_transaction_offset = prepared_transaction_offset

    @property
    def properties(self) -> dict[str, str]:
        return properties_of(self.encoded_properties)

    def __repr__(self) -> str:
        return f"Message(topic={self.topic!r}, queue_id={self.queue_id}, body=<{len(self.body)} bytes>)"


class PutResult:
    """What became of one put. `physical_offset` is -1 when nothing was stored."""

    __slots__ = ("_host", "count", "physical_offset", "queue_offset", "size", "status", "store_timestamp_ms")

    def __init__(
        self,
        status: PutStatus,
        host: bytes = b"",
        physical_offset: int = -1,
        queue_offset: int = -1,
        store_timestamp_ms: int = 0,
        size: int = 0,
        count: int = 1,
    ) -> None:
        self.status = status
        self._host = host
        self.physical_offset = physical_offset
        self.queue_offset = queue_offset
        self.store_timestamp_ms = store_timestamp_ms
        self.size = size
        self.count = count

    @property
    def ok(self) -> bool:
        return self.status is PUT_OK

    @property
    def end_offset(self) -> int:
        return self.physical_offset + self.size

    @property
    def message_id(self) -> str | None:
        return offset_message_id(self._host, self.physical_offset) if self.physical_offset >= 0 else None

    def with_status(self, status: PutStatus) -> PutResult:
        return PutResult(
            status, self._host, self.physical_offset, self.queue_offset, self.store_timestamp_ms, self.size, self.count
        )

    def __repr__(self) -> str:
        return (
            f"PutResult(status={self.status.name}, queue_offset={self.queue_offset}, "
            f"physical_offset={self.physical_offset}, size={self.size})"
        )


class PutResults:
    """The results of one put_many, in the order of its messages."""

    __slots__ = ("_results", "end_offset", "store_timestamp_ms")

    def __init__(self, results: list[PutResult], store_timestamp_ms: int) -> None:
        self._results = results
        self.store_timestamp_ms = store_timestamp_ms
        self.end_offset = max((r.end_offset for r in results if r.physical_offset >= 0), default=-1)

    def __len__(self) -> int:
        return len(self._results)

    def __getitem__(self, index: int) -> PutResult:
        return self._results[index]

    def __iter__(self) -> Iterator[PutResult]:
        return iter(self._results)

    @property
    def others_by_index(self) -> dict[int, PutResult]:
        return {at: result for at, result in enumerate(self._results) if not result.ok}

    @property
    def all_ok(self) -> bool:
        return all(result.ok for result in self._results)

    @staticmethod
    def refused(status: PutStatus, count: int) -> PutResults:
        """`count` results that all say `status`."""
        return PutResults([PutResult(status) for _ in range(count)], 0)

    def with_status(self, status: PutStatus) -> PutResults:
        """The same results with every stored one marked as `status` (a flush that timed out)."""
        return PutResults([r.with_status(status) if r.ok else r for r in self._results], self.store_timestamp_ms)


class QueueHandle:
    """A queue of one store, looked up once: the cheapest way to put. Counts change under the appender's lock."""

    __slots__ = ("_appender", "next_offset", "puts", "queue_id", "shapes", "stored_bytes", "topic", "topic_bytes")

    def __init__(self, appender: Appender, topic: str, queue_id: int, next_offset: int = 0) -> None:
        self._appender = appender
        self.topic = topic
        self.topic_bytes = topic.encode()
        self.queue_id = queue_id
        self.next_offset = next_offset
        self.puts = 0
        self.stored_bytes = 0
        self.shapes: dict[tuple[int, int], tuple[int, Callable[..., None]]] = {}

    def put(self, body: bytes, properties: bytes = b"") -> PutResult:
        """Put `body` with already encoded properties. Same checks and statuses as a put of a Message."""
        appender = self._appender
        message = Message(self.topic, body, self.queue_id, encoded_properties=properties)
        return appender.put(message) if appender.door is None else appender.door(message)


class Appender:
    """Writes records at the end of the active commit-log file; anything unusual goes to `slow(message, refusal)`."""

    __slots__ = (
        "_auto_version",
        "_clock",
        "_crc_property",
        "_host",
        "_last_sampled",
        "_lock",
        "_queues",
        "_sample",
        "_slow",
        "_wake",
        "door",
        "gate",
        "idle",
        "last_store_timestamp_ms",
        "max_body_bytes",
        "puts",
        "stored_bytes",
        "tail",
        "waits",
    )

    def __init__(
        self,
        host: bytes,
        *,
        slow: Callable[[Message, Refusal], PutResult],
        wake: Callable[[], None],
        clock: Callable[[], int] | None = None,
        sample: Callable[[Message], PutResult] | None = None,
        max_body_bytes: int = 4194304,
        crc_property: bool = False,
        auto_version: bool = True,
        lock: Any,
    ) -> None:
        self._host = host
        self._slow = slow
        self._wake = wake
        self._clock = clock or _now_ms
        self._sample = sample
        self._lock = lock
        self._crc_property = crc_property
        self._auto_version = auto_version
        self._queues: dict[str, dict[int, QueueHandle]] = {}
        self._last_sampled = 0
        self.max_body_bytes = max_body_bytes
        self.door: Callable[[Message], PutResult] | None = None
        self.gate = True
        self.idle = False
        self.waits = False
        self.puts = 0
        self.stored_bytes = 0
        self.last_store_timestamp_ms = 0
        self.tail: Tail | None = None

    def attach(self, tail: Tail | None) -> None:
        """Append to this file from now on."""
        with self._lock:
            self.tail = tail

    def roll(self, tail: Tail) -> None:
        """End the active file with a blank record and go on in `tail`, in one step as far as puts can see."""
        with self._lock:
            old = self.tail
            if old is not None and old.buffer is not None and old.position < old.size:
                _BLANK.pack_into(old.buffer, old.position, old.size - old.position, MAGIC_BLANK)
                old.position = old.size
            self.tail = tail

    def bind(self, handle: QueueHandle) -> None:
        self._queues.setdefault(handle.topic, {})[handle.queue_id] = handle

    def unbind(self, topic: str) -> None:
        self._queues.pop(topic, None)

    def handles(self) -> list[QueueHandle]:
        return [handle for by_id in list(self._queues.values()) for handle in list(by_id.values())]

    def handle(self, topic: str, queue_id: int) -> QueueHandle | None:
        return self._queues.get(topic, {}).get(queue_id)

    def put(self, message: Message) -> PutResult:
        """Store one message; anything unusual is `slow`'s."""
        if self.gate:
            return self._slow(message, Refusal.CLOSED)
        if self._sample is not None and self.puts - self._last_sampled >= SAMPLE_EVERY:
            self._last_sampled = self.puts
            return self._sample(message)
        if message.special:
            return self._slow(message, Refusal.SPECIAL)
        try:
            handle = self._queues[message.topic][message.queue_id]
        except KeyError:
            return self._slow(message, Refusal.UNBOUND)
        result = self._write(handle, message, self._clock(), -1, 1)
        if type(result) is Refusal:
            return self._slow(message, result)
        if self.idle:
            self.idle = False
            self._wake()
        return result  # type: ignore[return-value]

    def put_expecting(self, message: Message, expected_offset: int, count: int) -> PutResult | Refusal:
        """Store `message` as `count` queue positions, only if its queue still stands at `expected_offset`.

        For records whose properties carry their own queue offset. A PutResult, or the Refusal.
        """
        handle = self.handle(message.topic, message.queue_id)
        if self.gate:
            return Refusal.CLOSED
        if handle is None:
            return Refusal.UNBOUND
        result = self._write(handle, message, self._clock(), expected_offset, count)
        if self.idle and type(result) is PutResult:
            self.idle = False
            self._wake()
        return result

    def put_many(self, messages: Iterable[Message]) -> PutResults:
        """Store a list in one call: each message has its own result, one clock reading serves all."""
        return self._put_many_at(messages, self._clock())

    def _put_many_at(self, messages: Iterable[Message], now: int) -> PutResults:
        results: list[PutResult] = []
        for at, message in enumerate(messages):
            if type(message) is not Message:
                raise TypeError(f"put_many takes Messages, found {type(message).__name__} at {at}")
            handle = self.handle(message.topic, message.queue_id)
            if self.gate:
                results.append(self._slow(message, Refusal.CLOSED))
                continue
            if message.special or handle is None:
                results.append(self._slow(message, Refusal.SPECIAL if message.special else Refusal.UNBOUND))
                continue
            result = self._write(handle, message, now, -1, 1)
            results.append(self._slow(message, result) if isinstance(result, Refusal) else result)
        if self.idle and results:
            self.idle = False
            self._wake()
        return PutResults(results, now)

    def record_bytes(self, message: Message) -> int:
        """The bytes of the record that a message will be."""
        properties = message.encoded_properties
        extra = 20 + (properties[-1:] not in (b"", b"\x02")) if self._crc_property else 0
        topic_length = len(message.topic.encode())
        return (
            FIXED_BYTES - 16 + len(message.born_host or self._host) + len(self._host) + topic_length
            + (topic_length > 127 and self._auto_version) + len(message.body) + len(properties) + extra
        )  # fmt: skip

    def put_together(self, messages: list[Message]) -> PutResults | Refusal:
        """Store messages of one queue next to each other in one file, with one store time; PutResults, or the Refusal
        of the first that cannot be stored, with nothing written. No other put comes between them."""
        if self.gate:
            return Refusal.CLOSED
        if not messages:
            return Refusal.EMPTY
        if self.handle(messages[0].topic, messages[0].queue_id) is None:
            return Refusal.UNBOUND
        total = 0
        for message in messages:
            size = self.record_bytes(message)
            if len(message.encoded_properties) + (21 if self._crc_property else 0) > PROPERTIES_BYTES_MAX:
                return Refusal.PROPERTIES_TOO_LARGE
            if len(message.body) > self.max_body_bytes:
                return Refusal.BODY_TOO_LARGE
            if size > self.max_body_bytes + RECORD_SLACK_BYTES:
                return Refusal.RECORD_TOO_LARGE
            total += size
        now = self._clock()
        with self._lock:  # Reentrant: the single writes below take it again.
            if self.tail is None or self.tail.position + total + BLANK_BYTES > self.tail.limit:
                return Refusal.ROOM
            return self._put_many_at(messages, now)

    def _write(
        self, handle: QueueHandle, message: Message, now: int, expected_offset: int, count: int
    ) -> PutResult | Refusal:
        """Encode one record in place and publish it, or refuse with nothing written."""
        body = message.body
        properties = message.encoded_properties
        host = self._host
        born_host = message.born_host or host
        # Host bits are set and cleared: a message that was forwarded may carry those of hosts that it no longer has.
        sys_flag = message.sys_flag & ~0x30
        plain = len(host) == 8 and len(born_host) == 8 and not self._crc_property
        if not plain:
            return self._write_unusual(handle, message, now, expected_offset, count)
        shape = handle.shapes.get((len(body), len(properties)))
        if shape is None:
            made = self._shape_of(handle, len(body), len(properties), 8, 8)
            if isinstance(made, Refusal):
                return made
            shape = handle.shapes[(len(body), len(properties))] = made
        total, pack_into = shape
        if len(body) > self.max_body_bytes:  # The limit may have moved since the shape was made.
            return Refusal.BODY_TOO_LARGE
        crc = crc32(body) & 0x7FFFFFFF
        kind = sys_flag & 0x0C
        with self._lock:
            tail = self.tail
            if tail is None or tail.position + total + BLANK_BYTES > tail.limit:
                return Refusal.ROOM
            queue_offset = handle.next_offset
            if expected_offset >= 0 and queue_offset != expected_offset:
                return Refusal.OFFSET_MOVED
            if kind == 4 or kind == 12:
                queue_offset = 0
                count = 0
            position = tail.position
            physical = tail.base + position
            pack_into(
                tail.buffer, position, total, MAGIC_V1 if len(handle.topic_bytes) <= 127 else MAGIC_V2, crc,
                handle.queue_id, message.flag, queue_offset, physical, sys_flag, message.born_timestamp_ms or now,
                born_host, now, host, message.reconsume_times, message.prepared_transaction_offset, len(body), body,
                len(handle.topic_bytes), handle.topic_bytes, len(properties), properties,
            )  # fmt: skip
            tail.position = position + total
            handle.next_offset += count
            handle.puts += 1
            handle.stored_bytes += total
            self.puts += 1
            self.stored_bytes += total
            self.last_store_timestamp_ms = now
        return PutResult(PUT_OK, host, physical, queue_offset, now, total, count or 1)

    def _shape_of(
        self, handle: QueueHandle, body_length: int, properties_length: int, born_length: int, host_length: int
    ) -> tuple[int, Callable[..., None]] | Refusal:
        """The record's size and its packer, after the checks that depend on sizes alone."""
        if properties_length > PROPERTIES_BYTES_MAX:
            return Refusal.PROPERTIES_TOO_LARGE
        if body_length > self.max_body_bytes:
            return Refusal.BODY_TOO_LARGE
        topic_length = len(handle.topic_bytes)
        version2 = topic_length > 127 and self._auto_version
        total = FIXED_BYTES - 16 + born_length + host_length + version2 + body_length + topic_length + properties_length
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
        version2 = len(handle.topic_bytes) > 127 and self._auto_version
        with self._lock:
            tail = self.tail
            if tail is None or tail.buffer is None or tail.position + total + BLANK_BYTES > tail.limit:
                return Refusal.ROOM
            queue_offset = handle.next_offset
            if expected_offset >= 0 and queue_offset != expected_offset:
                return Refusal.OFFSET_MOVED
            if sys_flag & 0x0C in (4, 12):
                queue_offset = 0
                count = 0
            position = tail.position
            pack_into(
                tail.buffer, position, total, MAGIC_V2 if version2 else MAGIC_V1, crc, handle.queue_id, message.flag,
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
            self.puts += 1
            self.stored_bytes += total
            self.last_store_timestamp_ms = now
        return PutResult(PUT_OK, host, tail.base + position, queue_offset, now, total, count or 1)
