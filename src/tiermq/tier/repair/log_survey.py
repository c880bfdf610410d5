"""A queue's commit log, walked, and doubted where witnesses speak against it.

No checksum of a record covers its number and its properties. Two witnesses do: its unit, and the checksum that the
manifest has of the segment.

* A record out of order, to which a unit of the right number leads, has a damaged number: it is damage, not a message.
* Of a segment that has another checksum than when it was written, the records are not believed against their units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.errors import CorruptSegment, IllegalRange, SegmentMissing
from tiermq.message.crc import crc32
from tiermq.tier.checked_segment import known_checksums
from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.repair.queue_facts import QueueFacts
from tiermq.tier.repair.record_walk import Damage, SoundRun, Stretch, walk_log

READ_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LogSurvey:
    """The log in stretches, in order, and the bases of the segments whose checksums speak against them."""

    stretches: tuple[Stretch, ...]
    doubted: frozenset[int]
    logs: tuple[SegmentInfo, ...]

    @property
    def sound(self) -> list[SoundRun]:
        return [stretch for stretch in self.stretches if isinstance(stretch, SoundRun)]

    @property
    def damages(self) -> list[Damage]:
        return [stretch for stretch in self.stretches if isinstance(stretch, Damage)]

    def is_doubted(self, place: int) -> bool:
        return any(info.key.base in self.doubted and 0 <= place - info.key.base < info.size for info in self.logs)


def survey_log(driver: TierDriver, facts: QueueFacts) -> LogSurvey:
    """Read all of the log. Raises what the driver raises when the tier is away."""
    stretches = _settled(driver, facts, list(walk_log(driver, facts.key, facts.logs)))
    doubted = frozenset(info.key.base for info in facts.logs if not has_known_checksum(driver, facts, info))
    return LogSurvey(tuple(stretches), doubted, facts.logs)


def has_known_checksum(driver: TierDriver, facts: QueueFacts, info: SegmentInfo) -> bool:
    """Whether a segment's bytes are those that somebody has summed up; true when nobody has."""
    crc = position = 0
    for size, expected in sorted(
        known_checksums((row for row in facts.rows if row.key == info.key), info.size).items()
    ):
        while position < size:
            length = min(READ_BYTES, size - position)
            try:
                crc = crc32(driver.read(info.key, position, length), crc)
            except (SegmentMissing, IllegalRange, CorruptSegment):
                return False
            position += length
        if crc != expected:
            return False
    return True


def _settled(driver: TierDriver, facts: QueueFacts, stretches: Sequence[Stretch]) -> list[Stretch]:
    """Turn records whose number is damaged into damage, and join what touches."""
    found: list[Stretch] = []
    for index, stretch in enumerate(stretches):
        after = stretches[index + 1] if index + 1 < len(stretches) else None
        if isinstance(stretch, SoundRun) and _has_wrong_number(driver, facts, found, stretch, after):
            stretch = Damage(stretch.start, stretch.stop)
        last = found[-1] if found else None
        if isinstance(stretch, Damage) and isinstance(last, Damage) and last.stop == stretch.start:
            found[-1] = Damage(last.start, stretch.stop, last.is_hole and stretch.is_hole)
        else:
            found.append(stretch)
    return found


def _has_wrong_number(
    driver: TierDriver, facts: QueueFacts, before: Sequence[Stretch], run: SoundRun, after: Stretch | None
) -> bool:
    """Only a record by itself is doubted: two in a row that count on are a repeated upload."""
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
    unit = stored_unit(driver, facts, expected)
    return unit is not None and unit[:12] == run.units[:12]


def stored_unit(driver: TierDriver, facts: QueueFacts, queue_offset: int) -> bytes | None:
    """The unit that is stored for a number, whatever it says."""
    for info in facts.units:
        position = queue_offset * UNIT_BYTES - info.key.base
        if 0 <= position <= info.size - UNIT_BYTES:
            try:
                return bytes(driver.read(info.key, position, UNIT_BYTES))
            except (SegmentMissing, IllegalRange, CorruptSegment):
                return None
    return None
