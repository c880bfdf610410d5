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
from tiermq.tier.queue.tier_queue import TierQueue
from tiermq.tier.queue.units import UnitChunk, chunks_of, offset_runs, sort_units

LOG: SegmentList[StoredSegment] = SegmentList([Segment(log_key(1000), 9000)])
HOLED: SegmentList[StoredSegment] = SegmentList([Segment(log_key(1000), 1000), Segment(log_key(3000), 1000)])


def kinds(chunk: UnitChunk) -> tuple[list[int], list[int], list[int], list[int], list[int], list[int]]:
    return list(chunk.queue_offsets), chunk.blank, chunk.expired, chunk.lost, chunk.beyond, chunk.bad


def test_good_units_are_all_good() -> None:
    data = UNIT.pack(1000, 100, 1) + UNIT.pack(1100, 8900, 2)
    assert kinds(sort_units(data, 5, LOG, 0)) == ([5, 6], [], [], [], [], [])


def test_odd_units_are_distinguished() -> None:
    units = [
        UNIT.pack(500, 100, 0),  # 0: before the log begins: expired
        UNIT.pack(1000, 100, 0),  # 1: good
        UNIT.pack(1050, 100, 0),  # 2: inside the record before: damage
        PRE_BLANK,  # 3: a gap
        UNIT.pack(1500, 1000, 0),  # 4: spans into a hole
        UNIT.pack(2200, 100, 0),  # 5: in the hole
        UNIT.pack(3000, 100, 0),  # 6: good
        UNIT.pack(3100, -1, 0),  # 7: damage
        UNIT.pack(-1, 100, 0),  # 8: damage
        UNIT.pack(3900, 110, 0),  # 9: beyond the end
        UNIT.pack(3100, 90, 0),  # 10: smaller than any record: damage
    ]
    assert kinds(sort_units(b"".join(units), 0, HOLED, 0)) == ([1, 6], [3], [0], [4, 5], [9], [2, 7, 8, 10])


def test_without_a_log_every_unit_has_expired() -> None:
    assert sort_units(UNIT.pack(0, 100, 0), 0, SegmentList([]), 0).expired == [0]


@given(st.lists(st.tuples(st.integers(-500, 11000), st.integers(-5, 600)), max_size=20), st.integers(0, 3000))
def test_the_fast_way_and_the_slow_way_agree(units: list[tuple[int, int]], previous_end: int) -> None:
    data = b"".join(UNIT.pack(offset, size, 0) for offset, size in units)
    fast = sort_units(data, 3, LOG, previous_end)
    slow = queue_units._sort_one_by_one(3, [o for o, _ in units], [s for _, s in units], LOG, previous_end)
    assert kinds(fast) == kinds(slow)
    assert (list(fast.log_offsets), list(fast.sizes)) == (list(slow.log_offsets), list(slow.sizes))


def test_a_walk_goes_over_segments_in_chunks_and_begins_at_an_offset() -> None:
    driver = MemoryDriver()
    count = queue_units.CHUNK_UNITS + 10
    driver.write(units_key(0), 0, [b"".join(UNIT.pack(100 * n, 100, 0) for n in range(count))])
    driver.write(units_key(20 * count), 0, [UNIT.pack(100 * count, 100, 0)])
    queue = TierQueue(driver, units_key(0).queue, (), driver.list_segments())
    assert [(first, len(data) // 20) for first, data in queue.unit_chunks(5)] == [
        (5, queue_units.CHUNK_UNITS), (queue_units.CHUNK_UNITS + 5, 5), (count, 1),
    ]  # fmt: skip
    assert list(queue.unit_chunks(count + 1)) == []
    assert list(chunks_of(0, 20 * count, 5)) == [(5, queue_units.CHUNK_UNITS), (queue_units.CHUNK_UNITS + 5, 5)]


def test_runs_are_ranges() -> None:
    assert list(offset_runs([])) == []
    assert list(offset_runs([0])) == [(0, 1)]
    assert list(offset_runs([1, 2, 3, 7, 9, 10])) == [(1, 4), (7, 8), (9, 11)]
