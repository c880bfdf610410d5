"""Far timers share the lease of the store's tier."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiermq import TieredStore
from tiermq.clock import ManualClock
from tiermq.delivery.far.tier_owner import TierOwner
from tiermq.errors import StaleWriter, TierUnavailable
from tiermq.tier.driver.faulty import Down, FaultyDriver
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.metadata.broker_lease import BrokerLease

SETTINGS = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 20_000, "max_index_num": 1_000,
            "max_hash_slot_num": 100, "message_index_enable": False}  # fmt: skip


def opened(path: Path, driver: FaultyDriver, clock: ManualClock) -> TieredStore:
    return TieredStore.open(path, driver=driver, clock=clock, background=False, broker_name="broker-a", **SETTINGS)


def test_the_lease_is_acquired_once_and_asked_of_the_tier(tmp_path: Path, manual_clock: ManualClock) -> None:
    driver = FaultyDriver(MemoryDriver())
    with opened(tmp_path, driver, manual_clock) as store:
        owner = TierOwner(store.tier.writer, store.tier.lease)
        assert (owner.own(), owner.own()) == (1, 1)
        owner.check()
        assert owner.writer == store.tier.lease.owner
        manual_clock.advance_ms(3_600_000)  # It ran out, and nobody has taken it.
        assert owner.own() == 1
        driver.plan = Down()
        with pytest.raises(TierUnavailable):
            owner.check()
        driver.plan = None


def test_whoever_is_not_the_owner_is_told_by_whom(tmp_path: Path, manual_clock: ManualClock) -> None:
    driver = FaultyDriver(MemoryDriver())
    other = BrokerLease(driver, "DefaultCluster", "broker-a", "somebody else", clock=manual_clock)
    with opened(tmp_path, driver, manual_clock) as store:
        other.acquire()
        owner = TierOwner(store.tier.writer, store.tier.lease)
        with pytest.raises(StaleWriter, match="somebody else"):
            owner.own()
        other.release()
        manual_clock.advance_ms(60_000)
        assert owner.own() == 2
