"""Opening timers whatever happened: kills, lost and damaged files, other precisions, RocketMQ's checkpoints."""

from __future__ import annotations

import struct

import pytest

from delivery.timer.timer_world import NOW_MS, SMALL, TimerWorld
from simulation.simulated_files import SimulatedFileAccess
from small_store import ROOT, killed, overwrite, power_cut, remove_tree
from tiermq.delivery.timer.timer_state import TimerSettings
from tiermq.errors import StoreDamaged

BODIES = [f"m{number:02}".encode() for number in range(30)]


def waiting(**settings: object) -> TimerWorld:
    """A world in which thirty timers wait, over several slots and two rolls; nothing written down since the start."""
    world = TimerWorld(**settings)  # type: ignore[arg-type]
    for number, body in enumerate(BODIES):
        world.send(body, 5_000 + number % 7 * 20_000)
    world.turn()
    return world


def as_rocketmq_leaves_it(world: TimerWorld, *, log_end: int, queue_offset: int, read_ms: int = NOW_MS) -> None:
    """The checkpoint as RocketMQ writes it: without our mark, its log end one flush behind."""
    overwrite(world.access, "config/timercheck", 0, struct.pack(">4q", read_ms, log_end, queue_offset, queue_offset))
    world.access._entries[f"{ROOT}/config/timercheck"].current[64:] = bytes(4096 - 64)


def all_delivered_once(world: TimerWorld) -> None:
    world.wait(200_000, step_ms=2_000)
    assert sorted(world.bodies()) == BODIES
    assert world.timers.counts.skipped == 0
    assert world.timers.waiting_count == 0
    assert world.timers.waiting_by_topic() == {}


def test_timers_survive_a_kill_before_anything_was_written_down() -> None:
    world = waiting()
    all_delivered_once(world.crashed(killed(world.access)))


def test_timers_survive_a_kill_after_some_were_written_down() -> None:
    world = waiting()
    world.timers.flush()
    world.send(b"later", 20_000)
    world.turn()
    after = world.crashed(killed(world.access))
    assert after.timers.queue_offset == len(BODIES)
    after.wait(200_000, step_ms=2_000)
    assert sorted(after.bodies()) == sorted([*BODIES, b"later"])


def test_a_wheel_that_knows_more_than_the_checkpoint_is_taken_back() -> None:
    world = waiting()
    world.timers.flush()
    known = world.timers._checkpoint.progress
    world.send(b"in a known slot", 5_000)
    world.send(b"in a new slot", 77_000)
    world.turn()
    world.store.flush()
    world.timers._state.log.flush()
    world.timers._state.wheel.flush()  # And the process dies before the checkpoint.
    after = world.crashed(killed(world.access))
    assert after.timers._checkpoint.progress.log_end == known.log_end
    assert after.timers.waiting_count == len(BODIES)
    after.wait(200_000, step_ms=2_000)
    assert sorted(after.bodies()) == sorted([*BODIES, b"in a known slot", b"in a new slot"])
    assert after.timers.waiting_count == 0


@pytest.mark.parametrize("damage", ["lost", "zeros", "empty"])
def test_a_wheel_that_is_gone_is_made_again_from_the_log(damage: str) -> None:
    world = waiting()
    world.stop()
    if damage == "lost":
        remove_tree(world.access, "timerwheel")
    elif damage == "empty":
        world.access.write_bytes(f"{ROOT}/timerwheel", b"")
    else:
        as_rocketmq_leaves_it(world, log_end=0, queue_offset=len(BODIES))
        size = SMALL.wheel_slots * 32
        overwrite(world.access, "timerwheel", 0, bytes(size))
    world.start()
    all_delivered_once(world)


def test_a_wheel_that_was_made_again_twice_has_each_timer_once() -> None:
    world = waiting()
    for _ in range(2):
        world.stop()
        remove_tree(world.access, "timerwheel")
        world.start()
        world.send(b"x", 3_000)
        world.wait(4_000)
    world.restart()
    world.wait(200_000, step_ms=2_000)
    assert sorted(world.bodies()) == sorted([*BODIES, b"x", b"x"])


def damaged(world: TimerWorld, name: str, at: int, flipped: bytes) -> None:
    """Flip bits there; nothing to flip is a sector that reads as zeros."""
    before = bytes(world.access._entries[f"{ROOT}/{name}"].current)
    after = bytes(a ^ b for a, b in zip(before[at:], flipped, strict=False)) if flipped else bytes(512)
    assert before[at : at + len(after)] != after
    overwrite(world.access, name, at, after)


LOG = "timerlog/00000000000000000000"
UNIT = 52 * 18
"""Of one that waits, behind two others in its slot."""


@pytest.mark.parametrize(
    ("name", "at", "flipped"),
    [
        pytest.param("timerwheel", -1, b"", id="a sector of the wheel"),
        pytest.param(LOG, UNIT // 512 * 512, b"", id="a sector of the log"),
        pytest.param(LOG, UNIT + 15, b"\x04", id="a timer looks like a cancellation"),
        pytest.param(LOG, UNIT + 15, b"\x02", id="a timer looks as if it rolled"),
        pytest.param(LOG, UNIT + 10, b"\x02", id="a chain leads elsewhere"),
        pytest.param(LOG, UNIT + 35, b"\x01", id="another message"),
        pytest.param("config/timercheck", 0, b"", id="a sector of the checkpoint"),
        pytest.param("config/timercheck", 2, b"\x04", id="a read time that is years ahead"),
        pytest.param("config/timercheck", 23, b"\x01", id="another offset"),
    ],
)
def test_damage_of_the_timers_files_costs_no_timer_and_gives_none_twice(name: str, at: int, flipped: bytes) -> None:
    world = waiting()
    world.send(b"cancelled", 88_000)
    world.timers.cancel("T", "K-cancelled", world.clock.now_ms() + 88_000)
    world.store.dispatch_now()
    world.wait(80_000, step_ms=4_000)  # Some are delivered, and some have rolled.
    world.stop()
    if at < 0:
        wheel = bytes(world.access._entries[f"{ROOT}/{name}"].current)
        at = max(range(0, len(wheel), 512), key=lambda start: sum(map(bool, wheel[start : start + 512])))
    damaged(world, name, at, flipped)
    world.start()
    all_delivered_once(world)


@pytest.mark.parametrize("rolls", [False, True], ids=["it stays", "it rolls, too"])
def test_a_cancellation_that_is_older_than_its_timers_last_roll_outlives_damage(rolls: bool) -> None:
    world = waiting()
    due_ms = NOW_MS + 180_000
    if rolls:
        world.timers.cancel("T", "K-cancelled", due_ms)
    world.send(b"cancelled", deliver_ms=due_ms)
    world.wait(96_000, step_ms=4_000)
    if not rolls:
        world.timers.cancel("T", "K-cancelled", due_ms)
        world.store.dispatch_now()
    world.wait(24_000, step_ms=4_000)
    *_, cancellation, timer = [each for each in world.in_timer_topic() if each.properties["UNIQ_KEY"] == "K-cancelled"]
    assert "TIMER_DEL_UNIQKEY" in cancellation.properties
    assert ("TIMER_ROLL_TIMES" in cancellation.properties) == rolls
    assert timer.body == b"cancelled"
    assert "TIMER_ROLL_TIMES" in timer.properties
    world.stop()
    remove_tree(world.access, "timerwheel")
    world.start()
    world.wait(100_000, step_ms=2_000)
    assert sorted(world.bodies()) == BODIES


def test_timers_that_are_made_again_from_their_topic_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    world = waiting()
    world.stop()
    damaged(world, LOG, UNIT + 15, b"\x04")
    world.start()
    assert "rebuilding from the topic" in caplog.text
    caplog.clear()
    world.restart()
    assert "rebuil" not in caplog.text


def test_a_wheel_of_another_size_is_refused() -> None:
    world = waiting()
    world.stop()
    with pytest.raises(StoreDamaged, match="expected a timer wheel"):
        world.start(TimerSettings(slots=700, log_file_bytes=4096))


@pytest.mark.parametrize("precision_ms", [100, 5_000])
def test_another_precision_finds_every_timer(precision_ms: int) -> None:
    world = waiting()
    world.restart(TimerSettings(slots=600, log_file_bytes=4096, roll_window_slots=100, precision_ms=precision_ms))
    world.wait(250_000, step_ms=1_000)
    assert sorted(world.bodies()) == BODIES
    assert world.timers.waiting_count == 0


def test_a_finer_wheel_that_was_away_for_long_still_delivers_what_was_due() -> None:
    world = waiting()
    world.stop()
    world.clock.advance_ms(150_000)
    world.start(TimerSettings(slots=600, log_file_bytes=4096, roll_window_slots=100, precision_ms=100))
    world.wait(5_000, step_ms=100)
    assert sorted(world.bodies()) == BODIES


def test_without_a_checkpoint_everything_in_the_log_comes_again_rather_than_not_at_all() -> None:
    world = waiting()
    world.stop()
    remove_tree(world.access, "config/timercheck")
    world.start()
    world.wait(200_000, step_ms=2_000)
    assert set(world.bodies()) == set(BODIES)


def test_a_log_that_is_shorter_than_the_checkpoint_says_costs_nothing_that_is_in_the_topic() -> None:
    world = waiting()
    for number in range(100):
        world.send(f"n{number:03}".encode(), 30_000)
    world.stop()
    remove_tree(world.access, "timerlog/00000000000000004096")
    world.start()
    world.wait(200_000, step_ms=2_000)
    assert set(world.bodies()) == {*BODIES, *(f"n{number:03}".encode() for number in range(100))}


# RocketMQ's directories


def test_what_rocketmq_closed_in_order_is_taken_over_without_repeating_anything() -> None:
    world = waiting()
    world.stop()
    as_rocketmq_leaves_it(world, log_end=0, queue_offset=len(BODIES))
    world.start()
    all_delivered_once(world)


def test_units_that_rocketmqs_wheel_does_not_know_are_found_in_the_log() -> None:
    world = waiting()
    world.timers.flush()
    end = world.timers._state.log.end
    wheel = world.access.read_bytes(f"{ROOT}/timerwheel")
    world.send(b"later", 20_000)
    world.turn()
    world.stop()
    overwrite(world.access, "timerwheel", 0, wheel)
    as_rocketmq_leaves_it(world, log_end=end, queue_offset=len(BODIES) + 1)
    world.start()
    world.wait(200_000, step_ms=2_000)
    assert sorted(world.bodies()) == sorted([*BODIES, b"later"])


def test_units_beyond_rocketmqs_queue_offset_are_taken_in_again_and_delivered_once() -> None:
    world = waiting()
    world.stop()
    as_rocketmq_leaves_it(world, log_end=0, queue_offset=20)
    world.start()
    assert world.timers.queue_offset == 20
    all_delivered_once(world)


def test_units_that_rocketmq_lost_in_a_power_cut_are_taken_in_again() -> None:
    world = waiting()
    world.stop()
    as_rocketmq_leaves_it(world, log_end=52 * 10, queue_offset=len(BODIES))
    overwrite(world.access, "timerlog/00000000000000000000", 52 * 20, bytes(52 * 10))
    world.start()
    assert world.timers.queue_offset == 20
    all_delivered_once(world)


def test_a_read_time_of_rocketmqs_is_believed() -> None:
    world = waiting()
    world.wait(30_000)
    before = world.bodies()
    world.stop()
    as_rocketmq_leaves_it(world, log_end=0, queue_offset=len(BODIES), read_ms=NOW_MS + 30_000)
    world.start()
    assert world.bodies() == before
    all_delivered_once(world)


# Power cuts of a moment; those at every moment are in test_timer_power_cut.


def test_what_was_never_flushed_may_go_and_the_rest_is_delivered() -> None:
    world = waiting()
    world.timers.flush()
    world.send(b"lost with the power", 5_000)
    world.turn()
    all_delivered_once(world.crashed(power_cut(world.access)))


def test_pages_of_the_wheel_and_the_log_that_were_written_in_part_are_no_harm() -> None:
    for seed in range(12):
        world = waiting()
        world.timers.flush()
        world.send(b"later", 20_000)
        world.turn()
        world.store.flush()
        world.timers._state.log.flush()
        # The flush of the wheel is cut short: its pages are anywhere between old and new.
        wheel, dirty = world.timers._state.wheel, world.timers._state.wheel._dirty
        for page in {index // 128 for index in dirty}:
            wheel._region.reserve(page * 4096, min(4096, wheel._region.size - page * 4096))
        for index, data in dirty.items():
            wheel._region.buffer[index * 32 : index * 32 + 32] = data

        def survives(path: str, page: int, seed: int = seed) -> bool:
            return hash((path, page, seed)) % 3 > 0

        after = world.crashed(world.access.crash(survives))
        after.wait(200_000, step_ms=5_000)
        assert sorted(after.bodies()) == sorted([*BODIES, b"later"])


def test_opening_changes_nothing_that_a_second_opening_would_miss() -> None:
    world = waiting()
    access: SimulatedFileAccess = killed(world.access)
    for _ in range(5):
        after = world.crashed(access)
        access = killed(after.access)
    all_delivered_once(world.crashed(access))
