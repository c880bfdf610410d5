"""Delivering slots: at the right time, in order, without what was cancelled, until it succeeds."""

from __future__ import annotations

from delivery.timer.timer_world import NOW_MS, SMALL, TimerWorld
from small_store import overwrite
from tiermq.delivery.timer.timer_dequeue import chain_of
from tiermq.delivery.timer.timer_state import TimerSettings


def test_no_timer_is_early_and_none_is_late_by_more_than_the_precision() -> None:
    world = TimerWorld()
    delays = [1, 500, 999, 1_000, 1_001, 2_500, 10_000, 99_999, 100_000, 100_001, 250_300]
    for delay_ms in delays:
        world.send(str(delay_ms).encode(), delay_ms)
    seen: dict[bytes, int] = {}
    while len(seen) < len(delays):
        world.wait(100, step_ms=100)
        for body in world.bodies():
            seen.setdefault(body, world.clock.now_ms())
    assert {body for body, at_ms in seen.items() if not 0 <= at_ms - NOW_MS - int(body) <= 1_000} == set()


def test_a_finer_precision_is_finer() -> None:
    world = TimerWorld(settings=TimerSettings(slots=6_000, log_file_bytes=4096, precision_ms=100))
    world.send(b"a", 1_250)
    world.wait(1_200, step_ms=50)
    assert world.bodies() == []
    world.wait(150, step_ms=50)
    assert world.bodies() == [b"a"]


def test_timers_of_one_slot_are_delivered_oldest_first() -> None:
    world = TimerWorld()
    bodies = [f"m{number:04}".encode() for number in range(600)]
    for body in bodies:
        world.send(body, 5_000)
    world.wait(10_000)
    assert world.bodies() == bodies
    assert world.timers.waiting_count == 0
    assert world.timers.waiting_by_topic() == {}


def test_a_delivered_timer_says_when_it_was_taken_in_and_when_it_left() -> None:
    world = TimerWorld()
    world.send(b"a", 5_000, KEYS="k", TAGS="t")
    world.wait(10_000)
    [message] = world.messages()
    assert message.properties["TIMER_ENQUEUE_MS"] == str(NOW_MS)
    assert message.properties["TIMER_DEQUEUE_MS"] == str(NOW_MS + 5_000)
    assert message.properties["REAL_TOPIC"] == "T"
    assert (message.keys, message.tags, message.unique_key) == (["k"], "t", "K-a")


def test_a_cancelled_timer_is_not_delivered_and_the_others_are() -> None:
    world = TimerWorld()
    for body in (b"a", b"b", b"c"):
        world.send(body, 5_000)
    world.turn()
    world.timers.cancel("T", "K-b", NOW_MS + 5_000)
    world.store.dispatch_now()
    world.wait(10_000)
    assert world.bodies() == [b"a", b"c"]
    assert world.timers.counts.cancelled == 1
    assert world.timers.waiting_by_topic() == {}


def test_a_cancellation_may_come_before_what_it_cancels() -> None:
    world = TimerWorld()
    world.timers.cancel("T", "K-a", NOW_MS + 5_000)
    world.send(b"a", 5_000)
    world.wait(10_000)
    assert world.bodies() == []


def test_a_cancellation_is_for_one_topic() -> None:
    world = TimerWorld()
    world.send(b"a", 5_000, topic="T")
    world.send(b"a", 5_000, topic="U")
    world.timers.cancel("U", "K-a", NOW_MS + 5_000)
    world.store.dispatch_now()
    world.wait(10_000)
    assert world.bodies("T") == [b"a"]
    assert world.bodies("U") == []


def test_a_cancellation_of_nothing_does_no_harm() -> None:
    world = TimerWorld()
    world.send(b"a", 5_000)
    world.timers.cancel("T", "K-unknown", NOW_MS + 5_000)
    world.store.dispatch_now()
    world.wait(10_000)
    assert world.bodies() == [b"a"]
    assert world.timers.waiting_count == 0


def test_a_rolled_timer_is_cancelled_by_a_rolled_cancellation() -> None:
    world = TimerWorld()
    world.send(b"a", 450_000)
    world.send(b"b", 450_000)
    world.wait(30_000)
    world.timers.cancel("T", "K-a", NOW_MS + 450_000)
    world.store.dispatch_now()
    world.wait(500_000, step_ms=2_000)
    assert world.bodies() == [b"b"]


def test_a_store_that_takes_nothing_holds_the_slot_and_nothing_is_dropped_after_three_tries() -> None:
    world = TimerWorld()
    for number in range(5):
        world.send(f"m{number}".encode(), 2_000)
    world.turn()
    world.store._parts.log.set_writeable(False)
    world.wait(20_000)
    assert world.timers.read_ms == NOW_MS + 1_000
    world.store._parts.log.set_writeable(True)
    world.turn()
    assert world.bodies() == [f"m{number}".encode() for number in range(5)]
    assert world.timers.read_ms == world.settings.floor(world.clock.now_ms())


def test_a_timer_that_can_never_be_delivered_is_passed_over() -> None:
    world = TimerWorld()
    world.send(b"to nowhere", 2_000, topic="a/b")
    world.send(b"a", 2_000)
    world.wait(5_000)
    assert world.bodies() == [b"a"]
    assert world.timers.counts.skipped == 1


def test_a_damaged_message_is_passed_over() -> None:
    world = TimerWorld()
    place = world.send(b"damaged", 2_000)
    world.send(b"a", 2_000)
    world.turn()
    overwrite(world.access, "commitlog/00000000000000000000", place.physical_offset + 90, b"xxx")
    world.wait(5_000)
    assert world.bodies() == [b"a"]
    assert world.timers.counts.skipped == 1


def test_another_timer_in_the_place_of_a_lost_one_is_not_delivered_early() -> None:
    world = TimerWorld()
    place = world.send(b"late", 50_000)
    world.turn()
    state = world.timers._state
    [(_, unit)] = list(state.log.units())
    position = state.log.append(unit._replace(delay_ms=2_000, previous=-1))
    slot = state.wheel.slot(NOW_MS + 49_000)
    state.wheel.put(slot._replace(time_ms=NOW_MS + 2_000, first=position, last=position))
    world.wait(10_000)
    assert world.bodies() == []
    assert world.timers.counts.skipped == 1
    world.wait(50_000)
    assert world.bodies() == [b"late"]
    assert place.ok


def test_a_chain_that_does_not_go_back_ends_there() -> None:
    world = TimerWorld()
    world.send(b"a", 5_000)
    world.send(b"b", 5_000)
    world.turn()
    state = world.timers._state
    slot = state.wheel.slot(NOW_MS + 4_000)
    assert chain_of(state.log, slot, 1_000)[0].tolist() == [52, 0]
    assert chain_of(state.log, slot, 1_000)[1]
    overwrite(world.access, "timerlog/00000000000000000000", 52 + 4, (52).to_bytes(8, "big"))
    positions, is_whole = chain_of(state.log, slot, 1_000)
    assert (len(positions), is_whole) == (0, False)


def test_delivery_can_be_stopped_by_a_setting() -> None:
    world = TimerWorld(settings=TimerSettings(slots=600, log_file_bytes=4096, stop_dequeue=True))
    world.send(b"a", 2_000)
    world.wait(5_000)
    assert world.bodies() == []
    world.restart(SMALL)
    world.turn()
    assert world.bodies() == [b"a"]
