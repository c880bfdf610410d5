"""The power fails at each moment of the timers' life: what was stored durably is delivered, and not before its time."""

from __future__ import annotations

import random
from functools import partial

import pytest

from delivery.timer.kept_timers import KeptFar
from delivery.timer.timer_world import NOW_MS, SMALL, TimerWorld
from simulation.manual_clock import ManualClock
from simulation.power_cut import CutLife
from simulation.simulated_files import SimulatedFileAccess, by_chance
from tiermq.message.properties import TIMER_DEQUEUE_MS, TIMER_OUT_MS

pytestmark = pytest.mark.crash


class TimerLife(CutLife):
    """Timers that wait, roll, are cancelled and delivered, over a restart; cut off after so many calls to the disk."""

    def __init__(self, calls: int | None, far: KeptFar | None = None) -> None:
        super().__init__(calls, ManualClock(NOW_MS))
        self.durable: set[bytes] = set()
        self.far = far
        self.cancelled_durably = False

    def live(self) -> None:
        world = TimerWorld(self.access, self.clock, far=self.far)
        for number in range(4):
            self.send(world, f"{number}-soon", 3_000)
            self.send(world, f"{number}-later", 12_000)
            self.send(world, f"{number}-rolls", 150_000)
            world.wait(2_500, step_ms=500)
        self.send(world, "cancelled", 30_000)
        world.timers.cancel("T", "K-cancelled", self.clock.now_ms() + 30_000)
        world.store.flush()
        self.cancelled_durably = True
        world.store.dispatch_now()
        world.wait(10_000)
        world.restart()
        world.wait(120_000, step_ms=10_000)
        world.stop()

    def send(self, world: TimerWorld, name: str, delay_ms: int) -> None:
        world.send(name.encode(), delay_ms)
        world.store.flush()
        if name != "cancelled":
            self.durable.add(name.encode())


def lived(calls: int | None, far: KeptFar | None = None) -> TimerLife:
    life = TimerLife(calls, far)
    if calls is None:
        life.live()
    else:
        life.live_until_cut()
    return life


def check_after(life: TimerLife, after: SimulatedFileAccess, calls: int) -> int:
    """Live on with what the disk kept; how many timers were delivered twice."""
    if life.far is not None:
        life.far.restarted()
    world = TimerWorld(after, life.clock, far=life.far)
    world.wait(40_000, step_ms=2_000)
    world.restart()
    world.wait(200_000, step_ms=4_000)
    messages = world.messages()
    found = [message.body for message in messages]
    assert set(found) >= life.durable, f"cut after {calls} calls"
    early = [
        message
        for message in messages
        if int(message.properties[TIMER_DEQUEUE_MS]) < int(message.properties[TIMER_OUT_MS]) + SMALL.precision_ms
    ]
    assert early == []
    assert not life.cancelled_durably or b"cancelled" not in found, f"cut after {calls} calls"
    assert world.timers.counts.skipped == 0
    assert world.timers.waiting_count == 0
    world.stop()
    return len(found) - len(set(found))


def test_a_power_cut_at_any_moment_costs_no_timer() -> None:
    whole = lived(None)
    assert len(whole.durable) == 12
    assert whole.calls > 200
    chance = random.Random(11)
    twice = 0
    for calls in range(whole.calls):
        life = lived(calls)
        kept = chance.choice((0.0, 0.5, 1.0))
        after = life.access.crash(partial(by_chance, chance, kept))
        twice += check_after(life, after, calls)
    assert twice > 0, "some are delivered twice: nothing is written down before it is known to be safe"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_whatever_a_power_cut_leaves_of_the_pages_costs_no_timer(seed: int) -> None:
    chance = random.Random(seed)
    for calls in range(lived(None).calls):
        life = lived(calls)
        kept = chance.random()
        check_after(life, life.access.crash(partial(by_chance, chance, kept)), calls)


def test_a_power_cut_costs_no_far_timer() -> None:
    chance = random.Random(13)
    for calls in range(0, lived(None, KeptFar(20_000)).calls, 3):
        life = lived(calls, KeptFar(20_000))
        check_after(life, life.access.crash(lambda _path, _page: chance.random() < 0.5), calls)
