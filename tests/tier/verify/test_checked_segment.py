"""A segment read once from end to end, with its checksum on the way."""

from __future__ import annotations

import zlib
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tier.tier_world import BROKER, CLUSTER
from tiermq.tier.block_sums import BlockSums
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.metadata.metadata_values import Segment
from tiermq.tier.names import QueueKey, SegmentType
from tiermq.tier.verify.checked_segment import CheckedSegment, CrcPiece, compare_pieces, known_checksums
from tiermq.tier.verify.verify_report import VerifyReport

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


@given(
    sizes=st.lists(st.integers(1, 200), max_size=4, unique=True),
    cuts=st.sets(st.integers(1, 199), max_size=3),
    wrong=st.booleans(),
    chunk=st.integers(1, 90),
)
def test_ranges_that_were_read_apart_are_compared_together(
    sizes: list[int], cuts: set[int], wrong: bool, chunk: int
) -> None:
    driver = MemoryDriver()
    driver.write(KEY, 0, [DATA])
    (info,) = driver.list_segments()
    rows = [Segment(KEY, size, crc32=zlib.crc32(DATA[:size]) ^ wrong) for size in sizes]
    report = VerifyReport("memory://x")
    pieces: list[CrcPiece] = []
    bounds = [0, *sorted(cuts), len(DATA)]
    for start, stop in pairwise(bounds):
        segment = CheckedSegment(driver, info, rows, report, lambda _bytes: None, start, stop)
        while segment.left:
            segment.read(chunk)
        pieces += segment.pieces
    compare_pieces(reversed(pieces), known_checksums(rows, info.size), report)
    assert report.problem_count == (len(sizes) if wrong else 0)
    assert report.counts["bytes"] == len(DATA)


def test_a_range_that_failed_leaves_what_is_behind_it_uncompared() -> None:
    report = VerifyReport("memory://x")
    compare_pieces([CrcPiece(KEY, 0, 50, 1), CrcPiece(KEY, 100, 200, 1)], {200: 2}, report)
    assert report.is_clean


def test_bytes_that_are_read_again_count_once() -> None:
    segment, report = opened([Segment(KEY, 200, crc32=zlib.crc32(DATA))])
    assert segment.window(0, 120) == DATA[:120]
    assert segment.window(90, 80) == DATA[90:170]
    assert bytes(segment.window(150, 20)) == b""
    assert segment.window(170, 900) == DATA[170:]
    assert (report.is_clean, report.counts["bytes"], segment.left) == (True, 200, 0)


def test_checksums_of_blocks_are_compared_where_there_is_none_of_all_bytes() -> None:
    sums = BlockSums.of_nothing(SegmentType.COMMIT_LOG).extended(DATA[:150])
    for wrong in (False, True):
        row = Segment(KEY, 200, sums=sums if not wrong else replace(sums, crc32s=(sums.crc32s[0] ^ 1,)))
        segment, report = opened([row])
        while segment.left:
            segment.read(64)
        assert report.is_clean is not wrong
