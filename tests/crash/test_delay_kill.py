"""A process with delayed messages is killed in the middle of its work: every one that it acknowledged is delivered."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path

import pytest

from crash import delay_child
from crash.delay_child import LEVELS, STORE
from crash.lives import live_and_die
from small_store import read_all
from tiermq.delivery.delay_levels import DelayLevels
from tiermq.store.local_store import LocalStore
from tiermq.testing.local_broker import MovableClock

pytestmark = pytest.mark.crash

PER_LIFE = 1_000_000


def finish(root: Path) -> list[list[int]]:
    """What was ever delivered of each level, in its order."""
    clock = MovableClock()
    clock.advance(timedelta(days=1))
    with LocalStore.open(root, clock=clock, **STORE) as store:
        store.dispatch_now()
        delivery = DelayLevels(store, str(root / "config"), clock)
        while delivery.waiting_count:
            delivery.run_once()
        delivery.finish()
        assert delivery.skipped_count == 0
        store.dispatch_now()
        return [[int(message.body) for message in read_all(store, "T", level + 1)] for level in range(LEVELS)]


def goes_on(numbers: list[int]) -> bool:
    """Whether they are in order, but for repetitions that begin at a number that was delivered before."""
    seen: set[int] = set()
    for before, number in zip([-1, *numbers], numbers, strict=False):
        if number < before and number not in seen:
            return False
        seen.add(number)
    return True


@pytest.mark.parametrize("lives", [3, pytest.param(12, marks=pytest.mark.slow)])
def test_every_delayed_message_that_was_acknowledged_is_delivered_after_kills(tmp_path: Path, lives: int) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    acknowledged: set[int] = set()
    for life in range(lives):
        acknowledged |= live_and_die(
            delay_child.__file__, tmp_path / "store", life * PER_LIFE, chance.randrange(50, 600)
        )
    levels = finish(tmp_path / "store")
    found = {number for numbers in levels for number in numbers}
    assert acknowledged <= found
    for level, numbers in enumerate(levels):
        assert {number % LEVELS for number in numbers} == {level}
        assert goes_on(numbers)
