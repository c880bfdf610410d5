"""A segment read once from end to end, with its checksum on the way."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tier.tier_world import BROKER, CLUSTER
from tiermq.tier.checked_segment import CheckedSegment
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.metadata.metadata_values import Segment
from tiermq.tier.names import QueueKey, SegmentType
from tiermq.tier.verify_report import VerifyReport

KEY = QueueKey(CLUSTER, BROKER, "orders", 0).segment(SegmentType.COMMIT_LOG, 0)
DATA = bytes(range(200))


def opened(rows: list[Segment], driver: MemoryDriver | None = None) -> tuple[CheckedSegment, VerifyReport]:
    driver = driver or MemoryDriver()
    driver.write(KEY, 0, [DATA])
    report = VerifyReport("memory://x")
    return CheckedSegment(driver, next(driver.list_segments()), rows, report, lambda _bytes: None), report


@given(
    sizes=st.lists(st.integers(1, 200), max_size=4, unique=True),
    chunks=st.lists(st.integers(1, 90), min_size=1, max_size=5),
    wrong=st.booleans(),
)
def test_checksums_of_any_moment_are_compared_whatever_the_pieces(
    sizes: list[int], chunks: list[int], wrong: bool
) -> None:
    rows = [Segment(KEY, size, crc32=zlib.crc32(DATA[:size]) ^ wrong) for size in sizes]
    segment, report = opened(rows)
    read = b""
    while segment.left:
        read += bytes(segment.read(chunks[len(read) % len(chunks)]))
    assert read == DATA
    assert report.problem_count == (len(sizes) if wrong else 0)
    assert report.counts["bytes"] == len(DATA)


def test_a_checksum_of_more_bytes_than_there_are_is_not_compared() -> None:
    segment, report = opened([Segment(KEY, 900, crc32=1), Segment(KEY, 0, crc32=1), Segment(KEY, 200)])
    segment.read(1000)
    assert report.is_clean


@pytest.mark.parametrize("cut", [True, False])
def test_bytes_that_do_not_come_end_the_reading_and_are_reported(cut: bool) -> None:
    driver = MemoryDriver()
    segment, report = opened([], driver)
    if cut:
        driver.trim(KEY, 50)
    else:
        driver.read = lambda *_: driver.__class__.read(driver, KEY, 190, 20)  # type: ignore[method-assign]
    assert len(segment.read(100)) == 0
    assert (segment.is_broken, segment.left) == (True, 0)
    assert (report.problem_count, report.note_count) == ((0, 1) if cut else (1, 0))
