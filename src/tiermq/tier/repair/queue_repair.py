"""Records that the tier has lost and a local store still has, brought back to where they were.

The walk over the log says which log offsets hold no sound records, and the numbers of the records around them say which
messages were there. A local store gives these messages, rebased to that place; they are taken only if they fill it to
the byte, so that nothing behind it moves. Where a log ends too early, units and rows say how far it should reach.
Bytes between two sound records that no message is missing from (a repeated upload) are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tiermq.consumequeue.unit import PRE_BLANK_SIZE, UNIT, UNIT_BYTES
from tiermq.errors import CorruptSegment, IllegalRange, SegmentMissing
from tiermq.tier.driver.contract import Buffer, SegmentInfo, TierDriver
from tiermq.tier.metadata.metadata_values import Segment, SegmentStatus
from tiermq.tier.names import SegmentKey, SegmentType
from tiermq.tier.repair.log_survey import LogSurvey
from tiermq.tier.repair.queue_facts import QueueFacts
from tiermq.tier.repair.record_walk import Damage, SoundRun

BATCH_COUNT, BATCH_BYTES = 4_096, 4 * 1024 * 1024
READ_BYTES = 8 * 1024 * 1024


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
    """Messages [from_offset, to_offset) that should lie in [start, stop) of the log; a stop of -1: not known."""

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
    driver: TierDriver, facts: QueueFacts, survey: LogSurvey, sources: Sequence[RecordSource] = ()
) -> tuple[list[Lost], list[str]]:
    """The messages that the log has lost, and what of it cannot even be named."""
    lost: list[Lost] = []
    unknown: list[str] = []
    before: SoundRun | None = None
    damages: list[Damage] = []
    for stretch in survey.stretches:
        if isinstance(stretch, Damage):
            damages.append(stretch)
            continue
        if damages:
            _name(driver, facts, damages, before, stretch.queue_offset, lost, unknown)
            damages = []
        if survey.is_doubted(stretch.start):
            lost += _differing(driver, facts, stretch, sources)
        before = stretch
    _name_tail(driver, facts, damages, before, lost, unknown)
    unknown += _unexplained(survey, lost, sources)
    return lost, unknown


def _differing(driver: TierDriver, facts: QueueFacts, run: SoundRun, sources: Sequence[RecordSource]) -> Iterator[Lost]:
    """Records that pass for sound, in a segment with another checksum, and are not those of a local store."""
    for number, (place, size, _) in enumerate(UNIT.iter_unpack(run.units)):
        offset = run.queue_offset + number
        info = next(i for i in facts.logs if i.key.base <= place < i.key.base + i.size)
        stored = driver.read(info.key, place - info.key.base, size)
        for source in sources:
            found = source.collect_for_tier(facts.key.topic, facts.key.queue_id, offset, 1, size, place)
            if found.count == 1 and len(found.data) == size:
                if found.data != stored:
                    yield Lost(place, place + size, offset, offset + 1)
                break


def _unexplained(survey: LogSurvey, lost: Sequence[Lost], sources: Sequence[RecordSource]) -> Iterator[str]:
    """Segments that were changed where no checksum of a record looks, and nothing says where."""
    for info in survey.logs:
        base, end = info.key.base, info.key.base + info.size
        if base in survey.doubted and not any(base <= each.start < end for each in lost):
            why = "is not in the local store" if sources else "cannot be told without a local store"
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
    first = before.next_offset if before is not None else _offset_of_place(driver, facts, start, next_offset)
    if first is None:
        unknown.append(f"log offsets {start} to {stop}: nothing says which message was the first of them")
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
    log_end = facts.logs[-1].key.base + facts.logs[-1].size if facts.logs else 0
    start = damages[0].start if damages else log_end
    if not facts.logs:
        rows = facts.rows_of(SegmentType.COMMIT_LOG)
        start = rows[0].key.base if rows else 0
    units_end = _units_end(facts)
    first = before.next_offset if before is not None else _offset_of_place(driver, facts, start, units_end)
    if first is None and units_end:
        unknown.append(f"log offsets from {start} on: nothing says which message was the first of them")
    elif first is not None and first < units_end:
        rows_end = max((row.end for row in facts.rows_of(SegmentType.COMMIT_LOG)), default=-1)
        lost.append(Lost(start, rows_end if rows_end > start else -1, first, units_end))


def _units_end(facts: QueueFacts) -> int:
    known = [info.key.base + info.size for info in facts.units]
    known += [row.end for row in facts.rows_of(SegmentType.CONSUME_QUEUE)]
    return max(known, default=0) // UNIT_BYTES


def _offset_of_place(driver: TierDriver, facts: QueueFacts, place: int, before: int) -> int | None:
    """The number of the message at a log offset: from a row that begins there, else from the units."""
    for row in facts.rows_of(SegmentType.COMMIT_LOG):
        if row.key.base == place and row.begin_offset >= 0:
            return row.begin_offset
    for info in reversed(facts.units):
        offset = info.key.base // UNIT_BYTES
        if offset >= before:
            continue
        try:
            data = driver.read(info.key, 0, info.size // UNIT_BYTES * UNIT_BYTES)
        except (SegmentMissing, IllegalRange, CorruptSegment):
            continue
        for number, (at, size, _) in enumerate(UNIT.iter_unpack(data)):
            if at == place and size != PRE_BLANK_SIZE:
                return offset + number
    return None


def find_patches(
    facts: QueueFacts, lost: Sequence[Lost], sources: Sequence[RecordSource]
) -> tuple[list[Patch], list[str]]:
    """The patches that local stores can give, and for each of the others why not."""
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
    offset, place = lost.from_offset, lost.start
    while offset < lost.to_offset:
        count = min(BATCH_COUNT, lost.to_offset - offset)
        found = source.collect_for_tier(topic, queue_id, offset, count, BATCH_BYTES, place)
        if found.count == 0:
            return
        yield found.data
        offset, place = offset + found.count, place + len(found.data)


class PatchedSegment:
    """A segment's new bytes: the old ones, with patches laid over them. May be gone through again and again."""

    def __init__(self, driver: TierDriver, key: SegmentKey, old: SegmentInfo | None, patches: Sequence[Patch]) -> None:
        self._driver, self._key, self._old = driver, key, old
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
        for at in range(start, stop, READ_BYTES):
            yield self._driver.read(self._key, at - self._key.base, min(READ_BYTES, stop - at))


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
        aside_path = driver.replace(key, PatchedSegment(driver, key, infos.get(base), pieces), aside)
        row = rows.get(base)
        if row is not None and row.status is SegmentStatus.SEALED and not driver.is_sealed(key):
            driver.seal(key)
        kept += [aside_path] if aside_path else []
        changes += [f"{key.path}: {describe(piece.lost)}" for piece in pieces]
    return changes, kept


def describe(lost: Lost) -> str:
    return f"messages {lost.from_offset} to {lost.to_offset} at log offset {lost.start}, from a local store"


def _owner(at: int, infos: dict[int, SegmentInfo], rows: dict[int, Segment]) -> int:
    """The base of the segment in which a log offset lies, or should lie; the offset itself when none is known."""
    for base in sorted(infos.keys() | rows.keys(), reverse=True):
        size = max(infos[base].size if base in infos else 0, rows[base].size if base in rows else 0)
        if base <= at < base + size:
            return base
    # Right behind an open segment its bytes go on; behind nothing a new one begins.
    return next((base for base, info in infos.items() if base + info.size == at and not info.sealed), at)


def _cut_at_bases(patch: Patch, facts: QueueFacts) -> Iterator[Patch]:
    """A patch that covers several segments, cut where they begin: records never span two."""
    bases = {row.key.base for row in facts.rows_of(SegmentType.COMMIT_LOG)} | {info.key.base for info in facts.logs}
    inside = sorted(base for base in bases if patch.lost.start < base < patch.stop)
    start, first = patch.lost.start, patch.lost.from_offset
    place, offset = start, first
    for record in _sizes(patch) if inside else ():
        if place in inside and place > start:
            yield _piece(patch, start, place, first, offset)
            start, first = place, offset
        place, offset = place + record, offset + 1
    yield _piece(patch, start, patch.stop, first, patch.lost.to_offset)


def _sizes(patch: Patch) -> Iterator[int]:
    lost, offset = patch.lost, patch.lost.from_offset
    while offset < lost.to_offset:
        found = patch.source.collect_for_tier(
            patch.topic, patch.queue_id, offset, min(BATCH_COUNT, lost.to_offset - offset), BATCH_BYTES, 0
        )
        if found.count == 0:
            return
        yield from (size for _, size, _ in UNIT.iter_unpack(found.units))
        offset += found.count


def _piece(patch: Patch, start: int, stop: int, first: int, behind: int) -> Patch:
    return Patch(Lost(start, stop, first, behind), stop, patch.source, patch.topic, patch.queue_id)
