"""BackendLatency: whether fetches wait for the back end, by samples of foreground fetches."""

from __future__ import annotations

import select
import threading
from pathlib import Path

import pytest

from tiermq.tier.fetch.window_loader import BackendLatency, waits_so_far


class Waits:
    """A count that a test moves."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> int:
        return self.count


def vote(pace: BackendLatency, waits: Waits, *fetches: int) -> list[bool]:
    """Fetches that waited so many times each, and the opinion after each of them."""
    opinions = []
    for times in fetches:
        begun = pace.begin()
        waits.count += times
        pace.end(begun)
        opinions.append(pace.is_slow)
    return opinions


@pytest.fixture
def waits() -> Waits:
    return Waits()


def test_a_back_end_is_slow_until_its_first_fetch_reports_otherwise(waits: Waits) -> None:
    pace = BackendLatency(waits)
    assert pace.is_slow
    assert vote(pace, waits, 0) == [False]


def test_a_back_end_that_makes_wait_stays_slow(waits: Waits) -> None:
    assert vote(BackendLatency(waits), waits, 1, 7, 1, 1) == [True] * 4


def test_one_fetch_by_chance_changes_no_settled_opinion_and_two_do(waits: Waits) -> None:
    pace = BackendLatency(waits)
    assert vote(pace, waits, 0, 0, 0, 1, 0, 0, 1, 1) == [False] * 7 + [True]
    assert vote(pace, waits, 1, 1, 0, 1, 1, 0, 0) == [True] * 6 + [False]


def test_waiting_counts() -> None:
    before = waits_so_far()
    select.select([], [], [], 0.001)
    assert waits_so_far() > before


def test_reading_what_the_page_cache_has_does_not_count(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(1 << 20))
    found = []
    for _ in range(20):
        before = waits_so_far()
        file.read_bytes()
        found.append(waits_so_far() - before)
    assert 0 in found


def test_every_thread_has_waits_of_its_own() -> None:
    gate, found = threading.Event(), []

    def ask() -> None:
        found.append(waits_so_far())
        gate.wait()
        found.append(waits_so_far())

    thread = threading.Thread(target=ask)
    thread.start()
    for _ in range(100):
        waiting = threading.Event()
        threading.Thread(target=waiting.set).start()
        waiting.wait()
    gate.set()
    thread.join()
    assert found[1] - found[0] < 100
