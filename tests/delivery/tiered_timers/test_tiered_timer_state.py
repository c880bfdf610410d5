"""What is known of tiered timers in the tier: taken over once, changed by compare-and-set only."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from delivery.tiered_timers.tier_world import BROKER, CLUSTER, DAY_MS, NOW_MS, FarWorld, LeaseOwner, timer
from servers.faulty_driver import Fault, FaultyDriver, ScriptedFaults
from simulation.manual_clock import ManualClock
from tiermq.delivery.tiered_timers.tiered_timer_state import TieredTimerState
from tiermq.delivery.tiered_timers.timer_name import TimerManifest, decode_timer_manifest, manifest_name
from tiermq.errors import FutureManifest, ManifestConflict, TierUnavailable
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.metadata.document import seal_document

DUE_MS = NOW_MS + 9 * DAY_MS


def state_of(driver: FaultyDriver | MemoryDriver, owner: str = "one") -> TieredTimerState:
    return TieredTimerState(driver, CLUSTER, BROKER, LeaseOwner(driver, ManualClock(NOW_MS), owner))


def flushed(state: TieredTimerState, number: int) -> None:
    state.ready()
    state.put_flush(state.encode(None, [timer(number, DUE_MS)]))


def test_a_broker_without_far_timers_writes_nothing_about_them() -> None:
    driver = MemoryDriver()
    assert state_of(driver).ready().live == frozenset()
    assert [name for name in driver.list_objects() if "timers" in name] == []


def test_the_next_owner_knows_every_acknowledged_flush(caplog: pytest.LogCaptureFixture) -> None:
    driver = MemoryDriver()
    state = state_of(driver)
    for number in range(3):
        flushed(state, number)
    assert state_of(driver).ready().live == state.known().live
    assert len(state.known().live) == 3
    assert caplog.text == ""  # There was no manifest yet, and none is missed.


def test_numbers_go_on_behind_those_of_earlier_owners() -> None:
    driver = MemoryDriver()
    flushed(state_of(driver), 1)
    flushed(state_of(driver), 2)
    third = state_of(driver)
    assert sorted(name.serial for name in third.ready().live) == [1, 2]
    assert third.encode(None, [timer(3, DUE_MS)]).name.serial == 3


def test_an_owner_who_takes_over_puts_his_epoch_into_the_manifest() -> None:
    driver = MemoryDriver()
    state = state_of(driver)
    flushed(state, 1)
    state.commit(state.ready().generation, lambda manifest: replace(manifest, forgotten_ms=5))
    state_of(driver).ready()
    stored = driver.get_object(manifest_name(CLUSTER, BROKER))
    assert stored is not None
    manifest = decode_timer_manifest(stored.data, "manifest")
    assert (manifest.epoch, manifest.writer, manifest.forgotten_ms) == (2, "one", 5)
    with pytest.raises(ManifestConflict):
        driver.put_object(manifest_name(CLUSTER, BROKER), b"x", expected="1")


def test_a_commit_whose_answer_was_lost_is_found_out_by_reading_again() -> None:
    driver = FaultyDriver(MemoryDriver())
    state = state_of(driver)
    flushed(state, 1)
    generation = state.ready().generation
    driver.plan = ScriptedFaults("put_object", [Fault.AFTER])
    with pytest.raises(TierUnavailable):
        state.commit(generation, lambda manifest: replace(manifest, forgotten_ms=5))
    assert state.known().manifest.forgotten_ms == 0
    snapshot = state.ready()
    assert snapshot.manifest.forgotten_ms == 5
    assert snapshot.generation != generation
    with pytest.raises(ManifestConflict):  # A decision by what was known before must be made again.
        state.commit(generation, lambda _: TimerManifest())


def test_a_manifest_of_a_newer_program_is_neither_read_nor_replaced(tmp_path: Path) -> None:
    world = FarWorld(tmp_path, MemoryDriver())
    name = manifest_name(CLUSTER, BROKER)
    data = seal_document({}, 99)
    world.driver.put_object(name, data)
    world.timers.add(timer(1, DUE_MS))
    with pytest.raises(FutureManifest):
        world.timers.flush()
    stored = world.driver.get_object(name)
    assert stored is not None
    assert stored.data == data


def test_an_object_that_counts_is_never_removed_as_left_over() -> None:
    driver = MemoryDriver()
    state = state_of(driver)
    flushed(state, 1)
    [name] = state.known().live
    state.commit(state.ready().generation, lambda manifest: replace(manifest, objects=frozenset({name}), settled=1))
    state.drop([name])
    assert state.remove_left_over() == 0
    assert state.read(name) is not None


def test_a_flush_whose_answer_was_lost_counts_once_when_a_listing_has_found_it() -> None:
    driver = FaultyDriver(MemoryDriver())
    state = state_of(driver)
    flushed(state, 1)
    encoded = state.encode(None, [timer(2, DUE_MS)])
    driver.plan = ScriptedFaults("put_object", [Fault.AFTER])
    with pytest.raises(TierUnavailable):
        state.put_flush(encoded)
    driver.plan = ScriptedFaults("put_object", [Fault.BEFORE])
    with pytest.raises(TierUnavailable):
        state.commit(state.known().generation, lambda manifest: manifest)
    snapshot = state.ready()  # Everything is listed again.
    assert encoded.name in snapshot.live
    state.commit(  # The upkeep writes it again, and its number is settled.
        snapshot.generation, lambda manifest: replace(manifest, settled=encoded.name.serial)
    )
    before = driver.list_objects()
    state.put_flush(encoded)
    assert list(driver.list_objects()) == list(before)
    assert encoded.name not in state.known().live  # It does not come back beside what it was written into.


class FlushesWhileListing(MemoryDriver):
    """Begins a flush in another thread when it has made a listing, before it hands it out."""

    def __init__(self) -> None:
        super().__init__()
        self.begin: threading.Thread | None = None

    def list_objects(self, prefix: str = "") -> list[str]:
        found = list(super().list_objects(prefix))
        thread, self.begin = self.begin, None
        if thread is not None:
            thread.start()
            thread.join(timeout=0.2)  # It waits for us, unless this is broken.
        return found


def test_a_flush_beside_a_listing_that_does_not_show_it_counts() -> None:
    driver = FlushesWhileListing()
    faulty = FaultyDriver(driver)
    state = state_of(faulty)
    flushed(state, 1)
    encoded = state.encode(None, [timer(2, DUE_MS)])
    faulty.plan = ScriptedFaults("put_object", [Fault.BEFORE])
    with pytest.raises(TierUnavailable):
        state.commit(state.known().generation, lambda manifest: manifest)
    driver.begin = flushing = threading.Thread(target=state.put_flush, args=(encoded,))
    state.ready()
    flushing.join()
    assert encoded.name in state.known().live


def test_a_flush_of_an_owner_who_was_replaced_meanwhile_is_refused_by_its_number() -> None:
    driver = MemoryDriver()
    clock = ManualClock(NOW_MS)
    owner = LeaseOwner(driver, clock)
    state = TieredTimerState(driver, CLUSTER, BROKER, owner)
    flushed(state, 1)
    encoded = state.encode(None, [timer(2, DUE_MS)])
    flushed(state_of(driver), 3)  # Another writer, with the same number.
    owner.lease.acquire()
    state.ready()
    with pytest.raises(ManifestConflict, match="number 2"):
        state.put_flush(encoded)
    assert not state.give_up_flush(encoded.name)


def test_a_first_commit_that_fails_leaves_no_objects_that_count_for_want_of_a_manifest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = FaultyDriver(MemoryDriver())
    world = FarWorld(tmp_path, driver)
    world.add((timer(number, DUE_MS + number) for number in range(8)), flush_every=2)
    puts_of_upkeep = 2  # The first manifest, and a bucket.
    driver.plan = ScriptedFaults("put_object", [None] * puts_of_upkeep + [Fault.BEFORE])
    with pytest.raises(TierUnavailable):
        world.timers.tend()
    driver.plan = None
    assert sum(name.count for name in world.timers.state.ready().live) == 8
    assert "the manifest is gone" not in caplog.text
