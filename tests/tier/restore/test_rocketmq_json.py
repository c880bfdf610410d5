"""tieredStoreMetadata.json: RocketMQ's exact shape on write, its liberties on read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tier.metadata.manifest_values import I64, NAMES, NATURALS
from tier.metadata.metadata_samples import QUEUE, index_key, log_key, units_key
from tiermq.errors import StoreDamaged
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import NEVER_MS, Queue, Segment, SegmentStatus, Topic
from tiermq.tier.names import QueueKey, SegmentType
from tiermq.tier.restore.rocketmq_json import (
    RocketMQMetadata,
    decode_rocketmq_json,
    encode_rocketmq_json,
    export_rocketmq_json,
)

SMALL = """{
	"commitLogFileSegmentTable":{
		"broker-a/orders/3":{0:{
				"path":"broker-a/orders/3",
				"type":0,
				"baseOffset":0,
				"status":0,
				"size":4096,
				"createTimestamp":1757000000000,
				"beginTimestamp":1757000000100,
				"endTimestamp":1757000009000,
				"sealTimestamp":0
			},4096:{
				"path":"broker-a/orders/3",
				"type":0,
				"baseOffset":4096,
				"status":0,
				"size":0,
				"createTimestamp":1757000000001,
				"beginTimestamp":9223372036854775807,
				"endTimestamp":9223372036854775807,
				"sealTimestamp":0
			}
		}
	},
	"consumeQueueFileSegmentTable":{
		"broker-a/orders/3":{2000:{
				"path":"broker-a/orders/3",
				"type":1,
				"baseOffset":2000,
				"status":0,
				"size":100,
				"createTimestamp":1757000000000,
				"beginTimestamp":1757000000100,
				"endTimestamp":1757000009000,
				"sealTimestamp":0
			}
		}
	},
	"indexFileSegmentTable":{},
	"queueMetadataTable":{
		"orders":{3:{
				"queue":{
					"brokerName":"broker-a",
					"queueId":3,
					"topic":"orders"
				},
				"minOffset":100,
				"maxOffset":105,
				"updateTimestamp":1757000000000
			}
		}
	},
	"topicMetadataTable":{
		"orders":{
			"topicId":0,
			"topic":"orders",
			"status":0,
			"reserveTime":-1,
			"updateTimestamp":1757000000000
		}
	},
	"topicSerialNumber":0
}"""
NOW = 1757000000000
VALUES = RocketMQMetadata(
    topics=(Topic(0, "orders", updated_ms=NOW),),
    queues=(Queue(QUEUE, 100, 105, updated_ms=NOW),),
    segments=(
        Segment(log_key(0), 4096, created_ms=NOW, begin_ms=NOW + 100, end_ms=NOW + 9000),
        Segment(log_key(4096), created_ms=NOW + 1),
        Segment(units_key(2000), 100, created_ms=NOW, begin_ms=NOW + 100, end_ms=NOW + 9000),
    ),
    topic_serial_number=0,
)


def test_the_file_has_fastjson_s_shape_to_the_byte() -> None:
    assert encode_rocketmq_json(VALUES).decode() == SMALL


def test_the_file_reads_back() -> None:
    assert decode_rocketmq_json(SMALL.encode(), "DefaultCluster") == VALUES


def test_quoted_keys_compact_text_and_missing_fields_are_read_too() -> None:
    text = (
        '{"consumeQueueFileSegmentTable":{"broker-a/orders/3":{"2000":{"size":40}}},'
        '"queueMetadataTable":{"orders":{"3":{"queue":{"brokerName":"broker-a","queueId":3,"topic":"orders"},'
        '"minOffset":-1,"maxOffset":-1}}},"topicMetadataTable":{"orders":{"topicId":5}}}'
    )
    found = decode_rocketmq_json(text.encode(), "DefaultCluster")
    assert found.topics == (Topic(5, "orders"),)
    assert found.segments == (Segment(units_key(2000), 40),)
    assert found.segments[0].end_ms == NEVER_MS
    assert found.topic_serial_number == 5  # A counter that is missing must not give out an id that is in use.


def test_a_file_without_a_counter_or_topics_counts_from_zero() -> None:
    assert decode_rocketmq_json(b"{}", "c").topic_serial_number == 0


def test_gap_09_offsets_come_from_the_consume_queue_and_not_from_rocketmq_s_dead_fields() -> None:
    dead = SMALL.replace('"minOffset":100', '"minOffset":-1').replace('"maxOffset":105', '"maxOffset":-1')
    (queue,) = decode_rocketmq_json(dead.encode(), "DefaultCluster").queues
    assert (queue.min_offset, queue.max_offset) == (100, 105)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", SMALL[:-40], SMALL.replace('"size":4096', '"size":"big"'), SMALL.replace("broker-a/orders/3", "x")],
)
def test_a_damaged_file_is_refused(text: str) -> None:
    with pytest.raises(StoreDamaged, match="tieredStoreMetadata.json"):
        decode_rocketmq_json(text.encode(), "c")


@st.composite
def contents(draw: st.DrawFn) -> RocketMQMetadata:
    names = draw(st.lists(NAMES, unique=True, max_size=4))
    topics = tuple(Topic(number, name, draw(I64), draw(I64), updated_ms=draw(I64)) for number, name in enumerate(names))
    keys = [QueueKey("c", "b", name, number) for name in sorted(names) for number in draw(st.sets(st.integers(0, 99)))]
    segments = tuple(
        Segment(
            key.segment(kind, base), draw(NATURALS), SegmentStatus.SEALED, draw(I64), draw(I64), draw(I64), draw(I64)
        )
        for kind in (SegmentType.COMMIT_LOG, SegmentType.INDEX)
        for key in keys
        for base in sorted(draw(st.sets(NATURALS, max_size=2)))
    )
    queues = tuple(Queue(key, draw(I64), draw(I64), 0, draw(I64)) for key in keys)
    return RocketMQMetadata(topics, queues, segments, draw(st.integers(len(topics), 1 << 40)))


@given(contents())
def test_whatever_we_write_we_read_back(metadata: RocketMQMetadata) -> None:
    again = decode_rocketmq_json(encode_rocketmq_json(metadata), "c")
    assert sorted(again.topics, key=lambda topic: topic.id) == list(metadata.topics)
    assert sorted(again.queues, key=lambda queue: queue.key) == sorted(metadata.queues, key=lambda queue: queue.key)
    assert sorted(again.segments, key=lambda segment: segment.key) == sorted(
        metadata.segments, key=lambda segment: segment.key
    )
    assert again.topic_serial_number == metadata.topic_serial_number


def test_an_export_is_the_file_that_was_read(store: MetadataStore) -> None:
    found = decode_rocketmq_json(SMALL.encode(), "DefaultCluster")
    with store.transaction():
        for topic in found.topics:
            store.put_topic(topic)
        store.raise_topic_serial_number(found.topic_serial_number)
        for queue in found.queues:
            store.put_queue(queue)
        for segment in found.segments:
            store.put_segment(segment)
    assert export_rocketmq_json(store).decode() == SMALL
    assert store.add_topic("payments").id == 1


def test_segments_that_are_being_deleted_are_not_handed_to_rocketmq(store: MetadataStore, tmp_path: Path) -> None:
    store.add_segment(index_key(0))
    store.add_segment(log_key(0))
    store.mark_deleted(log_key(0))
    exported = decode_rocketmq_json(export_rocketmq_json(store), "DefaultCluster")
    assert [segment.key for segment in exported.segments] == [index_key(0)]
    written = encode_rocketmq_json(replace(VALUES, segments=(Segment(log_key(0), status=SegmentStatus.DELETED),)))
    assert decode_rocketmq_json(written, "DefaultCluster").segments == ()


def test_an_infinite_number_is_damage() -> None:
    with pytest.raises(StoreDamaged):
        decode_rocketmq_json(b'{"topicSerialNumber":1e999}', "cluster")
