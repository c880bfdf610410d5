"""A queue in a memory tier, written as a healthy writer would write it, and ways to hurt it."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from tier.metadata.metadata_samples import QUEUE
from tiermq.consumequeue.unit import UNIT
from tiermq.message import encode_record
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import NEVER_MS, EntrySpacing, TimeEntry, entry_for_commit
from tiermq.tier.names import QueueKey, SegmentKey, SegmentType

START_MS = 1_757_000_000_000
CODA = struct.pack(">iIq", 16, 0xCBD43194, START_MS)


def record(
    queue_offset: int, log_offset: int, body: bytes = b"hello", queue: QueueKey = QUEUE, v6: bool = False
) -> bytes:
    """One message; its store time is START_MS + 10 for each queue offset."""
    host = "[::1]:10911" if v6 else "127.0.0.1:10911"
    return encode_record(
        topic=queue.topic, body=body, queue_id=queue.queue_id, queue_offset=queue_offset, physical_offset=log_offset,
        store_timestamp_ms=time_of(queue_offset), born_host=host, store_host=host,
    )  # fmt: skip


def time_of(queue_offset: int) -> int:
    return START_MS + 10 * queue_offset


@dataclass
class TierQueue:
    """Writes records and units to the driver; the metadata store learns of it when there is one."""

    driver: TierDriver
    queue: QueueKey = QUEUE
    store: MetadataStore | None = None
    log_base: int = 0
    units_base: int = 0
    offset: int = 0
    log_end: int = 0
    places: list[tuple[int, int, int]] = field(default_factory=list)
    spacing: EntrySpacing = field(default_factory=EntrySpacing)

    def begin(self, queue_offset: int) -> TierQueue:
        self.offset = queue_offset
        self.units_base = queue_offset * 20
        if self.store:
            self.store.add_topic(self.queue.topic)
            self.store.add_queue(self.queue)
            self.store.add_segment(self.log_key)
            self.store.add_segment(self.units_key)
        return self

    @property
    def log_key(self) -> SegmentKey:
        return self.queue.segment(SegmentType.COMMIT_LOG, self.log_base)

    @property
    def units_key(self) -> SegmentKey:
        return self.queue.segment(SegmentType.CONSUME_QUEUE, self.units_base)

    def put(self, *bodies: bytes, units: bool = True, v6: bool = False) -> TierQueue:
        """One commit: records, then (unless the writer dies in between) units, then the metadata."""
        first = TimeEntry(self.offset, time_of(self.offset), self.log_end)
        begin = self.offset
        data, addresses = b"", b""
        for body in bodies:
            raw = record(self.offset, self.log_end, body, self.queue, v6)
            data += raw
            addresses += UNIT.pack(self.log_end, len(raw), 0)
            self.places.append((self.offset, self.log_end, len(raw)))
            self.offset += 1
            self.log_end += len(raw)
        self.driver.write(self.log_key, self.driver.size(self.log_key), [data])
        if units:
            self.driver.write(self.units_key, self.driver.size(self.units_key), [addresses])
            self._tell(begin, first)
        return self

    def _tell(self, begin: int, first: TimeEntry) -> None:
        if self.store is None:
            return
        for key in (self.log_key, self.units_key):
            row = self.store.segment(key)
            assert row is not None
            begin_ms = time_of(begin) if row.begin_ms == NEVER_MS else row.begin_ms
            offsets = {"begin_offset": None if row.begin_offset >= 0 else begin, "end_offset": self.offset}
            more: dict[str, Any] = offsets if key.type is SegmentType.COMMIT_LOG else {}
            self.store.update_size(key, self.driver.size(key), begin_ms, time_of(self.offset - 1), **more)
        entry = entry_for_commit(self.store.last_time_entry(self.queue), first, self.offset, self.log_end, self.spacing)
        self.store.add_time_entries(self.queue, [entry] if entry else [])

    def roll_log(self) -> TierQueue:
        self.log_base = self.log_end
        if self.store:
            self.store.add_segment(self.log_key)
        return self

    def roll_units(self) -> TierQueue:
        self.units_base = self.offset * 20
        if self.store:
            self.store.add_segment(self.units_key)
        return self
