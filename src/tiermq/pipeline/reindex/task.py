"""KeyTask: collects the keys of committed records that no index covers; `index_build` makes index files of them.

    ranges of logs ─► units, records ─► hashes of keys, staged in the tier under names of this attempt alone

Units decide which messages count; bytes without a unit are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiermq.errors import CorruptSegment, IllegalRange, SegmentMissing
from tiermq.kernel.tier_records import COLLECTED_KEY_BYTES
from tiermq.pipeline.index_build import KeyStage, StagedKeys
from tiermq.pipeline.reindex.plan import Stretch
from tiermq.pipeline.worker_cache import driver_of
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.index.index_request import FragmentBuilder
from tiermq.tier.metadata.metadata_values import Segment
from tiermq.tier.names import QueueKey
from tiermq.tier.queue.tier_queue import TierQueue

BUNDLE_BYTES = 256 * 1024 * 1024
"""A task reads up to this number of bytes of logs, if there are that many for each processor."""


@dataclass(frozen=True, slots=True)
class KeyWork:
    """One range of one queue's log, and its segments."""

    queue: QueueKey
    topic_id: int
    stretch: Stretch
    logs: tuple[Segment, ...]
    units: tuple[Segment, ...]
    is_last: bool = False  # Nothing of the queue is behind it.

    @property
    def size_bytes(self) -> int:
        return self.stretch.stop - self.stretch.start


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
    start, stop = work.stretch.start, work.stretch.stop
    builder = FragmentBuilder(work.queue.topic, work.topic_id, work.queue.queue_id, start)
    records, end = 0, start
    queue = TierQueue(driver, work.queue, work.logs, work.units)
    for batch in queue.batches(work.stretch.from_offset, work.stretch.to_offset, log_from=start, log_to=stop):
        builder.add(batch)
        records += batch.count
        end = batch.log_offset + len(batch.data)
    fragment = builder.build()
    first, behind = fragment.first_key_from(start), fragment.first_key_from(stop)
    keys = fragment.keys[first * COLLECTED_KEY_BYTES : behind * COLLECTED_KEY_BYTES]
    # Behind the last message there may be records whose units do not exist yet: they are not covered.
    stage.add(work.queue, work.topic_id, start, min(end, stop) if work.is_last else stop, keys)
    return records
