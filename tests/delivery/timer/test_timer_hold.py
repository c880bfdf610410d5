"""A commit-log file stays while a timer in it waits."""

from __future__ import annotations

from delivery.timer.timer_world import TimerWorld
from small_store import LOG_BYTES, put_all

HOUR_MS = 3_600_000


def make_files_old(world: TimerWorld) -> None:
    """Old enough to be deleted by their files' times, though no hour has passed."""
    for info in world.access.list_files("/store/commitlog"):
        world.access.touch_modified_ms(f"/store/commitlog/{info.name}", world.clock.now_ms() - 2 * HOUR_MS)


def test_a_file_with_a_waiting_timer_is_not_deleted_until_that_was_delivered() -> None:
    """RocketMQ deletes it, and the timer is lost."""
    world = TimerWorld(file_reserved_time=1)
    world.send(b"waits", 90_000)
    world.turn()
    put_all(world.store, 300)
    make_files_old(world)
    cleaned = world.store.clean_now()
    assert (cleaned.log_files, cleaned.vetoed) == (0, True)
    world.wait(180_000, step_ms=2_000)
    assert b"waits" in world.bodies()
    make_files_old(world)
    assert world.store.clean_now().log_files > 0


def test_a_message_that_was_not_taken_in_yet_is_held() -> None:
    world = TimerWorld(file_reserved_time=1)
    put_all(world.store, 300)
    place = world.send(b"waits", 90_000)
    hold = world.timers._hold
    assert not hold.holds(0, place.physical_offset - place.physical_offset % LOG_BYTES)
    assert hold.holds(0, place.physical_offset + 1)


def test_files_without_timers_go() -> None:
    world = TimerWorld()
    put_all(world.store, 300)
    world.turn()
    assert not world.timers._hold.holds(0, LOG_BYTES)


def test_a_closed_service_lets_nothing_go_that_it_might_need() -> None:
    world = TimerWorld()
    world.send(b"waits", 90_000)
    world.timers.close()
    assert world.timers._hold.holds(0, LOG_BYTES)
