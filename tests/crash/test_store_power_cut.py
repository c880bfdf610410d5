"""The power goes at any moment, and whatever page by page reached the disk, the store is what it promised to be.

Three ways to look for a moment at which it is not: every call of a fixed history, every call of a recovery, and any
order of events that hypothesis can think of.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from crash.world import QUEUES, World

pytestmark = pytest.mark.crash

VARIANTS: dict[str, dict[str, Any]] = {
    "sync": {"sync": True},
    "async": {"sync": False},
    "sync through the pool": {"sync": True, "transient_store_pool_enable": True, "transient_store_pool_size": 2},
    "whole-record CRC": {"sync": False, "enabled_append_prop_crc": True, "force_verify_prop_crc": True},
}
SHARES = [0.0, 0.5, 1.0]  # How likely an unsynced page is to reach the disk.


def live(world: World) -> None:
    """A short life with everything in it: rolls of log, queue and index, a restart, a death, cleaning."""
    world.put(0, 40)
    world.put_many([(0, 700), (1, 12), (2, 300), (0, 1600)])
    world.put_batch(1, [40, 700, 12])
    world.dispatch()
    world.flush_queues()
    world.move_clock(5_000)
    world.put_many([(at % 3, 300) for at in range(25)])
    world.dispatch()
    world.put(2, 1600, 600)
    world.flush()
    world.reopen()
    world.move_clock(5_000)
    world.put_many([(at % 2, 150) for at in range(20)])
    world.kill()
    world.dispatch()
    world.flush_queues()
    world.clean()
    world.put(1, 700)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_power_cut_at_every_call_of_a_life_keeps_every_promise(variant: str) -> None:
    cuts = 0
    was_cut = True
    while was_cut:
        for share in SHARES if variant in ("sync", "async") else SHARES[1:2]:
            world = World(**VARIANTS[variant])
            was_cut = world.cut_power_during(functools.partial(live, world), cuts, seed=cuts, likely=share)
            world.check()
            world.put(0, 40)
            world.check()
        cuts += 1
    assert cuts > 60, "the life has many moments"


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("variant", ["sync", "async"])
def test_a_power_cut_at_every_call_of_a_recovery_loses_nothing_more(variant: str, share: float) -> None:
    cuts = 0
    was_cut = True
    while was_cut:
        world = World(**VARIANTS[variant])
        live(world)
        world.lose_power_during(world.store.close, 0, seed=cuts, likely=share)
        was_cut = world.lose_power_during(world.open_only, cuts, seed=cuts + 1, likely=share)
        if was_cut:
            world.open_only()
        world.settle()
        world.check()
        cuts += 1
    assert cuts > 10, "recovery has many moments"


queues = st.integers(0, len(QUEUES) - 1)
sizes = st.sampled_from([12, 40, 300, 700, 1600])
seeds = st.integers(0, 2**16)
shares = st.sampled_from([0.0, 0.5, 0.9, 1.0])
calls = st.integers(0, 40)


class Life(RuleBasedStateMachine):
    """Any order of puts, flushes, dispatches, restarts, deaths and power cuts."""

    variant = "sync"

    @initialize()
    def open(self) -> None:
        self.world = World(**VARIANTS[self.variant])

    @rule(queue=queues, size=sizes, padding=st.sampled_from([0, 10, 600]))
    def put(self, queue: int, size: int, padding: int) -> None:
        self.world.put(queue, size, padding)

    @rule(sizes=st.lists(st.tuples(queues, sizes), min_size=1, max_size=12))
    def put_many(self, sizes: list[tuple[int, int]]) -> None:
        self.world.put_many(sizes)

    @rule(queue=queues, sizes=st.lists(sizes, min_size=1, max_size=4))
    def put_batch(self, queue: int, sizes: list[int]) -> None:
        self.world.put_batch(queue, sizes)

    @rule(what=st.sampled_from(["dispatch", "flush", "flush_queues", "clean"]))
    def do_housework(self, what: str) -> None:
        getattr(self.world, what)()

    @rule(delta=st.sampled_from([1, 700, 4000, 100_000]))
    def move_clock(self, delta: int) -> None:
        self.world.move_clock(delta)

    @rule()
    def reopen(self) -> None:
        self.world.reopen()
        self.world.check()

    @rule()
    def kill(self) -> None:
        self.world.kill()
        self.world.check()

    @rule(seed=seeds, likely=shares)
    def cut_power(self, seed: int, likely: float) -> None:
        self.world.cut_power(seed, likely)
        self.world.check()

    @rule(queue=queues, size=sizes, number=calls, seed=seeds, likely=shares)
    def cut_power_during_a_put(self, queue: int, size: int, number: int, seed: int, likely: float) -> None:
        self.world.cut_power_during(lambda: self.world.put(queue, size), number, seed, likely)
        self.world.check()

    @rule(what=st.sampled_from(["dispatch", "flush", "flush_queues", "clean"]), number=calls, seed=seeds, likely=shares)
    def cut_power_during_housework(self, what: str, number: int, seed: int, likely: float) -> None:
        self.world.cut_power_during(getattr(self.world, what), number, seed, likely)
        self.world.check()

    @rule(number=calls, seed=seeds, likely=shares)
    def cut_power_during_close(self, number: int, seed: int, likely: float) -> None:
        self.world.cut_power_during(self.world.reopen, number, seed, likely)
        self.world.check()

    @rule(numbers=st.lists(calls, min_size=1, max_size=4), seed=seeds, likely=shares)
    def cut_power_during_recovery(self, numbers: list[int], seed: int, likely: float) -> None:
        self.world.cut_power_during_recovery(numbers, seed, likely)
        self.world.check()


class AsyncLife(Life):
    variant = "async"


class PooledLife(Life):
    variant = "sync through the pool"


QUICK = settings(max_examples=25, stateful_step_count=20, deadline=None)
THOROUGH = settings(max_examples=1_000, stateful_step_count=50, deadline=None)


class TestSyncFlush(Life.TestCase):  # type: ignore[misc, valid-type] # Hypothesis makes it at run time.
    settings = QUICK


class TestAsyncFlush(AsyncLife.TestCase):  # type: ignore[misc, valid-type] # Hypothesis makes it at run time.
    settings = QUICK


class TestTransientPool(PooledLife.TestCase):  # type: ignore[misc, valid-type] # Hypothesis makes it at run time.
    settings = QUICK


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("life", [Life, AsyncLife, PooledLife])
def test_a_thousand_lives_end_well(life: type[RuleBasedStateMachine]) -> None:
    run_state_machine_as_test(life, settings=THOROUGH)
