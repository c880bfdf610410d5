"""Far timers come back before they are due, once, and are forgotten when they were delivered."""

from __future__ import annotations

import pytest

from delivery.timer.kept_far import KeptFar
from delivery.timer.timer_world import NOW_MS, TimerWorld
from small_store import killed

HOUR_MS = 3_600_000


def test_what_was_delivered_and_written_down_is_forgotten_and_nothing_else() -> None:
    far = KeptFar(horizon_ms=60_000)
    world = TimerWorld(far=far)
    world.send(b"a", HOUR_MS)
    world.send(b"b", 2 * HOUR_MS)
    world.turn()
    world.wait(HOUR_MS - 5_000, step_ms=5_000)
    assert len(far.kept) == 2  # Pulled, but not delivered: the disk may still be lost.
    world.wait(10_000)
    assert world.bodies() == [b"a"]
    assert [timer.deliver_ms for timer in far.kept] == [NOW_MS + 2 * HOUR_MS - 1_000]
    assert far.forgotten_ms <= world.timers.read_ms


def test_far_timers_are_asked_for_now_and_then_and_not_in_every_round() -> None:
    far = KeptFar(horizon_ms=24 * HOUR_MS)
    world = TimerWorld(far=far)
    world.wait(600_000, step_ms=1_000)
    assert 5 <= far.pull_count <= 12


def test_time_that_passes_during_a_pull_counts_for_the_next_one() -> None:
    class Slow(KeptFar):
        def pulled(self) -> None:
            super().pulled()
            if self.pull_count == 2:
                world.clock.advance_ms(2 * HOUR_MS)

    far = Slow(horizon_ms=HOUR_MS)
    world = TimerWorld(far=far)
    world.send(b"a", HOUR_MS + 5_000)
    world.turn()
    world.timers.flush()
    assert (far.pull_count, len(far.kept)) == (1, 1)
    world.clock.advance_ms(60_000)
    world.turn()
    world.wait(2_000)
    assert world.bodies() == [b"a"], "not a minute later"


def test_a_pull_that_breaks_off_is_done_again() -> None:
    far = KeptFar(horizon_ms=60_000)
    world = TimerWorld(far=far)
    for number in range(3):
        world.send(f"m{number}".encode(), HOUR_MS)
    world.turn()
    world.timers.flush()
    world.clock.advance_ms(HOUR_MS - 100_000)
    world.turn()
    far.is_down = True
    world.wait(70_000)
    assert world.timers.counts.far_errors > 0
    far.is_down = False
    world.wait(60_000)
    assert set(world.bodies()) == {b"m0", b"m1", b"m2"}


def test_a_pull_waits_where_the_store_takes_nothing_and_goes_on_there() -> None:
    far = KeptFar(horizon_ms=60_000)
    world = TimerWorld(far=far)
    for number in range(600):
        world.send(f"m{number}".encode(), HOUR_MS)
    world.turn()
    world.timers.flush()
    world.store._parts.log.set_writeable(False)
    world.clock.advance_ms(HOUR_MS - 20_000)
    world.turn()
    world.store._parts.log.set_writeable(True)
    world.turn()
    assert world.timers.waiting_count == 600
    world.wait(40_000)
    assert len(world.bodies()) == 600  # Each once.


def test_what_was_pulled_and_not_confirmed_before_a_kill_is_pulled_again() -> None:
    far = KeptFar(horizon_ms=60_000)
    world = TimerWorld(far=far)
    world.send(b"a", HOUR_MS)
    world.turn()
    world.timers.flush()
    world.clock.advance_ms(HOUR_MS - 20_000)
    far.restarted()
    after = world.crashed(killed(world.access))
    after.wait(40_000)
    assert after.bodies() == [b"a"]


def test_a_damaged_far_timer_is_passed_over() -> None:
    far = KeptFar(horizon_ms=60_000)
    world = TimerWorld(far=far)
    world.send(b"a", HOUR_MS)
    world.send(b"b", HOUR_MS)
    world.turn()
    world.timers.flush()
    torn = far.kept[0]
    far.kept[0] = type(torn)(torn.deliver_ms, torn.is_delete, torn.record[:-3])
    world.wait(HOUR_MS + 5_000, step_ms=5_000)
    assert world.bodies() == [b"b"]
    assert world.timers.counts.skipped == 1


@pytest.mark.parametrize("end", ["kill", "orderly"])
def test_a_broker_that_ends_while_the_tier_is_down_loses_neither_far_nor_near_timers(end: str) -> None:
    far = KeptFar(horizon_ms=60_000)
    world = TimerWorld(far=far)
    world.send(b"near before", 50_000)
    world.turn()
    far.is_down = True
    world.send(b"far", HOUR_MS)
    world.send(b"near", 5_000)
    world.send(b"near later", 50_000)
    world.wait(10_000)
    assert world.bodies() == [b"near"]
    world.timers.flush()
    if end == "orderly":
        world.stop()
    far.restarted()  # What it had not flushed is gone with the process.
    far.is_down = False
    after = world.crashed(killed(world.access))
    after.wait(HOUR_MS + 10_000, step_ms=5_000)
    found = after.bodies()
    assert set(found) == {b"near", b"near before", b"near later", b"far"}
    assert sorted(set(found), key=found.index) == [b"near", b"near before", b"near later", b"far"]
    assert found.count(b"near before") == found.count(b"near later") == found.count(b"far") == 1
    assert after.timers.waiting_count == 0
