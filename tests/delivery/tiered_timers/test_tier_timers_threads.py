"""The timer service's thread and the upkeep's at the same time, over a tier that fails now and then."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from delivery.tiered_timers.tier_world import DAY_MS, HOUR_MS, NOW_MS, FarWorld, number_of, timer
from servers.faulty_driver import Fault, FaultyDriver, SeededFaults
from simulation.simulated_files import SimulatedFileAccess
from tiermq.errors import TierError
from tiermq.tier.driver.memory import MemoryDriver

COUNT = 400
DAYS = 12


def again(call: object) -> object:
    """As the wheel does: what the tier refuses is tried again."""
    while True:
        try:
            return call()  # type: ignore[operator]
        except TierError:
            continue


@pytest.mark.parametrize("seed", range(3))
def test_timers_are_each_given_while_upkeep_runs_beside_over_a_tier_that_fails(tmp_path: Path, seed: int) -> None:
    rates = {} if seed == 0 else {Fault.BEFORE: 0.03, Fault.AFTER: 0.03}
    world = FarWorld(tmp_path, FaultyDriver(MemoryDriver(), SeededFaults(seed, rates)), access=SimulatedFileAccess())
    timers, chance = world.timers, random.Random(seed)
    ending = threading.Event()
    problems: list[BaseException] = []

    def upkeep() -> None:
        while not ending.is_set():
            try:
                timers.tend()
            except TierError:
                continue
            except BaseException as error:
                problems.append(error)
                raise

    beside = threading.Thread(target=upkeep)
    beside.start()
    given: list[int] = []
    number = 0
    try:
        while world.clock.now_ms() < NOW_MS + (DAYS + 3) * DAY_MS:
            for _ in range(8 if number < COUNT else 0):
                due_ms = world.clock.now_ms() + timers.horizon_ms + 1 + chance.randrange(DAYS * DAY_MS // 2)
                timers.add(timer(number, due_ms))
                number += 1
            again(timers.flush)
            world.clock.advance_ms(3 * HOUR_MS)
            pulled = again(lambda: list(timers.pull(world.clock.now_ms() + DAY_MS // 2)))
            timers.pulled()
            given += map(number_of, pulled)  # type: ignore[call-overload]
            timers.forget(world.clock.now_ms())
    finally:
        ending.set()
        beside.join()
    assert problems == []
    world.driver.plan = None  # type: ignore[attr-defined]
    assert set(given) == set(range(number))
    assert len(given) == number  # No process died, so nothing is given twice.
    world.clock.advance_ms(30 * DAY_MS)
    list(timers.pull(world.clock.now_ms()))
    timers.forget(world.clock.now_ms())
    world.restart()
    world.timers.forget(world.clock.now_ms())
    world.tend()
    assert world.objects() == ["manifest.tiermq.json"]
