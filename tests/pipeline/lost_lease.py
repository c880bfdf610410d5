"""A lease that vanishes after two jobs wrote from the bucket alone: what the broker takes when it comes back.

broker   copies its queues with epoch e, and remembers that
jobs     two of them, e + 1 and e + 2, each in all manifests; the second never ends, so it is a stale writer
lease    gone
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from simulation.manual_clock import ManualClock
from tier.tier_world import BROKER, CLUSTER
from tiermq import Message
from tiermq.errors import StaleWriter
from tiermq.pipeline.leased_broker import Home, LeasedBroker, data_queues, lease_broker
from tiermq.tier.driver.contract import ANY, TierDriver
from tiermq.tier.metadata.broker_lease import BrokerLease, lease_name
from tiermq.tier.metadata.manifest import decode_manifest, queue_of_manifest
from tiermq.tier.metadata.metadata_values import LEASE_TERM_MS
from tiermq.tier.tiered_store import TieredStore

HOME = Home(CLUSTER, BROKER)
TOPIC = "orders"
QUEUES = 3
MESSAGES = 30
TERMS_MAX = 4
SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 4_000,
    "tiered_store_index_file_max_hash_slot_num": 50,
    "tiered_store_index_file_max_index_num": 2_000,
    "broker_name": BROKER,
    "broker_cluster_name": CLUSTER,
}


def vanish(driver: TierDriver, name: str) -> None:
    driver.delete_object(name)


def make_newer(driver: TierDriver, name: str) -> None:
    """One bad digit: as if a newer TierMQ had written it."""
    stored = driver.get_object(name)
    assert stored is not None
    driver.put_object(name, stored.data.replace(b'"version":1', b'"version":3'), expected=ANY)


def epochs(driver: TierDriver) -> list[int]:
    """Those of all manifests that the tier has of the broker's queues."""
    found = []
    for name in driver.list_objects():
        stored = driver.get_object(name) if queue_of_manifest(name) is not None else None
        if stored is not None:
            found.append(decode_manifest(stored.data, name).epoch)
    return found


class LostLease:
    """One tier, one broker's directory, one clock."""

    def __init__(self, path: Path, driver: TierDriver) -> None:
        self.path = path
        self.driver = driver
        self.clock = ManualClock()
        self.sent = 0

    def open(self, **options: Any) -> TieredStore:
        return TieredStore.open(
            self.path, driver=self.driver, clock=self.clock, background=False, **options, **SETTINGS
        )

    def put(self, store: TieredStore) -> bool:
        """More messages of every queue; whether all of them came into the tier."""
        for _ in range(MESSAGES):
            assert store.put(Message(TOPIC, b"body %d" % self.sent, self.sent % QUEUES)).ok
            self.sent += 1
        return store.flush_to_tier()

    def put_and_wait(self, store: TieredStore) -> bool:
        """The same, with the time that a damaged lease costs."""
        came = self.put(store)
        for _ in range(TERMS_MAX):
            if came:
                break
            self.clock.advance_ms(LEASE_TERM_MS)
            came = store.flush_to_tier()
        return came

    def run_job(self, name: str) -> None:
        """One that writes all manifests, and ends."""
        with lease_broker(self.driver, HOME, name, clock=self.clock) as held:
            self.write_all(held)

    def write_all(self, held: LeasedBroker) -> None:
        for queue in data_queues(held.metadata):
            held.write_manifest(queue)

    def run(self, lose: Callable[[TierDriver, str], None], *, with_disk: bool = True) -> None:
        """`lose` is what becomes of the lease; without its disk the broker remembers no epoch of its own."""
        with self.open() as store:
            assert self.put(store), store.status()
        (epoch,) = set(epochs(self.driver))
        self.run_job("first")
        assert epochs(self.driver) == [epoch + 1] * QUEUES
        with ExitStack() as stack:
            stale = stack.enter_context(lease_broker(self.driver, HOME, "second", clock=self.clock))
            self.write_all(stale)
            assert epochs(self.driver) == [epoch + 2] * QUEUES
            lose(self.driver, lease_name(CLUSTER, BROKER))
            if not with_disk:
                shutil.rmtree(self.path)
            with self.open(restore=not with_disk) as store:
                assert self.put_and_wait(store), store.status()
                assert store.tier.lease.epoch > epoch + 2
                assert all(store.get(TOPIC, queue_id, 0).count for queue_id in range(QUEUES))
                self.expect_stale(stale, store)
            assert min(epochs(self.driver)) > epoch + 2
        self.expect_next_is_higher()

    def expect_stale(self, job: LeasedBroker, store: TieredStore) -> None:
        before = epochs(self.driver)
        for queue in data_queues(job.metadata):
            with pytest.raises(StaleWriter):
                job.write_manifest(queue)
        assert epochs(self.driver) == before
        store.tier.lease.check()
        assert self.put(store), store.status()

    def expect_next_is_higher(self) -> None:
        top = max(epochs(self.driver))
        assert BrokerLease(self.driver, CLUSTER, BROKER, "the next", clock=self.clock).acquire() > top
