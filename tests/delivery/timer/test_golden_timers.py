"""Timers that the real RocketMQ left waiting: our readers agree with its bytes, and we deliver them.

How the directory was made is in `tests/interop/make_golden_timers.py`.
"""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from simulation.manual_clock import ManualClock
from small_store import read_all
from tiermq.config import StoreConfig
from tiermq.delivery.timer.timer_checkpoint import decode_progress
from tiermq.delivery.timer.timer_log import TIMER_UNIT_BYTES, TimerUnit, decode_unit, encode_unit
from tiermq.delivery.timer.timer_service import TimerService
from tiermq.delivery.timer.timer_state import TimerSettings, decode_timer_metrics
from tiermq.delivery.timer.timer_wheel import SLOT
from tiermq.delivery.waiting_view import WaitingView
from tiermq.message.java_hash import java_hash
from tiermq.store.local_store import LocalStore

GOLDEN = Path(__file__).parents[2] / "golden" / "rocketmq-5.3.3-timers"
FACTS: dict[str, Any] = json.loads((GOLDEN / "facts.json").read_text())
SENT = {each["body"]: each for each in FACTS["sent"]}
OURS: dict[str, Any] = {
    "mapped_file_size_commit_log": 64 * 1024,
    "mapped_file_size_consume_queue": 20 * 1000,
    "max_hash_slot_num": 50,
    "max_index_num": 200,
}
SLOTS = struct.Struct(">i32s")


def units() -> list[TimerUnit]:
    data = (GOLDEN / "store" / "timerlog" / ("0" * 20)).read_bytes()
    found: list[TimerUnit] = []
    while (unit := decode_unit(data, len(found) * TIMER_UNIT_BYTES)) is not None:
        found.append(unit)
    assert not any(data[len(found) * TIMER_UNIT_BYTES :])
    return found


def slots() -> dict[int, tuple[int, int, int, int, int]]:
    """Number → slot."""
    pieces = SLOTS.iter_unpack((GOLDEN / "timerwheel.slots").read_bytes())
    return {number: SLOT.unpack(slot) for number, slot in pieces}


def slot_of(body: str) -> int:
    """The slot of a time, by RocketMQ's rounding: its second, or the one before when it is the beginning of one."""
    deliver_ms = SENT[body]["deliver_ms"]
    return int((deliver_ms - 1) // 1_000 * 1_000)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The whole directory, with its wheel."""
    shutil.copytree(GOLDEN / "store", tmp_path / "store")
    with (tmp_path / "store" / "timerwheel").open("wb") as wheel:
        wheel.truncate(FACTS["wheel_bytes"])
        for number, slot in SLOTS.iter_unpack((GOLDEN / "timerwheel.slots").read_bytes()):
            wheel.seek(number * 32)
            wheel.write(slot)
    return tmp_path / "store"


def test_our_units_are_rocketmqs_to_the_byte() -> None:
    found = units()
    data = (GOLDEN / "store" / "timerlog" / ("0" * 20)).read_bytes()
    assert b"".join(map(encode_unit, found)) == data[: len(found) * TIMER_UNIT_BYTES]
    assert len(found) == len(SENT)
    assert {unit.topic_hash for unit in found} == {java_hash("T")}
    assert [unit.magic for unit in found] == [1, 1, 1, 1, 1, 1, 1, 3, 5]


def test_our_slots_are_rocketmqs() -> None:
    found, log = slots(), units()
    by_time = {time * 1_000: (number, first, last, timers) for number, (time, first, last, timers, _) in found.items()}
    hour = by_time[slot_of("hour-0")]
    assert hour[0] == slot_of("hour-0") // 1_000 % (7 * 24 * 3600 * 2)
    assert hour[1:] == (1 * TIMER_UNIT_BYTES, 8 * TIMER_UNIT_BYTES, 4)  # Five, and a cancellation.
    assert {unit.slot_ms for unit in log} == set(by_time)
    rolls = log[7]
    assert rolls.slot_ms == rolls.write_time_ms + 172_800_000 // 2  # Twelve hours behind the window of 48.


def test_rocketmqs_checkpoint_and_counts_are_read() -> None:
    progress = decode_progress((GOLDEN / "store" / "config" / "timercheck").read_bytes())
    assert not progress.is_ours
    assert progress.queue_offset == len(SENT)
    assert progress.read_time_ms > slot_of("delivered")
    counts = decode_timer_metrics((GOLDEN / "store" / "config" / "timermetrics").read_bytes()).counts()
    assert counts == {"T": 6}


def test_what_waits_in_rocketmqs_directory_is_listed(store: Path) -> None:
    with WaitingView(store, StoreConfig().delay_levels_ms) as view:
        listed = [(each.deliver_ms, each.unique_key) for each in view.timers()]
        assert view.summary()["timers"] == 6
    expected = [(slot_of(body) + 1_000, SENT[body]["unique_key"]) for body in SENT]
    hidden = {SENT[body]["unique_key"] for body in ("delivered", "hour-2", "cancels")}
    assert sorted(listed) == sorted(pair for pair in expected if pair[1] not in hidden)


def test_timers_of_rocketmqs_directory_are_delivered_in_their_time_and_once(store: Path) -> None:
    clock = ManualClock(slot_of("delivered") + 60_000)
    with LocalStore.open(store, clock=clock, **OURS) as opened:
        timers = TimerService(opened, store, clock, TimerSettings(log_file_bytes=4096))
        assert timers.waiting_count == 6
        seen: dict[str, int] = {}
        while clock.now_ms() < SENT["rolls"]["deliver_ms"] + 60_000:
            while timers.run_once() == 0.0 or opened.dispatch_now():
                pass
            for message in read_all(opened, "T", 0):
                seen.setdefault(message.body.decode(), clock.now_ms())
            due_ms = timers.next_due_ms() or clock.now_ms() + 60_000
            clock.set_ms(max(clock.now_ms() + 1, due_ms))
        timers.finish()
        timers.close()
        assert len(read_all(opened, "T", 0)) == len(seen) == 7
    assert set(seen) == set(SENT) - {"hour-2", "cancels"}
    assert [body for body, at_ms in seen.items() if at_ms < SENT[body]["deliver_ms"] and body != "delivered"] == []
