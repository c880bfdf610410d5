"""An index file made anew from the messages that it covers.

What it covers is what its companion says, less what the companion of the file before it says: for each queue a range of
log offsets. Without companions (RocketMQ writes none, or they are lost) it is everything that no file before it covers;
keys that are then in two files are found once, as every answer is one by place. The new file has the name, the base and
the begin time of the old one, as many slots, and the same companion; it may have another size, unless others follow it
that are named by where it ends.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tiermq.errors import CorruptRecord, CorruptSegment, IllegalRange, SegmentMissing, StoreDamaged
from tiermq.files.os_file_access import OsFileAccess
from tiermq.tier.block_sums import BlockSums, summed
from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.flat.record_batch import RecordBatch
from tiermq.tier.index.compacted_index import companion_name
from tiermq.tier.index.index_coverage import CoverageRecord
from tiermq.tier.index.index_item import HEADER_BYTES, ITEM_BYTES, SLOT_BYTES, decode_header, index_hash
from tiermq.tier.index.index_write_file import FileFacts, IndexWriteFile
from tiermq.tier.index.record_requests import index_requests
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.names import QueueKey, SegmentKey, SegmentType, broker_directory
from tiermq.tier.repair.queue_facts import QueueFacts, read_facts
from tiermq.tier.repair.record_walk import SoundRun, walk_log

DEFAULT_SLOTS = 5_000_000
CAPACITY_MAX = 20_000_000
CAPACITY_STEP = 1 << 16


class CannotIndex(Exception):
    """Why an index file cannot be made anew."""


@dataclass(frozen=True, slots=True)
class Range:
    """Log offsets [start, stop) of a queue whose keys belong into the file; a stop of -1: to the end of the log."""

    queue: QueueKey
    topic_id: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class RebuiltIndex:
    """The compacted bytes of an index file, and its companion."""

    key: SegmentKey
    data: bytes
    companion: bytes
    facts: FileFacts


def rebuild_index(driver: TierDriver, key: SegmentKey, metadata: MetadataStore | None = None) -> RebuiltIndex:
    """Make the file anew. Raises CannotIndex, and what the driver raises."""
    facts = read_facts(driver, key.queue, metadata)
    ranges = covered_ranges(driver, facts, key, metadata)
    if not ranges:
        raise CannotIndex("no queue is known whose messages it covers: topic ids are in manifests or metadata")
    begin_ms, slots = _begin_and_slots(driver, facts, key)
    own = _companion(driver, key)
    with tempfile.TemporaryDirectory(prefix="tiermq-reindex-") as directory:
        made = _filled(driver, directory, begin_ms, slots, ranges)
        try:
            data, found = made.compact(), made.facts()
        finally:
            made.destroy()
    if not data:
        raise CannotIndex("none of the messages that it covers has a key")
    following = min((info.key.base for info in facts.index if info.key.base > key.base), default=None)
    if following is not None and key.base + len(data) != following:
        raise CannotIndex(
            f"it would have {len(data)} bytes, and the next file begins {following - key.base} bytes behind its base: "
            "some of the messages that it covers have expired or are lost"
        )
    record = own or CoverageRecord((), ())
    return RebuiltIndex(key, data, replace(record, files=(found,)).encode(), found)


def covered_ranges(
    driver: TierDriver, facts: QueueFacts, key: SegmentKey, metadata: MetadataStore | None
) -> list[Range]:
    """Which messages belong into the file, by companions, topic ids and logs."""
    own = _companion(driver, key)
    earlier = [info for info in facts.index if info.key.base < key.base]
    before: dict[tuple[str, int], int] = {}
    for info in earlier:
        record = _companion(driver, info.key)
        for topic, _, queue_id, end, _ in record.queues if record is not None else ():
            before[topic, queue_id] = max(before.get((topic, queue_id), 0), end)
    ends = {(topic, queue_id): end for topic, _, queue_id, end, _ in own.queues} if own is not None else {}
    ranges = []
    for queue, topic_id in sorted(_queues_with_ids(driver, key, metadata).items()):
        name = (queue.topic, queue.queue_id)
        stop = ends.get(name, -1)
        if stop < 0 or stop > before.get(name, 0):
            ranges.append(Range(queue, topic_id, before.get(name, 0), stop))
    return ranges


def _queues_with_ids(driver: TierDriver, key: SegmentKey, metadata: MetadataStore | None) -> dict[QueueKey, int]:
    prefix = broker_directory(key.cluster, key.broker) + "/"
    queues = {info.key.queue for info in driver.list_segments(prefix) if info.key.type is SegmentType.COMMIT_LOG}
    found: dict[QueueKey, int] = {}
    for queue in queues:
        topic = metadata.topic(queue.topic) if metadata is not None else None
        manifest = read_facts(driver, queue).manifest if topic is None else None
        topic_id = topic.id if topic is not None else manifest.topic_id if manifest is not None else -1
        if topic_id >= 0:
            found[queue] = topic_id
    return found


def _companion(driver: TierDriver, key: SegmentKey) -> CoverageRecord | None:
    stored = driver.get_object(companion_name(key))
    if stored is None:
        return None
    try:
        return CoverageRecord.decode(stored.data, companion_name(key))
    except StoreDamaged:
        return None


def _begin_and_slots(driver: TierDriver, facts: QueueFacts, key: SegmentKey) -> tuple[int, int]:
    """From the file itself, its companion, its row, or another file of the same broker: whatever can be read."""
    own = _companion(driver, key)
    for found in own.files if own is not None else ():
        return found.begin_ms, found.slots
    row = next((row for row in facts.rows if row.key == key), None)
    begin_ms = row.begin_ms if row is not None else -1
    slots = 0
    for info in sorted(facts.index, key=lambda info: info.key != key):
        shape = _shape(driver, info)
        if shape is not None:
            begin_ms = shape[0] if info.key == key or begin_ms < 0 else begin_ms
            slots = slots or shape[1]
    if begin_ms < 0:
        raise CannotIndex("neither it nor its companion nor a manifest says when it was begun")
    return begin_ms, slots or DEFAULT_SLOTS


def _shape(driver: TierDriver, info: SegmentInfo) -> tuple[int, int] | None:
    try:
        header = decode_header(driver.read(info.key, 0, HEADER_BYTES))
    except (CorruptRecord, SegmentMissing, IllegalRange, CorruptSegment):
        return None
    slots, rest = divmod(info.size - HEADER_BYTES - ITEM_BYTES * header.item_count, SLOT_BYTES)
    return (header.begin_ms, slots) if header.item_count > 0 and slots > 0 and rest == 0 else None


def _filled(driver: TierDriver, directory: str, begin_ms: int, slots: int, ranges: Sequence[Range]) -> IndexWriteFile:
    """A local file with the keys of all ranges, made larger until they fit."""
    capacity = CAPACITY_STEP
    while True:
        made = IndexWriteFile.create(OsFileAccess(), directory, begin_ms, slots, capacity)
        if all(_put(made, batch, each) for each in ranges for batch in _batches(driver, each)):
            return made
        made.destroy()
        capacity *= 4
        if capacity > CAPACITY_MAX:
            raise CannotIndex(f"the messages that it covers have more than {capacity // 4} keys")


def _put(made: IndexWriteFile, batch: RecordBatch, each: Range) -> bool:
    for request in index_requests(batch, each.queue.topic, each.topic_id, each.queue.queue_id):
        in_range = each.start <= request.tier_offset and (each.stop < 0 or request.tier_offset < each.stop)
        if not in_range or not request.keys:
            continue
        hashes = list(dict.fromkeys(index_hash(each.queue.topic, key) for key in request.keys))
        put = made.put(hashes, each.topic_id, each.queue.queue_id, request.tier_offset, request.size, request.store_ms)
        if not put:
            return False
    return True


def _batches(driver: TierDriver, each: Range) -> Iterator[RecordBatch]:
    """The sound records of the range."""
    logs = [
        info
        for info in read_facts(driver, each.queue).logs
        if info.key.base + info.size > each.start and (each.stop < 0 or info.key.base < each.stop)
    ]
    for stretch in walk_log(driver, each.queue, logs):
        if isinstance(stretch, SoundRun):
            info = next(i for i in logs if i.key.base <= stretch.start < i.key.base + i.size)
            data = driver.read(info.key, stretch.start - info.key.base, stretch.stop - stretch.start)
            yield RecordBatch.of_bytes(data, stretch.units, stretch.queue_offset)


def write_index(driver: TierDriver, made: RebuiltIndex, aside: str) -> list[str]:
    """Replace the file; its companion stands before it, as after every upload. What was kept aside."""
    name = companion_name(made.key)
    companion = summed(made.companion, BlockSums.of(made.data))
    stored = driver.get_object(name)
    kept = []
    if stored is not None and stored.data != companion:
        kept.append(f"{made.key.path}.{aside}.tiermq.json")
        driver.put_object(kept[-1], stored.data)
    driver.put_object(name, companion)
    path = driver.replace(made.key, [made.data], aside)
    if not driver.is_sealed(made.key):
        driver.seal(made.key)
    return [*kept, *([path] if path else [])]
