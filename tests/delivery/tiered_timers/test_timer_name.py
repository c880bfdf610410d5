"""Names of timer objects say what is inside, and nothing else has such a name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.tiered_timers.tier_world import BROKER, CLUSTER, DAY_MS, HOUR_MS, timer
from tiermq.delivery.tiered_timers.timer_name import (
    LAST_MS,
    Bucket,
    Level,
    TimerName,
    bucket_of,
    chunks,
    manifest_name,
    parse_bucket,
    parse_timer_name,
    partition,
    timer_name_at,
    timers_directory,
)
from tiermq.delivery.tiered_timers.timer_object import encoded_bytes
from tiermq.message.topic_name import topic_problem
from tiermq.tier.metadata.manifest import queue_of_manifest
from tiermq.tier.names import check_object_name, segment_at

NUMBERS = st.integers(0, 2**63 - 1)
BUCKETS = st.none() | st.builds(bucket_of, NUMBERS, st.sampled_from(Level))
NAMES = st.builds(TimerName, st.integers(0, 10**12 - 1), NUMBERS, NUMBERS, NUMBERS, NUMBERS, BUCKETS)
DIRECTORY = timers_directory(CLUSTER, BROKER)
NOON_MS = 1_798_891_445_678  # 2027-01-02 12:04:05.678 UTC


@given(NAMES)
def test_a_name_is_found_again_by_its_path(name: TimerName) -> None:
    path = name.path(DIRECTORY)
    assert timer_name_at(path, DIRECTORY) == name
    assert check_object_name(path) == path
    assert segment_at(path) is None
    assert queue_of_manifest(path) is None


@pytest.mark.parametrize(
    "text",
    ["", "new", "new/1_1_1_1_1", "new/000000000001_1_1_1", "new/000000000001_01_1_1_1",
     "2027-01-02/000000000001_1_1_1_1",
     "2027-01-02/25_000000000001_1_1_1_1", "old/000000000001_1_1_1_1", "new/000000000001_1_1_-1_1"],
)  # fmt: skip
def test_other_texts_are_no_timer_objects(text: str) -> None:
    assert parse_timer_name(text) is None


def test_other_paths_are_no_timer_objects() -> None:
    good = TimerName(1, 2, 3, 4, 5).path(DIRECTORY)
    assert timer_name_at(good, DIRECTORY) is not None
    assert timer_name_at(good, timers_directory(CLUSTER, "broker-b")) is None
    assert timer_name_at(good + ".part", DIRECTORY) is None


def test_no_topic_can_have_the_directory_of_timers() -> None:
    assert topic_problem(DIRECTORY.rpartition("/")[2]) is not None
    assert queue_of_manifest(manifest_name(CLUSTER, BROKER)) is None


def test_an_object_overlaps_the_times_between_its_first_and_its_last() -> None:
    name = TimerName(1, 2, 3, 100, 200)
    found = [name.overlaps(*times) for times in [(0, 100), (0, 101), (150, 160), (200, 300), (201, 300)]]
    assert found == [False, True, True, True, False]


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
