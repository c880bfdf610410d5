"""What the tests of flat files share: records, batches, one queue over a driver, and a driver that dies at any call."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulation.manual_clock import ManualClock
from tiermq.kernel.tier_records import Collected, collect_for_tier
from tiermq.kernel.write_cursor import Segments, WriteCursor
from tiermq.message import encode_record
from tiermq.message.java_hash import tags_code
from tiermq.message.properties import TAGS, get_text_property
from tiermq.message.record_head import read_head
from tiermq.tier.driver.contract import Buffer, TierDriver, joined
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.flat.flat_file import FlatAppendFile
from tiermq.tier.flat.flat_file_store import FlatFileStore
from tiermq.tier.flat.flat_message_file import FlatMessageFile
from tiermq.tier.flat.flat_segment import FlatSegment
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.names import QueueKey, SegmentKey

QUEUE = QueueKey("DefaultCluster", "broker-a", "orders", 3)
UNIT = struct.Struct(">qiq")


def record(
    number: int, *, size: int = 40, store_ms: int | None = None, host: str = "127.0.0.1:1", **properties: str
) -> bytes:
    """The local record of message `number`; its physical offset is one that no tier would give it."""
    return encode_record(
        topic=QUEUE.topic, body=bytes([number % 256]) * size, queue_id=QUEUE.queue_id, flag=0, queue_offset=number,
        physical_offset=1_000_000 + number, sys_flag=0, born_timestamp_ms=1, born_host=host,
        store_timestamp_ms=1000 + number if store_ms is None else store_ms, store_host="127.0.0.1:2",
        reconsume_times=0, prepared_transaction_offset=0,
        properties=properties or {"UNIQ_KEY": f"u{number:05}", "KEYS": f"k{number:05}", "TAGS": f"t{number % 3}"},
    )  # fmt: skip


def tags_code_of(data: bytes) -> int:
    head = read_head(data)
    return tags_code(get_text_property(data[head.properties_position :], TAGS))


def batch(
    first: int, count: int, log_offset: int, *, size: int = 40, records: Sequence[bytes] | None = None
) -> Collected:
    """What the kernel collects for those messages of a local store."""
    found = [record(number, size=size) for number in range(first, first + count)] if records is None else list(records)
    log, units, at = bytearray(), bytearray(first * UNIT.size), 0
    for data in found:
        placed = bytearray(data)
        struct.pack_into(">q", placed, 28, at)
        units += UNIT.pack(at, len(data), tags_code_of(data))
        log += placed
        at += len(data)
    return collect_for_tier(segments(units), segments(log), first, len(found), 1 << 40, log_offset)


def segments(data: bytearray) -> Segments:
    tail = WriteCursor(data + bytes(1), 0, len(data) + 1)
    tail.position = len(data)
    return Segments([tail], len(data) + 1)


class Died(BaseException):
    """The process ends here. No `except Exception` may stop it."""


class MortalDriver:
    """A driver of a process that dies before, in the middle of, or after its n-th change of the tier."""

    def __init__(self, inner: TierDriver, changes_left: int = 1 << 60, *, cut: float = 1.0) -> None:
        self.inner = inner
        self.changes_left = changes_left
        self.changes = 0
        self._cut = cut
        self.url = inner.url

    def _change(self) -> bool:
        """Whether this change is the last one."""
        self.changes += 1
        self.changes_left -= 1
        return self.changes_left < 0

    def write(self, key: SegmentKey, position: int, data: Sequence[Buffer]) -> bool:
        last = self._change()
        body = joined(data)
        if last:
            self.inner.write(key, position, [body[: int(len(body) * self._cut)]])
            raise Died
        return self.inner.write(key, position, [body])

    def trim(self, key: SegmentKey, size: int) -> None:
        if self._change():
            raise Died
        self.inner.trim(key, size)

    def seal(self, key: SegmentKey, *, crc32: int | None = None) -> None:
        if self._change():
            raise Died
        self.inner.seal(key, crc32=crc32)

    def delete(self, key: SegmentKey) -> None:
        if self._change():
            raise Died
        self.inner.delete(key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class World:
    """One queue of a broker, with its metadata on disk; `reopen` is what the next process finds."""

    def __init__(
        self, path: Path, driver: TierDriver | None = None, *, log_bytes: int = 1 << 30, unit_bytes: int = 1 << 20
    ) -> None:
        self.clock = ManualClock()
        self.driver: Any = driver or MemoryDriver(clock=self.clock)
        self._path = path / "tier.db"
        self._sizes = (log_bytes, unit_bytes)
        self._open()

    def reopen(self, driver: TierDriver | None = None) -> FlatMessageFile:
        self.metadata.close()
        self.driver = driver or self.driver
        return self._open()

    def _open(self) -> FlatMessageFile:
        self.metadata = MetadataStore(self._path, clock=self.clock)
        self.files = FlatFileStore(
            self.driver, self.metadata, QUEUE.cluster, QUEUE.broker, self.clock,
            log_segment_bytes=self._sizes[0], queue_segment_bytes=self._sizes[1],
        )  # fmt: skip
        self.file = self.files.find_or_create(QUEUE.topic, QUEUE.queue_id)
        return self.file

    def batch(self, count: int, *, size: int = 40, first: int | None = None) -> Collected:
        start = self.file.append_offset if first is None else first
        return batch(start, count, self.file.log.append_offset, size=size)

    def write(self, count: int, *, size: int = 40) -> bool:
        return self.file.write(self.batch(count, size=size))

    def messages(self) -> list[int]:
        """The queue offset of every readable message, each of which was checked byte for byte."""
        found = []
        file = self.file
        for offset in range(file.units.min_queue_offset, file.commit_offset):
            place, size, _ = UNIT.unpack(file.units.read_units(offset, 1))
            if size == 0x7FFFFFFF:
                continue
            data = bytes(file.log.read(place, size))
            queue_offset, physical = struct.unpack_from(">qq", data, 20)
            assert (queue_offset, physical) == (offset, place)
            expected = bytearray(record(offset, size=len_of_body(data)))
            struct.pack_into(">q", expected, 28, place)
            assert data == bytes(expected)
            found.append(offset)
        return found

    def close(self) -> None:
        self.metadata.close()


def len_of_body(data: bytes) -> int:
    return int(struct.unpack_from(">i", data, 84)[0])


def remove_first(file: FlatAppendFile, segment: FlatSegment) -> None:
    """Delete the oldest segment, as retention does: hidden from readers first, then its object and its row."""
    file.hide_first(segment)
    file.finish_deletion(segment.key)
