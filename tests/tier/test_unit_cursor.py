"""Units of a queue in order, over segments, holes and blanks."""

from __future__ import annotations

import struct

import pytest

from tier.tier_world import BROKER, CLUSTER
from tiermq.consumequeue.unit import PRE_BLANK
from tiermq.tier.checked_segment import CheckedSegment
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.names import QueueKey, SegmentType
from tiermq.tier.unit_cursor import UnitCursor, UnitRow
from tiermq.tier.verify_report import VerifyReport

QUEUE = QueueKey(CLUSTER, BROKER, "orders", 0)


def unit(number: int) -> bytes:
    return struct.pack(">qiq", number * 100, 100, number)


def cursor(segments: dict[int, bytes], blanks: list[int]) -> UnitCursor:
    driver = MemoryDriver()
    for base, data in segments.items():
        driver.write(QUEUE.segment(SegmentType.CONSUME_QUEUE, base), 0, [data])
    infos = sorted(driver.list_segments(), key=lambda info: info.key.base)
    report = VerifyReport("memory://x")
    return UnitCursor((CheckedSegment(driver, info, (), report, lambda _b: None) for info in infos), blanks.append)


def all_rows(found: UnitCursor) -> list[UnitRow]:
    rows = []
    while (row := found.peek()) is not None:
        rows.append(row)
        found.advance(1)
    return rows


@pytest.mark.parametrize("chunk", [20, 40, 1 << 20])
def test_units_come_with_their_offsets_over_segments_holes_blanks_and_torn_ends(
    monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr("tiermq.tier.unit_cursor.CHUNK_BYTES", chunk)
    blanks: list[int] = []
    found = cursor({0: unit(0) + unit(1), 40: PRE_BLANK * 2 + unit(4) + unit(5)[:7], 200: unit(10)}, blanks)
    rows = all_rows(found)
    assert [(row.queue_offset, row.place, row.tags_code) for row in rows] == [
        (0, 0, 0), (1, 100, 1), (4, 400, 4), (10, 1000, 10),
    ]  # fmt: skip
    assert blanks == [2, 3]
    assert found.passed == 6


def test_a_run_ends_where_records_do_not_lie_end_to_end_or_do_not_fit() -> None:
    found = cursor({0: unit(0) + unit(1) + unit(2) + unit(7)}, [])
    assert found.peek() == UnitRow(0, 0, 100, 0)
    units, rows = found.run(0, 1000)
    assert [row.queue_offset for row in rows] == [0, 1, 2]
    assert units == unit(0) + unit(1) + unit(2)
    assert len(found.run(0, 250)[1]) == 2
    assert found.run(100, 1000)[1] == []


def test_nothing_at_all_is_the_end() -> None:
    assert cursor({}, []).peek() is None
