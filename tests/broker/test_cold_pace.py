"""The pace of cold reads: free without hot work, at least its floor beside it, by bytes, and never a burst."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.broker.cold_pace import HOT_PER_S, PAGE_BYTES, RATE_MAX, TURN_S, ColdPace, Load, machine_times, next_rate
from tiermq.clock import ManualClock

FLOOR = 4_000_000
ROOM = Load(50_000, 0.5, 0.5)
BUSY = Load(50_000, 0.5, 0.1)


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
        self.pace = ColdPace(
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
    assert machine.pace.rate is None
    assert machine.pace.wait_s() == 0


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


def test_the_machine_tells_its_idle_time_or_that_it_does_not() -> None:
    first = machine_times()
    second = machine_times()
    assert (first is None) == (second is None)
    if first is not None and second is not None:
        assert 0 <= first[0] <= first[1]
        assert second[1] >= first[1]
