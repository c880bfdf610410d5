"""Which timer objects are written anew: few, full and near ones are left alone."""

from __future__ import annotations

from delivery.far.far_world import DAY_MS
from tiermq.delivery.far.timer_buckets import Level, bucket_of
from tiermq.delivery.far.timer_names import TimerName
from tiermq.delivery.far.timer_plan import Rewrite, TimerLimits, plan_rewrites

LIMITS = TimerLimits(object_bytes=1_000, run_bytes=4_000, flush_count=4, merge_count=3)
DAY = 20_000 * DAY_MS


def flush(serial: int, size: int = 10) -> TimerName:
    return TimerName(serial, 1, size, DAY, DAY)


def sorted_in(serial: int, size: int, level: Level = Level.DAY, at_ms: int = DAY) -> TimerName:
    return TimerName(serial, 1, size, at_ms, at_ms, bucket_of(at_ms, level))


def test_few_flushes_stay_and_many_are_sorted_into_days() -> None:
    names = [flush(serial) for serial in range(4)]
    assert plan_rewrites(names[:3], 0, LIMITS) == []
    assert plan_rewrites(names[::-1], 0, LIMITS) == [Rewrite(tuple(names), Level.DAY)]


def test_large_flushes_are_sorted_into_days_before_they_are_many() -> None:
    assert plan_rewrites([flush(1, 3_999)], 0, LIMITS) == []
    assert plan_rewrites([flush(1, 4_000)], 0, LIMITS) == [Rewrite((flush(1, 4_000),), Level.DAY)]


def test_a_bucket_is_split_when_it_is_near_and_too_large() -> None:
    for level in (Level.DAY, Level.HOUR, Level.MINUTE):
        large = [sorted_in(1, 600, level), sorted_in(2, 600, level)]
        assert plan_rewrites(large, DAY, LIMITS) == []
        assert plan_rewrites(large, DAY + 1, LIMITS) == [Rewrite(tuple(large), Level(level + 1))]
    assert plan_rewrites([sorted_in(1, 400), sorted_in(2, 400)], DAY + 1, LIMITS) == []


def test_a_second_is_never_split() -> None:
    assert plan_rewrites([sorted_in(1, 900, Level.SECOND), sorted_in(2, 900, Level.SECOND)], DAY + 1, LIMITS) == []


def test_an_object_with_one_huge_timer_is_left_alone() -> None:
    assert plan_rewrites([sorted_in(1, 5_000)], DAY + 1, LIMITS) == []


def test_many_small_objects_of_a_bucket_are_merged_and_full_ones_are_not_touched() -> None:
    small = [sorted_in(serial, 100) for serial in range(3)]
    full = [sorted_in(serial, 900) for serial in range(10, 20)]
    assert plan_rewrites([*full, *small[:2]], 0, LIMITS) == []
    assert plan_rewrites([*full, *small], 0, LIMITS) == [Rewrite(tuple(small), Level.DAY)]


def test_what_is_near_comes_first_then_flushes_then_merges() -> None:
    near = [sorted_in(1, 600), sorted_in(2, 600)]
    flushes = [flush(serial) for serial in range(10, 14)]
    small = [sorted_in(serial, 10, at_ms=DAY + DAY_MS) for serial in range(20, 23)]
    plan = plan_rewrites([*small, *flushes, *near], DAY + 1, LIMITS)
    assert [rewrite.sources[0] for rewrite in plan] == [near[0], flushes[0], small[0]]
