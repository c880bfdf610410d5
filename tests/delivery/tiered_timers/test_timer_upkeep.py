"""Tiered timers of a process that dies at any request to the tier, before or after it: no acknowledged one is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from delivery.tiered_timers.tier_world import DAY_MS, HOUR_MS, NOW_MS, FarWorld, number_of, timer
from servers.faulty_driver import Fault, FaultyDriver
from simulation.simulated_files import SimulatedFileAccess
from tiermq.delivery.tiered_timers.timer_name import Level, TimerName, bucket_of, timer_name_at, timers_directory
from tiermq.delivery.tiered_timers.timer_upkeep import Rewrite, TimerLimits, plan_rewrites
from tiermq.errors import TierUnavailable
from tiermq.tier.driver.memory import MemoryDriver

LIMITS = TimerLimits(object_bytes=1_000, run_bytes=4_000, flush_count=4, merge_count=3)
DAY = 20_000 * DAY_MS


class DiesAt:
    """The process's requests end here: the n-th fails before or after it happened, and all later ones fail."""

    def __init__(self, number: int, fault: Fault) -> None:
        self._left = number
        self._fault = fault
        self.died = False

    def next_fault(self, operation: str) -> Fault | None:
        self._left -= 1
        if self._left > 0:
            return None
        fault = Fault.BEFORE if self.died else self._fault
        self.died = True
        return fault


class Life:
    """A process that keeps timers for eight days and delivers them, and what it was promised."""

    COUNT = 60

    def __init__(self, world: FarWorld) -> None:
        self.world = world
        self.acknowledged: set[int] = set()
        self.delivered: list[int] = []
        self.local: dict[int, int] = {}  # Number to time, of what was pulled and is durable.

    def put_away(self) -> None:
        waiting: list[int] = []
        for number in range(self.COUNT):
            if number in self.acknowledged:
                continue
            self.world.timers.add(timer(number, NOW_MS + DAY_MS + number * 3 * HOUR_MS))
            waiting.append(number)
            if len(waiting) == 5:
                self.world.timers.flush()
                self.acknowledged.update(waiting)
                waiting.clear()
                self.world.timers.tend()

    def deliver(self, until_ms: int) -> None:
        world = self.world
        while world.clock.now_ms() < until_ms:
            world.clock.advance_ms(9 * HOUR_MS)
            given = list(world.timers.pull(world.clock.now_ms() + DAY_MS // 2))
            self.local.update({number_of(each): each.deliver_ms for each in given})
            world.timers.pulled()
            due = [number for number, due_ms in self.local.items() if due_ms < world.clock.now_ms()]
            self.delivered += due
            for number in due:
                del self.local[number]
            world.timers.forget(world.clock.now_ms())
            while world.timers.tend():
                pass


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER])
@pytest.mark.parametrize("loses_disk", [False, True])
def test_a_death_at_any_request_loses_no_acknowledged_timer(tmp_path: Path, fault: Fault, loses_disk: bool) -> None:
    end_ms = NOW_MS + 10 * DAY_MS
    # Every second request while timers are put away, and some after that; with other faults, others.
    first = 1 if fault is Fault.BEFORE else 2
    for number in [*range(first, 60, 2), *range(60 + first, 2_000, 19)]:
        driver = FaultyDriver(MemoryDriver())
        world = FarWorld(tmp_path / f"{number}", driver, access=SimulatedFileAccess())
        life = Life(world)
        driver.plan = plan = DiesAt(number, fault)
        try:
            life.put_away()
            life.deliver(end_ms)
        except TierUnavailable:
            assert plan.died
        driver.plan = None
        if loses_disk:
            life.local.clear()
            world.lose_disk()
        else:
            world.restart()
        life.put_away()
        life.deliver(end_ms)
        assert set(life.delivered) == set(range(Life.COUNT)), number
        if not loses_disk:
            # An acknowledged flush is not written again, and a confirmed pull not pulled again: at most the flush
            # or the pull that was under way happens twice.
            assert len(life.delivered) <= Life.COUNT + 9, number
        world.tend()
        assert world.objects() == ["manifest.tiermq.json"], number
        if not plan.died:
            assert number > 100
            return
    pytest.fail("it never came to an end")


def test_progress_within_an_object_is_reported_to_the_tier_so_that_a_lost_disk_delivers_little_again(
    tmp_path: Path,
) -> None:
    world = FarWorld(tmp_path, MemoryDriver())
    start = NOW_MS + 2 * DAY_MS
    world.add(timer(number, start + number * 10_000) for number in range(24))
    world.clock.set_ms(start)
    assert len(list(world.timers.pull(start + DAY_MS))) == 24
    world.timers.pulled()
    world.timers.forget(start + 200_000)
    world.tend()
    manifest = world.timers.state.ready().manifest
    world.timers.forget(start + 220_000)
    world.tend()
    assert world.timers.state.ready().manifest == manifest  # Not worth a request yet.
    world.lose_disk()
    assert [number_of(each) for each in world.timers.pull(start + DAY_MS)] == [20, 21, 22, 23]


def test_timers_that_were_delivered_are_not_written_again(tmp_path: Path) -> None:
    world = FarWorld(tmp_path, MemoryDriver())
    start = NOW_MS + 2 * DAY_MS
    world.add((timer(number, start + number * HOUR_MS) for number in range(12)), flush_every=4)
    assert len(list(world.timers.pull(start + 6 * HOUR_MS))) == 6
    world.timers.pulled()
    world.timers.forget(start + 6 * HOUR_MS)
    world.tend()
    world.add([timer(20, start + 20 * HOUR_MS)])
    world.add([timer(21, start + 21 * HOUR_MS)])
    world.tend()
    directory = timers_directory("DefaultCluster", "broker-a")
    names = [timer_name_at(path, directory) for path in world.driver.list_objects(directory)]
    assert sum(name.count for name in names if name is not None) == 8  # Six of twelve, and two.


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
