"""Records that the tier has lost and a local store still has, brought back to where they were.

The walk over the log finds log offsets without sound records; the queue offsets of the records around them identify the
lost messages. A local store supplies these messages, rebased to that offset; they are used only if they fill the range
to the byte, so that nothing behind it moves. Where a log ends too early, units and rows have its end.
Bytes between two sound records that no message is missing from (a repeated upload) are left alone.

A consume queue is rebuilt from its commit log, segment by segment, where it differs.

    the log has the message               its unit, from the record
    a unit leads to another copy of it    kept: a repeated upload has two
    only the tag differs, and the log     kept: the unit is more reliable
      does not have its checksum
    the log has lost it, a unit is left   kept: it locates the missing record
    neither                               a blank unit, and a gap in the manifest

Memory: forty bytes for each message of the queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tiermq.consumequeue.unit import PRE_BLANK, UNIT_BYTES
from tiermq.tier.driver.contract import Buffer, SegmentInfo, TierDriver
from tiermq.tier.metadata.metadata_values import Segment, SegmentStatus
from tiermq.tier.names import SegmentKey, SegmentType
from tiermq.tier.queue.segments import UNREADABLE, SegmentList, end_of
from tiermq.tier.queue.tier_queue import TierQueue
from tiermq.tier.queue.units import RUN_BYTES, iter_units, log_offset_at, offset_runs, unit_at
from tiermq.tier.repair.queue_facts import Damage, LogScan, QueueFacts, SoundRun, scan_log

BATCH_COUNT, BATCH_BYTES = 4_096, 4 * 1024 * 1024


class CollectedRun(Protocol):
    """What a source gives: records, rebased, and their units (see `kernel.Collected`)."""

    data: bytes
    units: bytes
    count: int


class RecordSource(Protocol):
    """A local store, open or only read: `LocalStore` and `ReadOnlyStore` are both one."""

    def collect_for_tier(
        self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int, tier_offset: int
    ) -> CollectedRun:
        """Records of a queue from `offset` on, rebased to `tier_offset`; none when they are not there."""
        ...


@dataclass(frozen=True, slots=True)
class Lost:
    """Messages [from_offset, to_offset) that should be in [start, stop) of the log; a stop of -1: not known."""

    start: int
    stop: int
    from_offset: int
    to_offset: int


@dataclass(frozen=True, slots=True)
class Patch:
    """Lost messages and the source that has them."""

    lost: Lost
    stop: int
    source: RecordSource
    topic: str
    queue_id: int

    def pieces(self) -> Iterator[bytes]:
        """The records, some at a time: they are read again each time, and nothing large is kept."""
        yield from _collect(self.source, self.topic, self.queue_id, self.lost)


def find_lost(
    driver: TierDriver, facts: QueueFacts, scan: LogScan, sources: Sequence[RecordSource] = ()
) -> tuple[list[Lost], list[str]]:
    """The messages that the log has lost, and what of it cannot even be named."""
    lost: list[Lost] = []
    unknown: list[str] = []
    before: SoundRun | None = None
    damages: list[Damage] = []
    for part in scan.parts:
        if isinstance(part, Damage):
            damages.append(part)
            continue
        if damages:
            _name(driver, facts, damages, before, part.queue_offset, lost, unknown)
            damages = []
        if scan.is_doubted(part.start):
            lost += _differing(driver, facts, part, sources)
        before = part
    _name_tail(driver, facts, damages, before, lost, unknown)
    unknown += _unexplained(scan, lost, sources)
    return lost, unknown


def _differing(driver: TierDriver, facts: QueueFacts, run: SoundRun, sources: Sequence[RecordSource]) -> Iterator[Lost]:
    """Records that pass for sound, in a segment with another checksum, and are not those of a local store."""
    queue = facts.queue(driver)
    for offset, log_offset, size, _ in iter_units(run.units, run.queue_offset):
        stored = queue.read_records(log_offset, size)
        for source in sources:
            found = source.collect_for_tier(facts.key.topic, facts.key.queue_id, offset, 1, size, log_offset)
            if found.count == 1 and len(found.data) == size:
                if found.data != stored:
                    yield Lost(log_offset, log_offset + size, offset, offset + 1)
                break


def _unexplained(scan: LogScan, lost: Sequence[Lost], sources: Sequence[RecordSource]) -> Iterator[str]:
    """Segments that changed in bytes that no checksum of a record covers, at an unknown position."""
    for info in scan.logs:
        base, end = info.key.base, info.key.base + info.size
        if base in scan.doubted and not any(base <= each.start < end for each in lost):
            why = "is not in the local store" if sources else "is unknown without a local store"
            yield f"{info.key.path}: it has lost bytes that no record's own checksum covers, and what they were {why}"


def _name(
    driver: TierDriver,
    facts: QueueFacts,
    damages: Sequence[Damage],
    before: SoundRun | None,
    next_offset: int,
    lost: list[Lost],
    unknown: list[str],
) -> None:
    """Damage before a sound record: the messages between those around it."""
    start, stop = damages[0].start, damages[-1].stop
    first = before.next_offset if before is not None else _queue_offset_at(driver, facts, start, next_offset)
    if first is None:
        unknown.append(f"log offsets {start} to {stop}: the first lost message is unknown")
    elif first < next_offset:
        lost.append(Lost(start, stop, first, next_offset))


def _name_tail(
    driver: TierDriver,
    facts: QueueFacts,
    damages: Sequence[Damage],
    before: SoundRun | None,
    lost: list[Lost],
    unknown: list[str],
) -> None:
    """Behind the last sound record: what units still know of. Without units it is a torn end, which a writer cuts."""
    log_end = SegmentList(facts.logs).end
    start = damages[0].start if damages else log_end
    if not facts.logs:
        rows = facts.rows_of(SegmentType.COMMIT_LOG)
        start = rows[0].key.base if rows else 0
    units_end = _units_end(facts)
    first = before.next_offset if before is not None else _queue_offset_at(driver, facts, start, units_end)
    if first is None and units_end:
        unknown.append(f"log offsets from {start} on: the first lost message is unknown")
    elif first is not None and first < units_end:
        rows_end = max((row.end for row in facts.rows_of(SegmentType.COMMIT_LOG)), default=-1)
        lost.append(Lost(start, rows_end if rows_end > start else -1, first, units_end))


def _units_end(facts: QueueFacts) -> int:
    known = [end_of(info) for info in facts.units]
    known += [row.end for row in facts.rows_of(SegmentType.CONSUME_QUEUE)]
    return max(known, default=0) // UNIT_BYTES


def _queue_offset_at(driver: TierDriver, facts: QueueFacts, log_offset: int, before: int) -> int | None:
    """The number of the message at a log offset: from a row that begins there, else from the units."""
    for row in facts.rows_of(SegmentType.COMMIT_LOG):
        if row.key.base == log_offset and row.begin_offset >= 0:
            return row.begin_offset
    chunks = facts.queue(driver).unit_chunks(None, before, skip=lambda _error: None)
    found = (unit for first, data in chunks for unit in iter_units(data, first))
    return next((u.queue_offset for u in found if u.log_offset == log_offset and not u.is_blank), None)


def find_patches(
    facts: QueueFacts, lost: Sequence[Lost], sources: Sequence[RecordSource]
) -> tuple[list[Patch], list[str]]:
    """The patches that local stores can give, and the reason for each that they cannot."""
    patches, failed = [], []
    for each in lost:
        reasons = []
        for source in sources:
            stop, reason = _fits(source, facts, each)
            if reason is None:
                patches.append(Patch(each, stop, source, facts.key.topic, facts.key.queue_id))
                break
            reasons.append(reason)
        else:
            why = "; ".join(reasons) or "no local store was given"
            failed.append(f"messages {each.from_offset} to {each.to_offset} at log offset {each.start} are lost: {why}")
    return patches, failed


def _fits(source: RecordSource, facts: QueueFacts, lost: Lost) -> tuple[int, str | None]:
    """Where the records would end, and why they cannot be taken, if so."""
    size = sum(len(data) for data in _collect(source, facts.key.topic, facts.key.queue_id, lost))
    count = sum(1 for _ in _records_of(source, facts, lost))
    wanted = lost.to_offset - lost.from_offset
    if count < wanted:
        return 0, f"the local store has {count} of these {wanted} messages"
    if lost.stop >= 0 and lost.start + size != lost.stop:
        return 0, f"the local store has {size} bytes of them, the tier had {lost.stop - lost.start}"
    return lost.start + size, None


def _records_of(source: RecordSource, facts: QueueFacts, lost: Lost) -> Iterator[int]:
    offset = lost.from_offset
    while offset < lost.to_offset:
        found = source.collect_for_tier(
            facts.key.topic, facts.key.queue_id, offset, min(BATCH_COUNT, lost.to_offset - offset), BATCH_BYTES, 0
        )
        if found.count == 0:
            return
        yield from range(offset, offset + found.count)
        offset += found.count


def _collect(source: RecordSource, topic: str, queue_id: int, lost: Lost) -> Iterator[bytes]:
    offset, log_offset = lost.from_offset, lost.start
    while offset < lost.to_offset:
        count = min(BATCH_COUNT, lost.to_offset - offset)
        found = source.collect_for_tier(topic, queue_id, offset, count, BATCH_BYTES, log_offset)
        if found.count == 0:
            return
        yield found.data
        offset, log_offset = offset + found.count, log_offset + len(found.data)


class PatchedSegment:
    """A segment's new bytes: the old ones, with patches laid over them. May be gone through again and again."""

    def __init__(self, driver: TierDriver, key: SegmentKey, old: SegmentInfo | None, patches: Sequence[Patch]) -> None:
        self._driver, self._key = driver, key
        self._patches = sorted(patches, key=lambda patch: patch.lost.start)
        self.end = key.base + (old.size if old else 0)

    def __iter__(self) -> Iterator[Buffer]:
        at = self._key.base
        for patch in self._patches:
            yield from self._old_bytes(at, patch.lost.start)
            yield from patch.pieces()
            at = patch.stop
        yield from self._old_bytes(at, self.end)

    def _old_bytes(self, start: int, stop: int) -> Iterator[Buffer]:
        for at in range(start, stop, RUN_BYTES):
            yield self._driver.read(self._key, at - self._key.base, min(RUN_BYTES, stop - at))


def apply_patches(
    driver: TierDriver, facts: QueueFacts, patches: Sequence[Patch], aside: str
) -> tuple[list[str], list[str]]:
    """Put each patch into the segment where its bytes belong: (changes, what was kept aside)."""
    changes, kept = [], []
    infos = {info.key.base: info for info in facts.logs}
    rows = {row.key.base: row for row in facts.rows_of(SegmentType.COMMIT_LOG)}
    by_base: dict[int, list[Patch]] = {}
    for patch in patches:
        for piece in _cut_at_bases(patch, facts):
            by_base.setdefault(_owner(piece.lost.start, infos, rows), []).append(piece)
    for base, pieces in sorted(by_base.items()):
        key = facts.key.segment(SegmentType.COMMIT_LOG, base)
        patched, old_size = PatchedSegment(driver, key, infos.get(base), pieces), _size_of(infos.get(base))
        aside_path = driver.replace(key, patched, aside, old_size=old_size)
        row = rows.get(base)
        if row is not None and row.status is SegmentStatus.SEALED and not driver.is_sealed(key):
            driver.seal(key)
        kept += [aside_path] if aside_path else []
        changes += [f"{key.path}: {describe(piece.lost)}" for piece in pieces]
    return changes, kept


def describe(lost: Lost) -> str:
    return f"messages {lost.from_offset} to {lost.to_offset} at log offset {lost.start}, from a local store"


def _owner(at: int, infos: dict[int, SegmentInfo], rows: dict[int, Segment]) -> int:
    """The base of the segment of a log offset; the offset when none is known."""
    for base in sorted(infos.keys() | rows.keys(), reverse=True):
        size = max(infos[base].size if base in infos else 0, rows[base].size if base in rows else 0)
        if base <= at < base + size:
            return base
    # Directly behind an open segment its bytes continue; otherwise a new one begins.
    return next((base for base, info in infos.items() if base + info.size == at and not info.sealed), at)


def _cut_at_bases(patch: Patch, facts: QueueFacts) -> Iterator[Patch]:
    """A patch that covers several segments, cut where they begin: records never span two."""
    bases = {row.key.base for row in facts.rows_of(SegmentType.COMMIT_LOG)} | {info.key.base for info in facts.logs}
    inside = sorted(base for base in bases if patch.lost.start < base < patch.stop)
    start, first = patch.lost.start, patch.lost.from_offset
    log_offset, offset = start, first
    for record in _sizes(patch) if inside else ():
        if log_offset in inside and log_offset > start:
            yield _piece(patch, start, log_offset, first, offset)
            start, first = log_offset, offset
        log_offset, offset = log_offset + record, offset + 1
    yield _piece(patch, start, patch.stop, first, patch.lost.to_offset)


def _sizes(patch: Patch) -> Iterator[int]:
    lost, offset = patch.lost, patch.lost.from_offset
    while offset < lost.to_offset:
        found = patch.source.collect_for_tier(
            patch.topic, patch.queue_id, offset, min(BATCH_COUNT, lost.to_offset - offset), BATCH_BYTES, 0
        )
        if found.count == 0:
            return
        yield from (unit.size for unit in iter_units(found.units))
        offset += found.count


def _piece(patch: Patch, start: int, stop: int, first: int, behind: int) -> Patch:
    return Patch(Lost(start, stop, first, behind), stop, patch.source, patch.topic, patch.queue_id)


SEGMENT_BYTES_MAX = 104_857_600


@dataclass(slots=True)
class RebuiltUnits:
    """Units from `begin` on, as they should be; which are unknown; which records the log lacks."""

    begin: int
    data: bytearray
    blanked: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.begin + len(self.data) // UNIT_BYTES


def rebuild_units(driver: TierDriver, facts: QueueFacts) -> RebuiltUnits | None:
    """The units that the queue should have; None when there is neither log nor units."""
    scan = scan_log(driver, facts)
    sound = scan.sound
    offsets = [info.key.base // UNIT_BYTES for info in facts.units] + [run.queue_offset for run in sound]
    offsets += [row.key.base // UNIT_BYTES for row in facts.rows_of(SegmentType.CONSUME_QUEUE)]
    if not offsets:
        return None
    begin = min(offsets)
    end = max(
        [run.next_offset for run in sound]
        + [(info.key.base + info.size) // UNIT_BYTES for info in facts.units if info.size >= UNIT_BYTES],
        default=begin,
    )
    old = _stored_units(driver, facts, begin, end)
    made = RebuiltUnits(begin, bytearray((end - begin) * UNIT_BYTES))
    for run in sound:
        at = (run.queue_offset - begin) * UNIT_BYTES
        made.data[at : at + len(run.units)] = run.units
    _settle(driver, facts, made, old, scan)
    return made


def _settle(driver: TierDriver, facts: QueueFacts, made: RebuiltUnits, old: bytearray, scan: LogScan) -> None:
    """Decide wherever the log and the old units differ."""
    nothing = bytes(UNIT_BYTES)
    queue = facts.queue(driver)
    log_begin = facts.logs[0].key.base if facts.logs else 0
    for at in range(0, len(made.data), UNIT_BYTES):
        derived, stored = bytes(made.data[at : at + UNIT_BYTES]), bytes(old[at : at + UNIT_BYTES])
        if derived == stored != nothing:
            continue
        queue_offset = made.begin + at // UNIT_BYTES
        unit = unit_at(stored, 0, queue_offset)
        _, log_offset, size, _ = unit
        if derived != nothing:
            is_elsewhere = stored != nothing and log_offset != log_offset_at(derived, 0)
            is_witness = stored[:12] == derived[:12] and scan.is_doubted(log_offset)
            if is_witness or (is_elsewhere and queue.leads(unit)):
                made.data[at : at + UNIT_BYTES] = stored
            continue
        if unit.is_blank or (unit.is_sound and log_offset < log_begin):  # The second has expired.
            made.data[at : at + UNIT_BYTES] = stored
        elif stored != nothing and size > 0 and _is_lost(log_offset, size, facts, scan.damages):
            made.lost.append(queue_offset)
            made.data[at : at + UNIT_BYTES] = stored
        else:
            made.blanked.append(queue_offset)
            made.data[at : at + UNIT_BYTES] = PRE_BLANK


def _is_lost(log_offset: int, size: int, facts: QueueFacts, damages: Sequence[Damage]) -> bool:
    """Whether a unit leads to where the log has lost something."""
    return log_offset + size > SegmentList(facts.logs).end or any(
        damage.start <= log_offset < damage.stop for damage in damages
    )


def _stored_units(driver: TierDriver, facts: QueueFacts, begin: int, end: int) -> bytearray:
    """The units that are there, each at its place; zeros where there are none, or none that can be read."""
    old = bytearray((end - begin) * UNIT_BYTES)
    aligned = [info for info in facts.units if info.key.base % UNIT_BYTES == 0]
    for first, data in TierQueue(driver, facts.key, (), aligned).unit_chunks(skip=lambda _error: None):
        at = (first - begin) * UNIT_BYTES
        old[at : at + len(data)] = data
    return old


def changed_segments(driver: TierDriver, facts: QueueFacts, made: RebuiltUnits) -> list[tuple[int, bytes]]:
    """(base, new bytes) of each segment that is not there, or has other bytes than it should have."""
    found = []
    infos = {info.key.base: info for info in facts.units if info.key.base % UNIT_BYTES == 0}
    known = sorted(infos.keys() | {row.key.base for row in facts.rows_of(SegmentType.CONSUME_QUEUE)})
    bases = [base for base in known if base < made.end * UNIT_BYTES]
    if not bases or bases[0] > made.begin * UNIT_BYTES:
        bases.insert(0, made.begin * UNIT_BYTES)
    bases = sorted(
        {cut for base, stop in _spans(bases, made) for cut in range(base, stop, SEGMENT_BYTES_MAX)} | {*bases}
    )
    for base, stop in _spans(bases, made):
        wanted = bytes(made.data[base - made.begin * UNIT_BYTES : stop - made.begin * UNIT_BYTES])
        info = infos.get(base)
        try:
            stored = bytes(driver.read(info.key, 0, info.size)) if info is not None and info.size else b""
        except UNREADABLE:
            stored = b""
        if wanted and stored != wanted:
            found.append((base, wanted))
    return found


def _spans(bases: Sequence[int], made: RebuiltUnits) -> list[tuple[int, int]]:
    return list(zip(bases, [*bases[1:], made.end * UNIT_BYTES], strict=True))


def write_segments(
    driver: TierDriver, facts: QueueFacts, changed: Sequence[tuple[int, bytes]], aside: str
) -> list[str]:
    """Replace the segments; what was kept aside of them."""
    rows = {row.key.base: row for row in facts.rows_of(SegmentType.CONSUME_QUEUE)}
    infos = {info.key.base: info for info in facts.units}
    kept = []
    for base, data in changed:
        key = facts.key.segment(SegmentType.CONSUME_QUEUE, base)
        path = driver.replace(key, [data], aside, old_size=_size_of(infos.get(base)))
        kept += [path] if path else []
        row = rows.get(base)
        if row is not None and row.status is SegmentStatus.SEALED and not driver.is_sealed(key):
            driver.seal(key)
    return kept


def _size_of(info: SegmentInfo | None) -> int:
    return 0 if info is None else info.size


def describe_offsets(offsets: Sequence[int]) -> str:
    return ", ".join(f"{first} to {behind}" for first, behind in offset_runs(offsets))
