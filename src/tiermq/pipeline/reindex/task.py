"""KeyTask: collects the keys of committed records that no index covers; `index_build` makes index files of them.

    ranges of logs ─► units, records ─► hashes of keys, staged in the tier under names of this attempt alone

Units decide which messages count; bytes without a unit are skipped.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tiermq.errors import CorruptSegment, IllegalRange, SegmentMissing
from tiermq.kernel.tier_records import COLLECTED_KEY_BYTES
from tiermq.pipeline.index_build import KeyStage, StagedKeys
from tiermq.pipeline.worker_cache import driver_of
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.index.index_coverage import LogRange
from tiermq.tier.index.index_request import FragmentBuilder
from tiermq.tier.metadata.metadata_values import Segment, TimeEntry
from tiermq.tier.names import QueueKey
from tiermq.tier.queue.tier_queue import TierQueue

BUNDLE_BYTES = 256 * 1024 * 1024
"""A task reads up to this number of bytes of logs, if there are that many for each processor."""


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Records in [start, stop) of a queue's log, to be found by its units [from_offset, to_offset)."""

    from_offset: int
    to_offset: int
    start: int
    stop: int


def log_chunks(
    ranges: Iterable[LogRange], entries: Sequence[TimeEntry], offsets: tuple[int, int], chunk_bytes: int
) -> list[LogChunk]:
    """The ranges in chunks of about this number of bytes, split where the sparse time index has a log offset.

    `offsets` are the queue's [minimum, maximum). Units may be a few more than the records need: the range decides.
    """
    known = [entry for entry in entries if offsets[0] <= entry.queue_offset < offsets[1]]
    log_offsets = [entry.log_offset for entry in known]
    found = []
    for start, stop in ranges:
        first = bisect_right(log_offsets, start) - 1
        from_offset = known[first].queue_offset if first >= 0 else offsets[0]
        at = start
        for entry in known[first + 1 : bisect_left(log_offsets, stop)]:
            if entry.log_offset - at >= chunk_bytes:
                found.append(LogChunk(from_offset, entry.queue_offset, at, entry.log_offset))
                from_offset, at = entry.queue_offset, entry.log_offset
        last = bisect_left(log_offsets, stop)
        to_offset = known[last].queue_offset if last < len(known) else offsets[1]
        found.append(LogChunk(from_offset, to_offset, at, stop))
    return found


@dataclass(frozen=True, slots=True)
class KeyWork:
    """One range of one queue's log, and its segments."""

    queue: QueueKey
    topic_id: int
    chunk: LogChunk
    logs: tuple[Segment, ...]
    units: tuple[Segment, ...]
    is_last: bool = False  # Nothing of the queue is behind it.

    @property
    def size_bytes(self) -> int:
        return self.chunk.stop - self.chunk.start


@dataclass(frozen=True, slots=True)
class KeyTask:
    """Some ranges, and where keys may be staged."""

    tier: str
    index: QueueKey
    works: tuple[KeyWork, ...]


@dataclass(frozen=True, slots=True)
class FoundKeys:
    """What a task found: the staged keys of its ranges, how many records they have, and ranges that it cannot read."""

    keys: tuple[StagedKeys, ...] = ()
    records: int = 0
    bytes: int = 0
    errors: tuple[str, ...] = ()


def run_key_task(task: KeyTask) -> FoundKeys:
    """Collect the keys. A range that cannot be read is reported; raises TierUnavailable if the tier is down."""
    driver = driver_of(task.tier)
    stage = KeyStage(driver, task.index)
    records = read_bytes = 0
    errors = []
    for work in task.works:
        try:
            records += _collect(driver, stage, work)
            read_bytes += work.size_bytes
        except (SegmentMissing, IllegalRange, CorruptSegment) as error:
            errors.append(f"{work.queue.logical_path}: {error}")
    return FoundKeys(stage.finish(), records, read_bytes, tuple(errors))


def _collect(driver: TierDriver, stage: KeyStage, work: KeyWork) -> int:
    """Stage the keys of one range; of how many records."""
    start, stop = work.chunk.start, work.chunk.stop
    builder = FragmentBuilder(work.queue.topic, work.topic_id, work.queue.queue_id, start)
    records, end = 0, start
    queue = TierQueue(driver, work.queue, work.logs, work.units)
    for batch in queue.batches(work.chunk.from_offset, work.chunk.to_offset, log_from=start, log_to=stop):
        builder.add(batch)
        records += batch.count
        end = batch.log_offset + len(batch.data)
    fragment = builder.build()
    first, behind = fragment.first_key_from(start), fragment.first_key_from(stop)
    keys = fragment.keys[first * COLLECTED_KEY_BYTES : behind * COLLECTED_KEY_BYTES]
    # Behind the last message there may be records whose units do not exist yet: they are not covered.
    stage.add(work.queue, work.topic_id, start, min(end, stop) if work.is_last else stop, keys)
    return records
