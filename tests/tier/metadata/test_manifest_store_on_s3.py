"""The same races, and a restore, on a real S3 server: compare-and-set as it is answered over the wire."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from servers.seaweedfs import SeaweedFS
from simulation.manual_clock import ManualClock
from tier.metadata.manifest_race import check_race, check_take_over
from tier.metadata.metadata_samples import QUEUE
from tier.metadata.tier_samples import TierQueue
from tiermq.errors import StaleWriter
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.broker_lease import BrokerLease, LeaseHeld
from tiermq.tier.metadata.manifest_store import ManifestStore, snapshot_manifest
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.restore.restore import restore
from tiermq.tier.restore.restore_report import Finding

pytestmark = pytest.mark.interop


_numbers = count()


@pytest.fixture
def driver(seaweedfs: SeaweedFS) -> Iterator[TierDriver]:
    """A driver on a prefix that no other test uses."""
    opened = open_driver(f"s3://history/manifests-{next(_numbers)}", environment=seaweedfs.environment)
    yield opened
    opened.close()


def test_of_writers_that_race_over_s3_one_wins_and_the_others_are_notified(driver: TierDriver) -> None:
    check_race([ManifestStore(driver, f"writer-{n}") for n in range(2)], writes=5)


def test_a_writer_that_is_busy_over_s3_is_stopped_by_the_next_one(driver: TierDriver) -> None:
    check_take_over(ManifestStore(driver, "old"), ManifestStore(driver, "new"))


def test_a_lease_over_s3_has_one_holder(driver: TierDriver, manual_clock: ManualClock) -> None:
    first = BrokerLease(driver, "c", "b", "first", clock=manual_clock)
    second = BrokerLease(driver, "c", "b", "second", clock=manual_clock)
    assert first.acquire() == 1
    with pytest.raises(LeaseHeld, match="first"):
        second.acquire()
    manual_clock.advance_ms(60_000)
    assert second.acquire() == 2
    with pytest.raises(StaleWriter, match="second"):
        first.renew()


def test_who_takes_a_lost_lease_over_s3_passes_every_epoch_of_the_manifests(
    driver: TierDriver, manual_clock: ManualClock
) -> None:
    for number in range(3):
        job = BrokerLease(driver, QUEUE.cluster, QUEUE.broker, f"job {number}", clock=manual_clock)
        job.acquire()
        ManifestStore(driver, job.owner, lease=job).acquire(replace(QUEUE, queue_id=number))
        job.release()
    driver.delete_object(job.name)
    broker = BrokerLease(driver, QUEUE.cluster, QUEUE.broker, "the broker", clock=manual_clock)
    assert broker.acquire() == 4
    assert ManifestStore(driver, "the broker", lease=broker).acquire(replace(QUEUE, queue_id=2)) == 4


def test_a_bucket_alone_gives_the_metadata_back(driver: TierDriver, store: MetadataStore, tmp_path: Path) -> None:
    queue = TierQueue(driver, QUEUE, store).begin(100).put(b"a", b"b").roll_log().put(b"c")
    ManifestStore(driver, "writer").write(snapshot_manifest(store, QUEUE))
    queue.put(b"newer than the manifest")
    with MetadataStore(tmp_path / "restored.db") as restored:
        report = restore(driver, restored)
        assert [remark.finding for remark in report.remarks] == [Finding.BEYOND_MANIFEST]
        ranges = [(row.key, row.size, row.begin_ms, row.end_ms) for row in restored.segments(QUEUE)]
        assert ranges == [(row.key, row.size, row.begin_ms, row.end_ms) for row in store.segments(QUEUE)]
        found = restored.queue(QUEUE)
        assert found is not None
        assert (found.min_offset, found.max_offset) == (100, 104)
