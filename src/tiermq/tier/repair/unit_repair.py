"""A consume queue made anew from its commit log, segment by segment, where it differs.

    the log has the message               its unit, from the record itself
    a unit leads to another copy of it    kept: a repeated upload has two, and somebody has chosen
    only the tag differs, and the log     kept: the unit is the better witness
      does not have its checksum
    the log has lost it, a unit is left   kept: it says what is missing, and where
    neither                               a blank unit, and a gap in the manifest

Memory: forty bytes for each message of the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tiermq.consumequeue.unit import PRE_BLANK, PRE_BLANK_SIZE, UNIT, UNIT_BYTES
from tiermq.errors import CorruptSegment, IllegalRange, SegmentMissing
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.metadata.metadata_values import Segment, SegmentStatus
from tiermq.tier.metadata.record_peek import UnitPlace, peek_store_ms
from tiermq.tier.metadata.unit_walk import runs
from tiermq.tier.names import SegmentType
from tiermq.tier.repair.log_survey import LogSurvey, survey_log
from tiermq.tier.repair.queue_facts import QueueFacts
from tiermq.tier.repair.record_walk import Damage

SEGMENT_BYTES_MAX = 104_857_600
READ_BYTES = 8 * 1024 * 1024


@dataclass(slots=True)
class RebuiltUnits:
    """Units from `begin` on, as they should be; which of them could not be told; what the log does not have."""

    begin: int
    data: bytearray
    blanked: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.begin + len(self.data) // UNIT_BYTES


def rebuild_units(driver: TierDriver, facts: QueueFacts) -> RebuiltUnits | None:
    """The units that the queue should have; None when there is neither log nor units."""
    survey = survey_log(driver, facts)
    sound = survey.sound
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
    _settle(driver, facts, made, old, survey)
    return made


def _settle(driver: TierDriver, facts: QueueFacts, made: RebuiltUnits, old: bytearray, survey: LogSurvey) -> None:
    """Decide wherever the log and the old units differ."""
    nothing = bytes(UNIT_BYTES)
    log_begin = facts.logs[0].key.base if facts.logs else 0
    for at in range(0, len(made.data), UNIT_BYTES):
        derived, stored = bytes(made.data[at : at + UNIT_BYTES]), bytes(old[at : at + UNIT_BYTES])
        if derived == stored != nothing:
            continue
        queue_offset = made.begin + at // UNIT_BYTES
        place, size, _ = UNIT.unpack(stored)
        if derived != nothing:
            is_elsewhere = stored != nothing and place != UNIT.unpack(derived)[0]
            is_witness = stored[:12] == derived[:12] and survey.is_doubted(place)
            if is_witness or (is_elsewhere and _leads(driver, facts, queue_offset, stored)):
                made.data[at : at + UNIT_BYTES] = stored
            continue
        is_blank = size == PRE_BLANK_SIZE and place == 0
        is_expired = stored != nothing and 0 < size < PRE_BLANK_SIZE and 0 <= place < log_begin
        if is_blank or is_expired:
            made.data[at : at + UNIT_BYTES] = stored
        elif stored != nothing and size > 0 and _is_lost(place, size, facts, survey.damages):
            made.lost.append(queue_offset)
            made.data[at : at + UNIT_BYTES] = stored
        else:
            made.blanked.append(queue_offset)
            made.data[at : at + UNIT_BYTES] = PRE_BLANK


def _is_lost(place: int, size: int, facts: QueueFacts, damages: Sequence[Damage]) -> bool:
    """Whether a unit leads to where the log has lost something."""
    end = facts.logs[-1].key.base + facts.logs[-1].size if facts.logs else 0
    return place + size > end or any(damage.start <= place < damage.stop for damage in damages)


def _leads(driver: TierDriver, facts: QueueFacts, queue_offset: int, unit: bytes) -> bool:
    place, size, _ = UNIT.unpack(unit)
    info = next((i for i in facts.logs if i.key.base <= place < place + size <= i.key.base + i.size), None)
    if info is None:
        return False
    try:
        peek_store_ms(driver, Segment(info.key, info.size), UnitPlace(queue_offset, place, size))
    except (SegmentMissing, IllegalRange, CorruptSegment):
        return False
    return True


def _stored_units(driver: TierDriver, facts: QueueFacts, begin: int, end: int) -> bytearray:
    """The units that are there, each at its place; zeros where there are none, or none that can be read."""
    old = bytearray((end - begin) * UNIT_BYTES)
    for info in facts.units:
        if info.key.base % UNIT_BYTES:
            continue
        whole = info.size // UNIT_BYTES * UNIT_BYTES
        for position in range(0, whole, READ_BYTES // UNIT_BYTES * UNIT_BYTES):
            length = min(READ_BYTES // UNIT_BYTES * UNIT_BYTES, whole - position)
            try:
                data = driver.read(info.key, position, length)
            except (SegmentMissing, IllegalRange, CorruptSegment):
                continue
            at = info.key.base + position - begin * UNIT_BYTES
            old[at : at + length] = data
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
        except (SegmentMissing, IllegalRange, CorruptSegment):
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
    kept = []
    for base, data in changed:
        key = facts.key.segment(SegmentType.CONSUME_QUEUE, base)
        path = driver.replace(key, [data], aside)
        kept += [path] if path else []
        row = rows.get(base)
        if row is not None and row.status is SegmentStatus.SEALED and not driver.is_sealed(key):
            driver.seal(key)
    return kept


def describe_offsets(offsets: Sequence[int]) -> str:
    return ", ".join(f"{first} to {behind}" for first, behind in runs(offsets))
