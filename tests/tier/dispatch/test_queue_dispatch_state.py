"""Resting after failures, and sharing memory."""

from __future__ import annotations

import pytest

from tiermq.tier.dispatch.ready_queue import BackOff, MemoryBudget, QueueDispatchState

A, B, C = ("a", 0), ("b", 0), ("c", 0)


@pytest.mark.parametrize(
    ("failures", "chance", "expected"),
    [
        (1, 1.0, 1000),
        (1, 0.0, 500),
        (2, 1.0, 2000),
        (6, 1.0, 32000),
        (7, 1.0, 60000),
        (7, 0.0, 30000),
        (999, 1.0, 60000),
    ],
)
def test_rests_double_up_to_a_limit(failures: int, chance: float, expected: int) -> None:
    assert BackOff(1000, 60_000).rest_ms(failures, chance) == expected


def test_a_success_makes_a_queue_forget_its_failures() -> None:
    run = QueueDispatchState(A, failures=3, retry_at_ms=77, trouble="down")
    run.worked()
    assert (run.failures, run.retry_at_ms, run.trouble) == (0, 0, "")


def test_memory_is_refused_when_it_is_used_up_and_the_refused_are_named_when_it_comes_back() -> None:
    budget = MemoryBudget(10)
    assert budget.take(A, 6)
    assert not budget.take(B, 5)
    assert budget.take(C, 4)
    assert budget.used_bytes == 10
    assert budget.settle(C, 4) == set(), "nothing came back"
    assert budget.settle(A, 1) == {B}
    assert budget.used_bytes == 5
    assert budget.settle(A, 0) == set(), "none waits any more"
    assert budget.take(B, 5)
    assert (budget.settle(B, 0), budget.settle(C, 0), budget.used_bytes) == (set(), set(), 0)


def test_one_batch_is_admitted_however_large_it_is() -> None:
    budget = MemoryBudget(10)
    assert budget.take(A, 1000)
    assert not budget.take(B, 1)
    assert budget.take(A, 2000), "its own reservation does not count against it"
