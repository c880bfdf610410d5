"""Pruning by time leaves nothing out that is of the time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tiermq.history.time_ranges import intersect, narrow_by_entries, subtract, without_segments
from tiermq.tier.metadata.metadata_values import Segment, TimeEntry
from tiermq.tier.names import QueueKey, SegmentType

KEY = QueueKey("c", "b", "t", 0).segment(SegmentType.COMMIT_LOG, 0)


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=40),
    st.sets(st.integers(0, 39)),
    st.integers(0, 21),
    st.integers(0, 21),
)
def test_every_message_of_the_time_stays(steps: list[int], chosen: set[int], begin_ms: int, end_ms: int) -> None:
    times = sorted(steps)
    entries = [TimeEntry(at, times[at], at * 100) for at in sorted(chosen | {0}) if at < len(times)]
    low, high = narrow_by_entries(entries, begin_ms, end_ms, 0, len(times))
    wanted = [at for at, when in enumerate(times) if begin_ms <= when <= end_ms]
    assert all(low <= at < high for at in wanted)


def test_a_chunk_is_bounded_by_the_entries_around_it() -> None:
    entries = [TimeEntry(0, 10, 0), TimeEntry(100, 20, 0), TimeEntry(200, 30, 0)]
    assert narrow_by_entries(entries, 21, 22, 0, 300) == (100, 200)
    assert narrow_by_entries(entries, 31, 99, 0, 300) == (200, 300)
    assert narrow_by_entries(entries, 0, 9, 0, 300) == (0, 0)
    assert narrow_by_entries([], 5, 6, 3, 9) == (3, 9)


def test_a_clock_that_was_set_back_widens_what_entries_allow() -> None:
    entries = [TimeEntry(0, 50, 0), TimeEntry(100, 10, 0), TimeEntry(200, 60, 0)]
    assert narrow_by_entries(entries, 0, 12, 0, 300) == (0, 200)
    assert narrow_by_entries(entries, 40, 55, 0, 300) == (0, 200)


def test_segments_of_another_time_are_cut_out() -> None:
    segments = [
        Segment(KEY, 10, begin_ms=0, end_ms=9, begin_offset=0, end_offset=5),
        Segment(KEY, 10, begin_ms=10, end_ms=19, begin_offset=5, end_offset=9),
        Segment(KEY, 10),
    ]
    assert without_segments([(0, 20)], segments, 12, 30) == [(5, 20)]
    assert without_segments([(0, 20)], segments, 25, 30) == [(9, 20)]


def test_ranges_are_cut_and_joined_as_sets_are() -> None:
    assert subtract([(0, 10), (20, 30)], (5, 25)) == [(0, 5), (25, 30)]
    assert subtract([(0, 10)], (0, 10)) == []
    assert intersect([(0, 10), (20, 30)], (5, 25)) == [(5, 10), (20, 25)]
