"""A lease that is not there, or cannot be read: its epoch is found in the manifests, before anybody holds it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from servers.faulty_driver import Fault, FaultyDriver, ScriptedFaults
from simulation.manual_clock import ManualClock
from tier.metadata.lease_samples import DISPATCHER, JOB, lease_of
from tiermq.errors import StaleWriter, TierUnavailable
from tiermq.tier.driver.contract import ANY, TierDriver
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.metadata.broker_lease import Lease, LeaseHeld, encode_lease, lease_name
from tiermq.tier.metadata.manifest_store import ManifestStore
from tiermq.tier.names import QueueKey


def gone(driver: TierDriver, name: str) -> None:
    driver.delete_object(name)


def blank(driver: TierDriver, name: str) -> None:
    driver.put_object(name, bytes(100), expected=ANY)


@pytest.mark.parametrize("lose", [gone, blank])
def test_who_takes_a_lease_that_shows_no_epoch_passes_those_of_all_manifests(
    lose: Callable[[TierDriver, str], None], manual_clock: ManualClock
) -> None:
    driver = MemoryDriver()
    for number in range(3):
        job = lease_of(driver, f"job {number}", manual_clock)
        job.acquire()
        ManifestStore(driver, job.owner, lease=job).acquire(QueueKey("DefaultCluster", "broker-a", "orders", number))
        job.release()
    lose(driver, job.name)
    broker = lease_of(driver, DISPATCHER, manual_clock)
    assert broker.acquire(epoch_min=2, force=lose is blank) == 4
    manifests = ManifestStore(driver, DISPATCHER, lease=broker)
    for number in range(3):
        assert manifests.acquire(QueueKey("DefaultCluster", "broker-a", "orders", number)) == 4


def test_a_lease_that_is_there_is_taken_without_a_discovery(manual_clock: ManualClock) -> None:
    driver = FaultyDriver(MemoryDriver())
    lease_of(driver, DISPATCHER, manual_clock).acquire()
    manual_clock.advance_ms(30_000)
    driver.plan = ScriptedFaults("list_objects", [Fault.BEFORE])
    assert lease_of(driver, JOB, manual_clock).acquire() == 2


def test_a_lease_is_not_taken_while_the_epoch_before_cannot_be_found_out(manual_clock: ManualClock) -> None:
    driver = FaultyDriver(MemoryDriver())
    ManifestStore(driver, "job").acquire(QueueKey("DefaultCluster", "broker-a", "orders", 0))
    lease = lease_of(driver, DISPATCHER, manual_clock)
    for plan in (ScriptedFaults("list_objects", [Fault.BEFORE]), ScriptedFaults("get_object", [None, Fault.BEFORE])):
        driver.plan = plan
        with pytest.raises(TierUnavailable):
            lease.acquire()
        assert lease.read() is None
    assert lease.acquire() == 2


class LongListing(MemoryDriver):
    """Its listing takes two terms of a lease."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock

    def list_objects(self, prefix: str = "") -> list[str]:
        self.clock.advance_ms(60_000)
        return super().list_objects(prefix)


def test_a_term_begins_when_the_discovery_is_over(manual_clock: ManualClock) -> None:
    lease = lease_of(LongListing(manual_clock), DISPATCHER, manual_clock)
    lease.acquire()
    assert lease.expires_ms == manual_clock.now_ms() + 30_000


class Overtaken(MemoryDriver):
    """Another holder takes the lease while its epoch is looked for."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock

    def list_objects(self, prefix: str = "") -> list[str]:
        found = super().list_objects(prefix)
        name = lease_name("DefaultCluster", "broker-a")
        self.put_object(name, encode_lease(Lease(1, JOB, self.clock.now_ms() + 1)), expected=None)
        return found


def test_of_two_that_look_for_the_epoch_of_a_lost_lease_one_gets_it(manual_clock: ManualClock) -> None:
    with pytest.raises(LeaseHeld, match=f"{JOB} holds it"):
        lease_of(Overtaken(manual_clock), DISPATCHER, manual_clock).acquire()


def test_a_process_whose_lease_vanished_takes_a_higher_epoch_than_its_own(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    lease = lease_of(driver, DISPATCHER, manual_clock)
    lease.acquire(epoch_min=5)
    driver.delete_object(lease.name)
    with pytest.raises(StaleWriter, match="missing in the tier"):
        lease.check()
    assert lease.acquire(epoch_min=2) == 6
