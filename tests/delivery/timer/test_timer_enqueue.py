"""Taking timers in: the slot of each, rolls, far ones, and what is passed over."""

from __future__ import annotations

import dataclasses

import pytest

from delivery.timer.kept_timers import KeptFar
from delivery.timer.timer_world import NOW_MS, SMALL, TimerWorld
from tiermq import Message
from tiermq.delivery.timer.timer_enqueue import slot_for
from tiermq.delivery.timer.timer_log import TimerUnit
from tiermq.delivery.timer.timer_record import TieredTimer
from tiermq.delivery.timer.timer_state import TimerSettings
from tiermq.message.java_hash import java_hash
from tiermq.message.properties import encode_properties

WINDOW = TimerSettings(roll_window_slots=300)


@pytest.mark.parametrize(
    ("ahead_s", "slot_s", "rolls"),
    [
        (0, 0, False),
        (299, 299, False),
        (300, 150, True),  # Less than a third of the window behind it: half the window.
        (399, 150, True),
        (400, 300, True),
        (100_000, 300, True),
    ],
)
def test_a_timer_beyond_the_window_rolls_in_a_slot_on_the_way(ahead_s: int, slot_s: int, rolls: bool) -> None:
    assert slot_for(NOW_MS + ahead_s * 1_000, NOW_MS, WINDOW) == (NOW_MS + slot_s * 1_000, rolls)


def test_rolls_always_end_in_the_timers_own_slot() -> None:
    for ahead_s in range(0, 2_000, 7):
        write_ms, rolls = NOW_MS, True
        while rolls:
            slot_ms, rolls = slot_for(NOW_MS + ahead_s * 1_000, write_ms, WINDOW)
            assert slot_ms > write_ms or not rolls
            assert slot_ms <= NOW_MS + ahead_s * 1_000
            write_ms = slot_ms
        assert write_ms == NOW_MS + ahead_s * 1_000


def test_units_of_a_slot_are_a_chain_and_the_slot_counts_them() -> None:
    world = TimerWorld()
    places = [world.send(f"m{number}".encode(), 5_000) for number in range(3)]
    world.send(b"other", 9_000)
    world.turn()
    state = world.timers._state
    slot = state.wheel.slot(NOW_MS + 4_000)
    assert (slot.first, slot.last, slot.timers) == (0, 104, 3)
    units = [unit for _, unit in state.log.units()]
    assert units[:3] == [
        TimerUnit(previous, 1, NOW_MS, 4_000, place.physical_offset, place.size, java_hash("T"))
        for previous, place in zip((-1, 0, 52), places, strict=True)
    ]
    assert units[3].previous == -1
    assert world.timers.waiting_count == 4
    assert world.timers.waiting_by_topic() == {"T": 4}


def test_a_cancellation_takes_one_off_the_count_of_its_slot() -> None:
    world = TimerWorld()
    world.send(b"a", 5_000)
    world.timers.cancel("T", "K-a", NOW_MS + 5_000)
    world.store.dispatch_now()
    world.turn()
    assert world.timers.count_at(NOW_MS + 4_000) == 0
    assert world.timers.waiting_count == 0
    assert world.timers.waiting_by_topic() == {}


def test_a_timer_that_is_due_before_it_is_taken_in_is_delivered_at_once() -> None:
    world = TimerWorld()
    world.send(b"a", 2_000)
    world.clock.advance_ms(60_000)
    world.timers._state.write_ms = world.settings.floor(world.clock.now_ms())
    world.turn()
    [message] = world.messages()
    assert message.properties["TIMER_ENQUEUE_MS"] == str(2**63 - 1)
    assert world.timers._state.log.end == 0


def test_a_timer_delivered_at_once_waits_for_a_store_that_takes_nothing() -> None:
    world = TimerWorld()
    world.send(b"a", 2_000)
    world.clock.advance_ms(60_000)
    world.timers._state.write_ms = world.settings.floor(world.clock.now_ms())
    world.store._parts.log.set_writeable(False)
    world.turn()
    assert world.timers.queue_offset == 0
    world.store._parts.log.set_writeable(True)
    world.turn()
    assert world.bodies() == [b"a"]
    assert world.timers.queue_offset == 1


@pytest.mark.parametrize("properties", [{}, {"TIMER_OUT_MS": "soon"}])
def test_a_message_without_a_time_in_the_timer_topic_does_not_hold_up_the_others(properties: dict[str, str]) -> None:
    """RocketMQ reads it again and again, and delivers nothing any more."""
    world = TimerWorld()
    world.store.put(Message("rmq_sys_wheel_timer", b"x", 0, encoded_properties=encode_properties(properties)))
    world.send(b"a", 2_000)
    world.wait(5_000)
    assert world.bodies() == [b"a"]
    assert world.timers.counts.skipped == 1


def test_a_timer_that_names_its_topic_in_no_text_and_is_due_at_once_does_not_hold_up_the_others() -> None:
    world = TimerWorld()
    encoded = b"TIMER_OUT_MS\x01%d\x02REAL_TOPIC\x01\xff\xfe\x02REAL_QID\x010\x02" % (world.clock.now_ms() - 60_000)
    world.store.put(Message("rmq_sys_wheel_timer", b"x", 0, encoded_properties=encoded))
    world.send(b"a", 2_000)
    world.wait(5_000)
    assert world.bodies() == [b"a"]
    assert world.timers.counts.skipped == 1


def test_enqueuing_can_be_stopped_by_a_setting() -> None:
    world = TimerWorld(settings=TimerSettings(slots=600, log_file_bytes=4096, stop_enqueue=True))
    world.send(b"a", 2_000)
    world.wait(5_000)
    assert world.bodies() == []
    assert world.timers.behind_count == 1


# Tiered timers


def test_what_is_due_beyond_the_horizon_is_given_away_and_comes_back_in_time() -> None:
    far = KeptFar(horizon_ms=60_000)
    world = TimerWorld(far=far)
    world.send(b"near", 50_000)
    world.send(b"far", 3_600_000)
    world.turn()
    world.timers.flush()
    assert world.timers.waiting_count == 1
    assert [timer.deliver_ms for timer in far.kept] == [NOW_MS + 3_599_000]
    world.wait(3_600_000 - 60_000, step_ms=5_000)
    assert world.bodies() == [b"near"]
    world.wait(60_000)
    assert world.bodies() == [b"near", b"far"]
    assert world.messages()[1].properties["TIMER_ROLL_TIMES"] == "1"
    assert world.timers.counts.far == 1


def test_there_is_no_longest_delay_with_far_timers() -> None:
    world = TimerWorld(far=KeptFar(horizon_ms=60_000))
    year_ms = 365 * 24 * 3_600_000
    world.send(b"in a year", year_ms)
    world.turn()
    assert len(world.in_timer_topic()) == 1
    world.clock.advance_ms(year_ms - 20_000)
    world.turn()
    assert world.bodies() == []
    world.wait(20_000)
    assert world.bodies() == [b"in a year"]
    assert len(world.in_timer_topic()) == 2  # One write, and one when its time was near; not one every two days.


def test_the_checkpoint_passes_a_far_timer_only_when_it_is_kept() -> None:
    far = KeptFar(horizon_ms=60_000)
    world = TimerWorld(far=far)
    world.send(b"near 1", 50_000)
    world.send(b"far", 3_600_000)
    world.send(b"near 2", 50_000)
    far.is_down = True
    world.turn()
    world.timers.flush()
    progress = world.timers._checkpoint.progress
    assert (progress.queue_offset, progress.log_end) == (1, 52)
    far.is_down = False
    world.timers.flush()
    progress = world.timers._checkpoint.progress
    assert (progress.queue_offset, progress.log_end) == (3, 104)


def test_while_the_tier_is_down_far_timers_roll_and_near_ones_go_on() -> None:
    far = KeptFar(horizon_ms=60_000)
    world = TimerWorld(far=far)
    far.is_down = True
    world.send(b"lost grip", 3_600_000)
    world.turn()
    world.timers.flush()
    world.send(b"rolls", 3_600_000)
    world.send(b"near", 5_000)
    world.wait(10_000)
    assert world.bodies() == [b"near"]
    assert world.timers.waiting_count == 1
    assert world.timers.counts.far_errors > 0
    far.is_down = False
    world.wait(3_600_000, step_ms=5_000)
    assert sorted(world.bodies()) == [b"lost grip", b"near", b"rolls"]


def test_a_cancelled_far_timer_is_not_delivered() -> None:
    far = KeptFar(horizon_ms=60_000)
    world = TimerWorld(far=far)
    world.send(b"a", 3_600_000)
    world.send(b"b", 3_600_000)
    world.turn()
    world.wait(100_000, step_ms=10_000)
    world.timers.cancel("T", "K-a", NOW_MS + 3_600_000)
    world.store.dispatch_now()
    world.wait(3_600_000, step_ms=5_000)
    assert world.bodies() == [b"b"]
    assert world.timers.counts.cancelled == 1


def test_a_small_window_rolls_a_timer_no_more_often_than_rocketmq_does() -> None:
    world = TimerWorld(settings=TimerSettings(slots=600, log_file_bytes=4096, roll_window_slots=2))
    world.send(b"a", 4_000)
    world.wait(10_000)
    [message] = world.messages()
    assert message.properties["TIMER_ROLL_TIMES"] == "1"
    assert SMALL.roll_slots == 100


def test_a_far_timer_is_a_value_that_does_not_change_after_it_was_added() -> None:
    timer = TieredTimer(1_700_000_000_000, False, b"record")
    assert timer == TieredTimer(1_700_000_000_000, False, b"record")
    with pytest.raises(dataclasses.FrozenInstanceError):
        timer.deliver_ms = 0  # type: ignore[misc]
