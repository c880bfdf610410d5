"""The end of a commit log: whole records count, whatever the window of a read is."""

from __future__ import annotations

import pytest

from tier.metadata.metadata_samples import log_key
from tier.metadata.tier_samples import CODA, record, time_of
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.metadata.metadata_values import Segment
from tiermq.tier.queue.log_walk import LogTail, walk_tail


def walk(data: bytes, window_bytes: int, begin: int = 1000) -> LogTail:
    driver = MemoryDriver()
    driver.write(log_key(1000), 0, [data])
    return walk_tail(driver, Segment(log_key(1000), len(data)), begin, window_bytes)


def three_records() -> bytes:
    data = b""
    for number, body in enumerate((b"short", b"x" * 700, b"")):
        data += record(50 + number, 1000 + len(data), body)
    return data


@pytest.mark.parametrize("window_bytes", [8, 91, 100, 300, 1 << 20])
def test_whole_records_are_found_through_any_window(window_bytes: int) -> None:
    data = three_records()
    tail = walk(data, window_bytes)
    assert (tail.end, tail.record_count, tail.torn) == (1000 + len(data), 3, "")
    assert (tail.first_queue_offset, tail.last_queue_offset) == (50, 52)
    assert (tail.begin_ms, tail.end_ms) == (time_of(50), time_of(52))


@pytest.mark.parametrize("window_bytes", [8, 100, 1 << 20])
@pytest.mark.parametrize("cut", [1, 5, 50, 90])
def test_a_cut_record_ends_the_walk_before_it(window_bytes: int, cut: int) -> None:
    data = three_records()
    tail = walk(data[:-cut], window_bytes)
    assert (tail.end, tail.record_count) == (1000 + len(data) - len(record(52, 0, b"")), 2)
    assert tail.torn


@pytest.mark.parametrize("window_bytes", [8, 1 << 20])
def test_an_end_mark_belongs_to_the_whole_part(window_bytes: int) -> None:
    data = three_records() + CODA
    assert (walk(data, window_bytes).end, walk(data, window_bytes).torn) == (1000 + len(data), "")
    assert walk(data[:-3], window_bytes).end == 1000 + len(data) - 16


def test_rubbish_and_records_from_elsewhere_end_the_walk() -> None:
    good = record(50, 1000)
    for bad, reason in ((b"\0" * 200, "zeros"), (record(51, 7), "the physical offset 7")):
        tail = walk(good + bad, 1 << 20)
        assert (tail.end, tail.record_count) == (1000 + len(good), 1)
        assert reason in tail.torn


def test_a_walk_begins_at_the_given_offset() -> None:
    data = three_records()
    assert walk(data, 1 << 20, begin=1000 + len(data)).record_count == 0
