"""The wheel: slots by time, what is on disk when, and the order of time over the wheel's end."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.simulated_files import SimulatedFileAccess
from tiermq.delivery.timer.timer_wheel import EMPTY, SLOT, Slot, TimerWheel, new_wheel
from tiermq.errors import DiskFull, StoreDamaged
from tiermq.files.os_file_access import OsFileAccess

PATH = "/store/timerwheel"
SLOTS = 1_000
NOW_MS = 1_700_000_000_000


def opened(access: SimulatedFileAccess, *, precision_ms: int = 1_000, slots: int = SLOTS) -> TimerWheel:
    return TimerWheel(access, PATH, precision_ms, slots)


def test_a_slot_is_found_by_any_time_in_it_and_by_no_other() -> None:
    wheel = opened(SimulatedFileAccess())
    wheel.put(Slot(NOW_MS, 52, 104, 2))
    assert wheel.slot(NOW_MS) == wheel.slot(NOW_MS + 999) == Slot(NOW_MS, 52, 104, 2)
    assert wheel.slot(NOW_MS + 1_000) == EMPTY
    assert wheel.slot(NOW_MS + SLOTS * 1_000) == EMPTY  # The same place, one turn later.
    assert wheel.slot(0) == EMPTY


def test_a_slot_has_rocketmqs_bytes() -> None:
    access = SimulatedFileAccess()
    wheel = opened(access)
    wheel.put(Slot(NOW_MS, 52, 104, 2))
    wheel.flush()
    at = 1_700_000_000 % SLOTS * 32
    assert access.read_bytes(PATH)[at : at + 32] == SLOT.pack(1_700_000_000, 52, 104, 2, 0)
    assert access.read_bytes(PATH).count(b"\0") > SLOTS * 32 - 32


def test_a_slot_of_the_next_turn_takes_the_place_of_the_last() -> None:
    wheel = opened(SimulatedFileAccess())
    wheel.put(Slot(NOW_MS, 0, 0, 1))
    wheel.put(Slot(NOW_MS + SLOTS * 1_000, 52, 52, 1))
    assert wheel.slot(NOW_MS) == EMPTY
    assert wheel.slot(NOW_MS + SLOTS * 1_000).first == 52


def test_what_changed_is_on_disk_after_a_flush_and_not_before() -> None:
    access = SimulatedFileAccess()
    wheel = opened(access)
    wheel.put(Slot(NOW_MS, 0, 0, 1))
    assert wheel.dirty_count == 1
    # Also when the process dies, and everything that it wrote to files is kept.
    assert opened(access.crash(lambda _path, _page: True)).slot(NOW_MS) == EMPTY
    wheel.flush()
    assert wheel.dirty_count == 0
    assert wheel.slot(NOW_MS) == Slot(NOW_MS, 0, 0, 1)
    assert opened(access.crash(lambda _path, _page: False)).slot(NOW_MS) == Slot(NOW_MS, 0, 0, 1)


def test_slots_come_in_the_order_of_time_from_any_begin_whatever_is_flushed() -> None:
    chance = random.Random(3)
    wheel = opened(SimulatedFileAccess())
    expected = {}
    for _ in range(300):
        time_ms = NOW_MS + chance.randrange(SLOTS) * 1_000
        expected[time_ms] = Slot(time_ms, 1, 2, 3)
        wheel.put(expected[time_ms])
        if chance.random() < 0.02:
            wheel.flush()
    in_order = [expected[time_ms] for time_ms in sorted(expected)]
    assert list(wheel.slots_between(NOW_MS)) == in_order
    assert wheel.waiting_count(NOW_MS) == 3 * len(in_order)
    begin, end = NOW_MS + 200_000, NOW_MS + 700_000
    assert list(wheel.slots_between(begin, end)) == [slot for slot in in_order if begin <= slot.time_ms < end]
    assert list(wheel.slots_between(end, begin)) == []
    wheel.flush()
    assert list(wheel.slots_between(NOW_MS)) == in_order


def test_slots_of_earlier_turns_are_passed_over() -> None:
    wheel = opened(SimulatedFileAccess())
    for second in range(SLOTS):
        wheel.put(Slot(NOW_MS + second * 1_000, 0, 0, 1))
    wheel.flush()
    later_ms = NOW_MS + 5_000 + SLOTS * 1_000
    assert list(wheel.slots_between(later_ms)) == []
    wheel.put(Slot(later_ms + 7_000, 9, 9, 1))
    assert [slot.time_ms for slot in wheel.slots_between(later_ms)] == [later_ms + 7_000]


def test_dropped_slots_are_empty() -> None:
    wheel = opened(SimulatedFileAccess())
    for second in range(10):
        wheel.put(Slot(NOW_MS + second * 1_000, 0, 0, 1))
    wheel.flush()
    wheel.drop(NOW_MS + 2_000, NOW_MS + 5_000)
    wheel.flush()
    seconds = [(slot.time_ms - NOW_MS) // 1_000 for slot in wheel.slots_between(NOW_MS)]
    assert seconds == [0, 1, 5, 6, 7, 8, 9]


def test_a_full_disk_refuses_a_flush_that_succeeds_later() -> None:
    access = SimulatedFileAccess()
    wheel = opened(access)
    wheel.put(Slot(NOW_MS, 0, 0, 1))
    access.capacity_bytes = 0
    with pytest.raises(DiskFull):
        wheel.flush()
    access.capacity_bytes = None
    wheel.flush()
    assert opened(access.crash(lambda _path, _page: False)).slot(NOW_MS).timers == 1


def test_a_wheel_of_another_length_is_refused() -> None:
    access = SimulatedFileAccess()
    opened(access).close()
    with pytest.raises(StoreDamaged, match="expected a timer wheel of 64000 bytes, found 32000"):
        opened(access, slots=2 * SLOTS)


def test_an_empty_file_becomes_a_wheel() -> None:
    access = SimulatedFileAccess()
    access.make_directories("/store")
    access.write_bytes(PATH, b"")
    assert list(opened(access).slots_between(NOW_MS)) == []


def test_a_new_wheel_holds_nothing_of_what_was_there() -> None:
    access = SimulatedFileAccess()
    wheel = opened(access)
    wheel.put(Slot(NOW_MS, 0, 0, 1))
    wheel.flush()
    wheel.close()
    assert new_wheel(access, PATH, 1_000, SLOTS).slot(NOW_MS) == EMPTY


@given(
    st.lists(st.tuples(st.integers(0, 2 * SLOTS), st.booleans()), max_size=30),
    st.integers(0, 2 * SLOTS),
    st.none() | st.integers(0, 3 * SLOTS),
)
def test_the_slots_of_a_span_are_those_that_single_questions_find(
    puts: list[tuple[int, bool]], begin: int, until: int | None
) -> None:
    access = SimulatedFileAccess()
    wheel = opened(access)
    for slot, flushed in puts:
        wheel.put(Slot(NOW_MS + slot * 1_000, slot, slot, 1))
        if flushed:
            wheel.flush()
            wheel = opened(access)  # What it knows of its pages is then what the file says.
    end = begin + SLOTS if until is None else min(until, begin + SLOTS)
    times = [NOW_MS + slot * 1_000 for slot in range(begin, end)]
    until_ms = None if until is None else NOW_MS + until * 1_000
    found = list(wheel.slots_between(NOW_MS + begin * 1_000, until_ms))
    assert found == [slot for slot in map(wheel.slot, times) if slot != EMPTY]


WIDE = 14 * 24 * 3_600
"""Slots of a broker's own wheel: two weeks of seconds, 38 MB."""


def resident_bytes(path: Path) -> int:
    """What this process has of a mapped file in its memory."""
    found = re.findall(rf"{re.escape(str(path))}\n(?:\w+: .*\n)*?Rss: +(\d+) kB", Path("/proc/self/smaps").read_text())
    assert found, f"{path} is not mapped"
    return sum(map(int, found)) * 1024


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the system does not tell memory by file")
@pytest.mark.parametrize("dense", [False, True], ids=["as-we-write-it", "as-rocketmq-writes-it"])
def test_a_wide_wheel_takes_memory_for_its_used_pages_alone(tmp_path: Path, dense: bool) -> None:
    path = tmp_path / "timerwheel"
    if dense:
        path.write_bytes(bytes(WIDE * 32))
    wheel = TimerWheel(OsFileAccess(), str(path), 1_000, WIDE)
    due = [NOW_MS + days * 86_400_000 for days in (0, 3, 9)]
    for time_ms in due:
        wheel.put(Slot(time_ms, 0, 0, 1))
    wheel.flush()
    wheel.close()
    wheel = TimerWheel(OsFileAccess(), str(path), 1_000, WIDE)
    assert [slot.time_ms for slot in wheel.slots_between(NOW_MS)] == due
    assert wheel.waiting_count(NOW_MS) == 3
    assert resident_bytes(path) < 1 << 20  # The kernel maps a few neighbours of a page that is touched.
    wheel.close()
