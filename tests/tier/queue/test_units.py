"""Walking over units: the good ones fast, the odd ones set aside by kind."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tier.metadata.metadata_samples import log_key, units_key
from tiermq.consumequeue.unit import PRE_BLANK, UNIT
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.metadata.metadata_values import Segment
from tiermq.tier.queue import units as queue_units
from tiermq.tier.queue.segments import SegmentList, StoredSegment
from tiermq.tier.queue.units import UnitChunk, offset_runs, sort_units, walk_units

LOG: SegmentList[StoredSegment] = SegmentList([Segment(log_key(100), 900)])
HOLED: SegmentList[StoredSegment] = SegmentList([Segment(log_key(100), 100), Segment(log_key(300), 100)])


def kinds(chunk: UnitChunk) -> tuple[list[int], list[int], list[int], list[int], list[int], list[int]]:
    return list(chunk.queue_offsets), chunk.blank, chunk.expired, chunk.lost, chunk.beyond, chunk.bad


def test_good_units_are_all_good() -> None:
    data = UNIT.pack(100, 10, 1) + UNIT.pack(110, 890, 2)
    assert kinds(sort_units(data, 5, LOG, 0)) == ([5, 6], [], [], [], [], [])


def test_odd_units_are_told_apart() -> None:
    units = [
        UNIT.pack(50, 10, 0),  # 0: before the log begins: expired
        UNIT.pack(100, 10, 0),  # 1: good
        UNIT.pack(105, 10, 0),  # 2: inside the record before: damage
        PRE_BLANK,  # 3: a gap
        UNIT.pack(150, 100, 0),  # 4: spans into a hole
        UNIT.pack(220, 10, 0),  # 5: in the hole
        UNIT.pack(300, 10, 0),  # 6: good
        UNIT.pack(310, -1, 0),  # 7: damage
        UNIT.pack(-1, 5, 0),  # 8: damage
        UNIT.pack(390, 11, 0),  # 9: beyond the end
    ]
    assert kinds(sort_units(b"".join(units), 0, HOLED, 0)) == ([1, 6], [3], [0], [4, 5], [9], [2, 7, 8])


def test_without_a_log_every_unit_has_expired() -> None:
    assert sort_units(UNIT.pack(0, 10, 0), 0, SegmentList([]), 0).expired == [0]


@given(st.lists(st.tuples(st.integers(-50, 1100), st.integers(-5, 60)), max_size=20), st.integers(0, 300))
def test_the_fast_way_and_the_slow_way_agree(units: list[tuple[int, int]], previous_end: int) -> None:
    data = b"".join(UNIT.pack(offset, size, 0) for offset, size in units)
    fast = sort_units(data, 3, LOG, previous_end)
    slow = queue_units._sort_one_by_one(3, [o for o, _ in units], [s for _, s in units], LOG, previous_end)
    assert kinds(fast) == kinds(slow)
    assert (list(fast.log_offsets), list(fast.sizes)) == (list(slow.log_offsets), list(slow.sizes))


def test_a_walk_goes_over_segments_in_chunks_and_begins_where_it_is_told() -> None:
    driver = MemoryDriver()
    log: SegmentList[StoredSegment] = SegmentList([Segment(log_key(0), 10_000_000)])
    count = queue_units.CHUNK_UNITS + 10
    driver.write(units_key(0), 0, [b"".join(UNIT.pack(10 * n, 10, 0) for n in range(count))])
    driver.write(units_key(20 * count), 0, [UNIT.pack(10 * count, 10, 0)])
    segments = [Segment(units_key(0), 20 * count), Segment(units_key(20 * count), 20)]
    chunks = list(walk_units(driver, segments, log, 5))
    assert [(chunk.begin, chunk.end) for chunk in chunks] == [
        (5, queue_units.CHUNK_UNITS + 5), (queue_units.CHUNK_UNITS + 5, count), (count, count + 1),
    ]  # fmt: skip
    assert sum(len(chunk.queue_offsets) for chunk in chunks) == count - 4
    assert list(walk_units(driver, segments, log, count + 1)) == []


def test_runs_are_ranges() -> None:
    assert list(offset_runs([])) == []
    assert list(offset_runs([0])) == [(0, 1)]
    assert list(offset_runs([1, 2, 3, 7, 9, 10])) == [(1, 4), (7, 8), (9, 11)]
