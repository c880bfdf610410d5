"""Topic attributes: simple unless topics.json, or the caller, says otherwise."""

from __future__ import annotations

import json

import pytest

from simulation.simulated_files import SimulatedFileAccess
from tiermq.consumequeue.queue_table import QueueType
from tiermq.store.topic_attributes import TopicAttributes


def read(data: bytes, backup: bytes | None = None) -> TopicAttributes:
    access = SimulatedFileAccess()
    access.write_bytes("/store/config/topics.json", data)
    if backup is not None:
        access.write_bytes("/store/config/topics.json.bak", backup)
    return TopicAttributes.read(access, "/store")


def topics(**attributes: object) -> bytes:
    table = {topic: {"topicName": topic, "attributes": value} for topic, value in attributes.items()}
    return json.dumps({"dataVersion": {"counter": 3}, "topicConfigTable": table}).encode()


def test_a_topic_without_attributes_is_simple() -> None:
    attributes = TopicAttributes.read(SimulatedFileAccess(), "/store")
    assert attributes.queue_type_of("T") is QueueType.SIMPLE
    assert not attributes.is_batch_queue("T")


def test_the_attribute_decides() -> None:
    attributes = read(topics(A={"queue.type": "BatchCQ"}, B={"queue.type": "SimpleCQ"}, C={}, D=None, E={"other": "x"}))
    assert [attributes.is_batch_queue(topic) for topic in "ABCDE"] == [True, False, False, False, False]


def test_the_caller_can_set_a_type() -> None:
    attributes = TopicAttributes({"A": QueueType.BATCH})
    attributes.set_queue_type("B", QueueType.BATCH)
    attributes.set_queue_type("A", QueueType.SIMPLE)
    assert (attributes.is_batch_queue("A"), attributes.is_batch_queue("B")) == (False, True)


@pytest.mark.parametrize("damage", [b"", b"{", b"not json"])
def test_a_damaged_file_is_replaced_by_its_backup(damage: bytes) -> None:
    assert read(damage, topics(A={"queue.type": "BatchCQ"})).is_batch_queue("A")


def test_keys_that_fastjson_leaves_unquoted_are_read() -> None:
    data = b'{"topicConfigTable":{"A":{"attributes":{"queue.type":"BatchCQ"},"perm":6,"map":{1:2}}}}'
    assert read(data).is_batch_queue("A")
