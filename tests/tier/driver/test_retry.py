"""RetryingDriver: what is tried again, how long it waits, and that a back end that is down holds no caller up."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from servers.faulty_driver import Down, Fault, FaultyDriver, ScriptedFaults, SeededFaults
from simulation.manual_clock import ManualClock
from tier.driver.conformance import DriverConformance, Place, fresh_segment
from tiermq.errors import SegmentConflict, SegmentMissing, TierCredentials, TierUnavailable
from tiermq.tier.driver.contract import READS, ForwardingDriver, Result
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.driver.retry import BreakerState, RetryingDriver, RetryPolicy
from tiermq.tier.names import SegmentKey

_numbers = itertools.count()
POLICY = RetryPolicy(tries_max=4, first_wait_ms=100, wait_max_ms=300, failures_max=6, rest_ms=1_000)


class TestRetriedFaults(DriverConformance):
    """The whole contract holds over a back end of which every fourth call fails, before or after it has happened."""

    @pytest.fixture
    def place(self) -> Place:
        name, seeds = f"retried-{next(_numbers)}", itertools.count()
        rates = {Fault.BEFORE: 0.12, Fault.AFTER: 0.12}

        def opened() -> RetryingDriver:
            faulty = FaultyDriver(MemoryDriver(name), SeededFaults(next(seeds), rates))
            return RetryingDriver(faulty, RetryPolicy(tries_max=30, failures_max=30), wait=lambda _: None)

        return Place(opened)


class Stack:
    def __init__(self, clock: ManualClock) -> None:
        self.faulty = FaultyDriver(MemoryDriver())
        self.waits: list[float] = []
        self.driver = RetryingDriver(
            self.faulty, POLICY, clock=clock, chance=lambda: 0.5, wait=lambda seconds: self.waits.append(seconds)
        )


@pytest.fixture
def stack(manual_clock: ManualClock) -> Stack:
    return Stack(manual_clock)


def test_waits_double_up_to_a_limit_and_are_spread_by_chance() -> None:
    assert [POLICY.wait_ms(tries, 1.0) for tries in (1, 2, 3, 4)] == [100, 200, 300, 300]
    assert [POLICY.wait_ms(tries, 0.0) for tries in (1, 2, 3)] == [50, 100, 150]
    assert RetryPolicy(wait_max_ms=10**9).wait_ms(20, 0.5) > RetryPolicy(wait_max_ms=10**9).wait_ms(19, 0.5)


def test_what_may_pass_is_tried_again(stack: Stack) -> None:
    key = fresh_segment()
    stack.faulty.plan = ScriptedFaults("write", [Fault.BEFORE, Fault.AFTER])
    stack.driver.write(key, 0, [b"once"])
    assert bytes(stack.driver.read(key, 0, 4)) == b"once"
    assert stack.driver.size(key) == 4
    assert stack.waits == [0.075, 0.15]


def test_it_gives_up_after_as_many_tries_as_are_allowed(stack: Stack) -> None:
    stack.faulty.plan = Down()
    with pytest.raises(TierUnavailable, match="failed before it happened"):
        stack.driver.size(fresh_segment())
    assert len(stack.faulty.injected) == 4
    assert len(stack.waits) == 3


def test_answers_are_not_tried_again(stack: Stack) -> None:
    key = fresh_segment()
    stack.driver.write(key, 0, [b"ours"])
    with pytest.raises(SegmentConflict):
        stack.driver.write(key, 0, [b"theirs"])
    with pytest.raises(SegmentMissing):
        stack.driver.read(fresh_segment(), 0, 1)
    assert stack.waits == []


def test_a_back_end_that_is_down_is_not_asked_until_it_has_rested(stack: Stack, manual_clock: ManualClock) -> None:
    key = fresh_segment()
    stack.driver.write(key, 0, [b"x"])
    stack.faulty.plan = Down()
    for _ in range(5):
        with pytest.raises(TierUnavailable):
            stack.driver.size(key)
    assert stack.driver.breaker.state is BreakerState.OPEN
    assert len(stack.faulty.injected) == POLICY.failures_max
    waits_so_far = len(stack.waits)
    with pytest.raises(TierUnavailable, match="no request sent"):
        stack.driver.read(key, 0, 1)
    assert len(stack.waits) == waits_so_far
    stack.faulty.plan = None
    manual_clock.advance_ms(1_000)
    assert stack.driver.size(key) == 1
    assert [stack.driver.breaker.state] == [BreakerState.CLOSED]


def test_a_probe_that_fails_is_not_tried_again(stack: Stack, manual_clock: ManualClock) -> None:
    stack.faulty.plan = Down()
    for _ in range(2):
        with pytest.raises(TierUnavailable):
            stack.driver.size(fresh_segment())
    manual_clock.advance_ms(1_000)
    asked = len(stack.faulty.injected)
    with pytest.raises(TierUnavailable):
        stack.driver.size(fresh_segment())
    assert len(stack.faulty.injected) == asked + 1


def test_a_mistake_during_the_probe_does_not_jam_the_breaker(stack: Stack, manual_clock: ManualClock) -> None:
    stack.faulty.plan = Down()
    for _ in range(2):
        with pytest.raises(TierUnavailable):
            stack.driver.size(fresh_segment())
    stack.faulty.plan = None
    manual_clock.advance_ms(1_000)
    with pytest.raises(TypeError):
        stack.driver.write(fresh_segment(), 0, b"not a list of buffers")  # type: ignore[arg-type]
    manual_clock.advance_ms(1_000)
    assert stack.driver.size(fresh_segment()) == 0


def test_closing_ends_the_waiting() -> None:
    failed_once = threading.Event()

    class Watched(FaultyDriver):
        def size(self, key: object) -> int:
            failed_once.set()
            raise TierUnavailable("down")

    driver = RetryingDriver(Watched(MemoryDriver()), RetryPolicy(first_wait_ms=3_600_000, wait_max_ms=3_600_000))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(driver.size, fresh_segment())
        failed_once.wait()
        driver.close()
        with pytest.raises(TierUnavailable):
            waiting.result()


class RefusesWrites(ForwardingDriver):
    """Credentials that may only read, until they are changed."""

    may_write = False

    def forward(self, operation: str, key: SegmentKey | None, call: Callable[[], Result]) -> Result:
        if operation not in READS and not self.may_write:
            raise TierCredentials("expected to write, found a refusal")
        return super().forward(operation, key, call)


def test_a_refused_write_is_trouble_until_a_write_is_accepted_and_not_until_the_next_read() -> None:
    inner = RefusesWrites(MemoryDriver(f"refused-{next(_numbers)}"))
    driver = RetryingDriver(inner)
    with pytest.raises(TierCredentials):
        driver.put_object("a.tiermq.json", b"{}")
    assert driver.get_object("a.tiermq.json") is None
    assert isinstance(driver.trouble, TierCredentials)
    inner.may_write = True
    driver.put_object("a.tiermq.json", b"{}")
    assert driver.trouble is None
