"""Retention: what leaves the tier, and that a failure or a crash at any step leaves it right."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from servers.faulty_driver import Down, FaultyDriver
from tier.retention_world import Broker
from tier.tier_world import BROKER, CLUSTER, HOUR_MS, TierWorld
from tiermq.errors import StaleWriter, TierCredentials, TierError, TierUnavailable
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.metadata.manifest import ManifestCause
from tiermq.tier.metadata.metadata_values import SegmentStatus
from tiermq.tier.names import QueueKey, SegmentKey, SegmentType
from tiermq.tier.retention.retention import SILENCES_MAX, Retention, RetentionReport
from tiermq.tier.tier_config import TierConfig

LOG, UNITS = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE

THREE_DAYS = TierConfig(tiered_store_file_reserved_time=72)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path)
    yield made
    made.world.close()


def test_segments_whose_newest_message_is_too_old_go_and_the_minimum_follows(broker: Broker) -> None:
    broker.world.write(8)
    broker.later(50)
    broker.world.write(8)
    broker.later(23)
    report = broker.retention.run()
    assert not report.failures
    assert broker.world.readable() == list(range(8, 16))
    assert [segment.key.type for segment in report.segments] == [UNITS, LOG, LOG]
    assert sorted(key.base for key in broker.world.listed() if key.type is UNITS) == [100, 200, 300]
    assert broker.reported == [("broker-a/orders/0", ManifestCause.EXPIRY)]
    assert (broker.retention.counts.segments, broker.retention.counts.bytes) == (3, report.bytes_freed)


def test_what_is_just_young_enough_stays(broker: Broker) -> None:
    broker.world.write(8)
    broker.later(72)
    assert not broker.retention.run().segments
    assert broker.world.readable() == list(range(8))
    assert broker.reported == []


def test_a_topics_own_reserve_time_comes_before_the_global_one(broker: Broker) -> None:
    for topic in ("orders", "short", "long"):
        broker.world.write(8, topic)
    broker.world.metadata.update_topic("short", reserve_time_hours=1)
    broker.world.metadata.update_topic("long", reserve_time_hours=1000)
    broker.later(2)
    broker.retention.run()
    assert broker.world.readable("short") == []
    assert broker.world.readable("orders") == list(range(8))
    broker.later(100)
    broker.retention.run()
    assert broker.world.readable("orders") == []
    assert broker.world.readable("long") == list(range(8))


def test_an_idle_queue_is_emptied_and_its_numbering_goes_on(broker: Broker) -> None:
    file = broker.world.write(7)
    broker.later(73)
    broker.retention.run()
    assert broker.world.listed() == []
    assert (file.min_offset, file.commit_offset) == (7, 7)
    broker.world.write(3)
    assert broker.world.readable() == [7, 8, 9]
    broker.world.reopen()
    assert broker.world.readable() == [7, 8, 9]


def test_8065_a_queue_that_never_got_a_message_keeps_its_place(broker: Broker) -> None:
    broker.world.files.find_or_create("orders", 0).init(42)
    broker.later(1000)
    assert not broker.retention.run().segments
    assert broker.world.file().commit_offset == 42
    assert len(broker.world.segments(LOG)) == len(broker.world.segments(UNITS)) == 1


def test_nothing_expires_while_deleting_is_switched_off(tmp_path: Path) -> None:
    broker = Broker(tmp_path, tiered_store_delete_file_enable=False, tier_max_bytes_per_topic=1)
    broker.world.write(20)
    broker.later(1000)
    assert not broker.retention.run().segments
    assert broker.index.expired == 0
    assert broker.world.readable() == list(range(20))
    broker.world.close()


def test_a_quiet_queue_does_not_keep_its_first_message_for_ever(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.world = TierWorld(tmp_path / "..", log_bytes=1 << 30, unit_bytes=1 << 20)
    broker.make()
    for _ in range(12):  # A message a day, which never fills a segment.
        broker.world.write(1)
        broker.later(24)
        broker.retention.run()
    kept = broker.world.readable()
    assert kept[-1] == 11
    assert len(kept) <= 7  # Six days, twice the reserve time, and the day that a round may come late.
    broker.world.close()


def test_of_a_topic_that_holds_too_much_the_oldest_segments_go_first(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.world.write(8, queue_id=1)
    broker.later(1)
    broker.world.write(12, queue_id=0)
    broker.later(1)
    broker.world.write(8, queue_id=1)
    broker.world.write(9, "payments")
    limit = broker.world.metadata.size_of_topic("orders") - 3 * 4 * 120
    broker.world.metadata.update_topic("orders", max_bytes=limit)
    broker.retention.run()
    assert broker.world.metadata.size_of_topic("orders") <= limit
    assert broker.world.readable(queue_id=1)[0] >= 8  # The oldest of all were there.
    assert broker.world.readable(queue_id=0)[0] in (4, 8)
    assert broker.world.readable("payments") == list(range(9))
    broker.world.close()


def test_the_global_limit_never_takes_the_segment_that_grows(tmp_path: Path) -> None:
    broker = Broker(tmp_path, tier_max_bytes_per_topic=1)
    broker.world.write(10)
    report = broker.retention.run()
    assert not report.failures
    assert broker.world.readable() == [8, 9]
    broker.world.close()


def test_the_index_is_asked_to_expire_its_own_files(broker: Broker) -> None:
    assert broker.retention.run().index_file_count == 2
    assert broker.retention.counts.index_files == 2


def test_time_entries_of_messages_that_went_go_too(broker: Broker) -> None:
    broker.world.write(8)
    broker.later(73)
    broker.world.write(2)
    broker.retention.run()
    entries = broker.world.metadata.time_entries(QueueKey(CLUSTER, BROKER, "orders", 0))
    assert all(entry.queue_offset >= 8 for entry in entries)


def test_a_tier_of_rocketmq_whose_offsets_were_not_noted_has_the_right_minimum_afterwards(broker: Broker) -> None:
    broker.world.write(8)
    broker.later(73)
    broker.world.write(6)
    for segment in broker.world.segments(LOG):
        broker.world.metadata.put_segment(replace(segment, begin_offset=-1, end_offset=-1))
    broker.world.reopen()
    broker.make()
    broker.retention.run()
    assert broker.world.readable() == list(range(8, 14))
    assert all(row.has_all_sums for row in broker.world.metadata.all_segments())


# Failures


class Stubborn(MemoryDriver):
    """A back end that does not delete some segments, at any request."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: set[SegmentKey] = set()
        self.refusals = 0

    def delete(self, key: SegmentKey) -> None:
        if key in self.refused:
            self.refusals += 1
            raise TierCredentials(f"{key}: this one is held for legal reasons")
        super().delete(key)


def test_bug_21_a_segment_that_cannot_be_deleted_is_reported_once_and_stops_no_other(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    driver = Stubborn()
    broker.world.reopen(driver)
    broker.make()
    broker.world.write(8, queue_id=0)
    broker.world.write(8, queue_id=1)
    stuck = broker.world.segments(UNITS, queue_id=0)[0].key
    driver.refused.add(stuck)
    broker.later(73)
    report = broker.retention.run()
    assert [failure.where for failure in report.failures] == ["broker-a/orders/0"]
    assert driver.refusals == 1
    assert broker.world.readable(queue_id=1) == []
    assert broker.world.readable(queue_id=0) == []  # Hidden from readers although its bytes are still there.
    for _ in range(3):
        report = broker.retention.run()
        assert [failure.where for failure in report.failures] == [stuck.path]
    assert broker.world.readable(queue_id=0) == []
    driver.refused.clear()
    report = broker.retention.run()
    assert (report.failures, report.finished_count) == ([], 1)
    assert broker.world.listed() == []
    broker.world.close()


def test_a_back_end_that_is_down_ends_the_round_after_a_few_attempts(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    driver = FaultyDriver(broker.world.driver)
    broker.world.reopen(driver)
    broker.make()
    for queue_id in range(20):
        broker.world.write(1, queue_id=queue_id)
    broker.later(73)
    driver.plan = Down()
    report = broker.retention.run()
    assert report.is_cut_short
    assert len(driver.injected) == SILENCES_MAX
    driver.plan = None
    assert not broker.retention.run().failures
    assert broker.world.listed() == []
    broker.world.close()


def with_old_messages(broker: Broker, check_owner: Callable[[], None]) -> Retention:
    """Eight messages that are old enough to go, and a retention that checks the tier's owner first."""
    broker.world.write(8)
    broker.later(1000)
    world = broker.world
    return Retention(world.files, world.metadata, world.driver, None, THREE_DAYS, world.clock, check_owner=check_owner)


def test_who_lost_the_tier_deletes_nothing(broker: Broker) -> None:
    def lost() -> None:
        raise StaleWriter("broker-b owns it")

    retention = with_old_messages(broker, check_owner=lost)
    for call in (retention.run, lambda: retention.delete_topic("orders"), lambda: retention.clean_unused_topics(())):
        with pytest.raises(StaleWriter):
            call()
    assert broker.world.readable() == list(range(8))


def test_who_cannot_ask_whose_the_tier_is_deletes_nothing_and_reports_so(broker: Broker) -> None:
    def unknown() -> None:
        raise TierUnavailable("no answer")

    retention = with_old_messages(broker, check_owner=unknown)
    assert len(retention.run().failures) == 1
    assert len(retention.clean_unused_topics(()).failures) == 1
    assert broker.world.readable() == list(range(8))


def test_a_manifest_that_cannot_be_written_is_reported(broker: Broker) -> None:
    def broken(_key: QueueKey, _cause: ManifestCause) -> None:
        raise TierCredentials("read only")

    broker.world.write(8)
    broker.later(73)
    retention = Retention(
        broker.world.files, broker.world.metadata, broker.world.driver, None, THREE_DAYS, broker.world.clock,
        on_changed=broken,
    )  # fmt: skip
    assert [failure.where for failure in retention.run().failures] == [
        QueueKey(CLUSTER, BROKER, "orders", 0).object_name("manifest")
    ]


# Topics


def test_a_deleted_topic_leaves_nothing_in_tier_metadata_or_index(broker: Broker) -> None:
    for queue_id in (0, 1):
        broker.world.write(9, queue_id=queue_id)
    broker.world.write(5, "payments")
    broker.world.put_manifests()
    assert broker.retention.delete_topic("orders") is True
    assert {key.topic for key in broker.world.listed()} == {"payments"}
    assert all("/payments/" in name for name in broker.world.driver.list_objects())
    assert broker.world.metadata.topic("orders") is None
    assert broker.world.metadata.queues("orders") == []
    assert broker.world.metadata.segments_being_deleted() == []
    assert broker.index.forgotten == [("orders", 0), ("orders", 1)]
    assert broker.retention.counts.topics == 1
    assert broker.retention.delete_topic("orders") is False
    broker.world.write(2)
    assert broker.world.readable() == [0, 1]
    assert broker.world.readable("payments") == list(range(5))


def test_a_topic_whose_name_begins_like_anothers_is_left_alone(broker: Broker) -> None:
    broker.world.write(3, "orders")
    broker.world.write(3, "orders-eu")
    broker.world.put_manifests()
    broker.retention.delete_topic("orders")
    assert broker.world.readable("orders-eu") == [0, 1, 2]
    assert len(broker.world.driver.list_objects()) == 1


def test_a_deletion_that_the_tier_interrupts_is_finished_by_a_later_round(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    driver = FaultyDriver(broker.world.driver)
    broker.world.reopen(driver)
    broker.make()
    broker.world.write(9)
    broker.world.put_manifests()
    driver.plan = Down()
    with pytest.raises(TierError):
        broker.retention.delete_topic("orders")
    assert broker.retention.deleting_topics() == ["orders"]
    driver.plan = None
    broker.world.reopen()
    broker.make()
    assert broker.retention.deleting_topics() == ["orders"]
    report = broker.retention.run()
    assert (report.topics, report.failures) == (["orders"], [])
    assert broker.world.listed() == []
    assert driver.list_objects() == []
    broker.world.close()


def test_bytes_that_only_the_tier_knows_of_go_with_their_topic(broker: Broker) -> None:
    broker.world.write(3)
    stray = QueueKey(CLUSTER, BROKER, "orders", 7).segment(LOG, 0)
    broker.world.driver.write(stray, 0, [b"left by a life before"])
    broker.retention.delete_topic("orders")
    assert broker.world.listed() == []


def test_a_queue_that_could_not_be_opened_is_deleted_all_the_same(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.world.write(9)
    broken = broker.world.segments(LOG)[0]
    broker.world.metadata.update_size(broken.key, broken.size - 1, broken.begin_ms, broken.end_ms)
    broker.world.reopen()
    broker.make()
    assert list(broker.world.files.damaged) == [("orders", 0)]
    assert broker.retention.delete_topic("orders")
    assert broker.world.listed() == []
    assert broker.world.files.damaged == {}
    broker.world.close()


def test_topics_without_a_user_go_but_for_system_topics_and_light_queues(broker: Broker) -> None:
    for topic in ("orders", "payments", "rmq_sys_SOMETHING", "%LMQ%abc", "%RETRY%group"):
        broker.world.write(2, topic)
    report = broker.retention.clean_unused_topics({"payments"})
    assert report.topics == ["orders", "%RETRY%group"]
    assert [topic.name for topic in broker.world.metadata.topics()] == ["payments", "rmq_sys_SOMETHING", "%LMQ%abc"]


def test_an_index_file_is_kept_for_as_long_as_any_of_its_topics_needs_it(broker: Broker) -> None:
    for topic in ("a", "b"):
        broker.world.write(1, topic)
    broker.world.metadata.update_topic("b", reserve_time_hours=100)
    ids = {topic.name: topic.id for topic in broker.world.metadata.topics()}
    kept = broker.retention.kept_ms_of_ids
    assert kept({ids["a"]}) == 72 * HOUR_MS
    assert kept({ids["a"], ids["b"]}) == kept(None) == 100 * HOUR_MS
    assert kept({999}) == 0
    assert kept({ids["b"] - (1 << 32)}) == 100 * HOUR_MS


def test_a_name_that_was_given_again_meanwhile_is_not_deleted(broker: Broker) -> None:
    file = broker.world.write(3)
    row = broker.world.segments(LOG)[0]
    assert row.status is SegmentStatus.NEW
    report_before = broker.retention.run()
    broker.retention._finish(row, RetentionReport())  # A round that saw the row while it was still marked.
    assert broker.world.readable() == [0, 1, 2]
    assert not report_before.failures
    assert file.commit_offset == 3


class WatchedDelete:
    """A driver that does something in the middle of a `delete`."""

    def __init__(self, driver: TierDriver, step: Callable[[], object]) -> None:
        self._driver = driver
        self._step = step

    def delete(self, key: SegmentKey) -> None:
        self._step()
        self._driver.delete(key)

    def __getattr__(self, name: str) -> object:
        return getattr(self._driver, name)


def finish_a_deletion_of_an_unopened_queue(broker: Broker, in_delete: Callable[[], object]) -> RetentionReport:
    broker.world.write(9)
    marked = broker.world.segments(LOG)[0]
    broker.world.metadata.mark_deleted(marked.key)
    del broker.world.files._files["orders", 0]
    broker.retention._driver = cast(TierDriver, WatchedDelete(broker.world.driver, in_delete))
    report = RetentionReport()
    broker.retention._finish(marked, report)
    return report


def test_a_back_end_that_is_slow_to_delete_keeps_no_thread_from_the_metadata_or_from_other_queues(
    broker: Broker,
) -> None:
    def other_thread() -> None:
        broker.world.metadata.add_topic("payments")
        broker.world.files.find_or_create("payments", 0).init(42)

    def in_delete() -> None:
        thread = threading.Thread(target=other_thread, daemon=True)
        thread.start()
        thread.join(30)
        assert not thread.is_alive()

    assert finish_a_deletion_of_an_unopened_queue(broker, in_delete).finished_count == 1
    assert broker.world.file("payments").commit_offset == 42


def test_no_queue_is_opened_while_a_segment_of_its_name_is_deleted(broker: Broker) -> None:
    files = broker.world.files
    found: list[object] = []
    opening = threading.Thread(target=lambda: found.append(files.find_or_create("orders", 0)), daemon=True)

    def in_delete() -> None:
        opening.start()
        assert files.name_lock("orders", 0).locked()
        assert files.find("orders", 0) is None

    report = finish_a_deletion_of_an_unopened_queue(broker, in_delete)
    opening.join()
    assert report.finished_count == 1
    assert found == [files.find("orders", 0)]
    assert not files.name_lock("orders", 0).locked()


def test_a_queue_that_was_opened_since_the_lock_was_chosen_is_left_to_the_next_round(broker: Broker) -> None:
    file = broker.world.write(9)
    marked = broker.world.segments(LOG)[0]
    broker.world.metadata.mark_deleted(marked.key)
    files = broker.world.files
    answers = iter([None])
    with pytest.MonkeyPatch.context() as late:
        late.setattr(files, "find", lambda *_: next(answers, file))
        report = RetentionReport()
        broker.retention._finish(marked, report)
    assert report.finished_count == 0
    assert marked.key in broker.world.listed()
