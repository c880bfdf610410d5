"""The breaker's state machine, as a table and in motion."""

from __future__ import annotations

import itertools

import pytest

from simulation.manual_clock import ManualClock
from tiermq.errors import IllegalTransition
from tiermq.tier.driver.retry import BreakerEvent, BreakerState, CircuitBreaker, next_state

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
LEGAL = {
    (CLOSED, BreakerEvent.TOO_MANY_FAILURES): OPEN,
    (OPEN, BreakerEvent.RESTED): HALF_OPEN,
    (HALF_OPEN, BreakerEvent.PROBE_ANSWERED): CLOSED,
    (HALF_OPEN, BreakerEvent.PROBE_FAILED): OPEN,
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(BreakerState, BreakerEvent)))
def test_every_transition_is_known_or_refused(state: BreakerState, event: BreakerEvent) -> None:
    if (state, event) in LEGAL:
        assert next_state(state, event) is LEGAL[state, event]
    else:
        with pytest.raises(IllegalTransition):
            next_state(state, event)


def opened(clock: ManualClock) -> CircuitBreaker:
    breaker = CircuitBreaker(3, 1_000, clock)
    for _ in range(3):
        permission = breaker.admit()
        assert permission is not None
        breaker.failed(permission)
    assert breaker.state is OPEN
    return breaker


def test_failures_in_a_row_open_it_and_an_answer_in_between_does_not(manual_clock: ManualClock) -> None:
    breaker = CircuitBreaker(3, 1_000, manual_clock)
    for outcome in "ffaffaff":
        permission = breaker.admit()
        assert permission is not None
        (breaker.failed if outcome == "f" else breaker.answered)(permission)
    assert breaker.state is CLOSED
    opened(manual_clock)


def test_an_open_one_refuses_until_it_has_rested_and_then_sends_one_probe(manual_clock: ManualClock) -> None:
    breaker = opened(manual_clock)
    assert breaker.admit() is None
    manual_clock.advance_ms(999)
    assert breaker.admit() is None
    manual_clock.advance_ms(1)
    probe = breaker.admit()
    assert probe is not None
    assert breaker.state is HALF_OPEN
    assert breaker.admit() is None
    breaker.answered(probe)
    assert breaker.state is CLOSED
    assert breaker.admit() is not None


def test_a_probe_that_fails_means_another_rest(manual_clock: ManualClock) -> None:
    breaker = opened(manual_clock)
    manual_clock.advance_ms(1_000)
    probe = breaker.admit()
    assert probe is not None
    breaker.failed(probe)
    assert breaker.state is OPEN
    assert breaker.admit() is None
    manual_clock.advance_ms(1_000)
    assert breaker.admit() is not None


def test_late_answers_to_old_questions_change_nothing(manual_clock: ManualClock) -> None:
    breaker = CircuitBreaker(1, 1_000, manual_clock)
    slow, failing = breaker.admit(), breaker.admit()
    assert slow is not None
    assert failing is not None
    breaker.failed(failing)
    breaker.answered(slow)
    assert breaker.state is OPEN
    manual_clock.advance_ms(1_000)
    assert breaker.admit() is not None
    breaker.answered(slow)
    breaker.failed(failing)
    assert breaker.state is HALF_OPEN
