"""Merges compacted index files: which, and how. The task is pure; the driver makes its file visible.

    items of all sources, newest source first ─► times in the new file's seconds ─► by slot, order kept ─► one file

The size of the result follows from the headers, so that its offset is known before anything is read; two runs of a task
write the same bytes to the same offset. Items are not deduplicated: an item that is in two sources is in the result
twice, which costs 28 bytes and changes no answer.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tiermq.errors import ManifestConflict, SegmentConflict, SegmentSealed
from tiermq.kernel.index_reader import TIME_TOLERANCE_MS
from tiermq.pipeline.index_files import IndexFile, encoded_companion
from tiermq.pipeline.worker_cache import driver_of
from tiermq.tier.block_sums import BlockSums, summed
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.index.compacted_index import FEW_SLOTS, MERGED_FROM, companion_name
from tiermq.tier.index.index_coverage import CoverageRecord
from tiermq.tier.index.index_item import (
    HEADER,
    HEADER_BYTES,
    ITEM_BYTES,
    MAGIC_END,
    POSITION_MAX,
    SECONDS_MAX,
    SECONDS_MIN,
    SLOT_BYTES,
    compacted_bytes,
)
from tiermq.tier.index.index_write_file import FileFacts
from tiermq.tier.names import SegmentKey

CHUNK_BYTES = 256 * 1024 * 1024
"""Bytes per write: mostly the whole file, so that no reader sees a part."""

READ_BYTES = 32 * 1024 * 1024
ITEMS_MAX_DEFAULT = 20_000_000
_ITEM = np.dtype(
    [
        ("key_hash", ">i4"),
        ("topic_id", ">i4"),
        ("queue_id", ">i4"),
        ("tier_offset", ">i8"),
        ("size", ">i4"),
        ("s", ">i4"),  # Seconds since the file's beginning.
    ]
)
assert _ITEM.itemsize == ITEM_BYTES


def plan_merges(files: Sequence[IndexFile], items_max: int, small_items: int) -> list[tuple[IndexFile, ...]]:
    """Groups of small files, oldest first, each of two at least and of `items_max` items at most. Pure."""
    groups: list[list[IndexFile]] = [[]]
    for file in files:
        if file.item_count >= small_items:
            continue
        count = sum(each.item_count for each in groups[-1]) + file.item_count
        slots = max([file.slots, *(each.slots for each in groups[-1])])
        if groups[-1] and (count > items_max or compacted_bytes(slots, count) > POSITION_MAX):
            groups.append([])
        groups[-1].append(file)
    return [tuple(group) for group in groups if len(group) > 1]


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Create `key` from the sources. `coverage` is that of the whole index, for its companion."""

    tier: str
    sources: tuple[IndexFile, ...]
    key: SegmentKey
    begin_ms: int
    slots: int
    coverage: bytes
    has_few_slots: bool = False

    @property
    def size(self) -> int:
        return compacted_bytes(self.slots, sum(source.item_count for source in self.sources))


@dataclass(frozen=True, slots=True)
class MadeIndex:
    """An index file of a task; sealed, and not in the metadata yet."""

    file: IndexFile
    crc32: int


def run_merge_task(task: MergeTask) -> MadeIndex:
    """Read the sources, write the result. Raises what the driver raises."""
    driver = driver_of(task.tier)
    newest_first = sorted(task.sources, key=lambda source: source.key.base, reverse=True)
    items = np.concatenate([_items(driver, source, task.begin_ms) for source in newest_first])
    end_ms = max(source.end_ms for source in task.sources)
    data, used = arranged(items, task.slots, task.begin_ms, end_ms)
    facts = _facts(task, items, end_ms, used)
    bases = sorted(source.key.base for source in task.sources)
    record = CoverageRecord.decode(task.coverage, task.key.path)
    marks: dict[str, Any] = {MERGED_FROM: bases} | ({FEW_SLOTS: True} if task.has_few_slots else {})
    crc32 = write_index_file(driver, task.key, data, encoded_companion(replace(record, files=(facts,)), **marks))
    return MadeIndex(IndexFile(task.key, len(data), task.slots, len(items), task.begin_ms, end_ms, marks), crc32)


def _items(driver: TierDriver, source: IndexFile, begin_ms: int) -> Any:
    """The source's items, with times in the seconds of a file that begins at `begin_ms`."""
    position = HEADER_BYTES + SLOT_BYTES * source.slots
    pieces = []
    while position < source.size:
        length = min(READ_BYTES, source.size - position)
        pieces.append(bytes(driver.read(source.key, position, length)))
        position += length
    items = np.frombuffer(b"".join(pieces), _ITEM).copy()
    seconds = items["s"].astype(np.int64)
    # Never later than the record. Items of a merged file are so already: they are moved by whole seconds.
    earliest_ms = source.begin_ms + seconds * 1000
    if source.merged_from is None:
        earliest_ms -= np.where(seconds <= 0, TIME_TOLERANCE_MS, 0)
    items["s"] = np.clip((earliest_ms - begin_ms) // 1000, SECONDS_MIN, SECONDS_MAX)
    return items


def arranged(items: Any, slots: int, begin_ms: int, end_ms: int) -> tuple[bytes, int]:
    """A compacted index file of the items, which keep their order within a slot; and how many slots are in use."""
    items = items.astype(_ITEM, copy=False)  # NumPy converts joined arrays to the machine's byte order.
    slot = (items["key_hash"].astype(np.int64) % slots).astype(np.uint32)
    # Two stable sorts of 16 bits each are counting sorts, several times as fast as one of 32.
    order = np.argsort((slot & 0xFFFF).astype(np.uint16), kind="stable")
    if slots > 1 << 16:
        order = order[np.argsort((slot[order] >> 16).astype(np.uint16), kind="stable")]
    counts = np.bincount(slot, minlength=slots)
    ends = np.cumsum(counts)
    table: Any = np.empty((slots, 2), ">i4")
    table[:, 0] = HEADER_BYTES + SLOT_BYTES * slots + ITEM_BYTES * (ends - counts)
    table[:, 1] = ITEM_BYTES * counts
    used = int(np.count_nonzero(counts))
    header = HEADER.pack(MAGIC_END, begin_ms, end_ms, used, len(items))
    return b"".join((header, table.tobytes(), items[order].tobytes())), used


def _facts(task: MergeTask, items: Any, end_ms: int, used: int) -> FileFacts:
    oldest_ms = task.begin_ms + int(items["s"].min()) * 1000
    topic_ids = frozenset(int(value) for value in np.unique(items["topic_id"]))
    count = len(items)
    return FileFacts(task.begin_ms, task.slots, count + 1, count, used, oldest_ms, end_ms, topic_ids)


def write_index_file(driver: TierDriver, key: SegmentKey, data: bytes, companion: bytes) -> int:
    """Write a whole file and seal it, its companion first; its checksum. The same bytes again are no change.

    Raises SegmentConflict when other bytes are there.
    """
    _put_companion(driver, key, summed(companion, BlockSums.of(data)))
    try:
        for position in range(0, len(data), CHUNK_BYTES):
            driver.write(key, position, [data[position : position + CHUNK_BYTES]])
        driver.seal(key)
    except SegmentSealed:
        _require_same(driver, key, data)  # Another attempt of this task was faster.
    return zlib.crc32(data)


def _put_companion(driver: TierDriver, key: SegmentKey, companion: bytes) -> None:
    """That of a file that is not there yet. An executor that stood still may find that the broker, which has taken its
    lease back, has made its own file at this base: its companion stays.
    """
    stored = driver.get_object(companion_name(key))
    if stored is not None and stored.data == companion:
        return  # Of an earlier attempt.
    if stored is not None and driver.size(key):
        raise SegmentConflict(f"{key.path}: expected no index file, found that of another writer; run the job again")
    try:
        driver.put_object(companion_name(key), companion, expected=None if stored is None else stored.version)
    except ManifestConflict as error:
        raise SegmentConflict(f"{key.path}: another writer makes an index file there; run the job again") from error


def _require_same(driver: TierDriver, key: SegmentKey, data: bytes) -> None:
    size = driver.size(key)
    for position in range(0, min(size, len(data)), READ_BYTES):
        length = min(READ_BYTES, len(data) - position, size - position)
        if bytes(driver.read(key, position, length)) != data[position : position + length]:
            size = -1
            break
    if size != len(data):
        raise SegmentConflict(
            f"{key.path}: expected the {len(data)} bytes of this task, found others; run the job again"
        )
