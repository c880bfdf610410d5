"""A run with stalls lets threads stand still, in the product's code or in the test's, and nowhere else."""

from __future__ import annotations

import threading

import pytest

import stalls
from stalls import Stalls, asked_for
from tiermq.service import Service


class Counted(Service):
    """A service that does nothing, a few times."""

    def __init__(self) -> None:
        super().__init__("counted")
        self.rounds = 0
        self.enough = threading.Event()

    def run_once(self) -> float:
        self.rounds += 1
        if self.rounds == 100 or self.stopping:  # A call into the product, at which a thread may stand still.
            self.enough.set()
        return 0.0


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which threads stood still."""
    found: list[str] = []
    monkeypatch.setattr(stalls, "sleep", lambda _s: found.append(threading.current_thread().name))
    return found


def test_a_usual_run_has_no_stalls() -> None:
    assert asked_for({}) is None


def test_another_kind_is_refused() -> None:
    with pytest.raises(pytest.UsageError, match="back or main, found 'front'"):
        asked_for({"TIERMQ_STALLS": "front"})


def test_the_seed_is_reported_and_repeats_the_choice(slept: list[str]) -> None:
    counts = []
    for _ in range(2):
        made = asked_for({"TIERMQ_STALLS": "main", "TIERMQ_STALLS_SEED": "7"})
        assert made is not None
        assert made.pytest_report_header() == "stalls: main, TIERMQ_STALLS_SEED=7"
        call = made.pytest_runtest_call()
        next(call)
        when = []
        for step in range(60):
            before = len(slept)
            made.stall()
            when += [step] * (len(slept) - before)
        call.close()
        counts.append(when)
    assert counts[0] == counts[1]
    assert len(counts[0]) == stalls.STALLS_OF_A_TEST


def test_threads_of_the_product_stand_still_and_the_test_does_not(slept: list[str]) -> None:
    before = threading.getprofile()
    made = Stalls("back", 7)
    call = made.pytest_runtest_call()
    service = Counted()
    try:
        next(call)
        service.start()
        service.enough.wait()
        service.stop()
    finally:
        threading.setprofile(before)
        call.close()
    assert set(slept) == {"counted"}


def test_a_test_stands_still_between_its_lines(slept: list[str]) -> None:
    call = Stalls("main", 7).pytest_runtest_call()

    def lines() -> int:
        total = 0
        for number in range(100):
            total += number
        return total

    next(call)
    assert lines() == 4_950
    call.close()
    assert slept == [threading.current_thread().name] * stalls.STALLS_OF_A_TEST
