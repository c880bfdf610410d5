"""Tiered timers have a lease of their own, which only the broker's own process takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from servers.faulty_driver import Down, FaultyDriver
from simulation.manual_clock import ManualClock
from tiermq.broker.delivery.tiered_timers import tier_owner
from tiermq.delivery.tiered_timers.timer_name import TimerManifest, encode_timer_manifest, manifest_name
from tiermq.errors import StaleWriter, TierUnavailable
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.metadata.broker_lease import BrokerLease, LeaseHeld, LeaseRole
from tiermq.tier.tiered_store import TieredStore

SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 20_000,
    "max_index_num": 1_000,
    "max_hash_slot_num": 100,
    "message_index_enable": False,
}


def opened(path: Path, driver: FaultyDriver, clock: ManualClock) -> TieredStore:
    return TieredStore.open(path, driver=driver, clock=clock, background=False, broker_name="broker-a", **SETTINGS)


def test_the_lease_is_acquired_once_and_asked_of_the_tier(tmp_path: Path, manual_clock: ManualClock) -> None:
    driver = FaultyDriver(MemoryDriver())
    with opened(tmp_path, driver, manual_clock) as store:
        owner = tier_owner(store.tier)
        assert (owner.own(), owner.own()) == (1, 1)
        owner.check()
        assert owner.writer == store.tier.lease.owner
        manual_clock.advance_ms(3_600_000)  # It ran out, and nobody has taken it.
        assert owner.own() == 1
        driver.plan = Down()
        with pytest.raises(TierUnavailable):
            owner.check()
        driver.plan = None


def test_whoever_is_not_the_owner_is_shown_by_whom(tmp_path: Path, manual_clock: ManualClock) -> None:
    driver = FaultyDriver(MemoryDriver())
    other = BrokerLease(driver, "DefaultCluster", "broker-a", "somebody else", clock=manual_clock)
    with opened(tmp_path, driver, manual_clock) as store:
        other.acquire()
        owner = tier_owner(store.tier)
        with pytest.raises(StaleWriter, match="somebody else"):
            owner.own()
        other.release()
        manual_clock.advance_ms(60_000)
        assert owner.own() == 1


def test_a_broker_that_is_replaced_lets_go_of_its_timers_at_once(tmp_path: Path, manual_clock: ManualClock) -> None:
    driver = FaultyDriver(MemoryDriver())
    home = ("DefaultCluster", "broker-a", "another machine")
    with opened(tmp_path, driver, manual_clock) as store:
        owner = tier_owner(store.tier)
        assert owner.own() == 1
        timers = BrokerLease(driver, *home, role=LeaseRole.DELIVERY, clock=manual_clock)
        with pytest.raises(LeaseHeld, match="--role delivery`"):
            timers.acquire()
        BrokerLease(driver, *home, clock=manual_clock).acquire(force=True)
        manual_clock.advance_ms(20_000)
        store.tier.writer.keep_lease()
        with pytest.raises(StaleWriter, match="another machine"):
            owner.own()
        assert timers.acquire() == 2


def test_the_lease_is_renewed_when_it_is_due_and_released_with_the_store(
    tmp_path: Path, manual_clock: ManualClock
) -> None:
    driver = FaultyDriver(MemoryDriver())
    timers = BrokerLease(
        driver, "DefaultCluster", "broker-a", "another machine", role=LeaseRole.DELIVERY, clock=manual_clock
    )
    with opened(tmp_path, driver, manual_clock) as store:
        owner = tier_owner(store.tier)
        for _ in range(10):
            assert owner.own() == 1
            manual_clock.advance_ms(20_000)
        with pytest.raises(LeaseHeld):
            timers.acquire()
    assert timers.acquire() == 2


def test_timers_of_a_tier_from_before_roles_go_on_above_their_epoch(tmp_path: Path, manual_clock: ManualClock) -> None:
    driver = FaultyDriver(MemoryDriver())
    name = manifest_name("DefaultCluster", "broker-a")
    driver.put_object(name, encode_timer_manifest(TimerManifest(epoch=41)))
    with opened(tmp_path, driver, manual_clock) as store:
        assert tier_owner(store.tier).own() == 42
        assert store.tier.lease.epoch == 1
