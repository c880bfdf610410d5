"""Where a long queue may be cut so that its pieces can be verified apart.

A cut is a unit: it, and the unit before it, must lead to records, in order, and its own record must be the one it
promises. Where that does not hold, there is no cut: what is damaged stays within one task, which sees all around it.
Units are in the order of the log, so the unit for a place in the log is found by halving; blank units are stepped over.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tiermq.consumequeue.unit import PRE_BLANK_SIZE, UNIT, UNIT_BYTES
from tiermq.errors import CorruptSegment, IllegalRange, SegmentMissing
from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.metadata.metadata_values import Segment
from tiermq.tier.metadata.record_peek import UnitPlace, peek_store_ms
from tiermq.tier.unit_cursor import UnitRow

TASK_BYTES = 256 * 1024 * 1024
PROBE_UNITS = 64
PROBE_UNITS_MAX = 65_536


def cuts_of(
    driver: TierDriver, logs: Sequence[SegmentInfo], units: Sequence[SegmentInfo], task_bytes: int = TASK_BYTES
) -> list[UnitRow]:
    """The units at which new tasks begin, in order; none when the queue is short, or not whole."""
    if not logs or not units or not _is_whole(logs) or not _is_whole(units):
        return []
    if any(info.key.base % UNIT_BYTES for info in units):
        return []
    begin, end = logs[0].key.base, logs[-1].key.base + logs[-1].size
    cuts: list[UnitRow] = []
    for target in range(begin + task_bytes, end - task_bytes // 4, task_bytes):
        found = _cut_at(driver, logs, units, target)
        if found is not None and found.place > (cuts[-1].place if cuts else begin):
            cuts.append(found)
    return cuts


def _is_whole(infos: Sequence[SegmentInfo]) -> bool:
    in_row = all(before.key.base + before.size == after.key.base for before, after in pairwise(infos))
    return in_row and all(info.damage is None for info in infos)


def _cut_at(
    driver: TierDriver, logs: Sequence[SegmentInfo], units: Sequence[SegmentInfo], target: int
) -> UnitRow | None:
    """The first unit whose record begins at `target` or behind; None when it may not be cut there."""
    low = units[0].key.base // UNIT_BYTES
    high = (units[-1].key.base + units[-1].size) // UNIT_BYTES
    while low < high:
        middle = (low + high) // 2
        unit = _first_unit(driver, units, middle, high)
        if unit is None or unit.place >= target:
            high = middle
        else:
            low = unit.queue_offset + 1
    before, unit = _first_unit(driver, units, low - 1, low), _first_unit(driver, units, low, low + 1)
    if before is None or unit is None or not before.end <= unit.place:
        return None
    return unit if _is_true(driver, logs, before) and _is_true(driver, logs, unit) else None


def _first_unit(driver: TierDriver, units: Sequence[SegmentInfo], offset: int, behind: int) -> UnitRow | None:
    """The first unit in [offset, behind) that is not blank. Reads a few, and more and more while all are blank."""
    wanted = PROBE_UNITS
    while offset < behind:
        info = next((i for i in units if 0 <= offset * UNIT_BYTES - i.key.base <= i.size - UNIT_BYTES), None)
        if info is None:
            return None
        position = offset * UNIT_BYTES - info.key.base
        count = min(wanted, behind - offset, (info.size - position) // UNIT_BYTES)
        try:
            data = driver.read(info.key, position, count * UNIT_BYTES)
        except (SegmentMissing, IllegalRange, CorruptSegment):
            return None
        for number, (place, size, code) in enumerate(UNIT.iter_unpack(data)):
            if size != PRE_BLANK_SIZE:
                return UnitRow(offset + number, place, size, code)
        offset, wanted = offset + count, min(wanted * 4, PROBE_UNITS_MAX)
    return None


def _is_true(driver: TierDriver, logs: Sequence[SegmentInfo], unit: UnitRow) -> bool:
    info = next((i for i in logs if i.key.base <= unit.place < unit.end <= i.key.base + i.size), None)
    if info is None:
        return False
    try:
        place = UnitPlace(unit.queue_offset, unit.place, unit.size)
        peek_store_ms(driver, Segment(info.key, info.size), place)
    except (SegmentMissing, IllegalRange, CorruptSegment):
        return False
    return True
