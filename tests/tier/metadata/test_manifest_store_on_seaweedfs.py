"""The same races on a real S3 server: compare-and-set as it is answered over the wire."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from servers.seaweedfs import SeaweedFS, Unavailable
from tier.metadata.manifest_race import check_race, check_take_over
from tiermq.clock import ManualClock
from tiermq.errors import StaleWriter
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.broker_lease import BrokerLease, LeaseHeld
from tiermq.tier.metadata.manifest_store import ManifestStore

pytestmark = pytest.mark.interop


_numbers = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    try:
        running = SeaweedFS(tmp_path_factory.mktemp("seaweedfs"))
    except Unavailable as reason:
        pytest.skip(str(reason))
    with running:
        running.create_bucket("manifests")
        yield running


@pytest.fixture
def driver(server: SeaweedFS) -> Iterator[TierDriver]:
    """A driver on a prefix that no other test uses."""
    opened = open_driver(f"s3://manifests/{next(_numbers)}", environment=server.environment)
    yield opened
    opened.close()


def test_of_writers_that_race_over_s3_one_wins_and_the_others_are_told(driver: TierDriver) -> None:
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
