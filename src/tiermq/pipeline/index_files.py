"""The uploaded index files of a broker as a job finds them: which are whole, what they hold, what they cover.

A job's own files carry a mark in their companion, under names that readers of coverage pass over:

    "merged_from": [base, …]      the file holds all items of those files, which may go
    "unregistered": true          the file's job did not come to its end: nothing says that its messages are indexed

A file is whole when its size is what its header and its first slot say. One that is not, and is the last, is an upload
that was cut short: whoever uploads next makes it again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tiermq.errors import CorruptRecord, CorruptSegment, IllegalRange, SegmentMissing, StoreDamaged
from tiermq.spark.jobs.held_broker import HeldBroker
from tiermq.tier.block_sums import BlockSums, summed
from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.index.compacted_index import CompactedIndex, companion_name
from tiermq.tier.index.index_coverage import Coverage, CoverageRecord, QueueTail, open_sealed
from tiermq.tier.index.index_item import HEADER_BYTES, MAGIC_END, decode_header
from tiermq.tier.index.index_recovery import INDEX_DIRECTORY, RECORD_NAME
from tiermq.tier.metadata.metadata_values import Segment, SegmentStatus
from tiermq.tier.names import SegmentKey, SegmentType

MERGED_FROM = "merged_from"
UNREGISTERED = "unregistered"


@dataclass(frozen=True, slots=True)
class IndexFile:
    """One whole index file. `companion` is what stands beside it; None beside a file of RocketMQ's."""

    key: SegmentKey
    size: int
    slots: int
    item_count: int
    begin_ms: int
    end_ms: int
    companion: dict[str, Any] | None = None

    @property
    def end(self) -> int:
        return self.key.base + self.size

    @property
    def merged_from(self) -> Sequence[int] | None:
        return None if self.companion is None else self.companion.get(MERGED_FROM)

    @property
    def is_unregistered(self) -> bool:
        return self.companion is not None and bool(self.companion.get(UNREGISTERED))

    def row(self, now_ms: int, crc32: int | None = None) -> Segment:
        """What the metadata are told of it."""
        return Segment(self.key, self.size, SegmentStatus.SEALED, now_ms, self.begin_ms, self.end_ms, now_ms, crc32)

    def record(self) -> CoverageRecord | None:
        """The coverage in the companion; None without one. Raises StoreDamaged."""
        if self.companion is None:
            return None
        return CoverageRecord.decode(json.dumps(self.companion).encode(), companion_name(self.key))


@dataclass(slots=True)
class IndexFiles:
    """All index files of a broker by base: the whole ones, what is none, and what marks are in its directory."""

    whole: list[IndexFile] = field(default_factory=list)
    broken: list[SegmentInfo] = field(default_factory=list)
    local_record: CoverageRecord | None = None
    local_begins: frozenset[int] = frozenset()

    @property
    def end(self) -> int:
        """Where the next file goes: behind everything that is there, or that the store has reserved."""
        ends = [file.end for file in self.whole] + [info.key.base + info.size for info in self.broken]
        return max([0, *ends, self.local_record.next_base if self.local_record is not None else 0])

    def is_free(self, begin_ms: int) -> bool:
        """Whether no file of the broker begins then; files are told apart by that."""
        return begin_ms not in self.local_begins and all(file.begin_ms != begin_ms for file in self.whole)

    def uploaded_coverage(self, tails: Iterable[QueueTail]) -> CoverageRecord:
        """What the uploaded files say is indexed, by the newest of them. Raises StoreDamaged.

        Without a companion it is RocketMQ's, which had indexed what it committed, as well as it does.
        """
        registered = [file for file in self.whole if not file.is_unregistered]
        if not registered:
            return CoverageRecord.of(Coverage(), ())
        found = registered[-1].record()
        if found is not None:
            return found
        coverage = Coverage()
        coverage.take_as_indexed(tails)
        return CoverageRecord.of(coverage, ())


def read_index_files(held: HeldBroker) -> IndexFiles:
    """Look at every index file of the broker: its head, and its companion. Raises what the driver raises."""
    found = IndexFiles()
    infos = [info for info in held.driver.list_segments(f"{held.home.index.directory}/") if _is_index(info)]
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
    companion = read_companion(driver, info.key)
    return IndexFile(info.key, info.size, slots, header.item_count, header.begin_ms, header.end_ms, companion)


def read_companion(driver: TierDriver, key: SegmentKey) -> dict[str, Any] | None:
    """What stands beside a file; None for nothing, and for what is no JSON object: then nobody can tell."""
    stored = driver.get_object(companion_name(key))
    if stored is None:
        return None
    try:
        found = json.loads(bytes(stored.data))
        CoverageRecord.decode(bytes(stored.data), companion_name(key))
    except (ValueError, StoreDamaged):
        return None
    return found if isinstance(found, dict) else None


def _read_local(held: HeldBroker, found: IndexFiles) -> None:
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


def replace_companion(driver: TierDriver, key: SegmentKey, size: int, record: CoverageRecord) -> None:
    """Let the companion of a file of `size` bytes say this; the checksums that it tells stay."""
    name = companion_name(key)
    stored = driver.get_object(name)
    sums = None if stored is None else BlockSums.told_by(stored.data, size)
    driver.put_object(name, summed(encoded_companion(record), sums))


def queue_tails_of(held: HeldBroker) -> list[QueueTail]:
    """Where the committed records of each queue end, by the metadata."""
    tails = []
    for queue in held.metadata.queues():
        topic = held.metadata.topic(queue.key.topic)
        logs = held.metadata.segments(queue.key, SegmentType.COMMIT_LOG)
        if topic is not None and logs:
            tails.append(QueueTail(queue.key.topic, topic.id, queue.key.queue_id, max(row.end for row in logs)))
    return tails


def remove_index_file(held: HeldBroker, key: SegmentKey) -> None:
    """Remove a file, its companion and its row; hidden from readers first. May be repeated."""
    if held.metadata.segment(key) is not None:
        held.metadata.mark_deleted(key)
    held.driver.delete(key)
    held.driver.delete_object(companion_name(key))
    held.metadata.delete_segment(key)


def write_index_manifest(held: HeldBroker) -> None:
    """An index need not have a manifest. One that it has must name what is there."""
    if held.manifests is not None and held.manifests.read(held.home.index) is not None:
        held.write_manifest(held.home.index)
