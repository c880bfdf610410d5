"""The states of a store: forward only."""

from __future__ import annotations

import itertools

import pytest

from tiermq.errors import IllegalTransition
from tiermq.store.lifecycle import Lifecycle, State


def test_a_store_passes_through_its_states_in_order() -> None:
    lifecycle = Lifecycle()
    assert lifecycle.state is State.INIT
    for state in list(State)[1:]:
        lifecycle.advance(state)
        assert lifecycle.state is state
        assert lifecycle.running is (state is State.RUNNING)


@pytest.mark.parametrize(
    ("now", "to"), [(a, b) for a, b in itertools.product(State, State) if b <= a and a is not State.INIT]
)
def test_a_move_that_is_not_forward_raises_and_changes_nothing(now: State, to: State) -> None:
    """Item 47."""
    lifecycle = Lifecycle()
    lifecycle.advance(now)
    with pytest.raises(IllegalTransition, match=now.name):
        lifecycle.advance(to)
    assert lifecycle.state is now


def test_the_numbers_are_rocketmq_s() -> None:
    assert [state.value for state in State] == [0, 10, 11, 12, 14, 20, 21, 22, 23, 30, 40, 41]
