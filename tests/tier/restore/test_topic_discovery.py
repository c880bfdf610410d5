"""Topic ids after a restore: remembered by manifests, never given twice."""

from __future__ import annotations

from tier.metadata.metadata_samples import QUEUE
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.metadata.manifest import QueueManifest
from tiermq.tier.metadata.metadata_values import Topic
from tiermq.tier.names import QueueKey
from tiermq.tier.restore.restore import DiscoveredTopics, discover_topics
from tiermq.tier.restore.restore_report import Finding, Remark


def manifest(topic: str, topic_id: int, written_ms: int, queue_id: int = 0, serial: int = -1) -> QueueManifest:
    key = QueueKey(QUEUE.cluster, QUEUE.broker, topic, queue_id)
    return QueueManifest(
        key, topic_id=topic_id, topic_serial_number=serial, written_ms=written_ms, reserve_time_hours=24, max_bytes=5
    )


def discovered(names: set[str], *manifests: QueueManifest) -> tuple[DiscoveredTopics, list[Remark]]:
    return discover_topics(MemoryDriver(), names, manifests, [], 99)


def test_ids_and_attributes_come_from_manifests() -> None:
    found, remarks = discovered({"a"}, manifest("a", 4, 10))
    assert found == DiscoveredTopics([Topic(4, "a", 0, 24, 5, 10)], 4)
    assert remarks == []


def test_ids_of_deleted_topics_are_not_given_again() -> None:
    found, _ = discovered({"a"}, manifest("a", 4, 10, serial=11))
    assert found.serial_number == 11
    found, _ = discovered({"a", "b"}, manifest("a", 4, 10, serial=11))
    assert [(topic.name, topic.id) for topic in found.topics] == [("a", 4), ("b", 12)]


def test_of_two_ids_of_a_topic_the_later_one_is_right() -> None:
    found, remarks = discovered({"a"}, manifest("a", 4, 10, 0), manifest("a", 9, 20, 1))
    assert [topic.id for topic in found.topics] == [9]
    assert [(remark.finding, remark.where) for remark in remarks] == [(Finding.TOPIC_ID_CONFLICT, "topic a")]


def test_an_id_that_two_topics_claim_belongs_to_the_later_one() -> None:
    found, remarks = discovered({"a", "b"}, manifest("a", 4, 10), manifest("b", 4, 20))
    assert [(topic.name, topic.id) for topic in found.topics] == [("b", 4), ("a", 5)]
    assert {remark.finding for remark in remarks} == {Finding.TOPIC_ID_CONFLICT, Finding.TOPIC_ID_ASSIGNED}


def test_a_manifest_that_was_only_acquired_knows_no_id() -> None:
    found, _ = discovered({"a"}, manifest("a", -1, 10))
    assert [topic.id for topic in found.topics] == [0]
