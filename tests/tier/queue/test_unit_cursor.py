"""Units of a queue in order, over segments, holes and blanks."""

from __future__ import annotations

import struct

import pytest

from tier.tier_world import BROKER, CLUSTER
from tiermq.consumequeue.unit import PRE_BLANK
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.names import QueueKey, SegmentType
from tiermq.tier.queue.tier_queue import TierQueue
from tiermq.tier.queue.units import Unit, UnitCursor, chunks_of

QUEUE = QueueKey(CLUSTER, BROKER, "orders", 0)


def unit(number: int) -> bytes:
    return struct.pack(">qiq", number * 100, 100, number)


def cursor(segments: dict[int, bytes], blanks: list[int]) -> UnitCursor:
    driver = MemoryDriver()
    for base, data in segments.items():
        driver.write(QUEUE.segment(SegmentType.CONSUME_QUEUE, base), 0, [data])
    queue = TierQueue(driver, QUEUE, (), driver.list_segments())
    return UnitCursor(queue.unit_chunks(over_holes=True), blanks.append)


def all_rows(found: UnitCursor) -> list[Unit]:
    rows = []
    while (row := found.peek()) is not None:
        rows.append(row)
        found.advance(1)
    return rows


@pytest.mark.parametrize("chunk", [20, 40, 1 << 20])
def test_units_come_with_their_offsets_over_segments_holes_blanks_and_torn_ends(
    monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr("tiermq.tier.queue.units.CHUNK_UNITS", chunk // 20)
    blanks: list[int] = []
    found = cursor({0: unit(0) + unit(1), 40: PRE_BLANK * 2 + unit(4) + unit(5)[:7], 200: unit(10)}, blanks)
    rows = all_rows(found)
    assert [(row.queue_offset, row.log_offset, row.tags_code) for row in rows] == [
        (0, 0, 0), (1, 100, 1), (4, 400, 4), (10, 1000, 10),
    ]  # fmt: skip
    assert blanks == [2, 3]
    assert found.passed == 6


def test_the_window_begins_with_the_next_unit_and_has_whole_units_only() -> None:
    found = cursor({0: unit(0) + unit(1) + unit(2)[:7]}, [])
    assert found.peek() == Unit(0, 0, 100, 0)
    assert found.window == unit(0) + unit(1)
    found.advance(1)
    assert found.window == unit(1)


def test_the_unit_behind_the_end_can_be_seen_and_not_passed() -> None:
    found = cursor({0: unit(0)}, [])
    found.then = Unit(1, 100, 100, 0)
    found.peek()
    found.advance(1)
    assert (found.peek(), found.passed, len(found.window)) == (found.then, 1, 0)


@pytest.mark.parametrize("start", [240, 241, 259, 260])
def test_a_range_of_a_segment_begins_with_the_offset_of_its_first_whole_unit(start: int) -> None:
    assert list(chunks_of(start, 281)) == [(12 if start == 240 else 13, 2 if start == 240 else 1)]
    assert list(chunks_of(start, start + 19)) == []
    assert list(chunks_of(200, 300, 12, 14)) == [(12, 2)]


def test_nothing_at_all_is_the_end() -> None:
    assert cursor({}, []).peek() is None
