"""Tiered timers from the bucket alone: counted, verified, and no orphans."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from delivery.tiered_timers.tier_world import BROKER, CLUSTER, DAY_MS, NOW_MS, FarWorld, number_of, timer
from tiermq import Message
from tiermq.delivery.tiered_timers.timer_discovery import TimerListing, discover_timers, timers_of, verify_timers
from tiermq.delivery.tiered_timers.timer_name import manifest_name
from tiermq.delivery.tiered_timers.timer_object import CorruptTimers, DamagedTimer
from tiermq.delivery.timer.timer_record import TieredTimer
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.queue.segments import TierScope
from tiermq.tier.retention.orphans import find_orphans
from tiermq.tier.tiered_store import TieredStore
from tiermq.tier.verify.verify import verify_tier
from tiermq.tier.verify.verify_report import VerifyReport

DUE_MS = NOW_MS + 3 * DAY_MS
STORE = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 20_000, "max_index_num": 1_000,
         "max_hash_slot_num": 100, "tiered_store_index_file_max_hash_slot_num": 100,
         "tiered_store_index_file_max_index_num": 1_000, "broker_name": BROKER}  # fmt: skip


@pytest.fixture
def listed(tmp_path: Path) -> FarWorld:
    world = FarWorld(tmp_path, MemoryDriver())
    world.add((timer(number, DUE_MS + number * DAY_MS) for number in range(30)), flush_every=7)
    world.tend()
    world.add([timer(30, DUE_MS)])
    return world


def only(world: FarWorld) -> TimerListing:
    [listing] = discover_timers(world.driver)
    return listing


def verified(world: FarWorld) -> VerifyReport:
    report = VerifyReport(world.driver.url)
    verify_timers(world.driver, only(world), report)
    return report


def numbers_of(timers: Iterable[TieredTimer | DamagedTimer]) -> list[int]:
    found = list(timers)
    assert not any(isinstance(each, DamagedTimer) for each in found)
    return sorted(number_of(each) for each in found if not isinstance(each, DamagedTimer))


def test_a_scan_reports_how_many_wait_and_until_when(listed: FarWorld) -> None:
    listing = only(listed)
    assert (listing.cluster, listing.broker, listing.count) == (CLUSTER, BROKER, 31)
    assert (listing.first_ms, listing.last_ms) == (DUE_MS, DUE_MS + 29 * DAY_MS)
    assert listing.live == listed.timers.state.known().live
    assert listing.size_bytes == listed.timers.kept_bytes
    assert numbers_of(timers_of(listed.driver, listing)) == list(range(31))
    near = timers_of(listed.driver, listing, DUE_MS, DUE_MS + 1)
    assert numbers_of(near) == [0, 30]


def test_a_tier_without_far_timers_has_no_view_of_them() -> None:
    assert discover_timers(MemoryDriver()) == []


def test_a_scope_of_another_broker_or_of_a_topic_holds_none(listed: FarWorld) -> None:
    assert discover_timers(listed.driver, TierScope(CLUSTER, BROKER)) != []
    assert discover_timers(listed.driver, TierScope(CLUSTER, "broker-b")) == []
    assert discover_timers(listed.driver, TierScope(CLUSTER, BROKER, "orders")) == []


def test_what_was_delivered_is_not_reported_as_waiting(listed: FarWorld) -> None:
    listed.clock.set_ms(DUE_MS + 5 * DAY_MS)
    assert len(list(listed.timers.pull(DUE_MS + 5 * DAY_MS))) == 6
    listed.timers.pulled()
    listed.timers.forget(DUE_MS + 5 * DAY_MS)
    listed.tend()
    listing = only(listed)
    assert listing.first_ms == DUE_MS + 5 * DAY_MS
    assert len(list(timers_of(listed.driver, listing))) == 25


def test_sound_timers_verify_clean_and_are_counted(listed: FarWorld) -> None:
    report = verified(listed)
    assert report.is_clean
    assert report.counts["timers"] == 31
    assert report.counts["timer_objects"] == len(only(listed).live)


@pytest.mark.parametrize("damage", ["cut", "flip", "swap", "gone", "manifest"])
def test_damage_to_far_timers_is_a_problem_with_its_place(listed: FarWorld, damage: str) -> None:
    one, two = (only(listed).objects[at].path(only(listed).directory) for at in (0, -1))
    stored, other = listed.driver.get_object(one), listed.driver.get_object(two)
    assert stored is not None
    assert other is not None
    if damage == "gone":
        listed.driver.delete_object(one)
    elif damage == "manifest":
        one = manifest_name(CLUSTER, BROKER)
        listed.driver.put_object(one, b"{}")
    else:
        changed = {"cut": stored.data[:-9], "flip": stored.data[:-1] + b"!", "swap": other.data}[damage]
        listed.driver.put_object(one, changed)
    report = verified(listed)
    assert [finding.where for finding in report.problems] == [one]


def test_a_scan_of_a_damaged_object_raises_or_says_which_timer(listed: FarWorld) -> None:
    listing = only(listed)
    path = listing.objects[0].path(listing.directory)
    stored = listed.driver.get_object(path)
    assert stored is not None
    listed.driver.put_object(path, stored.data[:-1] + b"!")
    assert sum(isinstance(each, DamagedTimer) for each in timers_of(listed.driver, listing)) == 1
    listed.driver.put_object(path, b"no timers")
    with pytest.raises(CorruptTimers):
        list(timers_of(listed.driver, listing))


def test_what_a_dead_writer_left_over_is_a_note(listed: FarWorld) -> None:
    listing = only(listed)
    stored = listed.driver.get_object(listing.objects[0].path(listing.directory))
    assert stored is not None
    stray = f"{listing.directory}/2027-01-18/all_000000000999_1_80_1800232860000_1800232860000.tiermq.timers"
    listed.driver.put_object(stray, stored.data)
    report = verified(listed)
    assert report.is_clean
    assert [finding.where for finding in report.notes] == [stray]


def test_timers_are_no_orphans_no_history_and_survive_restore_retention_and_the_deletion_of_topics(
    tmp_path: Path, listed: FarWorld
) -> None:
    driver, clock = listed.driver, listed.clock
    before = {name for name in driver.list_objects() if "timers.tiermq" in name}
    listed.timers.state._owner.lease.release()  # type: ignore[attr-defined]
    opened: dict[str, Any] = {"driver": driver, "clock": clock, "background": False, **STORE}
    with TieredStore.open(tmp_path / "one", **opened) as store:
        store.put(Message("timers", b"a topic of that name"))
        store.put(Message("orders", b"x"))
        assert store.flush_to_tier()
        clock.advance_ms(200 * DAY_MS)
        store.expire_now()
        store.delete_topics(["timers", "orders"])
        assert find_orphans(driver, store.tier.metadata, TierScope(CLUSTER, BROKER), clock=clock).is_clean
    assert find_orphans(driver, clock=clock).orphans == []
    assert verify_tier(driver).is_clean
    with TieredStore.open(tmp_path / "two", restore=True, **opened) as store:
        assert store.restored is not None
    assert {name for name in driver.list_objects() if "timers.tiermq" in name} == before
