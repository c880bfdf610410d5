"""The append rule: what a write at a position means for a segment that ends somewhere. Pure; every driver asks it."""

from __future__ import annotations

from collections.abc import Callable

from tiermq.errors import IllegalRange, SegmentConflict, SegmentSealed
from tiermq.tier.driver.contract import Buffer
from tiermq.tier.names import SegmentKey


def missing_suffix(
    key: SegmentKey, position: int, data: bytes, end: int, read: Callable[[int, int], Buffer]
) -> memoryview:
    """What of `data` is not stored yet and belongs at `end`; empty when all of it is there already.

    `read(position, length)` gives stored bytes; it is only asked for what lies below `end`.
    """
    if position < 0:
        raise IllegalRange(f"{key}: expected a position >= 0, found {position}")
    if position > end:
        raise IllegalRange(
            f"{key}: expected a write at its end {end}, found position {position}. "
            "Bytes in between are missing: ask for the size and send from there."
        )
    overlap = min(end - position, len(data))
    if overlap and memoryview(read(position, overlap)) != memoryview(data)[:overlap]:
        raise conflict(key, position)
    return memoryview(data)[overlap:]


def conflict(key: SegmentKey, position: int) -> SegmentConflict:
    return SegmentConflict(
        f"{key}: expected nothing or the same bytes at position {position}, found other bytes. "
        "Another writer owns this segment: check the epoch in its manifest before writing on."
    )


def sealed(key: SegmentKey) -> SegmentSealed:
    return SegmentSealed(f"{key}: expected an open segment, found a sealed one. Roll, and write to the next segment.")
