"""Waiting timers take memory on disk, not in the process."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from tiermq import LocalStore, Message
from tiermq.clock import ManualClock
from tiermq.delivery.timer.timer_place import TimerPlace
from tiermq.delivery.timer.timer_service import TimerService
from tiermq.message.properties import encode_properties

MEBIBYTE = 1024 * 1024


def peak_bytes(path: Path, count: int, seconds: int) -> int:
    """The most that Python held while so many timers, due over so many seconds, were taken in and delivered."""
    clock = ManualClock()
    with LocalStore.open(path, clock=clock, message_index_enable=False) as store:
        timers = TimerService(store, path, clock)
        for begin in range(0, count, 1_000):
            messages = []
            for number in range(begin, begin + 1_000):
                asked = {"TIMER_DELAY_SEC": str(60 + number % seconds), "UNIQ_KEY": f"K{number}"}
                place = timers.place("T", 0, encode_properties(asked))
                assert isinstance(place, TimerPlace)
                messages.append(Message(place.topic, b"body", 0, encoded_properties=place.properties))
            assert store.put_many(messages).all_ok
        store.dispatch_now()
        tracemalloc.start()
        try:
            while timers.behind_count:
                timers.run_once()
            assert timers.waiting_count == count
            clock.advance_ms((seconds + 120) * 1_000)
            while timers.counts.delivered < count:
                timers.run_once()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            timers.finish()
            timers.close()


def test_many_more_timers_take_hardly_more_memory(tmp_path: Path) -> None:
    few, many = peak_bytes(tmp_path / "few", 1_000, 1), peak_bytes(tmp_path / "many", 6_000, 1)
    assert many < few + MEBIBYTE


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_million_waiting_timers_take_few_mebibytes(tmp_path: Path) -> None:
    assert peak_bytes(tmp_path, 1_000_000, 100) < 24 * MEBIBYTE
