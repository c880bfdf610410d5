"""The power goes at any moment, and whatever page by page reached the disk, the store is what it promised to be."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from crash.world import QUEUES, World

pytestmark = pytest.mark.crash

queues = st.integers(0, len(QUEUES) - 1)
sizes = st.sampled_from([12, 40, 300, 700, 1600])
seeds = st.integers(0, 2**16)
shares = st.sampled_from([0.0, 0.5, 0.9, 1.0])
calls = st.integers(0, 40)


class PowerCuts(RuleBasedStateMachine):
    """Any order of puts, flushes, dispatches, restarts, deaths and power cuts."""

    flush_disk_type_is_sync = True
    settings_of_store: dict[str, object] = {}

    @initialize()
    def open(self):
        self.world = World(self.flush_disk_type_is_sync, **self.settings_of_store)

    @rule(queue=queues, size=sizes, padding=st.sampled_from([0, 10, 600]))
    def put(self, queue, size, padding):
        self.world.put(queue, size, padding)

    @rule(sizes=st.lists(st.tuples(queues, sizes), min_size=1, max_size=12))
    def put_many(self, sizes):
        self.world.put_many(sizes)

    @rule(queue=queues, sizes=st.lists(sizes, min_size=1, max_size=4))
    def put_batch(self, queue, sizes):
        self.world.put_batch(queue, sizes)

    @rule()
    def flush(self):
        self.world.flush()

    @rule()
    def dispatch(self):
        self.world.dispatch()

    @rule()
    def flush_queues(self):
        self.world.flush_queues()

    @rule(delta=st.sampled_from([1, 700, 4000, 100_000]))
    def move_clock(self, delta):
        self.world.move_clock(delta)

    @rule()
    def clean(self):
        self.world.clean()

    @rule()
    def reopen(self):
        self.world.reopen()

    @rule()
    def kill(self):
        self.world.kill()

    @rule(seed=seeds, likely=shares)
    def cut_power(self, seed, likely):
        self.world.cut_power(seed, likely)

    @rule(queue=queues, size=sizes, number=calls, seed=seeds, likely=shares)
    def cut_power_during_a_put(self, queue, size, number, seed, likely):
        self.world.cut_power_during(lambda: self.world.put(queue, size), number, seed, likely)

    @rule(number=calls, seed=seeds, likely=shares)
    def cut_power_during_close(self, number, seed, likely):
        if not self.world.cut_power_during(self.world.store.close, number, seed, likely):
            self.world.history.all_durable()
            self.world._open_and_settle()

    @rule(number=calls, seed=seeds, likely=shares, what=st.sampled_from(["dispatch", "flush_queues", "flush", "clean"]))
    def cut_power_during_housework(self, number, seed, likely, what):
        self.world.cut_power_during(getattr(self.world, what), number, seed, likely)

    @rule(numbers=st.lists(calls, min_size=1, max_size=4), seed=seeds, likely=shares)
    def cut_power_during_recovery(self, numbers, seed, likely):
        self.world.cut_power_during_recovery(numbers, seed, likely)

    @invariant()
    def everything_can_be_found(self):
        if hasattr(self, "world"):
            self.world.check()


class AsyncPowerCuts(PowerCuts):
    flush_disk_type_is_sync = False


TestSyncFlush = PowerCuts.TestCase
TestAsyncFlush = AsyncPowerCuts.TestCase
TestSyncFlush.settings = TestAsyncFlush.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
