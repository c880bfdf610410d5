"""The fixed part of one record, read from the tier without its body: is it the one that its unit promises, and when was
it stored? One request of at most 112 bytes, however large the message is.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiermq.errors import CorruptSegment
from tiermq.message.layout import (
    FIXED_PARTS,
    FIXED_SIZES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SHAPE_MASK,
    SHAPE_SHIFT,
    SIZE_AND_MAGIC,
    SYS_FLAG_LOW_BYTE_AT,
)
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.metadata.metadata_values import Segment

FIXED_BYTES_MAX = max(FIXED_SIZES)
CODA_BYTES = 16


@dataclass(frozen=True, slots=True)
class UnitPlace:
    """What a consume-queue unit says: this message is at that log offset and so long."""

    queue_offset: int
    log_offset: int
    size: int


def peek_store_ms(driver: TierDriver, segment: Segment, place: UnitPlace) -> int:
    """The store time of the record at `place`, which lies in `segment`.

    A unit may point at the end mark (CODA) of a sealed segment before the record; it is skipped. Raises CorruptSegment
    when the record is not the one of the unit.
    """
    position = place.log_offset - segment.key.base
    window = driver.read(segment.key, position, min(FIXED_BYTES_MAX + CODA_BYTES, segment.size - position))
    at = 0
    if len(window) >= SIZE_AND_MAGIC.size and SIZE_AND_MAGIC.unpack_from(window)[1] == MAGIC_BLANK:
        at = CODA_BYTES
    if len(window) - at < RECORD_BYTES_MIN:
        raise _corrupt(segment, place, f"only {len(window) - at} bytes")
    size, magic = SIZE_AND_MAGIC.unpack_from(window, at)
    shape = (window[at + SYS_FLAG_LOW_BYTE_AT] & SHAPE_MASK) >> SHAPE_SHIFT
    if magic not in (MAGIC_V1, MAGIC_V2) or size != place.size or len(window) - at < FIXED_SIZES[shape]:
        raise _corrupt(segment, place, f"magic {magic & 0xFFFFFFFF:#010x} and size {size}")
    fields = FIXED_PARTS[shape].unpack_from(window, at)
    queue_offset, log_offset, store_ms = fields[5], fields[6], fields[11]
    if queue_offset != place.queue_offset or log_offset != place.log_offset + at:
        raise _corrupt(segment, place, f"queue offset {queue_offset} and log offset {log_offset}")
    return int(store_ms)


def _corrupt(segment: Segment, place: UnitPlace, found: str) -> CorruptSegment:
    return CorruptSegment(
        f"{segment.key.path}: expected at {place.log_offset} the record of queue offset {place.queue_offset} with "
        f"{place.size} bytes, found {found}; verify the queue"
    )
