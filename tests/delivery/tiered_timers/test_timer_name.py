"""Buckets: every time is in one of each level, and timers fit into the objects that they are given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.far.far_world import DAY_MS, HOUR_MS, timer
from tiermq.delivery.far.timer_buckets import LAST_MS, Bucket, Level, bucket_of, chunks, parse_bucket, partition
from tiermq.delivery.far.timer_object import encoded_bytes

NOON_MS = 1_798_891_445_678  # 2027-01-02 12:04:05.678 UTC


@pytest.mark.parametrize(
    ("level", "text"),
    [
        (Level.DAY, "2027-01-02/all"),
        (Level.HOUR, "2027-01-02/12"),
        (Level.MINUTE, "2027-01-02/12.04"),
        (Level.SECOND, "2027-01-02/12.04.05"),
    ],
)
def test_a_bucket_is_named_by_its_time_in_utc(level: Level, text: str) -> None:
    assert bucket_of(NOON_MS, level).text == text


@given(st.integers(0, 2**63 - 1), st.sampled_from(Level))
def test_a_bucket_is_found_again_by_its_text_and_holds_its_times(due_ms: int, level: Level) -> None:
    bucket = bucket_of(due_ms, level)
    assert parse_bucket(bucket.text) == bucket
    assert bucket.start_ms <= due_ms < bucket.end_ms


def test_times_beyond_the_last_year_are_in_its_last_second() -> None:
    assert bucket_of(2**62, Level.SECOND).text == "9999-12-31/23.59.59"
    assert bucket_of(2**62, Level.SECOND).end_ms > 2**62
    assert bucket_of(LAST_MS - 1_000, Level.SECOND).end_ms <= LAST_MS


@pytest.mark.parametrize(
    "text",
    ["", "new", "2027-01-02", "20270102/all", "2027-02-30/all", "2027-01-02/24", "2027-01-02/1", "2027-01-02/12.60",
     "2027-01-02/12.04.05.06", "2027-01-02/", "2027-01-02/al", "1969-12-31/all", "2027-01-02/١٢"],
)  # fmt: skip
def test_other_texts_are_no_buckets(text: str) -> None:
    assert parse_bucket(text) is None


@given(
    st.lists(st.tuples(st.integers(0, 3 * DAY_MS), st.integers(1, 300)), min_size=1, max_size=60),
    st.sampled_from(Level),
)
def test_a_partition_keeps_every_timer_once_in_its_bucket_and_within_the_size(
    rows: list[tuple[int, int]], coarsest: Level
) -> None:
    timers = [timer(number, due, size=size) for number, (due, size) in enumerate(sorted(rows))]
    parts = list(partition(timers, coarsest, 600))
    assert [each for _, group in parts for each in group] == timers
    for bucket, group in parts:
        assert bucket.level >= coarsest
        assert all(bucket.start_ms <= each.deliver_ms < bucket.end_ms for each in group)
        assert len(group) == 1 or sum(map(encoded_bytes, group)) <= 600


def test_a_day_that_fits_stays_whole_and_only_a_full_hour_is_divided() -> None:
    sparse = [timer(number, number * HOUR_MS) for number in range(5)]
    assert [(bucket, len(group)) for bucket, group in partition(sparse, Level.DAY, 1_000)] == [
        (Bucket(0, Level.DAY), 5)
    ]
    dense = [*sparse, *(timer(9, 5 * HOUR_MS + number * 60_000) for number in range(20))]
    levels = {bucket.level for bucket, _ in partition(dense, Level.DAY, 1_000)}
    assert levels == {Level.HOUR, Level.MINUTE}


def test_chunks_are_of_the_size_or_of_one_timer() -> None:
    timers = [timer(number, 0, size=size) for number, size in enumerate([10, 10, 500, 10, 10, 10])]
    assert [len(chunk) for chunk in chunks(timers, 100)] == [2, 1, 3]
    assert list(chunks([], 100)) == []
