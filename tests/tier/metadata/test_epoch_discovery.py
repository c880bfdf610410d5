"""The highest epoch in a broker's manifests: of queues, index and timers, of any version, of no other broker."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from servers.faulty_driver import Fault, FaultyDriver, ScriptedFaults
from tier.metadata.manifest_values import SAMPLE
from tiermq.delivery.tiered_timers.timer_name import TimerManifest, encode_timer_manifest
from tiermq.delivery.tiered_timers.timer_name import manifest_name as timers_manifest_name
from tiermq.errors import TierUnavailable
from tiermq.tier.driver.contract import StoredObject, TierDriver
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.broker_lease import TELL_EVERY, Lease, LeaseRole, encode_lease, highest_epoch, lease_name
from tiermq.tier.metadata.document import seal_document
from tiermq.tier.metadata.manifest import encode_manifest, manifest_name
from tiermq.tier.names import QueueKey, index_queue

HOME = ("DefaultCluster", "broker-a")


def put(driver: TierDriver, queue: QueueKey, epoch: int) -> None:
    driver.put_object(manifest_name(queue), encode_manifest(replace(SAMPLE, key=queue, epoch=epoch)))


@pytest.fixture(params=["memory", "posix", "object"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> TierDriver:
    if request.param == "memory":
        return MemoryDriver()
    return open_driver((tmp_path / "tier").as_uri() + ("?driver=object" if request.param == "object" else ""))


def test_a_tier_without_the_broker_shows_no_epoch_and_costs_one_listing(tier: TierDriver) -> None:
    assert highest_epoch(tier, *HOME) == 0
    counted = FaultyDriver(tier)
    put(tier, QueueKey("DefaultCluster", "broker-ab", "orders", 0), 9)
    put(tier, QueueKey("Other", "broker-a", "orders", 0), 9)
    tier.put_object(lease_name(*HOME), encode_lease(Lease(9)))
    counted.plan = ScriptedFaults("get_object", [Fault.BEFORE])
    assert highest_epoch(counted, *HOME) == 0
    assert counted.injected == []  # Nothing was read.


def test_the_highest_epoch_of_many_queues_is_found_wherever_it_is(tier: TierDriver) -> None:
    for number in range(40):
        put(tier, QueueKey(*HOME, f"topic-{number % 7}", number), 1 + (number * 11) % 40)
    assert highest_epoch(tier, *HOME) == 40


def test_each_role_counts_its_own_manifests(tier: TierDriver) -> None:
    put(tier, QueueKey(*HOME, "orders", 0), 3)
    put(tier, index_queue(*HOME), 5)
    assert highest_epoch(tier, *HOME) == 5
    tier.put_object(timers_manifest_name(*HOME), encode_timer_manifest(TimerManifest(epoch=8)))
    assert highest_epoch(tier, *HOME) == 5
    assert highest_epoch(tier, *HOME, LeaseRole.DELIVERY) == 8


def test_a_manifest_of_a_newer_version_counts(tier: TierDriver) -> None:
    tier.put_object(manifest_name(SAMPLE.key), seal_document({"epoch": 12, "shape": "new"}, 7))
    assert highest_epoch(tier, *HOME) == 12


@pytest.mark.parametrize(
    "data",
    [b"", b"{", encode_manifest(replace(SAMPLE, epoch=77)).replace(b"orders", b"orderz"), seal_document({}, 1),
     seal_document({"epoch": "9"}, 1), seal_document({"epoch": 1 << 70}, 2)],
)  # fmt: skip
def test_a_damaged_manifest_is_reported_and_hides_no_other(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    driver = MemoryDriver()
    put(driver, QueueKey(*HOME, "a", 0), 4)
    put(driver, QueueKey(*HOME, "z", 0), 2)
    driver.put_object(manifest_name(SAMPLE.key), data)
    assert highest_epoch(driver, *HOME) == 4
    (reported,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert manifest_name(SAMPLE.key) in reported


def test_a_tier_that_does_not_answer_shows_no_lower_epoch() -> None:
    driver = FaultyDriver(MemoryDriver())
    for number in range(30):
        put(driver, QueueKey(*HOME, "orders", number), number)
    driver.plan = ScriptedFaults("get_object", [None] * 20 + [Fault.BEFORE])
    with pytest.raises(TierUnavailable):
        highest_epoch(driver, *HOME)


class VanishingDriver(MemoryDriver):
    """What it lists is gone when it is read."""

    def get_object(self, name: str) -> StoredObject | None:
        return None if "/gone/" in name else super().get_object(name)


def test_a_manifest_that_is_deleted_meanwhile_counts_for_nothing() -> None:
    driver = VanishingDriver()
    put(driver, QueueKey(*HOME, "gone", 0), 9)
    put(driver, QueueKey(*HOME, "orders", 0), 3)
    assert highest_epoch(driver, *HOME) == 3


def test_progress_is_reported_when_there_are_many(caplog: pytest.LogCaptureFixture) -> None:
    driver = MemoryDriver()
    small = seal_document({"epoch": 6}, 1)
    for number in range(TELL_EVERY * 2 + 1):
        driver.put_object(manifest_name(QueueKey(*HOME, "orders", number)), small)
    with caplog.at_level(logging.INFO):
        assert highest_epoch(driver, *HOME) == 6
    reported = [record.getMessage() for record in caplog.records]
    assert f"{2 * TELL_EVERY + 1} manifests" in reported[0]
    assert [text.partition(": ")[2].split(" manifests")[0] for text in reported[1:3]] == [
        "1000 of 2001",
        "2000 of 2001",
    ]
    assert reported[-1].endswith("is 6")
