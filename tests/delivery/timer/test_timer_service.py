"""The service as a whole: rounds, clocks, restarts, cancelling, what it reports."""

from __future__ import annotations

import dataclasses
import json
import tracemalloc
from pathlib import Path

import pytest

from delivery.timer.kept_timers import KeptFar
from delivery.timer.timer_world import NOW_MS, SMALL, TimerWorld
from simulation.manual_clock import ManualClock
from simulation.simulated_files import set_modified_ms
from small_store import LOG_BYTES, ROOT, killed, put_all
from tiermq import Message
from tiermq.clock import SystemClock
from tiermq.delivery.timer.timer_destination import TimerDestination
from tiermq.delivery.timer.timer_service import TimerService
from tiermq.delivery.timer.timer_state import TimerSettings
from tiermq.errors import IllegalMessage
from tiermq.message.properties import encode_properties
from tiermq.message.topic_name import TIMER_TOPIC
from tiermq.status import PutStatus
from tiermq.store.local_store import LocalStore
from waiting import until

QUICK = TimerSettings(slots=60_000, log_file_bytes=4096, precision_ms=10, flush_interval_ms=20)
HOUR_MS = 3_600_000
MEBIBYTE = 1024 * 1024


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


@pytest.mark.parametrize("looked_at", ["waiting_count", "behind_count"])
def test_a_wheel_is_not_idle_while_a_timer_is_moved_into_it(monkeypatch: pytest.MonkeyPatch, looked_at: str) -> None:
    """The timer is enqueued by another thread right after one of the two counts was read."""
    world = TimerWorld()
    world.send(b"a", 50_000)
    real = getattr(TimerService, looked_at).fget

    def read_then_moved(timers: TimerService) -> int:
        found: int = real(timers)
        monkeypatch.undo()
        world.turn()
        return found

    monkeypatch.setattr(TimerService, looked_at, property(read_then_moved))
    assert not world.timers.is_idle
    monkeypatch.undo()
    world.turn()
    assert (world.timers.behind_count, world.timers.waiting_count) == (0, 1)
    assert not world.timers.is_idle


def test_waiting_timers_are_counted_and_the_next_is_known() -> None:
    world = TimerWorld()
    assert world.timers.next_due_ms() is None
    world.send(b"a", 50_000)
    world.send(b"b", 20_000, topic="U")
    assert world.timers.behind_count == 2
    assert world.timers.enqueue_behind_ms() == 0
    world.clock.advance_ms(7_000)
    assert world.timers.enqueue_behind_ms() == 7_000
    world.clock.advance_ms(-7_000)
    world.turn()
    assert (world.timers.behind_count, world.timers.enqueue_behind_ms(), world.timers.due_count()) == (0, 0, 0)
    world.clock.advance_ms(19_999)
    assert world.timers.due_count() == 0
    world.clock.advance_ms(1)
    assert world.timers.due_count() == 1
    world.clock.advance_ms(30_000)
    assert world.timers.due_count() == 2
    world.clock.advance_ms(-50_000)
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
    until(lambda: world.bodies() or world.timers.error_count)
    assert world.timers.error_count == 0, world.timers.last_error
    world.send(b"waits", 60_000)
    until(lambda: not world.timers.behind_count)
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


def make_files_old(world: TimerWorld) -> None:
    """Old enough to be deleted by their files' times, though no hour has passed."""
    for info in world.access.list_files("/store/commitlog"):
        set_modified_ms(world.access, f"/store/commitlog/{info.name}", world.clock.now_ms() - 2 * HOUR_MS)


@pytest.mark.parametrize("how", ["stopped", "the clock leaps", "deliveries are stopped"])
def test_a_timer_that_rolls_late_is_cancelled_all_the_same(how: str) -> None:
    """It rolls when its time is over already: it must not be delivered before what cancels it is seen."""
    world = TimerWorld()
    window_ms = SMALL.roll_window_ms
    for delay_ms in (window_ms * 5 // 4, window_ms * 7 // 4, window_ms * 9 // 2):
        due_ms = world.clock.now_ms() + delay_ms
        world.send(b"cancelled %d" % delay_ms, deliver_ms=due_ms)
        world.send(b"stays %d" % delay_ms, deliver_ms=due_ms)
        world.timers.cancel("T", f"K-cancelled {delay_ms}", due_ms)
    world.turn()
    if how == "stopped":
        world.stop()
        world.clock.advance_ms(10 * window_ms)
        world.start()
    elif how == "deliveries are stopped":
        world.restart(dataclasses.replace(SMALL, stop_dequeue=True))
        world.wait(10 * window_ms)
        world.restart(SMALL)
    else:
        world.clock.advance_ms(10 * window_ms)
    world.turn()
    assert sorted(world.bodies()) == sorted(b"stays %d" % ms for ms in (125_000, 175_000, 450_000))


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


def peak_bytes(path: Path, count: int, seconds: int) -> int:
    """The most that Python held while so many timers, due over so many seconds, were taken in and delivered."""
    clock = ManualClock()
    with LocalStore.open(path, clock=clock, message_index_enable=False) as store:
        timers = TimerService(store, path, clock)
        for begin in range(0, count, 1_000):
            messages = []
            for number in range(begin, begin + 1_000):
                asked = {"TIMER_DELAY_SEC": str(60 + number % seconds), "UNIQ_KEY": f"K{number}"}
                place = timers.place("T", 0, encode_properties(asked))
                assert isinstance(place, TimerDestination)
                messages.append(Message(place.topic, b"body", 0, encoded_properties=place.properties))
            assert store.put_many(messages).all_ok
        store.dispatch_now()
        tracemalloc.start()
        try:
            while timers.behind_count:
                timers.run_once()
            assert timers.waiting_count == count
            clock.advance_ms((seconds + 120) * 1_000)
            while timers.counts.delivered < count:
                timers.run_once()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            timers.finish()
            timers.close()


def test_many_more_timers_take_hardly_more_memory(tmp_path: Path) -> None:
    few, many = peak_bytes(tmp_path / "few", 1_000, 1), peak_bytes(tmp_path / "many", 6_000, 1)
    assert many < few + MEBIBYTE


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_million_waiting_timers_take_few_mebibytes(tmp_path: Path) -> None:
    assert peak_bytes(tmp_path, 1_000_000, 100) < 24 * MEBIBYTE
