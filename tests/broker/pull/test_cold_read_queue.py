"""The line of cold pulls: first come, first served, each leaves once, nobody waits for ever."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.consuming import Peer, bodies_of, on_loop, part, put, until
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.cold_line import ColdLine
from tiermq.broker.cold_pace import TURN_S, ColdPace
from tiermq.broker.pulling import PullProcessor
from tiermq.clock import ManualClock
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.codes import ResponseCode
from tiermq.remoting.limits import ServerLimits
from tiermq.testing.local_broker import NEVER_S
from tiermq.tier.tiered_store import TieredStore

RATE = 1_000_000.0
WAIT_MS = 5_000


class Someone:
    def __init__(self, number: int, size: int = 100_000) -> None:
        self.number = number
        self.size = size
        self.is_gone = False


class Turns:
    """A loop whose timers run when the test's clock has come there."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.due: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []

    def call_later(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> None:
        self.due.append((self.clock.monotonic() + delay_s, call, arguments))

    def run(self, ms: int) -> None:
        for _ in range(ms):
            self.clock.advance_ms(1)
            now, self.due = (
                [each for each in self.due if each[0] <= self.clock.monotonic()],
                [each for each in self.due if each[0] > self.clock.monotonic()],
            )
            for _, call, arguments in now:
                call(*arguments)


class World:
    def __init__(self, rate: float | None) -> None:
        self.clock = ManualClock()
        self.turns: Any = Turns(self.clock)
        self.left: list[tuple[str, int]] = []
        self.pace = ColdPace(self.clock, lambda: int(RATE), lambda: 0)
        self.pace.rate = rate
        self.line: ColdLine[Someone] = ColdLine(
            self.pace, self.clock, lambda: WAIT_MS, self._go, self._leave("late"), self._leave("gone")
        )

    def _go(self, someone: Someone) -> None:
        self.left.append(("go", someone.number))
        self.pace.gave(someone.size)

    def _leave(self, how: str) -> Callable[[Someone], None]:
        return lambda someone: self.left.append((how, someone.number))

    def enter(self, someone: Someone) -> Someone:
        self.line.enter(someone, self.turns)
        return someone


def test_without_a_pace_everybody_goes_at_once() -> None:
    world = World(None)
    for number in range(1_000):
        world.enter(Someone(number))
    assert world.left == [("go", number) for number in range(1_000)]
    assert (len(world.line), world.line.waited_count) == (0, 0)


def test_with_a_pace_they_go_in_order_and_as_fast_as_it_allows() -> None:
    world = World(RATE)
    world.turns.run(20)
    for number in range(30):
        world.enter(Someone(number))
    assert world.left == [("go", 0)]
    world.turns.run(1_000)
    assert [how for how, _ in world.left] == ["go"] * len(world.left)
    assert 10 <= len(world.left) <= 12
    world.turns.run(2_000)
    assert world.left == [("go", number) for number in range(30)]
    assert world.turns.due == [], "nobody waits, so there is no turn to come"
    assert world.line.waited_count == 29


def test_who_waited_too_long_is_told_and_who_is_gone_is_dropped() -> None:
    world = World(RATE)
    world.pace.gave(10_000_000)
    first, second = world.enter(Someone(1)), world.enter(Someone(2))
    second.is_gone = True
    world.turns.run(4_000)
    assert world.left == []
    world.enter(Someone(3))
    world.turns.run(9_000)
    assert world.left == [("late", first.number), ("gone", 2), ("late", 3)]


def test_a_pace_that_ends_lets_everybody_go() -> None:
    world = World(RATE)
    world.pace.gave(10_000_000)
    for number in range(5):
        world.enter(Someone(number))
    world.pace.rate = None
    world.enter(Someone(5))
    assert world.left == [], "nobody goes before those who wait already"
    world.turns.run(101)
    assert world.left == [("go", number) for number in range(6)]


def test_a_line_that_is_closed_lets_nobody_go_any_more() -> None:
    world = World(RATE)
    world.pace.gave(100_000)
    world.enter(Someone(1))
    world.line.close()
    world.turns.run(1_000)
    assert (world.left, len(world.line)) == ([], 0)


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 400_000), st.booleans()), max_size=20))
def test_whoever_enters_leaves_once_and_those_who_go_keep_their_order(come: list[tuple[int, int, bool]]) -> None:
    world = World(RATE)
    for number, (after_ms, size, is_gone) in enumerate(come):
        world.turns.run(after_ms)
        world.enter(Someone(number, size)).is_gone = is_gone
    world.turns.run(10_000)
    assert sorted(number for _, number in world.left) == list(range(len(come)))
    gone = [number for how, number in world.left if how == "go"]
    assert gone == sorted(gone)


# In a broker


@pytest.fixture
def cold_broker(tmp_path: Path, manual_clock: ManualClock) -> Broker:
    """All of it is in the tier, and only the tier is asked; hot work keeps the machine busy at every look."""
    config = BrokerConfig(
        bind_address="127.0.0.1",
        listen_port=0,
        broker_name="b",
        cold_pace_bytes_min=100_000,
        wait_time_mills_in_pull_queue=3_600_000,
    )
    broker = Broker.open(
        tmp_path / "store",
        tier=(tmp_path / "tier").as_uri(),
        config=config,
        clock=manual_clock,
        limits=ServerLimits(idle_s=NEVER_S),
        tiered_storage_level="FORCE",
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=20 * 1_000,
        max_hash_slot_num=500,
        max_index_num=2_000,
    )
    broker.parts.topics.put(TopicConfig("T", 4, 4))
    for number in range(200):
        put(broker, f"{number} ".ljust(1_000, "x"))
    assert isinstance(broker.store, TieredStore)
    assert broker.store.tier_now()
    line = part(broker, PullProcessor).cold_line
    line.pace._hot_count = itertools.count(0, 10**12).__next__
    ticks = itertools.count(1)
    line.pace._machine_s = lambda: (0.0, float(next(ticks)))
    line.pace._seen = line.pace._now()
    return broker


def test_cold_pulls_of_a_busy_broker_are_answered_at_its_pace(cold_broker: Broker, manual_clock: ManualClock) -> None:
    with cold_broker as broker, Peer(broker) as peer:
        peer.join()
        pulling = part(broker, PullProcessor)
        line = pulling.cold_line
        assert peer.pull(0).code == 0
        manual_clock.advance_ms(100)
        until(broker, lambda: line.pace.rate == 100_000)
        began_s = manual_clock.monotonic()
        pulls = [peer.pull_later(offset) for offset in range(0, 192, 32)]
        until(broker, lambda: pulling.cold_count == 7)  # All have come before time passes.
        while not all(pull.done() for pull in pulls):
            manual_clock.advance_ms(10)
            on_loop(broker, lambda: None)
        passed_s = manual_clock.monotonic() - began_s
        answers = [pull.result(60) for pull in pulls]
        assert [bodies_of(answer)[0].split()[0] for answer in answers] == ["0", "32", "64", "96", "128", "160"]
        # The last page may overdraw, what comes in one turn may be given at once, and a page that is being fetched
        # counts as believed: about as large as it turns out to be.
        assert passed_s >= 0.8 * sum(len(answer.body) for answer in answers[:-1]) / 100_000 - TURN_S
        assert line.waited_count >= 4


def test_a_cold_pull_that_waited_too_long_is_told_to_come_back(cold_broker: Broker, manual_clock: ManualClock) -> None:
    with cold_broker as broker, Peer(broker) as peer:
        peer.join()
        line = part(broker, PullProcessor).cold_line
        manual_clock.advance_ms(100)
        until(broker, lambda: line.pace.rate == 100_000)
        on_loop(broker, line.pace.gave, 10_000_000_000)
        late = peer.pull_later(0)
        until(broker, lambda: len(line) == 1)
        manual_clock.advance_ms(3_600_100)
        answer = late.result(60)
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert answer.remark is not None
        assert "waited 3600000 ms for its turn to read the tier" in answer.remark
        assert not any(is_busy() for is_busy in broker.parts.is_busy)
