"""A process with timers is killed in the middle of its work: every timer that it acknowledged is delivered."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from crash import timer_child
from crash.lives import live_and_die
from crash.timer_child import SETTINGS, STORE
from small_store import read_all
from tiermq.clock import SystemClock
from tiermq.delivery.timer.timer_service import TimerService
from tiermq.message.properties import TIMER_DEQUEUE_MS, TIMER_OUT_MS
from tiermq.store.local_store import LocalStore

pytestmark = pytest.mark.crash

PER_LIFE = 100_000


def finish(root: Path) -> list[tuple[int, int, int]]:
    """(number, slot, when it left the wheel) of everything that was ever delivered."""
    with LocalStore.open(root, **STORE) as store:
        timers = TimerService(store, root, SystemClock(), SETTINGS)
        timers.start()
        while timers.waiting_count or timers.behind_count:
            assert timers.error_count == 0, timers.last_error
            time.sleep(0.01)
        timers.stop()
        assert timers.counts.skipped == 0
        store.dispatch_now()
        return [
            (int(message.body), int(message.properties[TIMER_OUT_MS]), int(message.properties[TIMER_DEQUEUE_MS]))
            for message in read_all(store)
        ]


def check(root: Path, lives: int, seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    acknowledged: set[int] = set()
    for life in range(lives):
        acknowledged |= live_and_die(timer_child.__file__, root, life * PER_LIFE, chance.randrange(50, 400))
    found = finish(root)
    assert acknowledged <= {number for number, _, _ in found}
    assert [number for number, out_ms, left_ms in found if left_ms < out_ms + SETTINGS.precision_ms] == []


def test_every_timer_that_was_acknowledged_is_delivered_after_kills(tmp_path: Path) -> None:
    check(tmp_path / "store", 3, random.randrange(2**32))


@pytest.mark.slow
def test_timers_survive_dozens_of_kills_in_one_directory(tmp_path: Path) -> None:
    check(tmp_path / "store", 40, random.randrange(2**32))
