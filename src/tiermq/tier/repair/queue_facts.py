"""Facts for the repair of a queue: its segments in the tier, its rows, and a walk over its commit log.

A queue's commit log as it is: runs of sound records with the units that they should have, and the damage between.

Only the log counts. A record is sound when it is complete, intact, at its recorded offset and of this queue. Behind
damage the walk continues at the next bytes that are a sound record. The mark that ends a sealed segment is no
damage. Memory: one window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.kernel import check_records
from tiermq.message.crc import crc32
from tiermq.message.record_head import HeadKind, read_head
from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.metadata.manifest import QueueManifest, manifest_name
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import Gap, Segment, SegmentStatus
from tiermq.tier.names import QueueKey, SegmentType
from tiermq.tier.queue.log_walk import LogWalk, read_in
from tiermq.tier.queue.records import derive_units
from tiermq.tier.queue.segments import UNREADABLE, SegmentList, StoredSegment, end_of, of_type
from tiermq.tier.queue.tier_queue import TierQueue
from tiermq.tier.queue.units import RUN_BYTES, log_range
from tiermq.tier.restore.restore import read_manifests
from tiermq.tier.verify.checked_segment import known_checksums

WINDOW_BYTES = RUN_BYTES
BELIEVED_BYTES_MAX = 64 * 1024 * 1024
"""A record with a larger size is damaged."""


class SoundRun(NamedTuple):
    """Contiguous records in [start, stop), numbered from `queue_offset` on, and their units."""

    start: int
    stop: int
    queue_offset: int
    units: bytes

    @property
    def next_offset(self) -> int:
        return self.queue_offset + len(self.units) // UNIT_BYTES


class Damage(NamedTuple):
    """Log offsets [start, stop) that hold no sound record; `is_hole`: no segment holds them at all."""

    start: int
    stop: int
    is_hole: bool = False


LogPart: TypeAlias = SoundRun | Damage


def walk_log(driver: TierDriver, queue: QueueKey, logs: Sequence[StoredSegment]) -> Iterator[LogPart]:
    """All of the log, in order, damage joined where it touches. Raises what the driver raises when it is away."""
    pending: Damage | None = None
    for part in _log_parts(driver, queue, logs):
        if isinstance(part, Damage):
            if pending is not None and pending.stop == part.start and pending.is_hole == part.is_hole:
                part = Damage(pending.start, part.stop, part.is_hole)
            elif pending is not None:
                yield pending
            pending = part
            continue
        if pending is not None:
            yield pending
            pending = None
        yield part
    if pending is not None:
        yield pending


def _log_parts(driver: TierDriver, queue: QueueKey, logs: Sequence[StoredSegment]) -> Iterator[LogPart]:
    end = logs[0].key.base if logs else 0
    for info in logs:
        if info.key.base > end:
            yield Damage(end, info.key.base, is_hole=True)
        yield from LogWalk[LogPart](
            read_in(driver, info.key),
            max(end, info.key.base),
            end_of(info),
            partial(_sound_run, queue),
            damage=Damage,
            window_bytes=WINDOW_BYTES,
            record_max=BELIEVED_BYTES_MAX,
        )
        end = max(end, end_of(info))


def _sound_run(queue: QueueKey, window: memoryview, at: int) -> tuple[int, SoundRun] | None:
    """The records at the start of a window that are intact and of this queue."""
    head = read_head(window)
    if head.kind is not HeadKind.OK or head.physical_offset != at:
        return None
    units = derive_units(window, at, head.queue_offset)
    count = check_records(units, window, at, head.queue_offset, queue.topic.encode(), queue.queue_id)[0]
    if count == 0 and units and (head.topic, head.queue_id) == (queue.topic.encode(), queue.queue_id):
        count = 1  # A non-ASCII tag, which the kernel does not check; the record is sound.
    if count == 0:
        return None
    units = units[: count * UNIT_BYTES]
    stop = log_range(units)[1]
    return stop - at, SoundRun(at, stop, head.queue_offset, units)


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """Segments as the tier lists them now, rows as manifest and metadata have them: the newest of each segment."""

    key: QueueKey
    logs: tuple[SegmentInfo, ...]
    units: tuple[SegmentInfo, ...]
    index: tuple[SegmentInfo, ...]
    manifest: QueueManifest | None
    manifest_damage: str | None
    is_future: bool
    rows: tuple[Segment, ...]
    gaps: tuple[Gap, ...]

    def queue(self, driver: TierDriver) -> TierQueue:
        """Its reader."""
        return TierQueue(driver, self.key, self.logs, self.units)

    def rows_of(self, kind: SegmentType) -> list[Segment]:
        """What should be there, by base."""
        live = [row for row in self.rows if row.key.type is kind and row.status is not SegmentStatus.DELETED]
        return sorted(live, key=lambda row: row.key.base)


def read_facts(driver: TierDriver, key: QueueKey, metadata: MetadataStore | None = None) -> QueueFacts:
    """Read the facts from the tier. Raises what the driver raises."""
    infos = [info for info in driver.list_segments(key.directory + "/") if info.key.queue == key]
    read = read_manifests(driver, [manifest_name(key)], threads=1)
    manifest = read.manifests.get(key)
    damage = read.remarks[0].text if read.remarks else None
    known = list(metadata.segments(key)) + _deleted(metadata, key) if metadata is not None else []
    # The metadata is newer than any manifest, so its rows come last and win.
    rows = {row.key: row for row in (*(manifest.segments if manifest else ()), *known)}
    gaps = (*(manifest.gaps if manifest else ()), *(metadata.gaps(key) if metadata is not None else ()))
    return QueueFacts(
        key,
        of_type(infos, SegmentType.COMMIT_LOG),
        of_type(infos, SegmentType.CONSUME_QUEUE),
        of_type(infos, SegmentType.INDEX),
        manifest,
        damage,
        key in read.newer,
        tuple(rows.values()),
        gaps,
    )


def _deleted(metadata: MetadataStore, key: QueueKey) -> list[Segment]:
    return [row for row in metadata.segments_being_deleted() if row.key.queue == key]


# A walk over a queue's commit log; records that contradict units or checksums do not count.
#
# No checksum of a record covers its number and its properties. Two witnesses do: its unit, and the checksum that the
# manifest has of the segment.
#
# * A record out of order, to which a unit of the right number leads, has a damaged number: it is damage, not a message.
# * In a segment with a wrong checksum, units win over records that contradict them.


@dataclass(frozen=True, slots=True)
class LogScan:
    """The log as runs and damage, in order, and the bases of the segments with wrong checksums."""

    parts: tuple[LogPart, ...]
    doubted: frozenset[int]
    logs: tuple[SegmentInfo, ...]

    @property
    def sound(self) -> list[SoundRun]:
        return [part for part in self.parts if isinstance(part, SoundRun)]

    @property
    def damages(self) -> list[Damage]:
        return [part for part in self.parts if isinstance(part, Damage)]

    def is_doubted(self, log_offset: int) -> bool:
        info = SegmentList(self.logs).find(log_offset)
        return info is not None and info.key.base in self.doubted


def scan_log(driver: TierDriver, facts: QueueFacts) -> LogScan:
    """Read all of the log. Raises what the driver raises when the tier is away."""
    parts = _settled(driver, facts, list(walk_log(driver, facts.key, facts.logs)))
    doubted = frozenset(info.key.base for info in facts.logs if not has_known_checksum(driver, facts, info))
    return LogScan(tuple(parts), doubted, facts.logs)


def has_known_checksum(driver: TierDriver, facts: QueueFacts, info: SegmentInfo) -> bool:
    """Whether a segment's bytes have the known checksum; true when none is known."""
    crc = position = 0
    for size, expected in sorted(
        known_checksums((row for row in facts.rows if row.key == info.key), info.size).items()
    ):
        while position < size:
            length = min(RUN_BYTES, size - position)
            try:
                crc = crc32(driver.read(info.key, position, length), crc)
            except UNREADABLE:
                return False
            position += length
        if crc != expected:
            return False
    return True


def _settled(driver: TierDriver, facts: QueueFacts, parts: Sequence[LogPart]) -> list[LogPart]:
    """Mark records with a damaged queue offset as damage, and join adjacent damage."""
    found: list[LogPart] = []
    for index, part in enumerate(parts):
        after = parts[index + 1] if index + 1 < len(parts) else None
        if isinstance(part, SoundRun) and _has_wrong_number(driver, facts, found, part, after):
            part = Damage(part.start, part.stop)
        last = found[-1] if found else None
        if isinstance(part, Damage) and isinstance(last, Damage) and last.stop == part.start:
            found[-1] = Damage(last.start, part.stop, last.is_hole and part.is_hole)
        else:
            found.append(part)
    return found


def _has_wrong_number(
    driver: TierDriver, facts: QueueFacts, before: Sequence[LogPart], run: SoundRun, after: LogPart | None
) -> bool:
    """Only a single record out of order is suspect: two consecutive ones are a repeated upload."""
    if len(run.units) != UNIT_BYTES:
        return False
    last = before[-1] if before else None
    if isinstance(last, SoundRun):
        expected = last.next_offset
    elif isinstance(after, SoundRun):
        expected = after.queue_offset - 1
    else:
        return False
    if expected == run.queue_offset or expected < 0:
        return False
    unit = facts.queue(driver).unit(expected)
    return unit is not None and unit.packed()[:12] == run.units[:12]
