"""The power fails at each moment of a delivery's life: what was stored durably is delivered all the same."""

from __future__ import annotations

import random

from simulation.simulated_files import SimulatedFileAccess
from small_store import ROOT, bodies, on_simulation
from tiermq import LocalStore, Message
from tiermq.clock import ManualClock
from tiermq.delivery.delay_levels import DelayLevels

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
CONFIG = f"{ROOT}/config"


class PowerCut(BaseException):
    """Not an Exception, so that nothing handles it."""


class Life:
    """Messages that wait, are delivered, written down; again. `durable` are those that must not be lost."""

    def __init__(self, calls: int | None) -> None:
        self.calls_left = calls
        self.calls = 0
        self.durable: list[bytes] = []
        self.clock = ManualClock()
        self.access = SimulatedFileAccess(clock=self.clock, on_call=self.count)

    def count(self, _operation: str, _path: str) -> None:
        self.calls += 1
        if self.calls_left is not None and self.calls > self.calls_left:
            raise PowerCut

    def live(self) -> None:
        store = on_simulation(self.access, clock=self.clock)
        delivery = DelayLevels(store, CONFIG, self.clock, 1_000, self.access)
        for number in range(3):
            self.wait(store, [f"{number}-{letter}".encode() for letter in "abc"])
            self.clock.advance_ms(1_500)
            deliver(store, delivery)
        delivery.finish()
        store.close()

    def wait(self, store: LocalStore, messages: list[bytes]) -> None:
        for message in messages:
            properties = {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "0"}
            assert store.put(Message(SCHEDULE, message, 0, properties=properties)).ok
        store.flush()
        self.durable += messages
        store.dispatch_now()


def deliver(store: LocalStore, delivery: DelayLevels) -> None:
    while delivery.run_once() == 0.0:
        pass
    store.dispatch_now()


def test_a_power_cut_at_any_moment_costs_no_delayed_message() -> None:
    whole = Life(None)
    whole.live()
    assert whole.calls > 50
    assert len(whole.durable) == 9
    chance = random.Random(7)
    delivered_again = 0
    for calls in range(whole.calls):
        life = Life(calls)
        try:
            life.live()
        except PowerCut:
            pass
        else:
            raise AssertionError("the power was not cut")
        kept = chance.random()
        after = life.access.crash(lambda _path, _page, kept=kept: chance.random() < kept)
        life.clock.advance_ms(60_000)
        with on_simulation(after, clock=life.clock) as store:
            delivery = DelayLevels(store, CONFIG, life.clock, 1_000, after)
            deliver(store, delivery)
            found = bodies(store)
            assert set(found) >= set(life.durable), f"cut after {calls} calls"
            delivered_again += len(found) - len(set(found))
            delivery.finish()
    assert delivered_again > 0, "some are delivered twice: nothing is written before it is known to be safe"
