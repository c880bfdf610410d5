"""The right to write: the broker's lease and a queue's epoch, and what happens when either is gone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from servers.faulty_driver import Down, Fault, ScriptedFaults
from simulation.manual_clock import ManualClock
from tier.dispatch.dispatch_world import BROKER, CLUSTER, DispatchWorld
from tiermq.tier.dispatch.plan import DispatchConfig
from tiermq.tier.driver.contract import StoredObject
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.metadata.broker_lease import BrokerLease, Lease, encode_lease, lease_name
from tiermq.tier.metadata.manifest import manifest_name
from tiermq.tier.metadata.manifest_store import ManifestStore
from tiermq.tier.names import QueueKey

KEY = QueueKey(CLUSTER, BROKER, "T", 0)
NOW = DispatchConfig(group_commit=False)


@pytest.fixture
def world(tmp_path: Path) -> DispatchWorld:
    return DispatchWorld(tmp_path, config=NOW, lease=True)


def test_bug_03_nothing_is_written_without_the_broker_s_lease(world: DispatchWorld) -> None:
    other = BrokerLease(world.driver, CLUSTER, BROKER, "a Spark job", clock=world.clock)
    other.acquire()
    world.put(5)
    world.go()
    file = world.files.find("T", 0)
    assert file is None or not file.initialised
    assert "a Spark job" in str(world.engine.status()["lease"])
    other.release()
    world.go(20_000)
    assert world.tier_offsets() == list(range(5))
    assert world.engine.status()["lease"] == "held"


def test_a_lease_is_renewed_before_it_ends(world: DispatchWorld) -> None:
    world.put(1)
    for _ in range(10):
        world.go(20_000)
        assert world.writer.may_write()
    assert world.lease is not None
    assert world.lease.epoch == 1


def test_a_lease_that_could_not_be_renewed_in_time_stops_all_writing(world: DispatchWorld) -> None:
    world.put(5)
    world.go()
    world.driver.plan = ScriptedFaults("put_object", [Fault.BEFORE] * 4)
    for _ in range(3):
        world.go(20_000)
    assert not world.writer.may_write()
    world.put(5, first=5)
    world.go(1_000)
    assert len(world.tier_offsets()) == 5
    world.driver.plan = None
    world.go(20_000)
    world.go(20_000)
    assert world.tier_offsets() == list(range(10))


def test_a_lease_that_was_taken_over_ends_this_writer(world: DispatchWorld) -> None:
    world.put(5)
    world.go()
    BrokerLease(world.driver, CLUSTER, BROKER, "an operator", clock=world.clock).acquire(force=True)
    world.go(20_000)
    world.put(5, first=5)
    world.go(1_000)
    assert len(world.tier_offsets()) == 5
    assert "an operator" in str(world.engine.status()["lease"])


def test_stopping_gives_the_lease_back(world: DispatchWorld) -> None:
    world.put(5)
    world.go()
    assert world.engine.stop()
    lease = BrokerLease(world.driver, CLUSTER, BROKER, "the next", clock=world.clock)
    assert lease.acquire() == 2


def test_an_old_lease_that_came_back_is_taken_again_above_the_epochs_of_all_manifests(world: DispatchWorld) -> None:
    for queue_id, epoch in ((0, 7), (1, 3), (2, 9)):
        for _ in range(epoch):
            ManifestStore(world.driver, "a job of last week").acquire(replace(KEY, queue_id=queue_id))
    lease = encode_lease(Lease(2))
    world.driver.put_object(lease_name(CLUSTER, BROKER), lease)
    for queue_id in range(3):
        world.put(5, queue_id=queue_id)
    world.go()
    for queue_id in range(3):
        assert world.tier_offsets(queue_id=queue_id) == list(range(5))
    assert world.engine.status()["fenced"] == {}
    assert world.lease is not None
    assert world.lease.epoch == 10
    world.go(20_000)
    assert world.writer.may_write()


class TakenOver(MemoryDriver):
    """A process takes lease and queue by force between the question whose the lease is and the queue's manifest."""

    clock: ManualClock | None = None

    def get_object(self, name: str) -> StoredObject | None:
        if self.clock is not None and name == manifest_name(KEY):
            clock, self.clock = self.clock, None
            lease = BrokerLease(self, CLUSTER, BROKER, "an operator", clock=clock)
            lease.acquire(force=True)
            ManifestStore(self, "an operator", lease=lease).acquire(KEY)
        return super().get_object(name)


def test_a_lease_that_is_taken_over_at_a_queue_s_manifest_is_not_taken_back(tmp_path: Path) -> None:
    driver = TakenOver()
    world = DispatchWorld(tmp_path, driver, config=NOW, lease=True)
    driver.clock = world.clock
    world.put(5)
    world.go()
    world.go(20_000)
    assert [driver.clock] == [None]
    assert "an operator" in str(world.engine.status()["lease"])
    found = BrokerLease(driver, CLUSTER, BROKER, "x").read()
    assert found is not None
    assert (found.owner, found.epoch) == ("an operator", 2)
    file = world.files.find("T", 0)
    assert file is None or file.commit_offset <= 0


def test_the_epoch_is_kept_in_the_metadata(world: DispatchWorld) -> None:
    world.put(5)
    world.go()
    row = world.metadata.queue(KEY)
    assert row is not None
    assert row.epoch == 1
    manifest = world.manifests.read(KEY)
    assert manifest is not None
    assert (manifest.epoch, manifest.writer) == (1, "this process")


def test_a_seal_that_fails_is_tried_later_and_not_in_a_circle(tmp_path: Path) -> None:
    world = DispatchWorld(tmp_path, config=NOW, log_bytes=500)
    world.put(10)
    world.driver.plan = ScriptedFaults("seal", [Fault.BEFORE])
    world.go()
    file = world.files.find("T", 0)
    assert file is not None
    assert file.log.unsealed()
    assert world.driver.injected == [("seal", Fault.BEFORE)]
    world.go(10_000)
    assert file.log.unsealed() == []


def test_a_segment_deleted_before_it_was_sealed_is_forgotten(tmp_path: Path) -> None:
    world = DispatchWorld(tmp_path, config=NOW, log_bytes=500)
    world.put(10)
    world.driver.plan = ScriptedFaults("seal", [Fault.BEFORE] * 1)
    world.go()
    file = world.files.find("T", 0)
    assert file is not None
    world.driver.delete(file.log.segments[0].key)
    world.go(10_000)
    world.go(10_000)
    assert world.writer.seal_next() is None
    assert not world.writer._seals


def test_without_a_lease_none_is_needed(tmp_path: Path) -> None:
    world = DispatchWorld(tmp_path)
    assert world.writer.may_write()
    assert world.engine.status()["lease"] == "none needed"
    world.driver.plan = Down()
    world.writer.keep_lease()
    world.writer.release()
    assert world.driver.injected == []
