"""Names of timer objects say what is inside, and nothing else has such a name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.far.far_world import BROKER, CLUSTER
from tiermq.delivery.far.timer_buckets import Level, bucket_of
from tiermq.delivery.far.timer_names import (
    TimerName,
    manifest_name,
    parse_timer_name,
    timer_name_at,
    timers_directory,
)
from tiermq.message.topic_name import topic_problem
from tiermq.tier.metadata.manifest import queue_of_manifest
from tiermq.tier.names import check_object_name, segment_at

NUMBERS = st.integers(0, 2**63 - 1)
BUCKETS = st.none() | st.builds(bucket_of, NUMBERS, st.sampled_from(Level))
NAMES = st.builds(TimerName, st.integers(0, 10**12 - 1), NUMBERS, NUMBERS, NUMBERS, NUMBERS, BUCKETS)
DIRECTORY = timers_directory(CLUSTER, BROKER)


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
