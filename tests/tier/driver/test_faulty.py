"""FaultyDriver: each fault does what it says, and a plan can be repeated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from servers.faulty_driver import Down, Fault, FaultyDriver, ScriptedFaults, SeededFaults
from tier.driver.conformance import fresh_segment
from tiermq.errors import TierUnavailable
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.driver.posix import PosixDriver

KEY = fresh_segment()


def test_before_means_that_nothing_has_happened() -> None:
    driver = FaultyDriver(MemoryDriver(), ScriptedFaults("write", [Fault.BEFORE]))
    with pytest.raises(TierUnavailable, match="as planned"):
        driver.write(KEY, 0, [b"x"])
    assert driver.size(KEY) == 0
    driver.write(KEY, 0, [b"x"])
    assert driver.injected == [("write", Fault.BEFORE)]


def test_after_means_that_it_has_happened() -> None:
    driver = FaultyDriver(MemoryDriver())
    calls: dict[str, Callable[[], object]] = {
        "write": lambda: driver.write(KEY, 0, [b"x"]),
        "seal": lambda: driver.seal(KEY),
        "put_object": lambda: driver.put_object("a.tiermq.json", b"{}"),
    }
    for operation, call in calls.items():
        driver.plan = ScriptedFaults(operation, [Fault.AFTER])
        with pytest.raises(TierUnavailable, match="answer was lost"):
            call()
    assert driver.is_sealed(KEY)
    assert driver.get_object("a.tiermq.json") is not None


def test_torn_leaves_half_of_the_bytes(tmp_path: Path) -> None:
    driver = FaultyDriver(PosixDriver(tmp_path), ScriptedFaults("write", [Fault.TORN]))
    with pytest.raises(TierUnavailable):
        driver.write(KEY, 0, [b"0123", b"4567"])
    assert bytes(driver.read(KEY, 0, driver.size(KEY))) == b"0123"


def test_delay_takes_a_while_and_then_happens() -> None:
    slept: list[float] = []
    driver = FaultyDriver(MemoryDriver(), ScriptedFaults("write", [Fault.DELAY]), delay_s=3, sleep=slept.append)
    driver.write(KEY, 0, [b"x"])
    assert slept == [3]
    assert driver.size(KEY) == 1


def test_twice_means_that_a_request_arrives_again_and_changes_nothing_more() -> None:
    driver = FaultyDriver(MemoryDriver())
    calls: dict[str, Callable[[], object]] = {
        "write": lambda: driver.write(KEY, 0, [b"x"]),
        "put_object": lambda: driver.put_object("a.tiermq.json", b"{}", expected=None),
        "seal": lambda: driver.seal(KEY),
    }
    for operation, call in calls.items():
        driver.plan = ScriptedFaults(operation, [Fault.TWICE])
        call()
    assert (driver.size(KEY), driver.is_sealed(KEY)) == (1, True)
    stored = driver.get_object("a.tiermq.json")
    assert stored is not None
    assert driver.put_object("a.tiermq.json", b"[]", expected=stored.version) != stored.version


def test_stale_answers_lag_behind_the_newest_write() -> None:
    driver = FaultyDriver(MemoryDriver())
    driver.write(KEY, 0, [b"old"])
    driver.write(KEY, 3, [b"new"])
    driver.plan = ScriptedFaults("size", [Fault.STALE])
    assert [driver.size(KEY), driver.size(KEY)] == [3, 6]
    driver.plan = ScriptedFaults("list_segments", [Fault.STALE])
    assert [info.size for info in driver.list_segments()] == [3]
    fresh = fresh_segment()
    driver.write(fresh, 0, [b"x"])
    driver.plan = ScriptedFaults("list_segments", [Fault.STALE])
    assert [info.key for info in driver.list_segments()] == [KEY]
    assert {info.key for info in driver.list_segments()} == {KEY, fresh}


def test_the_same_seed_brings_the_same_faults() -> None:
    def drawn(seed: int) -> list[Fault | None]:
        plan = SeededFaults(seed, {Fault.BEFORE: 0.3, Fault.AFTER: 0.3})
        return [plan.next_fault("write") for _ in range(200)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert set(drawn(1)) == {Fault.BEFORE, Fault.AFTER, None}
    only_reads = SeededFaults(1, {Fault.BEFORE: 1.0}, operations=["read"])
    assert only_reads.next_fault("write") is None
    assert only_reads.next_fault("read") is Fault.BEFORE


def test_a_back_end_that_is_down_answers_nothing() -> None:
    driver = FaultyDriver(MemoryDriver(), Down())
    for call in (
        lambda: driver.size(KEY),
        lambda: driver.read(KEY, 0, 1),
        lambda: driver.trim(KEY, 0),
        lambda: driver.delete(KEY),
        lambda: driver.list_segments(),
        lambda: driver.list_objects(),
        lambda: driver.delete_object("a.tiermq.json"),
    ):
        with pytest.raises(TierUnavailable):
            call()
