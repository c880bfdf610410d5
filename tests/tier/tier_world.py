"""A small broker's tier for the tests of what works on a whole tier: queues, manifests, an index, a clock to move."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulation.manual_clock import ManualClock
from tier.flat.flat_world import batch
from tiermq.files.os_file_access import OsFileAccess
from tiermq.message import encode_record
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.flat.flat_file_store import FlatFileStore
from tiermq.tier.flat.flat_message_file import FlatMessageFile
from tiermq.tier.index.compacted_index import companion_name
from tiermq.tier.index.index_coverage import Coverage, CoverageRecord
from tiermq.tier.index.index_item import index_hash
from tiermq.tier.index.index_write_file import IndexWriteFile
from tiermq.tier.metadata.manifest_store import ManifestStore, snapshot_manifest
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import Segment, SegmentStatus
from tiermq.tier.names import QueueKey, SegmentKey, SegmentType, index_queue

CLUSTER, BROKER = "DefaultCluster", "broker-a"
HOUR_MS = 3_600_000
RECORD_BYTES = 160
"""A little more than a record of `record` has, whatever its number."""


def record(topic: str, queue_id: int, number: int, store_ms: int, *, size: int = 20, keys: str | None = None) -> bytes:
    properties = {"UNIQ_KEY": f"u-{topic}-{queue_id}-{number}", "TAGS": f"t{number % 3}"}
    properties["KEYS"] = f"k{number}" if keys is None else keys
    return encode_record(
        topic=topic, body=bytes([number % 256]) * size, queue_id=queue_id, flag=0, queue_offset=number,
        physical_offset=0, sys_flag=0, born_timestamp_ms=1, born_host="127.0.0.1:1", store_timestamp_ms=store_ms,
        store_host="127.0.0.1:2", reconsume_times=0, prepared_transaction_offset=0, properties=properties,
    )  # fmt: skip


class TierWorld:
    """One broker. `reopen` is what its next process finds: the metadata's file, and the tier."""

    def __init__(
        self, path: Path, driver: TierDriver | None = None, *, log_bytes: int = 1 << 30, unit_bytes: int = 1 << 20
    ) -> None:
        self.clock = ManualClock()
        self.path = path
        self.driver: Any = driver or MemoryDriver(clock=self.clock)
        self._sizes = (log_bytes, unit_bytes)
        self._index_file_count = 0
        self._open()

    def reopen(self, driver: TierDriver | None = None) -> None:
        self.metadata.close()
        self.driver = driver or self.driver
        self._open()

    def _open(self) -> None:
        self.metadata = MetadataStore(self.path / "tier.db", clock=self.clock)
        self.files = FlatFileStore(
            self.driver, self.metadata, CLUSTER, BROKER, self.clock,
            log_segment_bytes=self._sizes[0], queue_segment_bytes=self._sizes[1],
        )  # fmt: skip

    def file(self, topic: str = "orders", queue_id: int = 0) -> FlatMessageFile:
        file = self.files.find_or_create(topic, queue_id)
        if not file.initialised:
            file.init(0)
        file.recover()
        return file

    def write(
        self, count: int, topic: str = "orders", queue_id: int = 0, *, store_ms: int | None = None, **more: Any
    ) -> FlatMessageFile:
        """Commit so many messages, stored now or at a given time."""
        file = self.file(topic, queue_id)
        when = self.clock.now_ms() if store_ms is None else store_ms
        first = file.append_offset
        records = [record(topic, queue_id, first + at, when, **more) for at in range(count)]
        assert file.write(batch(first, count, file.log.append_offset, records=records))
        file.committed.clear()
        return file

    def put_manifests(self) -> None:
        manifests = ManifestStore(self.driver, "a test", clock=self.clock)
        keys = {queue.key for queue in self.metadata.queues()}
        keys |= {segment.key.queue for segment in self.metadata.all_segments()}
        for key in sorted(keys):
            manifests.write(snapshot_manifest(self.metadata, key))

    def put_index(self, *, slots: int = 7) -> Segment:
        """Upload an index file with the keys of every message there is; a second call, the same again behind it."""
        directory = self.path / "index"
        directory.mkdir(exist_ok=True)
        begin_ms = self.clock.now_ms() + self._index_file_count
        self._index_file_count += 1
        local = IndexWriteFile.create(OsFileAccess(), str(directory), begin_ms, slots, 10_000)
        for file in self.files:
            for offset, place, size in places_of(file):
                topic, queue_id = file.queue.topic, file.queue.queue_id
                hashes = [index_hash(topic, name) for name in keys_of(topic, queue_id, offset)]
                store_ms = int.from_bytes(file.log.read(place + 56, 8), "big")
                assert local.put(hashes, file.topic.id, queue_id, place, size, store_ms)
        queue = index_queue(CLUSTER, BROKER)
        base = max((segment.end for segment in self.metadata.segments(queue)), default=0)
        key = queue.segment(SegmentType.INDEX, base)
        data, facts = local.compact(), local.facts()
        self.driver.write(key, 0, [data])
        self.driver.seal(key)
        self.driver.put_object(companion_name(key), CoverageRecord.of(Coverage(), [facts]).encode())
        segment = Segment(key, len(data), SegmentStatus.SEALED, begin_ms, begin_ms, facts.newest_ms, begin_ms)
        self.metadata.put_segment(segment)
        local.destroy()
        return segment

    def segments(self, kind: SegmentType, topic: str = "orders", queue_id: int = 0) -> list[Segment]:
        return self.metadata.segments(QueueKey(CLUSTER, BROKER, topic, queue_id), kind)

    def listed(self) -> list[SegmentKey]:
        return [info.key for info in self.driver.list_segments()]

    def readable(self, topic: str = "orders", queue_id: int = 0) -> list[int]:
        """The queue offsets from minimum to maximum, after each unit was followed to its record."""
        file = self.files.find(topic, queue_id)
        assert file is not None
        row = self.metadata.queue(file.queue)
        assert row is not None
        assert (row.min_offset, row.max_offset) == (file.min_offset, file.commit_offset)
        found = []
        for offset, place, size in places_of(file):
            data = file.log.read(place, size)
            assert int.from_bytes(data[20:28], "big") == offset
            found.append(offset)
        return found

    def close(self) -> None:
        self.metadata.close()


def keys_of(topic: str, queue_id: int, number: int) -> Sequence[str]:
    return f"u-{topic}-{queue_id}-{number}", f"k{number}"


def places_of(file: FlatMessageFile) -> list[tuple[int, int, int]]:
    """(queue offset, log offset, size) of each message that can be read."""
    found = []
    for offset in range(max(file.min_offset, 0), file.commit_offset):
        unit = file.units.read_units(offset, 1)
        size = int.from_bytes(unit[8:12], "big")
        if size != 0x7FFFFFFF:
            found.append((offset, int.from_bytes(unit[:8], "big"), size))
    return found
