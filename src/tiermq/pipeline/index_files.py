"""The uploaded index files of a broker as a job finds them: complete ones, their contents and coverage.

A file is complete when its size matches its header and first slot. An incomplete last file is an upload
that was interrupted: the next upload creates it again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tiermq.errors import CorruptRecord, CorruptSegment, IllegalRange, SegmentMissing
from tiermq.pipeline.leased_broker import LeasedBroker
from tiermq.tier.block_sums import BlockSums, summed
from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.index.compacted_index import (
    FEW_SLOTS,
    MERGED_FROM,
    UNREGISTERED,
    CompactedIndex,
    companion_name,
    read_companion,
)
from tiermq.tier.index.index_coverage import Coverage, CoverageRecord, QueueTail, open_sealed
from tiermq.tier.index.index_item import HEADER_BYTES, MAGIC_END, decode_header
from tiermq.tier.index.index_recovery import INDEX_DIRECTORY, RECORD_NAME
from tiermq.tier.metadata.metadata_values import Segment, SegmentStatus
from tiermq.tier.names import QueueKey, SegmentKey, SegmentType


@dataclass(frozen=True, slots=True)
class IndexFile:
    """One whole index file. `marks` are those of its companion; None beside a file of RocketMQ's, without companion."""

    key: SegmentKey
    size: int
    slots: int
    item_count: int
    begin_ms: int
    end_ms: int
    marks: Mapping[str, Any] | None = None

    @property
    def end(self) -> int:
        return self.key.base + self.size

    @property
    def merged_from(self) -> Sequence[int] | None:
        return None if self.marks is None else self.marks.get(MERGED_FROM)

    @property
    def is_unregistered(self) -> bool:
        return self.marks is not None and bool(self.marks.get(UNREGISTERED))

    @property
    def has_few_slots(self) -> bool:
        return self.marks is not None and bool(self.marks.get(FEW_SLOTS))

    def row(self, now_ms: int, crc32: int | None = None) -> Segment:
        """Its row in the metadata."""
        return Segment(self.key, self.size, SegmentStatus.SEALED, now_ms, self.begin_ms, self.end_ms, now_ms, crc32)


@dataclass(slots=True)
class IndexFiles:
    """All index files of a broker by base: complete ones, invalid ones, and what its store directory has."""

    driver: TierDriver
    index: QueueKey
    whole: list[IndexFile] = field(default_factory=list)
    broken: list[SegmentInfo] = field(default_factory=list)
    marks: list[SegmentKey] = field(default_factory=list)
    """Of files that were removed: a task that stood still meanwhile has sealed each."""
    local_record: CoverageRecord | None = None
    local_begins: frozenset[int] = frozenset()

    @property
    def end(self) -> int:
        """Where the next file goes: behind everything that is there, or that the store has reserved."""
        ends = [file.end for file in self.whole] + [info.key.base + info.size for info in self.broken]
        return max([0, *ends, self.local_record.next_base if self.local_record is not None else 0])

    def is_free(self, begin_ms: int) -> bool:
        """Whether no file of the broker begins at this time, which identifies files."""
        return begin_ms not in self.local_begins and all(file.begin_ms != begin_ms for file in self.whole)

    @property
    def first(self) -> SegmentKey:
        """The first file of a broker. Where no message has a key it has a companion alone, with the coverage."""
        return self.index.segment(SegmentType.INDEX, 0)

    @property
    def registered(self) -> list[IndexFile]:
        return [file for file in self.whole if not file.is_unregistered]

    def uploaded_coverage(self, tails: Iterable[QueueTail]) -> CoverageRecord:
        """The coverage of the uploaded files, from the newest of them. Raises StoreDamaged.

        Without a companion it is RocketMQ's, which had indexed what it committed, as well as it does.
        """
        registered = self.registered
        if not registered and not self.broken and (alone := read_companion(self.driver, self.first)) is not None:
            return alone.record
        if not registered:
            return CoverageRecord.of(Coverage(), ())
        found = read_companion(self.driver, registered[-1].key)
        if found is not None:
            return found.record
        coverage = Coverage()
        coverage.take_as_indexed(tails)
        return CoverageRecord.of(coverage, ())


def read_index_files(held: LeasedBroker) -> IndexFiles:
    """Look at every index file of the broker: its head, and its companion. Raises what the driver raises."""
    found = IndexFiles(held.driver, held.home.index)
    listed = list(held.driver.list_segments(f"{held.home.index.directory}/"))
    found.marks = [info.key for info in listed if info.size == 0 and info.damage is not None]
    infos = [info for info in listed if _is_index(info)]
    deleted = {row.key for row in held.metadata.segments_being_deleted()}
    for info in sorted(infos, key=lambda info: info.key.base):
        if info.key in deleted:
            continue
        file = read_index_file(held.driver, info)
        if file is None:
            found.broken.append(info)
        else:
            found.whole.append(file)
    if held.root is not None:
        _read_local(held, found)
    return found


def _is_index(info: SegmentInfo) -> bool:
    return info.key.type is SegmentType.INDEX and info.size > 0  # RocketMQ leaves empty ones.


def read_index_file(driver: TierDriver, info: SegmentInfo) -> IndexFile | None:
    """The file, or None when it is not whole. Raises what the driver raises when the tier is away."""
    try:
        slots = CompactedIndex(driver, Segment(info.key, info.size)).slots()
        header = decode_header(driver.read(info.key, 0, HEADER_BYTES))
    except (CorruptSegment, CorruptRecord, IllegalRange, SegmentMissing):
        return None
    if header.magic != MAGIC_END or header.item_count < 1:
        return None
    found = read_companion(driver, info.key)
    marks = None if found is None else found.marks
    return IndexFile(info.key, info.size, slots, header.item_count, header.begin_ms, header.end_ms, marks)


def _read_local(held: LeasedBroker, found: IndexFiles) -> None:
    assert held.root is not None
    directory = held.root / INDEX_DIRECTORY
    if not directory.is_dir():
        return
    found.local_begins = frozenset(int(name) for name in os.listdir(directory) if name.isascii() and name.isdigit())
    record = directory / RECORD_NAME
    if record.is_file():
        found.local_record = open_sealed(record.read_bytes(), str(record))


def encoded_companion(record: CoverageRecord, **marks: Any) -> bytes:
    """A companion with marks of a job's own."""
    document: dict[str, Any] = json.loads(record.encode())
    return json.dumps({**document, **marks}, separators=(",", ":")).encode()


def replace_companion(
    driver: TierDriver, key: SegmentKey, size: int, record: CoverageRecord, *, has_few_slots: bool = False
) -> None:
    """Write the companion of a file of `size` bytes as one that is registered; its checksums stay."""
    name = companion_name(key)
    stored = driver.get_object(name)
    sums = None if stored is None else BlockSums.of_companion(stored.data, size)
    marks = {FEW_SLOTS: True} if has_few_slots else {}
    driver.put_object(name, summed(encoded_companion(record, **marks), sums))


def queue_tails_of(held: LeasedBroker) -> list[QueueTail]:
    """Where the committed records of each queue end, by the metadata."""
    tails = []
    for queue in held.metadata.queues():
        topic = held.metadata.topic(queue.key.topic)
        logs = held.metadata.segments(queue.key, SegmentType.COMMIT_LOG)
        if topic is not None and logs:
            tails.append(QueueTail(queue.key.topic, topic.id, queue.key.queue_id, max(row.end for row in logs)))
    return tails


def remove_index_file(held: LeasedBroker, key: SegmentKey) -> None:
    """Remove a file, its companion and its row; hidden from readers first. May be repeated."""
    if held.metadata.segment(key) is not None:
        held.metadata.mark_deleted(key)
    held.driver.delete(key)
    held.driver.delete_object(companion_name(key))
    held.metadata.delete_segment(key)


def write_index_manifest(held: LeasedBroker) -> None:
    """An index need not have a manifest. One that it has must name what is there; brokers that follow see it anyway."""
    if held.manifests is not None and held.manifests.read(held.home.index) is not None:
        held.write_manifest(held.home.index)
    held.publish()
