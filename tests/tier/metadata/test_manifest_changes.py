"""The list of changed manifests: what a reader must read again, by whichever writer of the tier."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.faulty_driver import Fault, FaultyDriver, ScriptedFaults
from simulation.manual_clock import ManualClock
from tier.metadata.lease_samples import DISPATCHER, JOB, lease_of
from tiermq.errors import FutureManifest, StaleWriter, TierUnavailable
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.metadata.document import CorruptManifest, seal_document
from tiermq.tier.metadata.manifest_changes import (
    QUEUES_MAX,
    ChangePublisher,
    ManifestChanges,
    changes_name,
    decode_changes,
    encode_changes,
    read_changes,
)
from tiermq.tier.metadata.metadata_values import Segment
from tiermq.tier.names import QueueKey, SegmentType, index_queue

HOME = ("DefaultCluster", "broker-a")
INDEX = index_queue(*HOME)
ROWS = (Segment(INDEX.segment(SegmentType.INDEX, 0), 100), Segment(INDEX.segment(SegmentType.INDEX, 100), 7))
SERIALS = st.integers(0, 1 << 60)


@given(
    st.builds(
        ManifestChanges, SERIALS, SERIALS, SERIALS, st.booleans(),
        st.dictionaries(st.tuples(st.sampled_from(["orders", "päyments"]), st.integers(0, 9)), SERIALS),
        st.sampled_from([None, (), ROWS]),
    )
)  # fmt: skip
def test_changes_read_back_as_they_were_written(changes: ManifestChanges) -> None:
    assert decode_changes(encode_changes(changes), "x", INDEX) == changes


def test_other_documents_are_refused() -> None:
    with pytest.raises(CorruptManifest, match="lists no changes"):
        decode_changes(seal_document({"serial": 1}, 1), "x", INDEX)
    with pytest.raises(FutureManifest):
        decode_changes(seal_document({}, 2), "x", INDEX)


def test_a_reader_reads_what_changed_since_and_everything_when_it_knows_too_little() -> None:
    changes = ManifestChanges(since=10).with_changes([("a", 0)], 11).with_changes([("b", 0)], 12)
    assert changes.after(12) == set()
    assert changes.after(11) == {("b", 0)}
    assert changes.after(10) == {("a", 0), ("b", 0)}
    assert [changes.after(seen) for seen in (None, 9, 13)] == [None, None, None]


def test_the_list_is_bounded_and_who_knows_less_reads_everything() -> None:
    changes = ManifestChanges().with_changes([("old", 0)], 1)
    changes = changes.with_changes([("new", number) for number in range(QUEUES_MAX)], 2)
    assert len(changes.queues) == QUEUES_MAX
    assert changes.after(0) is None
    assert changes.after(1) == {("new", number) for number in range(QUEUES_MAX)}


def job(driver: TierDriver, clock: ManualClock) -> ChangePublisher:
    lease = lease_of(driver, JOB, clock)
    lease.acquire()
    return ChangePublisher(driver, *HOME, lease, clock)


def publish(publisher: ChangePublisher, *topics: str, is_last: bool = False) -> None:
    for topic in topics:
        publisher.note(QueueKey(*HOME, topic, 0))
    publisher.publish(ROWS, is_last=is_last)


def found(driver: TierDriver) -> ManifestChanges:
    changes = read_changes(driver, *HOME)
    assert changes is not None
    return changes


def test_a_job_that_follows_a_job_that_ended_continues_its_list(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    publish(job(driver, manual_clock), "a", is_last=True)
    seen = found(driver).serial
    assert found(driver).index == ROWS
    publish(job(driver, manual_clock), "b")
    assert found(driver).after(seen) == {("b", 0)}


def test_after_a_job_that_died_or_a_broker_that_wrote_everything_is_read(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    publish(job(driver, manual_clock), "a")  # It may have written more manifests after that.
    seen = found(driver).serial
    publish(job(driver, manual_clock), "b", is_last=True)
    assert found(driver).after(seen) is None
    seen = found(driver).serial
    broker = lease_of(driver, DISPATCHER, manual_clock)
    manual_clock.advance_ms(60_000)
    broker.acquire()
    broker.release()
    publish(job(driver, manual_clock), "c")
    assert found(driver).after(seen) is None


def test_a_list_that_was_lost_or_damaged_begins_again_above_all_numbers(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    for harm in (lambda name: driver.delete_object(name), lambda name: driver.put_object(name, b"{")):
        publish(job(driver, manual_clock), "a", is_last=True)
        seen = found(driver).serial
        harm(changes_name(*HOME))
        manual_clock.advance_ms(1)
        publish(job(driver, manual_clock), "b")
        assert found(driver).after(seen) is None
        manual_clock.advance_ms(60_000)


def test_nothing_new_costs_no_request_and_a_lost_answer_loses_no_change(manual_clock: ManualClock) -> None:
    driver = FaultyDriver(MemoryDriver())
    publisher = job(driver, manual_clock)
    publish(publisher, "a")
    seen = found(driver)
    publisher.publish(ROWS)
    assert found(driver) == seen
    driver.plan = ScriptedFaults("put_object", [Fault.AFTER])
    with pytest.raises(TierUnavailable):
        publish(publisher, "b")
    publish(publisher, "c")
    assert found(driver).after(seen.serial) == {("b", 0), ("c", 0)}


def test_a_job_that_lost_the_lease_publishes_nothing(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    publisher = job(driver, manual_clock)
    publish(publisher, "a")
    seen = found(driver)
    lease_of(driver, DISPATCHER, manual_clock).take_over()
    with pytest.raises(StaleWriter):
        publish(publisher, "b")
    assert found(driver) == seen
