"""RocketMQ's `config/tieredStoreMetadata.json`: read it to take over a tier, write it to hand one back.

Root, in alphabetical order: commitLogFileSegmentTable, consumeQueueFileSegmentTable, indexFileSegmentTable (logical
path -> base offset -> segment), queueMetadataTable (topic -> queue id -> queue), topicMetadataTable (topic -> topic),
topicSerialNumber (the last topic id). Base offsets and queue ids are keys without quotes.

What the file cannot say: the cluster (a reader is told), checksums, queue offsets of a commit log, gaps, epochs, byte
limits. What it says wrongly, we correct: RocketMQ never updates a queue's offsets, so they come from the consume queue.
Segments that are being deleted are not written: RocketMQ ignores a segment's status and would read them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.errors import StoreDamaged, TierError
from tiermq.store.lenient_json import decode_lenient_json
from tiermq.tier.metadata.fastjson import Bean, Value, encode_fastjson
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import NEVER_MS, UNKNOWN_OFFSET, Queue, Segment, SegmentStatus, Topic
from tiermq.tier.names import QueueKey, SegmentKey, SegmentType

FILE_NAME = "tieredStoreMetadata.json"
_SEGMENT_TABLES = {
    SegmentType.COMMIT_LOG: "commitLogFileSegmentTable",
    SegmentType.CONSUME_QUEUE: "consumeQueueFileSegmentTable",
    SegmentType.INDEX: "indexFileSegmentTable",
}


@dataclass(frozen=True, slots=True)
class RocketMQMetadata:
    """The content of the file."""

    topics: tuple[Topic, ...]
    queues: tuple[Queue, ...]
    segments: tuple[Segment, ...]
    topic_serial_number: int


def encode_rocketmq_json(metadata: RocketMQMetadata) -> bytes:
    """The file's bytes, in fastjson's shape; rows in the order of their names and numbers."""
    root: list[tuple[str, Value]] = [
        (table, _segment_table(segment for segment in metadata.segments if segment.key.type == kind))
        for kind, table in _SEGMENT_TABLES.items()
    ]
    topics: dict[str, Value] = {
        topic.name: _topic_bean(topic) for topic in sorted(metadata.topics, key=lambda topic: topic.name)
    }
    root.append(("queueMetadataTable", _queue_table(metadata.queues)))
    root.append(("topicMetadataTable", topics))
    root.append(("topicSerialNumber", metadata.topic_serial_number))
    return encode_fastjson(Bean(root)).encode("utf-8")


def decode_rocketmq_json(data: bytes, cluster: str, name: str = FILE_NAME) -> RocketMQMetadata:
    """What the file says, for the cluster it belongs to.

    Absent tables and fields have RocketMQ's defaults, quoted and bare keys read the same. Raises StoreDamaged, naming
    the place, when it is no JSON or a value is of the wrong kind.
    """
    root = decode_lenient_json(data, name)
    try:
        if not isinstance(root, dict):
            raise TypeError(f"an object is needed, found {type(root).__name__}")
        segments = [
            _decode_segment(cluster, path, int(base), row, kind)
            for kind, table in _SEGMENT_TABLES.items()
            for path, bases in (root.get(table) or {}).items()
            for base, row in bases.items()
        ]
        topics = [_decode_topic(topic, row) for topic, row in (root.get("topicMetadataTable") or {}).items()]
        queues = [
            _decode_queue(cluster, topic, int(queue_id), row)
            for topic, rows in (root.get("queueMetadataTable") or {}).items()
            for queue_id, row in rows.items()
        ]
        # A file without the counter counts as 0, as in RocketMQ, but never below an id that is in use.
        serial_number = max([int(root.get("topicSerialNumber") or 0), *(topic.id for topic in topics)])
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
        raise StoreDamaged(
            f"{name}: expected RocketMQ's tier metadata, found something else ({error}); "
            f"its .bak has the version before"
        ) from error
    return RocketMQMetadata(tuple(topics), tuple(_with_true_offsets(queues, segments)), tuple(segments), serial_number)


def export_rocketmq_json(store: MetadataStore) -> bytes:
    """The store's live topics, queues and segments as the file."""
    return encode_rocketmq_json(
        RocketMQMetadata(
            tuple(store.topics()), tuple(store.queues()), tuple(store.all_segments()), store.topic_serial_number()
        )
    )


def import_rocketmq_json(store: MetadataStore, data: bytes, cluster: str, name: str = FILE_NAME) -> RocketMQMetadata:
    """Fill an empty store with what the file says, in one transaction.

    Raises StoreDamaged for a file that is none, TierError when the store is not empty.
    """
    metadata = decode_rocketmq_json(data, cluster, name)
    with store.transaction():
        if not store.is_empty():
            raise TierError(
                f"{store.path}: expected empty metadata to import {name} into, found {len(store.topics())} topics and "
                f"{store.segment_count()} segments; import into a new file"
            )
        for topic in metadata.topics:
            store.put_topic(topic)
        store.raise_topic_serial_number(metadata.topic_serial_number)
        for queue in metadata.queues:
            store.put_queue(queue)
        for segment in metadata.segments:
            store.put_segment(segment)
    return metadata


def _segment_table(segments: Iterable[Segment]) -> dict[str, Value]:
    table: defaultdict[str, dict[int, Value]] = defaultdict(dict)
    for segment in sorted(segments, key=lambda segment: (segment.key.logical_path, segment.key.base)):
        if segment.status is not SegmentStatus.DELETED:
            table[segment.key.logical_path][segment.key.base] = _segment_bean(segment)
    return {**table}


def _segment_bean(segment: Segment) -> Bean:
    return Bean(
        [
            ("path", segment.key.logical_path),
            ("type", int(segment.key.type)),
            ("baseOffset", segment.key.base),
            ("status", int(segment.status)),
            ("size", segment.size),
            ("createTimestamp", segment.created_ms),
            ("beginTimestamp", segment.begin_ms),
            ("endTimestamp", segment.end_ms),
            ("sealTimestamp", segment.sealed_ms),
        ]
    )


def _topic_bean(topic: Topic) -> Bean:
    return Bean(
        [
            ("topicId", topic.id),
            ("topic", topic.name),
            ("status", int(topic.status)),
            ("reserveTime", topic.reserve_time_hours),
            ("updateTimestamp", topic.updated_ms),
        ]
    )


def _queue_table(queues: Iterable[Queue]) -> dict[str, Value]:
    table: defaultdict[str, dict[int, Value]] = defaultdict(dict)
    for queue in sorted(queues, key=lambda queue: (queue.key.topic, queue.key.queue_id)):
        identity = Bean([("brokerName", queue.key.broker), ("queueId", queue.key.queue_id), ("topic", queue.key.topic)])
        table[queue.key.topic][queue.key.queue_id] = Bean(
            [
                ("queue", identity),
                ("minOffset", queue.min_offset),
                ("maxOffset", queue.max_offset),
                ("updateTimestamp", queue.updated_ms),
            ]
        )
    return {**table}


def _decode_segment(cluster: str, path: str, base: int, row: dict[str, Any], kind: SegmentType) -> Segment:
    # A broker's name may hold a slash as little as a topic's; the path has three parts.
    broker, topic, queue_id = path.split("/")
    status = int(row.get("status", 0))
    return Segment(
        key=SegmentKey(cluster, broker, topic, int(queue_id), kind, base),
        size=int(row.get("size", 0)),
        status=SegmentStatus(status) if status in (0, 1, 2) else SegmentStatus.NEW,
        created_ms=int(row.get("createTimestamp", 0)),
        begin_ms=int(row.get("beginTimestamp", NEVER_MS)),
        end_ms=int(row.get("endTimestamp", NEVER_MS)),
        sealed_ms=int(row.get("sealTimestamp", 0)),
    )


def _decode_topic(name: str, row: dict[str, Any]) -> Topic:
    return Topic(
        id=int(row["topicId"]),
        name=str(row.get("topic", name)),
        status=int(row.get("status", 0)),
        reserve_time_hours=int(row.get("reserveTime", -1)),
        updated_ms=int(row.get("updateTimestamp", 0)),
    )


def _decode_queue(cluster: str, topic: str, queue_id: int, row: dict[str, Any]) -> Queue:
    return Queue(
        key=QueueKey(cluster, str(row["queue"]["brokerName"]), topic, queue_id),
        min_offset=int(row.get("minOffset", UNKNOWN_OFFSET)),
        max_offset=int(row.get("maxOffset", UNKNOWN_OFFSET)),
        updated_ms=int(row.get("updateTimestamp", 0)),
    )


def _with_true_offsets(queues: list[Queue], segments: Iterable[Segment]) -> Iterator[Queue]:
    units: defaultdict[QueueKey, list[Segment]] = defaultdict(list)
    for segment in sorted(segments, key=lambda segment: segment.key.base):
        if segment.key.type is SegmentType.CONSUME_QUEUE and segment.status is not SegmentStatus.DELETED:
            units[segment.key.queue].append(segment)
    for queue in queues:
        if queue.key not in units:
            yield queue
            continue
        first, last = units[queue.key][0].key.base // UNIT_BYTES, units[queue.key][-1].end // UNIT_BYTES
        # Where the file knows a later beginning, because the first records have expired, it is believed.
        min_offset = queue.min_offset if first <= queue.min_offset <= last else first
        yield Queue(queue.key, min_offset, last, queue.epoch, queue.updated_ms)
