"""A broker in the hands of a job: one at a time, named, and given back whatever happens."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.job_world import HOT_SIZES, QUEUE, JobWorld, tiered
from pipeline.lost_lease import LostLease, make_newer, vanish
from servers.seaweedfs import SeaweedFS
from simulation.manual_clock import ManualClock
from tier.tier_world import BROKER, CLUSTER
from tiermq.errors import StaleWriter, StoreError, StoreLocked, TierError
from tiermq.pipeline.leased_broker import Home, data_queues, homes_of, lease_broker, open_broker, owner_of
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.broker_lease import BrokerLease, LeaseHeld
from tiermq.tier.names import INDEX_TOPIC
from tiermq.tier.tier_config import TierConfig
from tiermq.tier.tiered_store import TieredStore

HOME = Home(CLUSTER, BROKER)


def test_from_the_bucket_alone_the_metadata_are_what_a_restore_finds(made: JobWorld) -> None:
    with lease_broker(made.driver, HOME, "test") as held:
        assert data_queues(held.metadata) == data_queues(made.world.metadata)
        assert held.metadata.segments(QUEUE) == made.world.metadata.segments(QUEUE)
        assert all(queue.topic != INDEX_TOPIC for queue in data_queues(held.metadata))
        assert held.notes == [note for note in held.notes if "a test" in note and "--store" in note]
        assert held.root is None


def test_nobody_else_gets_the_broker_meanwhile_and_everybody_after_it(made: JobWorld) -> None:
    with lease_broker(made.driver, HOME, "test") as held:
        held.check()
        with (
            pytest.raises(LeaseHeld, match=r"is in use.*\(pipeline test\)"),
            lease_broker(made.driver, Home(CLUSTER, BROKER), "other", clock=made.world.clock),
        ):
            pass
    lease = BrokerLease(made.driver, CLUSTER, BROKER, "somebody")
    assert lease.acquire() > 1


def test_a_job_that_fails_gives_the_broker_back(made: JobWorld) -> None:
    with pytest.raises(ZeroDivisionError), lease_broker(made.driver, HOME, "test"):
        raise ZeroDivisionError
    lease = BrokerLease(made.driver, CLUSTER, BROKER, "x").read()
    assert lease is not None
    assert lease.owner == ""


def test_a_dry_run_takes_nothing(made: JobWorld) -> None:
    BrokerLease(made.driver, CLUSTER, BROKER, "somebody").acquire()
    with lease_broker(made.driver, HOME, "test", dry_run=True) as held:
        assert held.lease is None
        held.check()
        held.write_manifest(QUEUE)
    assert made.manifest().writer == "a test"


def test_a_broker_that_was_taken_by_force_is_lost(made: JobWorld) -> None:
    with lease_broker(made.driver, HOME, "test") as held:
        BrokerLease(made.driver, CLUSTER, BROKER, "an operator").acquire(force=True)
        with pytest.raises(StaleWriter, match="an operator"):
            held.check()
        with pytest.raises(StaleWriter, match="an operator"):
            held.write_manifest(QUEUE)


def test_an_epoch_that_only_manifests_remember_is_passed(made: JobWorld) -> None:
    with lease_broker(made.driver, HOME, "one") as held:
        held.write_manifest(QUEUE)
        epoch = made.manifest().epoch
    made.driver.delete_object(BrokerLease(made.driver, CLUSTER, BROKER, "x").name)
    with lease_broker(made.driver, HOME, "two") as held:
        held.write_manifest(QUEUE)
        assert made.manifest().epoch > epoch


@pytest.fixture
def s3(seaweedfs: SeaweedFS) -> Iterator[TierDriver]:
    opened = open_driver("s3://history/lost-lease", environment=seaweedfs.environment)
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
    names: dict[str, Any] = {"broker_name": BROKER, "broker_cluster_name": CLUSTER}
    with (
        TieredStore.open(tmp_path / "hot", tier=tier, background=False, **HOT_SIZES, **names),
        pytest.raises(StoreLocked, match="tier.lock"),
        lease_broker(driver, home, "test"),
    ):  # fmt: skip
        pass
    with lease_broker(driver, home, "test") as held:
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
    with pytest.raises(StoreError, match="no such file"), lease_broker(made.driver, home, "test"):
        pass


def test_a_job_on_a_store_whose_process_died_is_followed_by_the_next_one_at_once(tmp_path: Path) -> None:
    tier, store = tiered(tmp_path)
    driver = open_driver(tier)
    (home,) = homes_of(driver, store=store)
    BrokerLease(driver, CLUSTER, BROKER, owner_of(home, "compact")).acquire()  # Never released: it was killed.
    with (
        pytest.raises(LeaseHeld, match=r"is in use.*\(pipeline compact\)"),
        lease_broker(driver, home, "reindex"),
    ):
        pass
    with lease_broker(driver, home, "compact") as held:
        held.check()


def test_the_term_of_a_lease_is_that_of_the_tier_s_settings(made: JobWorld) -> None:
    clock = ManualClock(made.world.clock.now_ms())
    with lease_broker(made.driver, HOME, "test", clock=clock) as held:
        assert held.lease is not None
        assert held.lease.expires_ms - clock.now_ms() == TierConfig().tier_lease_term
    short = TierConfig(tier_lease_term=5_000)
    with open_broker(made.driver, HOME, "test", config=short, clock=clock) as held:
        assert held.lease is not None
        held.lease.acquire()
        assert held.lease.expires_ms - clock.now_ms() == 5_000
        held.lease.release()


def test_a_lease_that_was_lost_is_not_taken_again(made: JobWorld) -> None:
    clock = ManualClock(made.world.clock.now_ms())
    with open_broker(made.driver, HOME, "test", clock=clock) as held:
        assert held.lease is not None
        held.lease.acquire()
        other = BrokerLease(made.driver, CLUSTER, BROKER, "an operator", clock=clock)
        other.acquire(force=True)
        clock.advance_ms(TierConfig().tier_lease_term)
        held.renew()  # Finds out.
        other.release()
        held.renew()
        found = other.read()
        assert found is not None
        assert found.owner == ""
        with pytest.raises(StaleWriter):
            held.check()


def test_jobs_of_two_containers_of_one_host_name_and_process_id_have_different_owners(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.getpid", lambda: 1)
    spec = importlib.util.find_spec("tiermq.pipeline.leased_broker")
    assert spec is not None
    assert spec.loader is not None
    other = importlib.util.module_from_spec(spec)  # As in another process.
    spec.loader.exec_module(other)
    home = Home(CLUSTER, BROKER)
    assert owner_of(home, "offload") == owner_of(home, "offload")
    driver = MemoryDriver()
    BrokerLease(driver, CLUSTER, BROKER, owner_of(home, "offload")).acquire()
    with pytest.raises(LeaseHeld):
        BrokerLease(driver, CLUSTER, BROKER, other.owner_of(home, "offload")).acquire()


def test_a_job_waits_for_a_killed_job_s_lease_but_not_for_one_that_renews(made: JobWorld) -> None:
    clock = ManualClock(made.world.clock.now_ms())
    other = BrokerLease(made.driver, CLUSTER, BROKER, "elsewhere:7 (pipeline offload)", clock=clock)
    other.acquire()
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        clock.advance_ms(int(seconds * 1000))

    with lease_broker(made.driver, HOME, "test", clock=clock, wait=wait) as held:
        held.check()
    assert 55 < sum(waits) < 65
    other.acquire()

    def renewed(seconds: float) -> None:
        wait(seconds)
        other.renew()

    waits.clear()
    with pytest.raises(LeaseHeld, match="is a job"), lease_broker(made.driver, HOME, "test", clock=clock, wait=renewed):
        pass
    assert len(waits) == 1
    broker = BrokerLease(made.driver, CLUSTER, BROKER, "elsewhere:/store", clock=clock)
    other.release()
    broker.acquire()
    with (
        pytest.raises(LeaseHeld, match="tiers by itself"),
        lease_broker(made.driver, HOME, "t", clock=clock, wait=wait),
    ):
        pass
    assert len(waits) == 1
