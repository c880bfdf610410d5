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
from simulation.manual_clock import ManualClock
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.pull.cold_read_queue import (
    HOT_PER_S,
    PAGE_BYTES,
    RATE_MAX,
    TURN_S,
    ColdReadQueue,
    ColdReadThrottle,
    Load,
    machine_times,
    next_rate,
)
from tiermq.broker.pull.pull_processor import PullProcessor
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.codes import ResponseCode
from tiermq.remoting.limits import ServerLimits
from tiermq.testing.local_broker import NEVER_S
from tiermq.tier.tiered_store import TieredStore

RATE = 1_000_000.0
WAIT_MS = 5_000
FLOOR = 4_000_000
ROOM = Load(50_000, 0.5, 0.5)
BUSY = Load(50_000, 0.5, 0.1)


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
        self.pace = ColdReadThrottle(self.clock, lambda: int(RATE), lambda: 0)
        self.pace.rate = rate
        self.line: ColdReadQueue[Someone] = ColdReadQueue(
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


def test_who_waited_too_long_is_reported_and_who_is_gone_is_dropped() -> None:
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
    assert broker.store.flush_to_tier()
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


def test_a_cold_pull_that_waited_too_long_is_asked_to_come_back(cold_broker: Broker, manual_clock: ManualClock) -> None:
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
        assert "waited 3600000 ms to read the tier" in answer.remark
        assert not broker.parts.hooks.is_busy


@pytest.mark.parametrize(
    ("rate", "load", "expected"),
    [
        (None, Load(0, 1.5, 0.0), None),
        (FLOOR, Load(HOT_PER_S - 1, 1.5, 0.0), None),
        (None, Load(HOT_PER_S, 1.5, 0.0), FLOOR),
        (None, BUSY, FLOOR),
        (FLOOR * 8.0, BUSY, FLOOR * 4.0),
        (FLOOR * 1.5, BUSY, FLOOR),
        (FLOOR, BUSY, FLOOR),
        (FLOOR, Load(50_000, 0.9, 0.9), FLOOR),
        (FLOOR, Load(50_000, 0.9, None), FLOOR),
        (FLOOR, Load(50_000, 0.5, None), FLOOR * 1.5),
        (FLOOR, ROOM, FLOOR * 1.5),
        (None, ROOM, None),
        (RATE_MAX, ROOM, None),
    ],
)
def test_each_load_has_its_pace(rate: float | None, load: Load, expected: float | None) -> None:
    assert next_rate(rate, load, FLOOR) == expected


@given(
    st.none() | st.floats(FLOOR, RATE_MAX),
    st.builds(Load, st.floats(0, 1e6), st.floats(0, 8), st.none() | st.floats(0, 1)),
)
def test_a_pace_is_never_below_its_floor_and_a_floor_of_nothing_paces_nothing(rate: float | None, load: Load) -> None:
    found = next_rate(rate, load, FLOOR)
    assert found is None or FLOOR <= found <= RATE_MAX
    assert next_rate(rate, load, 0) is None


class Machine:
    """A machine whose load a test says."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.hot = 0
        self.process_s = 0.0
        self.idle = self.whole = 0.0
        self.pace = ColdReadThrottle(
            self.clock,
            lambda: FLOOR,
            lambda: self.hot,
            process_s=lambda: self.process_s,
            machine_s=lambda: (self.idle, self.whole),
        )

    def pass_ms(self, ms: int, load: Load) -> None:
        self.clock.advance_ms(ms)
        self.hot += int(load.hot_per_s * ms / 1000)
        self.process_s += load.process_share * ms / 1000
        self.idle += (load.idle_share or 0.0) * ms
        self.whole += ms
        self.pace.look()


def test_a_look_sees_what_happened_since_the_last_one() -> None:
    machine = Machine()
    machine.pass_ms(100, BUSY)
    assert machine.pace.rate == FLOOR
    machine.pass_ms(100, ROOM)
    machine.pass_ms(300, ROOM)
    assert machine.pace.rate == FLOOR * 1.5 * 1.5
    machine.pass_ms(100, BUSY)
    assert machine.pace.rate == FLOOR * 1.5 * 1.5 / 2
    machine.pass_ms(100, Load(0, 0.9, 0.0))
    assert [machine.pace.rate, machine.pace.wait_s()] == [None, 0]


def test_a_look_at_a_clock_that_stands_still_changes_nothing() -> None:
    machine = Machine()
    machine.hot = 1_000_000
    machine.pace.look()
    assert machine.pace.rate is None


@given(st.lists(st.tuples(st.integers(1, 300_000), st.integers(0, 2_000)), min_size=1, max_size=200))
def test_what_is_given_keeps_to_the_rate_but_for_one_page_and_one_turn(pages: list[tuple[int, int]]) -> None:
    machine = Machine()
    machine.pass_ms(100, BUSY)
    began_s, given_bytes, largest = machine.clock.monotonic(), 0, 0
    for size, idle_ms in pages:
        machine.clock.advance_ms(idle_ms)
        for turn in itertools.count():
            wait_s = machine.pace.wait_s()
            if not wait_s:
                break
            assert turn < 3, "whoever waited as long as he was told has his turn, but for a rounding"
            assert wait_s >= TURN_S
            machine.clock.advance_ms(int(wait_s * 1000) + 1)
        machine.pace.gave(size)
        given_bytes, largest = given_bytes + size, max(largest, size)
        passed_s = machine.clock.monotonic() - began_s
        assert given_bytes <= FLOOR * (passed_s + TURN_S) + largest


def test_who_asks_all_the_time_gets_the_whole_rate() -> None:
    machine = Machine()
    machine.pass_ms(100, BUSY)
    given_bytes = 0
    for _ in range(10_000):
        machine.clock.advance_ms(1)
        if not machine.pace.wait_s():
            machine.pace.gave(36_000)
            given_bytes += 36_000
    assert given_bytes == pytest.approx(FLOOR * 10, rel=0.02)


@given(st.lists(st.tuples(st.integers(0, 200_000), st.booleans()), min_size=1, max_size=60))
def test_pages_that_are_still_fetched_count_at_the_size_of_those_before(pages: list[tuple[int, bool]]) -> None:
    promised, plain = Machine(), Machine()
    for machine in (promised, plain):
        machine.pass_ms(100, BUSY)
    for size, is_fetched in pages:
        before = promised.pace._level
        taken = promised.pace.promise() if is_fetched else 0
        assert promised.pace._level == before - taken
        assert (taken > 0) == is_fetched, "or a line could pass while the first of it is fetched"
        promised.pace.gave(size, taken)
        plain.pace.gave(size)
        assert promised.pace._level == pytest.approx(plain.pace._level), "in the end what was given counts"


def test_a_line_whose_pages_are_all_fetched_at_once_waits_like_any_other() -> None:
    machine = Machine()
    machine.pass_ms(100, BUSY)
    machine.clock.advance_ms(20)
    begun = 0
    while not machine.pace.wait_s():
        machine.pace.promise()
        begun += 1
    assert begun <= FLOOR * TURN_S / PAGE_BYTES + 1
    machine.pace.rate = None
    assert machine.pace.promise() == 0


def test_the_machine_shows_its_idle_time_or_that_it_does_not() -> None:
    first = machine_times()
    second = machine_times()
    assert (first is None) == (second is None)
    if first is not None and second is not None:
        assert 0 <= first[0] <= first[1]
        assert second[1] >= first[1]
