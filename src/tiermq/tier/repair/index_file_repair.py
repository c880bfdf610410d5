"""Rebuild an index file from the messages that it covers.

It covers the coverage of its companion, less that of the companion of the file before it: for each queue a range of
log offsets. Without companions (RocketMQ writes none, or they are lost) it is everything that no file before it covers;
keys that are then in two files are found once, as every answer is one by location. The new file has the name, the base
and the begin time of the old one, as many slots, and the same companion; it may have another size, unless others follow
it that are named by where it ends.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tiermq.clock import Clock
from tiermq.errors import CorruptRecord, CorruptSegment, IllegalRange, SegmentMissing, StoreDamaged
from tiermq.files.os_file_access import OsFileAccess
from tiermq.tier.block_sums import BlockSums, summed
from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.index.compacted_index import companion_name
from tiermq.tier.index.index_coverage import CoverageRecord
from tiermq.tier.index.index_item import HEADER_BYTES, ITEM_BYTES, SLOT_BYTES, decode_header, index_hash, is_merged
from tiermq.tier.index.index_request import IndexRequest, index_requests
from tiermq.tier.index.index_table import hashes_of
from tiermq.tier.index.index_write_file import FileFacts, IndexWriteFile
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.names import QueueKey, QueueName, SegmentKey, SegmentType, broker_directory
from tiermq.tier.queue.records import RecordBatch
from tiermq.tier.queue.segments import END, SegmentList, TierScope
from tiermq.tier.repair.queue_facts import QueueFacts, SoundRun, read_facts, walk_log
from tiermq.tier.verify.missing_keys import KeyRange, find_missing
from tiermq.tier.verify.verify import missing_keys_task
from tiermq.tier.verify.verify_plan import IndexTask, QueueTask, plan_verify

DEFAULT_SLOTS = 5_000_000
CAPACITY_MAX = 20_000_000
CAPACITY_STEP = 1 << 16


class CannotIndex(Exception):
    """Why an index file cannot be rebuilt."""


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
    """Rebuild the file. Raises CannotIndex, and what the driver raises."""
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
    before: dict[QueueName, int] = {}
    for info in earlier:
        record = _companion(driver, info.key)
        for topic, _, queue_id, end, _ in record.queues if record is not None else ():
            before[topic, queue_id] = max(before.get((topic, queue_id), 0), end)
    ends = {(topic, queue_id): end for topic, _, queue_id, end, _ in own.queues} if own is not None else {}
    ranges = []
    for queue, topic_id in sorted(_queues_with_ids(driver, key, metadata).items()):
        name = queue.name
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
    """From the file, its companion, its row, or another file of the same broker: the first that can be read."""
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
        raise CannotIndex("neither the file nor its companion nor a manifest has its begin time")
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
    facts = read_facts(driver, each.queue)
    queue = facts.queue(driver)
    parts = SegmentList(facts.logs).ranges(each.start, each.stop if each.stop >= 0 else END)
    for part in walk_log(driver, each.queue, [info for info, _, _ in parts]):
        if isinstance(part, SoundRun):
            data = queue.read_records(part.start, part.stop - part.start)
            yield RecordBatch.of_bytes(data, part.units, part.queue_offset)


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


# An index file of the items that others lack, behind all of them.
#
# It has the companion of the newest file: what that claims to be covered is so from now on. The messages are looked for
# once more, so that a repair that is run again, or finds the items made by another action, adds nothing twice.


def missing_requests(
    driver: TierDriver, index: QueueKey, ranges: Sequence[KeyRange], metadata: MetadataStore | None
) -> list[IndexRequest]:
    """The messages of the ranges that lack items, in the order of their queues. Raises what the driver raises."""
    plan = plan_verify(driver, TierScope(index.cluster, index.broker), metadata=metadata)
    files = [task for task in plan.tasks if isinstance(task, IndexTask)]
    owners = {task.key: task for task in plan.tasks if isinstance(task, QueueTask)}
    found: list[IndexRequest] = []
    for each in sorted(ranges):
        tasks = [task for task in plan.tasks if isinstance(task, QueueTask) and task.key == each.queue]
        if each.queue in owners and tasks:
            whole = replace(owners[each.queue], unit_from=tasks[0].unit_from, unit_to=tasks[-1].unit_to)
            found += find_missing(driver, missing_keys_task(0, each, whole, files)).requests
    return found


def build_missing(driver: TierDriver, index: QueueKey, requests: Sequence[IndexRequest], clock: Clock) -> RebuiltIndex:
    """A new index file of these messages' keys, behind the existing ones. Raises CannotIndex."""
    files = sorted(
        (info for info in driver.list_segments(index.directory + "/") if info.key.type is SegmentType.INDEX),
        key=lambda info: info.key.base,
    )
    known = [(info, companion) for info in files if (companion := _companion(driver, info.key)) is not None]
    if not known:
        raise CannotIndex("no index file has the coverage; run `tiermq pipeline reindex`")
    record = known[-1][1]
    slots = max((facts.slots for _, companion in known for facts in companion.files), default=DEFAULT_SLOTS)
    taken = {facts.begin_ms for _, companion in known for facts in companion.files}
    begin_ms = clock.now_ms()
    while begin_ms in taken or is_merged(begin_ms):
        begin_ms += 1
    capacity = sum(len(hashes_of(request)) for request in requests) + 1
    with tempfile.TemporaryDirectory(prefix="tiermq-repair-") as directory:
        made = IndexWriteFile.create(OsFileAccess(), directory, begin_ms, slots, capacity)
        try:
            for each in requests:
                values = (each.topic_id, each.queue_id, each.tier_offset, each.size, each.store_ms)
                if not made.put(hashes_of(each), *values):
                    raise CannotIndex(f"{len(requests)} messages have more keys than were counted")
            data, facts = made.compact(), made.facts()
        finally:
            made.destroy()
    key = index.segment(SegmentType.INDEX, files[-1].key.base + files[-1].size)
    return RebuiltIndex(key, data, replace(record, files=(facts,)).encode(), facts)


def write_missing(driver: TierDriver, made: RebuiltIndex) -> None:
    """Companion first, as for every upload."""
    driver.put_object(companion_name(made.key), summed(made.companion, BlockSums.of(made.data)))
    driver.write(made.key, 0, [made.data])
    driver.seal(made.key)
