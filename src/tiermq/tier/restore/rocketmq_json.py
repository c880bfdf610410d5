"""RocketMQ's `config/tieredStoreMetadata.json`: read it to take over a tier, write it to hand one back.

Root, in alphabetical order: commitLogFileSegmentTable, consumeQueueFileSegmentTable, indexFileSegmentTable (logical
path -> base offset -> segment), queueMetadataTable (topic -> queue id -> queue), topicMetadataTable (topic -> topic),
topicSerialNumber (the last topic id). Base offsets and queue ids are keys without quotes.

The file lacks the cluster (the caller passes it), checksums, queue offsets of a commit log, gaps, epochs and byte
limits. One error is corrected: RocketMQ never updates a queue's offsets, so they come from the consume queue.
Segments that are being deleted are not written: RocketMQ ignores a segment's status and would read them.

Import of a tier that RocketMQ wrote: its metadata file has the intended state, the tier the actual one.

From `tieredStoreMetadata.json`: topics with their ids and reserve times, and which id comes next. From the tier, as a
restore reads it: which segments there are, how long they are, which messages they hold and when those were stored;
RocketMQ's file lacks some of this and is often behind with the rest. Differences between the two are remarks.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, Union

from tiermq.clock import Clock
from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.errors import StoreDamaged, TierError
from tiermq.files.config_file import decode_lenient_json
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import NEVER_MS, UNKNOWN_OFFSET, Queue, Segment, SegmentStatus, Topic
from tiermq.tier.names import INDEX_TOPIC, QueueKey, SegmentKey, SegmentType
from tiermq.tier.restore.restore import restore
from tiermq.tier.restore.restore_report import Finding, Remark, RestoreProgress

# Text as fastjson 1.2 writes it with PrettyFormat, which is how RocketMQ keeps its configuration files.
#
#     {
#     <tab>"table":{
#     <tab><tab>"b-a/Orders/0":{0:{
#     <tab><tab><tab><tab>"path":"b-a/Orders/0",
#     ...
#
# A bean puts each field on a line of its own. A map does that for text keys only: a key that is an integer follows the
# brace or the comma at once and has no quotes. Both indent by one tab per level and end on a line of their own, unless
# they are empty. `Bean` and `dict` stand for the two; values are text, integers, or these.

Value: TypeAlias = Union[str, int, "Bean", dict[str, "Value"], dict[int, "Value"]]

_ESCAPES = {
    '"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\u000B",
}  # fmt: skip


class Bean:
    """An object with declared fields, in the order in which they are written."""

    __slots__ = ("fields",)

    def __init__(self, fields: Sequence[tuple[str, Value]]) -> None:
        self.fields = fields


def encode_fastjson(value: Value) -> str:
    """The value's text, without a line end behind it."""
    out: list[str] = []
    _write(out, value, 0)
    return "".join(out)


def _write(out: list[str], value: Value, level: int) -> None:
    if isinstance(value, Bean):
        _write_members(out, list(value.fields), level)
    elif isinstance(value, dict):
        _write_members(out, list(value.items()), level)
    elif isinstance(value, str):
        out.append(_quoted(value))
    else:
        out.append(str(value))


def _write_members(out: list[str], members: Sequence[tuple[str | int, Value]], level: int) -> None:
    out.append("{")
    for index, (key, value) in enumerate(members):
        if index:
            out.append(",")
        if isinstance(key, str):
            out.append("\n" + "\t" * (level + 1) + _quoted(key) + ":")
        else:
            out.append(f"{key}:")
        _write(out, value, level + 1)
    if members:
        out.append("\n" + "\t" * level)
    out.append("}")


def _quoted(text: str) -> str:
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    known = _ESCAPES.get(character)
    if known is not None:
        return known
    code = ord(character)
    # What fastjson escapes beyond JSON's duty: the upper control characters and JavaScript's line ends.
    if code < 0x20 or 0x7F <= code < 0xA0 or code in (0x2028, 0x2029):
        return f"\\u{code:04X}"
    return character


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
    """Decode the file, for the cluster it belongs to.

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
        # A later beginning in the file counts: the first records have expired.
        min_offset = queue.min_offset if first <= queue.min_offset <= last else first
        yield Queue(queue.key, min_offset, last, queue.epoch, queue.updated_ms)


_EXPECTED = frozenset({Finding.MISSING_MANIFEST, Finding.TOPIC_ID_ASSIGNED, Finding.UNKNOWN_TOPIC_IN_INDEX})
"""What a restore remarks upon and what is no wonder here: RocketMQ writes no manifests, and ids come from its file."""


@dataclass(slots=True)
class ImportReport:
    """What was taken over, and what is odd about it."""

    cluster: str
    broker: str
    topic_count: int = 0
    queue_count: int = 0
    segment_count: int = 0
    message_count: int = 0
    size_bytes: int = 0
    remarks: list[Remark] = field(default_factory=list)
    not_in_tier: list[str] = field(default_factory=list)
    not_in_file: list[str] = field(default_factory=list)
    index_file_count: int = 0

    @property
    def index_note(self) -> str:
        """What to expect of RocketMQ's key index; empty without one."""
        if not self.index_file_count:
            return ""
        return (
            f"{self.index_file_count} index files are RocketMQ's, which drops keys when one is full: queries by key "
            "return `complete=False` until `TieredStore.reindex()` has read those messages again"
        )


def import_rocketmq(
    driver: TierDriver,
    store: MetadataStore,
    data: bytes,
    *,
    cluster: str,
    broker: str | None = None,
    name: str = "tieredStoreMetadata.json",
    clock: Clock | None = None,
    progress: Callable[[RestoreProgress], None] | None = None,
) -> ImportReport:
    """Fill an empty store from RocketMQ's metadata file and the tier; all of it or nothing. The tier is only read.

    Raises StoreDamaged for an invalid file, TierError when the store is not empty or the broker is not certain,
    and what the driver raises.
    """
    if not store.is_empty():
        raise TierError(
            f"{store.path}: expected empty metadata to import {name} into, found some: name one that does not exist yet"
        )
    imported = decode_rocketmq_json(data, cluster, name)
    broker = broker or _one_broker(imported, name)
    with (
        tempfile.TemporaryDirectory(prefix="tiermq-import-") as directory,
        MetadataStore(Path(directory) / "found.db", clock=clock) as found,
    ):
        restored = restore(driver, found, progress, cluster=cluster, broker=broker, clock=clock)
        report = ImportReport(cluster, broker)
        report.remarks += [remark for remark in restored.remarks if remark.finding not in _EXPECTED]
        _fill(store, imported, found, report)
    return report


def _one_broker(imported: RocketMQMetadata, name: str) -> str:
    brokers = sorted(
        {segment.key.broker for segment in imported.segments} | {queue.key.broker for queue in imported.queues}
    )
    if len(brokers) != 1:
        raise TierError(f"{name}: expected the metadata of one broker, found {brokers or 'none'}; name the broker")
    return brokers[0]


def _fill(store: MetadataStore, imported: RocketMQMetadata, found: MetadataStore, report: ImportReport) -> None:
    by_key = {segment.key: segment for segment in imported.segments}
    segments = found.all_segments()
    with store.transaction():
        store.record_names(report.cluster, report.broker)
        for topic in imported.topics:
            store.put_topic(topic)
        store.raise_topic_serial_number(imported.topic_serial_number)
        for queue in found.queues():
            store.add_topic(queue.key.topic)  # One that only the tier knows gets the next id.
            store.put_queue(queue)
            store.add_time_entries(queue.key, found.time_entries(queue.key))
            for gap in found.gaps(queue.key):
                store.add_gap(queue.key, gap)
        for queue in imported.queues:
            if queue.key.broker == report.broker and store.queue(queue.key) is None:
                store.put_queue(queue)
        for segment in segments:
            store.put_segment(_completed(segment, by_key.get(segment.key)))
        _keep_places(store, imported, report.broker)
    _sum_up(store, segments, by_key, report)


def _completed(segment: Segment, row: Segment | None) -> Segment:
    """What the tier shows, and what only the file knows: when the segment was begun."""
    return segment if row is None else replace(segment, created_ms=row.created_ms)


def _keep_places(store: MetadataStore, imported: RocketMQMetadata, broker: str) -> None:
    """A queue without messages has segments without bytes: their bases are the offset of its first message."""
    filled: set[QueueKey] = {segment.key.queue for segment in store.all_segments()}
    for row in imported.segments:
        is_here = row.key.broker == broker and row.key.topic != INDEX_TOPIC
        if row.size == 0 and is_here and row.key.queue not in filled and row.status is not SegmentStatus.DELETED:
            store.put_segment(row)


def _sum_up(
    store: MetadataStore, segments: list[Segment], by_key: dict[SegmentKey, Segment], report: ImportReport
) -> None:
    there = {segment.key for segment in segments}
    report.not_in_tier = [row.key.path for row in by_key.values() if row.size and row.key not in there]
    report.not_in_file = [segment.key.path for segment in segments if segment.key not in by_key]
    report.topic_count = len(store.topics())
    report.queue_count = len(store.queues())
    report.segment_count = len(segments)
    report.index_file_count = sum(segment.key.topic == INDEX_TOPIC for segment in segments)
    report.size_bytes = sum(segment.size for segment in segments)
    report.message_count = sum(max(0, queue.max_offset - queue.min_offset) for queue in store.queues())
