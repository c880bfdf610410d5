"""Listing what waits."""

from __future__ import annotations

from delivery.timer.timer_world import NOW_MS, TimerWorld
from small_store import overwrite


def test_waiting_timers_are_listed_in_the_order_of_their_slots() -> None:
    world = TimerWorld()
    world.send(b"late", 50_000, topic="U", KEYS="k1 k2")
    world.send(b"soon", 5_000)
    world.send(b"soon too", 4_500)
    world.turn()
    found = list(world.timers.listing())
    assert [(timer.deliver_ms - NOW_MS, timer.topic, timer.unique_key) for timer in found] == [
        (5_000, "T", "K-soon"),
        (5_000, "T", "K-soon too"),
        (50_000, "U", "K-late"),
    ]
    assert found[2].keys == ["k1", "k2"]
    assert found[2].to_dict()["queue_id"] == 0


def test_cancelled_and_delivered_timers_are_not_listed() -> None:
    world = TimerWorld()
    world.send(b"a", 5_000)
    world.send(b"b", 50_000)
    world.send(b"c", 50_000)
    world.wait(10_000)
    world.timers.cancel("T", "K-b", NOW_MS + 50_000)
    world.store.dispatch_now()
    world.turn()
    assert [timer.unique_key for timer in world.timers.listing()] == ["K-c"]


def test_a_timer_that_rolls_is_listed_with_its_own_time() -> None:
    world = TimerWorld()
    world.send(b"a", 450_000)
    world.turn()
    [timer] = world.timers.listing()
    assert (timer.deliver_ms, timer.rolls) == (NOW_MS + 450_000, 0)
    world.wait(110_000)
    [timer] = world.timers.listing()
    assert (timer.deliver_ms, timer.rolls) == (NOW_MS + 450_000, 1)


def test_a_rolled_cancellation_hides_its_timer_before_they_meet() -> None:
    world = TimerWorld()
    world.send(b"a", 450_000)
    world.wait(30_000)
    world.timers.cancel("T", "K-a", NOW_MS + 450_000)
    world.store.dispatch_now()
    world.turn()
    assert list(world.timers.listing()) == []


def test_a_damaged_message_is_left_out_of_the_list() -> None:
    world = TimerWorld()
    place = world.send(b"a", 50_000)
    world.send(b"b", 50_000)
    world.turn()
    overwrite(world.access, "commitlog/00000000000000000000", place.physical_offset + 91, b"x")
    assert [timer.unique_key for timer in world.timers.listing()] == ["K-b"]
