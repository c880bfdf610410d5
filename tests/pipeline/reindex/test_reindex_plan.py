"""What is missing in an index, by values."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.pipeline.reindex.task import LogChunk, log_chunks
from tiermq.tier.index.index_coverage import (
    OPEN,
    Coverage,
    CoverageRecord,
    Hole,
    LogRange,
    QueueCoverage,
    coverage_of,
    in_both,
    joined,
    uncovered,
    with_queues,
    without,
)
from tiermq.tier.metadata.metadata_values import TimeEntry

RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=6).map(joined)


def points(ranges: list[LogRange]) -> set[int]:
    return {point for start, stop in ranges for point in range(start, stop)}


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        pytest.param(None, [(10, 100)], id="nothing is known"),
        pytest.param(QueueCoverage(8, 100), [(10, 100)], id="another life of the topic"),
        pytest.param(QueueCoverage(7, 100), [], id="everything"),
        pytest.param(QueueCoverage(7, 60), [(60, 100)], id="the end"),
        pytest.param(QueueCoverage(7, 100, [Hole(20, 30), Hole(40, 50)]), [(20, 30), (40, 50)], id="holes"),
        pytest.param(QueueCoverage(7, 60, [Hole(55, OPEN)]), [(55, 100)], id="an open hole"),
        pytest.param(QueueCoverage(7, 100, doubtful_end=50), [(10, 50)], id="rocketmq's"),
        pytest.param(
            QueueCoverage(7, 80, [Hole(0, 5), Hole(45, 55)], doubtful_end=50), [(10, 55), (80, 100)], id="all"
        ),
    ],
)
def test_what_a_coverage_does_not_speak_for(known: QueueCoverage | None, expected: list[LogRange]) -> None:
    assert uncovered(known, 7, (10, 100)) == expected


def test_an_empty_log_lacks_nothing() -> None:
    assert uncovered(None, 7, (10, 10)) == []


@given(RANGES, RANGES)
def test_ranges_are_sets_of_places(one: list[LogRange], other: list[LogRange]) -> None:
    assert points(in_both(one, other)) == points(one) & points(other)
    assert points(without(one, other)) == points(one) - points(other)
    assert joined([*one, *other]) == joined([*other, *one])
    assert all(first[1] < second[0] for first, second in pairwise(one))


@given(RANGES)
def test_a_coverage_made_of_what_is_left_lacks_just_that(left: list[LogRange]) -> None:
    left = [(start, stop) for start, stop in left if start < stop]
    assert uncovered(coverage_of(left, 3, (0, 40)), 3, (0, 40)) == left


ENTRIES = [TimeEntry(0, 0, 0), TimeEntry(4, 0, 400), TimeEntry(8, 0, 800), TimeEntry(12, 0, 1200)]


@pytest.mark.parametrize(
    ("ranges", "size", "expected"),
    [
        pytest.param([(0, 1500)], 1 << 30, [(0, 15, 0, 1500)], id="one chunk"),
        pytest.param([(0, 1500)], 700, [(0, 8, 0, 800), (8, 15, 800, 1500)], id="cut where a place is known"),
        pytest.param([(0, 1500)], 1, [(0, 4, 0, 400), (4, 8, 400, 800), (8, 12, 800, 1200), (12, 15, 1200, 1500)]),
        pytest.param([(450, 700)], 1, [(4, 8, 450, 700)], id="within two places"),
        pytest.param([(400, 800)], 1, [(4, 8, 400, 800)], id="from place to place"),
        pytest.param([(450, 900)], 100, [(4, 8, 450, 800), (8, 12, 800, 900)], id="over one"),
    ],
)
def test_ranges_are_cut_where_a_message_s_place_is_known(
    ranges: list[LogRange], size: int, expected: list[tuple[int, int, int, int]]
) -> None:
    assert log_chunks(ranges, ENTRIES, (0, 15), size) == [LogChunk(*each) for each in expected]


def test_entries_of_messages_that_are_gone_are_passed_over() -> None:
    assert log_chunks([(500, 1500)], ENTRIES, (5, 15), 1 << 30) == [LogChunk(5, 15, 500, 1500)]
    assert log_chunks([(0, 10)], (), (0, 2), 1) == [LogChunk(0, 2, 0, 10)]


def test_a_record_is_changed_in_some_queues_only() -> None:
    old = CoverageRecord.of(
        Coverage({("a", 0): QueueCoverage(1, 5, doubtful_end=5), ("b", 1): QueueCoverage(2, 6)}, is_base_known=False),
        (),
    )
    new = with_queues(old, {("a", 0): QueueCoverage(1, 9)})
    assert new.queues == (("a", 1, 0, 9, ()), ("b", 2, 1, 6, ()))
    assert (new.doubtful, new.is_base_known) == ((), True)
