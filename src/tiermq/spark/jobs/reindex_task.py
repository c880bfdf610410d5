"""The tasks of a reindex. First keys are collected where records are read, then index files are made of them.

    KeyTask    stretches of logs ─► units, records ─► hashes of keys     small ones travel, large ones are staged in the
                                                                         tier under a name of this attempt alone
    BuildTask  staged keys ─► one index file, at the place that the driver gave it by their number, and not registered

Records are read once, and an index file has as many keys as it should, however logs are cut. A build may be run twice:
it makes the same bytes. Which messages count is said by units, as everywhere; bytes that no unit knows are passed over.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from tiermq.consumequeue.unit import UNIT, UNIT_BYTES
from tiermq.errors import CorruptSegment, IllegalRange, SegmentMissing
from tiermq.files.os_file_access import OsFileAccess
from tiermq.kernel.fragments import COLLECTED_KEY_BYTES
from tiermq.spark.jobs.index_files import UNREGISTERED, encoded_companion
from tiermq.spark.jobs.index_merge import write_index_file
from tiermq.spark.jobs.offload_task import driver_of
from tiermq.spark.jobs.reindex_plan import Stretch
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.flat.flat_segment import DAMAGE_ADVICE
from tiermq.tier.flat.record_batch import RecordBatch
from tiermq.tier.flat.segment_recovery import runs_of_records
from tiermq.tier.index.index_coverage import CoverageRecord
from tiermq.tier.index.index_fragment import FragmentBuilder
from tiermq.tier.index.index_item import compacted_bytes
from tiermq.tier.index.index_write_file import FileFacts, IndexWriteFile
from tiermq.tier.metadata.metadata_values import Segment
from tiermq.tier.names import OBJECT_SUFFIX, QueueKey, SegmentKey

TRAVEL_BYTES_MAX = 256 * 1024
UNITS_PER_READ = 65_536
STAGED = "reindex-"


@dataclass(frozen=True, slots=True)
class KeyWork:
    """One stretch of one queue, and the segments that it lies in."""

    queue: QueueKey
    topic_id: int
    stretch: Stretch
    logs: tuple[Segment, ...]
    units: tuple[Segment, ...]

    @property
    def size_bytes(self) -> int:
        return self.stretch.stop - self.stretch.start


@dataclass(frozen=True, slots=True)
class KeyTask:
    """Some stretches, and where keys may be staged."""

    tier: str
    index: QueueKey
    works: tuple[KeyWork, ...]


@dataclass(frozen=True, slots=True)
class FoundKeys:
    """The keys of a stretch: `count` of them, travelling or staged. `end` is where its last record ends."""

    work: KeyWork
    count: int = 0
    end: int = 0
    records: int = 0
    keys: bytes = b""
    staged: str = ""
    error: str = ""


def run_key_task(task: KeyTask) -> tuple[FoundKeys, ...]:
    """Collect the keys. A stretch that cannot be read is told; raises TierUnavailable when the tier is away."""
    driver = driver_of(task.tier)
    found = []
    for work in task.works:
        try:
            found.append(_collected(driver, task, work))
        except (SegmentMissing, IllegalRange, CorruptSegment) as error:
            found.append(FoundKeys(work, error=str(error)))
    return tuple(found)


def _collected(driver: TierDriver, task: KeyTask, work: KeyWork) -> FoundKeys:
    start, stop = work.stretch.start, work.stretch.stop
    builder = FragmentBuilder(work.queue.topic, work.topic_id, work.queue.queue_id, start)
    records, end = 0, start
    for batch in _batches(driver, work):
        builder.add(batch)
        records += batch.count
        end = batch.log_offset + len(batch.data)
    fragment = builder.build()
    first, behind = fragment.first_key_from(start), fragment.first_key_from(stop)
    keys = fragment.keys[first * COLLECTED_KEY_BYTES : behind * COLLECTED_KEY_BYTES]
    staged = ""
    if len(keys) > TRAVEL_BYTES_MAX:
        staged = f"{task.index.directory}/{STAGED}{uuid.uuid4().hex}{OBJECT_SUFFIX}"
        driver.put_object(staged, keys)
        keys = b""
    return FoundKeys(work, behind - first, min(end, stop), records, keys, staged)


def _batches(driver: TierDriver, work: KeyWork) -> Iterator[RecordBatch]:
    """The records that units of the stretch lead to, as far as they lie in its range."""
    offset = work.stretch.from_offset
    while offset < work.stretch.to_offset:
        segment = _owner(work.units, offset * UNIT_BYTES, work)
        room = (segment.end - offset * UNIT_BYTES) // UNIT_BYTES
        count = min(UNITS_PER_READ, work.stretch.to_offset - offset, room)
        units = _read(driver, segment, offset * UNIT_BYTES - segment.key.base, count * UNIT_BYTES)
        for first, run in runs_of_records(units, offset):
            yield from _cut_at_segments(driver, work, first, run)
        offset += count


def _cut_at_segments(driver: TierDriver, work: KeyWork, first: int, run: memoryview) -> Iterator[RecordBatch]:
    """The run's records that lie in the range, by the segments of the log that hold them."""
    while len(run):
        place, size, _ = UNIT.unpack_from(run)
        if place >= work.stretch.stop:
            return
        if place + size <= work.stretch.start:
            first, run = first + 1, run[UNIT_BYTES:]
            continue
        segment = _owner(work.logs, place, work)
        count = 0
        for at, length, _ in UNIT.iter_unpack(run):
            if at + length > segment.end or at >= work.stretch.stop:
                break
            count, end = count + 1, at + length
        if count == 0:
            raise CorruptSegment(f"{segment.key.path}: expected the record at {place} in it, found it beyond its end")
        data = _read(driver, segment, place - segment.key.base, end - place)
        yield RecordBatch.of_bytes(data, run[: count * UNIT_BYTES], first)
        first, run = first + count, run[count * UNIT_BYTES :]


def _read(driver: TierDriver, segment: Segment, position: int, length: int) -> memoryview:
    """Bytes of a segment, compared with the checksums of its blocks where they are known. Raises CorruptSegment."""
    read = partial(driver.read, segment.key)
    if segment.sums is None:
        return read(position, length)
    return segment.sums.cut(segment.size).read(str(segment.key), read, position, length, DAMAGE_ADVICE)


def _owner(segments: tuple[Segment, ...], offset: int, work: KeyWork) -> Segment:
    for segment in segments:
        if segment.key.base <= offset < segment.end:
            return segment
    raise SegmentMissing(f"{work.queue.logical_path}: expected a segment with offset {offset}, found none")


# Building


@dataclass(frozen=True, slots=True)
class BuildTask:
    """Make the index file `key` of all those keys. `coverage`: what is indexed without it."""

    tier: str
    key: SegmentKey
    begin_ms: int
    slots: int
    found: tuple[FoundKeys, ...]
    coverage: bytes

    @property
    def item_count(self) -> int:
        return sum(each.count for each in self.found)

    @property
    def size(self) -> int:
        return compacted_bytes(self.slots, self.item_count)


@dataclass(frozen=True, slots=True)
class BuiltIndex:
    """An index file in its place, sealed, and registered nowhere."""

    key: SegmentKey
    size: int
    crc32: int
    facts: FileFacts


def run_build_task(task: BuildTask) -> BuiltIndex:
    """Make the file in a directory of this attempt, and write it. Raises what the driver and the disk raise."""
    driver = driver_of(task.tier)
    with tempfile.TemporaryDirectory(prefix="tiermq-reindex-") as directory:
        made = IndexWriteFile.create(OsFileAccess(), directory, task.begin_ms, task.slots, task.item_count + 1)
        try:
            for each in task.found:
                _put(driver, made, each)
            data, facts = made.compact(), made.facts()
        finally:
            made.destroy()
    if len(data) != task.size:
        raise CorruptSegment(
            f"{task.key.path}: expected {task.size} bytes by the keys that were found, made {len(data)}"
        )
    record = CoverageRecord.decode(task.coverage, task.key.path)
    record = CoverageRecord((facts,), record.queues, record.next_base, record.is_base_known, record.doubtful)
    crc32 = write_index_file(driver, task.key, data, encoded_companion(record, **{UNREGISTERED: True}))
    return BuiltIndex(task.key, len(data), crc32, facts)


def _put(driver: TierDriver, made: IndexWriteFile, found: FoundKeys) -> None:
    keys = found.keys
    if found.staged:
        stored = driver.get_object(found.staged)
        if stored is None:
            raise SegmentMissing(f"{found.staged}: expected staged keys, found none; run the job again")
        keys = bytes(stored.data)
    done = 0
    while done < found.count:
        put = made.put_collected(keys, done, found.work.topic_id, found.work.queue.queue_id)
        if not put:
            raise CorruptSegment(f"{found.work.queue.logical_path}: key {done} of {found.count} does not fit its file")
        done += put
