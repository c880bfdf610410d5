"""Manifests under compare-and-set: one writer per queue, and the one before it learns that it is stale."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulation.manual_clock import ManualClock
from tier.metadata.manifest_race import check_race, check_take_over
from tier.metadata.manifest_values import SAMPLE
from tier.metadata.metadata_samples import OTHER_QUEUE, QUEUE
from tiermq.errors import FutureManifest, ManifestConflict, StaleWriter, TierUnavailable
from tiermq.tier.driver.contract import ANY, Expected
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.metadata.broker_lease import BrokerLease
from tiermq.tier.metadata.document import CorruptManifest, seal_document
from tiermq.tier.metadata.manifest import QueueManifest, manifest_name
from tiermq.tier.metadata.manifest_store import EpochBehind, ManifestStore

NAME = manifest_name(QUEUE)


class LossyDriver(MemoryDriver):
    """A driver that stores an object and then loses the answer, when it is set to."""

    def __init__(self) -> None:
        super().__init__()
        self.lose_next_answer = False

    def put_object(self, name: str, data: bytes, *, expected: Expected = ANY) -> str:
        version = super().put_object(name, data, expected=expected)
        if self.lose_next_answer:
            self.lose_next_answer = False
            raise TierUnavailable("the answer was lost")
        return version


def test_the_first_writer_of_a_queue_gets_epoch_one(manual_clock: ManualClock) -> None:
    manifests = ManifestStore(MemoryDriver(), "a", clock=manual_clock)
    assert manifests.read(QUEUE) is None
    assert manifests.acquire(QUEUE) == 1
    assert manifests.acquire(QUEUE) == 1  # Again, it is ours already.
    assert manifests.read(QUEUE) == QueueManifest(QUEUE, "a", 1, 0, manual_clock.now_ms())


def test_a_write_fills_in_who_when_and_how_often(manual_clock: ManualClock) -> None:
    manifests = ManifestStore(MemoryDriver(), "a", clock=manual_clock)
    written = manifests.write(SAMPLE)
    assert written == replace(SAMPLE, writer="a", epoch=1, sequence=1, written_ms=manual_clock.now_ms())
    assert manifests.write(SAMPLE).sequence == 2
    assert manifests.read(QUEUE) == replace(written, sequence=2)


def test_a_new_writer_keeps_what_the_manifest_reports_and_fences_the_old_one() -> None:
    driver = MemoryDriver()
    old, new = ManifestStore(driver, "dispatcher of host-1"), ManifestStore(driver, "spark job 7")
    old.write(SAMPLE)
    assert new.acquire(QUEUE) == 2
    kept = new.read(QUEUE)
    assert kept is not None
    assert kept.segments == SAMPLE.segments
    with pytest.raises(StaleWriter, match=r"dispatcher of host-1 .* epoch 1.* belongs to spark job 7 \(epoch 2\)"):
        old.write(SAMPLE)
    assert new.read(QUEUE) == kept
    # Once fenced, always fenced, without asking again.
    with pytest.raises(StaleWriter):
        old.acquire(QUEUE)
    with pytest.raises(StaleWriter):
        old.delete(QUEUE)
    assert new.write(SAMPLE).epoch == 2


def test_a_writer_that_was_fenced_in_one_queue_may_go_on_in_another() -> None:
    driver = MemoryDriver()
    old, new = ManifestStore(driver, "a"), ManifestStore(driver, "b")
    old.write(SAMPLE)
    old.write(QueueManifest(OTHER_QUEUE))
    new.acquire(QUEUE)
    assert old.write(QueueManifest(OTHER_QUEUE)).sequence == 2


@pytest.mark.parametrize("attempt", range(5))
def test_of_writers_that_race_one_wins_and_the_others_are_notified(attempt: int) -> None:
    driver = MemoryDriver()
    check_race([ManifestStore(driver, f"writer-{n}") for n in range(4)], writes=20)


def test_a_writer_that_is_busy_writing_is_stopped_by_the_next_one() -> None:
    driver = MemoryDriver()
    check_take_over(ManifestStore(driver, "old"), ManifestStore(driver, "new"))


def test_a_write_whose_answer_was_lost_is_repeated_without_harm() -> None:
    driver = LossyDriver()
    manifests = ManifestStore(driver, "a")
    manifests.acquire(QUEUE)
    driver.lose_next_answer = True
    with pytest.raises(TierUnavailable):
        manifests.write(SAMPLE)
    assert manifests.write(replace(SAMPLE, max_offset=200)).max_offset == 200
    found = manifests.read(QUEUE)
    assert found is not None
    assert (found.max_offset, found.epoch) == (200, 1)


def test_an_acquire_whose_answer_was_lost_costs_an_epoch_and_nothing_else() -> None:
    driver = LossyDriver()
    manifests = ManifestStore(driver, "a")
    driver.lose_next_answer = True
    with pytest.raises(TierUnavailable):
        manifests.acquire(QUEUE)
    assert manifests.acquire(QUEUE) == 2
    manifests.write(SAMPLE)


def test_a_manifest_that_vanished_is_not_silently_created_again() -> None:
    driver = MemoryDriver()
    manifests = ManifestStore(driver, "a")
    manifests.write(SAMPLE)
    driver.delete_object(NAME)
    with pytest.raises(ManifestConflict):
        manifests.write(SAMPLE)
    assert driver.get_object(NAME) is None
    assert manifests.write(SAMPLE).epoch == 1  # The next attempt acquires it again.


@pytest.mark.parametrize(
    ("data", "error"), [(b"{", CorruptManifest), (seal_document({"new": "shape"}, 3), FutureManifest)]
)
def test_a_manifest_that_cannot_be_read_is_never_overwritten(data: bytes, error: type[Exception]) -> None:
    driver = MemoryDriver()
    driver.put_object(NAME, data)
    manifests = ManifestStore(driver, "a")
    for attempt in (manifests.acquire, manifests.read):
        with pytest.raises(error, match="manifest.tiermq.json"):
            attempt(QUEUE)
    with pytest.raises(error):
        manifests.write(SAMPLE)
    stored = driver.get_object(NAME)
    assert stored is not None
    assert stored.data == data


def test_deleting_removes_the_manifest_of_a_queue_that_is_ours() -> None:
    driver = MemoryDriver()
    manifests = ManifestStore(driver, "a")
    manifests.write(SAMPLE)
    manifests.delete(QUEUE)
    assert driver.list_objects("") == []
    manifests.write(SAMPLE)
    manifests.release(QUEUE)
    assert manifests.acquire(QUEUE) == 2


def test_with_a_lease_every_manifest_has_the_epoch_of_the_lease(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    lease = BrokerLease(driver, "c", "b", "a", clock=manual_clock)
    lease.acquire(epoch_min=7)
    manifests = ManifestStore(driver, "a", lease=lease)
    assert manifests.write(SAMPLE).epoch == 7
    assert manifests.acquire(OTHER_QUEUE) == 7
    # After a restart under the same lease the sequence goes on.
    assert ManifestStore(driver, "a", lease=lease).write(SAMPLE).epoch == 7


def test_who_lost_the_lease_cannot_write_a_manifest_that_the_new_holder_never_touched(
    manual_clock: ManualClock,
) -> None:
    driver = MemoryDriver()
    old = BrokerLease(driver, "c", "b", "dispatcher", clock=manual_clock)
    old.acquire()
    manifests = ManifestStore(driver, "dispatcher", lease=old)
    manifests.write(SAMPLE)
    manual_clock.advance_ms(60_000)
    BrokerLease(driver, "c", "b", "spark job 7", clock=manual_clock).acquire()
    with pytest.raises(StaleWriter, match="spark job 7"):
        manifests.write(SAMPLE)
    with pytest.raises(StaleWriter, match="spark job 7"):
        manifests.acquire(OTHER_QUEUE)


def test_a_lease_older_than_a_manifest_is_refused(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    for _ in range(3):
        ManifestStore(driver, "job").acquire(QUEUE)
    lease = BrokerLease(driver, "c", "b", "a", clock=manual_clock)
    lease.acquire()
    with pytest.raises(EpochBehind, match="job already writes with epoch 3") as behind:
        ManifestStore(driver, "a", lease=lease).acquire(QUEUE)
    assert behind.value.epoch == 3
    lease.acquire(epoch_min=4)
    assert ManifestStore(driver, "a", lease=lease).acquire(QUEUE) == 4


def test_what_was_acquired_is_known_without_another_request(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    first = ManifestStore(driver, "a", clock=manual_clock)
    assert first.taken_over(QUEUE) is None
    first.write(replace(SAMPLE, key=QUEUE))
    second = ManifestStore(driver, "b", clock=manual_clock)
    second.acquire(QUEUE)
    held = second.taken_over(QUEUE)
    assert held is not None
    assert held == second.read(QUEUE)
    assert (held.segments, held.writer) == (SAMPLE.segments, "b")
