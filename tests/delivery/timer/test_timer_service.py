"""The service as a whole: rounds, clocks, restarts, cancelling, what it tells."""

from __future__ import annotations

import json

import pytest

from delivery.timer.timer_world import NOW_MS, SMALL, TimerWorld
from small_store import ROOT
from tiermq.clock import SystemClock
from tiermq.delivery.timer.timer_service import TimerService
from tiermq.delivery.timer.timer_settings import TimerSettings
from tiermq.errors import IllegalMessage
from tiermq.message.properties import encode_properties
from tiermq.message.topic_name import TIMER_TOPIC
from tiermq.status import PutStatus

QUICK = TimerSettings(slots=60_000, log_file_bytes=4096, precision_ms=10, flush_interval_ms=20)


def test_timers_wait_over_restarts() -> None:
    world = TimerWorld()
    for number in range(20):
        world.send(f"m{number:02}".encode(), 10_000 + number * 10_000)
    for _ in range(30):
        world.wait(10_000)
        world.restart()
    assert world.bodies() == [f"m{number:02}".encode() for number in range(20)]
    assert world.timers.waiting_by_topic() == {}


def test_after_a_stop_everything_that_became_due_is_delivered_at_once() -> None:
    world = TimerWorld()
    for number in range(5):
        world.send(f"m{number}".encode(), 5_000 + number * 7_000)
    world.turn()
    world.stop()
    world.clock.advance_ms(3_600_000)
    world.start()
    world.turn()
    assert world.bodies() == [f"m{number}".encode() for number in range(5)]


@pytest.mark.parametrize("days", [8, 20, 400])
def test_a_broker_that_was_away_for_longer_than_the_wheel_turns_loses_nothing(days: int) -> None:
    """RocketMQ forgets slots older than seven days when it starts."""
    world = TimerWorld(settings=TimerSettings(slots=7 * 24 * 3600, log_file_bytes=4096))
    world.send(b"a", 5_000)
    world.send(b"b", 24 * 3_600_000)
    world.turn()
    world.send(b"not taken in", 10_000)
    world.stop()
    world.clock.advance_ms(days * 24 * 3_600_000)
    world.start()
    world.send(b"new", 2 * 24 * 3_600_000 - 5_000)
    world.turn()
    assert sorted(world.bodies()) == [b"a", b"b", b"not taken in"]
    world.wait(2 * 24 * 3_600_000, step_ms=3_600_000)
    assert world.bodies()[-1] == b"new"
    assert len(world.bodies()) == 4


def test_a_clock_that_is_set_back_neither_repeats_nor_hastens_nor_loses() -> None:
    world = TimerWorld()
    world.send(b"first", 5_000)
    world.wait(60_000)
    assert world.bodies() == [b"first"]
    world.clock.set_ms(NOW_MS)
    world.send(b"second", 10_000)
    world.wait(9_000)
    assert world.bodies() == [b"first"]
    world.wait(60_000)
    assert world.bodies() == [b"first", b"second"]


def test_a_clock_that_is_set_back_between_two_lives_is_noticed() -> None:
    world = TimerWorld()
    world.send(b"first", 5_000)
    world.wait(60_000)
    world.stop()
    world.clock.set_ms(NOW_MS)
    world.start()
    world.send(b"second", 10_000)
    world.wait(9_000)
    assert world.bodies() == [b"first"]
    world.wait(60_000)
    assert world.bodies() == [b"first", b"second"]


def test_a_clock_that_leaps_ahead_delivers_what_is_due_by_it() -> None:
    world = TimerWorld()
    world.send(b"a", 50_000)
    world.send(b"b", 90_000)
    world.turn()
    world.clock.advance_ms(60_000)
    world.turn()
    assert world.bodies() == [b"a"]


def test_an_idle_wheel_is_not_written_each_second_but_now_and_then() -> None:
    world = TimerWorld()
    world.turn()
    before = world.timers._checkpoint.progress.counter
    world.wait(50_000)
    assert world.timers._checkpoint.progress.counter == before
    world.wait(120_000)
    assert before < world.timers._checkpoint.progress.counter <= before + 3


def test_waiting_timers_are_counted_and_the_next_is_known() -> None:
    world = TimerWorld()
    assert world.timers.next_due_ms() is None
    world.send(b"a", 50_000)
    world.send(b"b", 20_000, topic="U")
    assert world.timers.behind_count == 2
    world.turn()
    assert world.timers.behind_count == 0
    assert world.timers.waiting_count == 2
    assert world.timers.waiting_by_topic() == {"T": 1, "U": 1}
    assert world.timers.next_due_ms() == NOW_MS + 20_000
    world.timers.flush()
    counts = json.loads(world.access.read_bytes(f"{ROOT}/config/timermetrics"))["timingCount"]
    assert {topic: value["count"] for topic, value in counts.items()} == {"T": 1, "U": 1}


def test_a_timer_can_be_cancelled_up_to_its_time_and_not_after() -> None:
    world = TimerWorld()
    assert world.timers.cancel("T", "K", NOW_MS + 1).ok
    with pytest.raises(IllegalMessage, match="it is over"):
        world.timers.cancel("T", "K", NOW_MS)


def test_a_full_slot_refuses_more() -> None:
    world = TimerWorld(settings=TimerSettings(slots=600, log_file_bytes=4096, congest_num_each_slot=3))
    for number in range(6):
        world.send(f"m{number}".encode(), 5_000)
    world.turn()
    refused = world.timers.place("T", 0, encode_properties({"TIMER_DELAY_MS": "5000"}))
    assert refused is PutStatus.WHEEL_TIMER_FLOW_CONTROL


def test_old_files_of_the_timer_log_go_with_their_messages() -> None:
    world = TimerWorld(file_reserved_time=1)
    for number in range(200):
        world.send(f"m{number:03}".encode(), 2_000)
    world.wait(60_000)
    assert len(world.access.list_files(f"{ROOT}/timerlog")) == 3
    world.clock.advance_ms(2 * 3_600_000)
    world.send(b"new", 5_000)
    world.store.clean_now()
    world.store.clean_now()
    world.wait(40_000)
    assert len(world.access.list_files(f"{ROOT}/timerlog")) < 3
    assert world.bodies()[-1] == b"new"


def test_under_sync_flush_a_delivered_timer_is_readable_without_another_put() -> None:
    world = TimerWorld(clock=SystemClock(), settings=QUICK, background=True, flush_disk_type="SYNC_FLUSH")
    try:
        world.send(b"a", 20)
        while not world.bodies():
            world.timers.run_once()
    finally:
        world.stop()


def test_the_service_runs_by_itself_and_stops_in_order() -> None:
    world = TimerWorld(clock=SystemClock(), settings=QUICK, background=True)
    world.timers.start()
    world.send(b"a", 20)
    while not world.bodies():
        assert world.timers.error_count == 0, world.timers.last_error
    world.send(b"waits", 60_000)
    while world.timers.behind_count:
        pass
    world.timers.stop()
    assert world.timers.error_count == 0
    world.timers.stop()
    world.store.close()
    world.start()
    assert world.timers.waiting_count == 1
    world.stop()


def test_two_services_in_a_row_on_one_store_share_nothing_but_the_files() -> None:
    world = TimerWorld()
    world.send(b"a", 5_000)
    world.turn()
    world.timers.finish()
    world.timers.close()
    again = TimerService(world.store, ROOT, world.clock, SMALL, world.access)
    assert again.waiting_count == 1
    assert again.queue_offset == 1
    assert world.store.max_offset(TIMER_TOPIC, 0) == 1
    again.close()


def test_a_cancellation_that_was_stored_before_a_stop_is_honoured_after_it() -> None:
    """RocketMQ delivers the timer at once when it starts, and reads the cancellation behind it."""
    world = TimerWorld()
    world.send(b"a", 5_000)
    world.send(b"b", 5_000)
    assert world.timers.cancel("T", "K-a", NOW_MS + 5_000).ok
    world.stop()
    world.clock.advance_ms(60_000)
    world.start()
    world.turn()
    assert world.bodies() == [b"b"]
    assert world.timers.counts.cancelled == 1
