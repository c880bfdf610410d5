"""A broker in the hands of a job: one at a time, named, and given back whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from servers.seaweedfs import SeaweedFS, Unavailable
from spark.jobs.job_world import QUEUE, JobWorld, tiered
from spark.jobs.lost_lease import LostLease, make_newer, vanish
from tier.tier_world import BROKER, CLUSTER
from tiermq import TieredStore
from tiermq.errors import StaleWriter, StoreError, StoreLocked, TierError
from tiermq.spark.jobs.held_broker import Home, data_queues, hold_broker, homes_of
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.broker_lease import BrokerLease, LeaseHeld
from tiermq.tier.names import INDEX_TOPIC

HOME = Home(CLUSTER, BROKER)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[JobWorld]:
    world = JobWorld.filled(tmp_path)
    yield world
    world.close()


def test_from_the_bucket_alone_the_metadata_are_what_a_restore_finds(made: JobWorld) -> None:
    with hold_broker(made.driver, HOME, "test") as held:
        assert data_queues(held.metadata) == data_queues(made.world.metadata)
        assert held.metadata.segments(QUEUE) == made.world.metadata.segments(QUEUE)
        assert all(queue.topic != INDEX_TOPIC for queue in data_queues(held.metadata))
        assert held.notes == [note for note in held.notes if "a test" in note and "--store" in note]
        assert held.root is None


def test_nobody_else_gets_the_broker_meanwhile_and_everybody_after_it(made: JobWorld) -> None:
    with hold_broker(made.driver, HOME, "test") as held:
        held.check()
        with (
            pytest.raises(LeaseHeld, match=r"is in use.*\(pipeline test\)"),
            hold_broker(made.driver, Home(CLUSTER, BROKER), "other", clock=made.world.clock),
        ):
            pass
    lease = BrokerLease(made.driver, CLUSTER, BROKER, "somebody")
    assert lease.acquire() > 1


def test_a_job_that_fails_gives_the_broker_back(made: JobWorld) -> None:
    with pytest.raises(ZeroDivisionError), hold_broker(made.driver, HOME, "test"):
        raise ZeroDivisionError
    lease = BrokerLease(made.driver, CLUSTER, BROKER, "x").read()
    assert lease is not None
    assert lease.owner == ""


def test_a_dry_run_takes_nothing(made: JobWorld) -> None:
    BrokerLease(made.driver, CLUSTER, BROKER, "somebody").acquire()
    with hold_broker(made.driver, HOME, "test", dry_run=True) as held:
        assert held.lease is None
        held.check()
        held.write_manifest(QUEUE)
    assert made.manifest().writer == "a test"


def test_a_broker_that_was_taken_by_force_is_lost(made: JobWorld) -> None:
    with hold_broker(made.driver, HOME, "test") as held:
        BrokerLease(made.driver, CLUSTER, BROKER, "an operator").acquire(force=True)
        with pytest.raises(StaleWriter, match="an operator"):
            held.check()
        with pytest.raises(StaleWriter, match="an operator"):
            held.write_manifest(QUEUE)


def test_an_epoch_that_only_manifests_remember_is_passed(made: JobWorld) -> None:
    with hold_broker(made.driver, HOME, "one") as held:
        held.write_manifest(QUEUE)
        epoch = made.manifest().epoch
    made.driver.delete_object(BrokerLease(made.driver, CLUSTER, BROKER, "x").name)
    with hold_broker(made.driver, HOME, "two") as held:
        held.write_manifest(QUEUE)
        assert made.manifest().epoch > epoch


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TierDriver]:
    try:
        server = SeaweedFS(tmp_path_factory.mktemp("seaweedfs"))
    except Unavailable as reason:
        pytest.skip(f"no real S3 server here: {reason}")
    with server:
        server.create_bucket("history")
        opened = open_driver("s3://history/lost-lease", environment=server.environment)
        yield opened
        opened.close()


def test_a_broker_whose_lease_vanished_after_two_jobs_wrote_passes_their_epochs(tmp_path: Path) -> None:
    LostLease(tmp_path / "hot", MemoryDriver()).run(vanish)


def test_a_lease_that_vanished_from_a_directory_after_two_jobs_keeps_no_broker_out(tmp_path: Path) -> None:
    LostLease(tmp_path / "hot", open_driver((tmp_path / "tier").as_uri())).run(vanish)


@pytest.mark.interop
def test_a_lease_that_vanished_from_a_bucket_after_two_jobs_keeps_no_broker_out(s3: TierDriver, tmp_path: Path) -> None:
    LostLease(tmp_path / "hot", s3).run(vanish)


def test_a_broker_that_lost_its_disk_and_its_lease_after_two_jobs_passes_their_epochs(tmp_path: Path) -> None:
    LostLease(tmp_path / "hot", MemoryDriver()).run(vanish, with_disk=False)


def test_a_bad_version_digit_in_the_lease_of_a_job_keeps_no_broker_out(tmp_path: Path) -> None:
    LostLease(tmp_path / "hot", MemoryDriver()).run(make_newer)


def test_a_store_that_tiers_by_itself_keeps_jobs_out(tmp_path: Path) -> None:
    tier, store = tiered(tmp_path)
    driver = open_driver(tier)
    (home,) = homes_of(driver, store=store)
    names = {"broker_name": BROKER, "broker_cluster_name": CLUSTER}
    with (
        TieredStore.open(tmp_path / "hot", tier=tier, mapped_file_size_commit_log=1 << 20,
                         mapped_file_size_consume_queue=4_000, background=False, **names),
        pytest.raises(StoreLocked, match="tier.lock"),
        hold_broker(driver, home, "test"),
    ):  # fmt: skip
        pass
    with hold_broker(driver, home, "test") as held:
        assert held.root == tmp_path / "hot"
        assert len(data_queues(held.metadata)) == 2


def test_homes_are_found_by_listing_by_name_or_by_the_store(made: JobWorld, tmp_path: Path) -> None:
    assert homes_of(made.driver) == [HOME]
    assert homes_of(made.driver, broker=BROKER) == [HOME]
    assert str(homes_of(made.driver, store=made.store)[0]) == f"{CLUSTER}/{BROKER}"
    with pytest.raises(TierError, match="nobody"):
        homes_of(made.driver, broker="nobody")
    with pytest.raises(TierError, match="leave out one"):
        homes_of(made.driver, broker="nobody", store=made.store)
    (tmp_path / "empty").mkdir()
    (home,) = homes_of(made.driver, store=f"{tmp_path / 'empty'}=c/b")
    with pytest.raises(StoreError, match="no such file"), hold_broker(made.driver, home, "test"):
        pass
