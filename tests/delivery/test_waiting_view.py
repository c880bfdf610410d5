"""What waits in a directory, read from outside, while it is in use and after."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulation.manual_clock import ManualClock
from small_store import on_disk
from tiermq import Message
from tiermq.config import StoreConfig
from tiermq.delivery.timer.timer_destination import TimerDestination
from tiermq.delivery.timer.timer_service import TimerService
from tiermq.delivery.timer.timer_state import TimerSettings
from tiermq.delivery.waiting_view import WaitingView
from tiermq.errors import StoreDamaged, StoreError
from tiermq.message.properties import encode_properties
from tiermq.store.local_store import LocalStore

DELAYS_MS = StoreConfig().delay_levels_ms
SETTINGS = TimerSettings(slots=600, log_file_bytes=4096)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[LocalStore]:
    with on_disk(tmp_path / "store", clock=clock) as store:
        yield store


@pytest.fixture
def timers(store: LocalStore, clock: ManualClock) -> Iterator[TimerService]:
    timers = TimerService(store, store.config.root_path, clock, SETTINGS)
    yield timers
    timers.close()


def send(store: LocalStore, timers: TimerService, key: str, delay_s: int, topic: str = "T") -> None:
    place = timers.place(topic, 0, encode_properties({"UNIQ_KEY": key, "TIMER_DELAY_SEC": str(delay_s), "KEYS": "k"}))
    assert isinstance(place, TimerDestination)
    assert store.put(Message(place.topic, b"body", place.queue_id, encoded_properties=place.properties)).ok
    store.dispatch_now()


def view_of(store: LocalStore) -> WaitingView:
    return WaitingView(store.config.root_path, DELAYS_MS)


def test_waiting_timers_are_read_from_a_directory_in_use(
    store: LocalStore, timers: TimerService, clock: ManualClock
) -> None:
    send(store, timers, "late", 50)
    send(store, timers, "soon", 5, topic="U")
    timers.run_once()
    timers.flush()
    send(store, timers, "not taken in", 7)
    with view_of(store) as view:
        found = list(view.timers())
        assert [(each.unique_key, each.topic, each.deliver_ms - clock.now_ms(), each.level) for each in found] == [
            ("soon", "U", 5_000, 0),
            ("late", "T", 50_000, 0),
            ("not taken in", "T", 7_000, 0),
        ]
        assert view.summary() == {
            "timers": 2,
            "timers_by_topic": {"T": 1, "U": 1},
            "timers_next_due_ms": clock.now_ms() + 5_000,
            "timers_delivered_until_ms": clock.now_ms(),
            "timers_not_taken_in": 1,
            "delayed_by_level": {},
        }


def test_delayed_messages_are_read_by_level(store: LocalStore, clock: ManualClock) -> None:
    for number in range(3):
        properties = {"DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "1", "UNIQ_KEY": f"K{number}"}
        store.put(Message("SCHEDULE_TOPIC_XXXX", b"body", 2, properties=properties))
    store.dispatch_now()
    os.makedirs(store.config.root_path / "config", exist_ok=True)
    (store.config.root_path / "config" / "delayOffset.json").write_text('{"offsetTable":{3:1}}')
    with view_of(store) as view:
        assert [(each.unique_key, each.level, each.deliver_ms, each.queue_id) for each in view.levels()] == [
            ("K1", 3, clock.now_ms() + 10_000, 1),
            ("K2", 3, clock.now_ms() + 10_000, 1),
        ]
        assert view.summary()["delayed_by_level"] == {"3": 2}
        assert list(view.timers()) == []


def test_a_store_without_timers_has_none(store: LocalStore) -> None:
    store.put(Message("T", b"body"))
    store.dispatch_now()
    with view_of(store) as view:
        assert list(view.timers()) == list(view.levels()) == []
        assert view.summary()["timers"] == 0
        assert view.summary()["timers_next_due_ms"] is None


def test_what_is_no_store_or_no_wheel_is_refused(tmp_path: Path, store: LocalStore, timers: TimerService) -> None:
    with pytest.raises(StoreError):
        WaitingView(tmp_path, DELAYS_MS)
    send(store, timers, "a", 50)
    timers.run_once()
    timers.flush()
    with (store.config.root_path / "timerwheel").open("ab") as wheel:
        wheel.write(b"x")
    with pytest.raises(StoreDamaged, match="expected slots of 32 bytes"):
        view_of(store)
