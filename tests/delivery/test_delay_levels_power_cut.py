"""The power fails at each moment of a delivery's life: what was stored durably is delivered all the same."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from simulation.power_cut import CutLife, PowerCut
from simulation.simulated_files import by_chance
from small_store import ROOT, bodies, killed, on_simulation
from tiermq import Message, PutResult
from tiermq.delivery.delay_levels import DelayLevels
from tiermq.store.local_store import LocalStore

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
CONFIG = f"{ROOT}/config"


class Life(CutLife):
    """Messages that wait, are delivered, written down; again. `durable` are those that must not be lost."""

    def __init__(self, calls: int | None, puts: int | None = None) -> None:
        self.puts_left = puts
        self.puts = 0
        super().__init__(calls)
        self.durable: list[bytes] = []

    def live(self) -> None:
        store = on_simulation(self.access, clock=self.clock)
        delivery = DelayLevels(Watched(store, self), CONFIG, self.clock, 1_000, self.access)  # type: ignore[arg-type]
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


class Watched:
    """The store as delivery sees it; the process ends before or after one of its puts."""

    def __init__(self, store: LocalStore, life: Life) -> None:
        self._store = store
        self._life = life

    def append(self, message: Message) -> PutResult:
        self.step()
        result = self._store.append(message)
        self.step()
        return result

    def step(self) -> None:
        self._life.puts += 1
        if self._life.puts_left is not None and self._life.puts > self._life.puts_left:
            raise PowerCut

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


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
        life.live_until_cut()
        kept = chance.random()
        after = life.access.crash(partial(by_chance, chance, kept))
        life.clock.advance_ms(60_000)
        with on_simulation(after, clock=life.clock) as store:
            delivery = DelayLevels(store, CONFIG, life.clock, 1_000, after)
            deliver(store, delivery)
            found = bodies(store)
            assert set(found) >= set(life.durable), f"cut after {calls} calls"
            delivered_again += len(found) - len(set(found))
            delivery.finish()
    assert delivered_again > 0, "some are delivered twice: nothing is written before it is known to be safe"


def test_a_process_that_dies_before_or_after_any_put_loses_none_and_repeats_only_what_was_not_written_down() -> None:
    whole = Life(None)
    whole.live()
    assert whole.puts == 18
    for puts in range(whole.puts):
        life = Life(None, puts)
        life.live_until_cut()
        put_before = (puts + 1) // 2
        after = killed(life.access)
        life.clock.advance_ms(60_000)
        with on_simulation(after, clock=life.clock) as store:
            store.dispatch_now()
            assert len(bodies(store)) == put_before
            delivery = DelayLevels(store, CONFIG, life.clock, 1_000, after)
            deliver(store, delivery)
            found = bodies(store)
            delivery.finish()
        again = found[put_before:]
        written_down = put_before // 3 * 3 if put_before % 3 else max(0, put_before - 3)
        assert set(found) == set(life.durable)
        assert again == sorted(again), "in the order of their level"
        assert len(found) - len(set(found)) <= put_before - written_down, "no more than since the last flush"
