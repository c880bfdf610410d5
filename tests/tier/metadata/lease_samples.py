"""Hands on the lease of one broker, for the tests of leases."""

from __future__ import annotations

from simulation.manual_clock import ManualClock
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.metadata.broker_lease import BrokerLease

DISPATCHER = "embedded dispatcher of broker-a on host-1"
JOB = "spark job 7"


def lease_of(driver: TierDriver, owner: str, clock: ManualClock) -> BrokerLease:
    return BrokerLease(driver, "DefaultCluster", "broker-a", owner, term_ms=30_000, clock=clock)
