"""DispatchRequest: one record of the commit log, as queues, index and dispatchers see it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tiermq.config import StoreConfig
from tiermq.errors import CorruptRecord
from tiermq.kernel import WriteCursor
from tiermq.kernel.builder import due_ms
from tiermq.message.client_batch import inner_span
from tiermq.message.java_hash import tags_code
from tiermq.message.properties import DELAY, KEYS, TAGS, UNIQ_KEY, decode_properties, index_keys
from tiermq.message.record_head import HeadKind, RecordHead, read_head
from tiermq.message.topic_name import SCHEDULE_TOPIC

_SCHEDULE = SCHEDULE_TOPIC.encode()


@dataclass(frozen=True, slots=True)
class DispatchRequest:
    """Fields of a record for queues, index and dispatchers. `queue_offset` is the first of `batch_size` positions."""

    physical_offset: int
    size: int
    tags_code: int
    queue_offset: int
    store_timestamp_ms: int
    batch_size: int = 1
    topic: str = ""
    queue_id: int = 0
    sys_flag: int = 0
    prepared_transaction_offset: int = 0
    properties: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def keys(self) -> tuple[str, ...]:
        return index_keys(self.properties.get(UNIQ_KEY), self.properties.get(KEYS))


def request_at(view: WriteCursor, position: int, config: StoreConfig) -> DispatchRequest:
    """The record at `position` of a file. Raises CorruptRecord when there is none."""
    prefix = view.read(position, 4)
    size = int.from_bytes(prefix, "big", signed=True) if prefix is not None else -1
    record = view.read(position, size) if size > 0 else None
    if record is None:
        raise CorruptRecord(f"expected a record at physical offset {view.base + position}, found size {size}")
    head = read_head(record, 0, size)
    if head.kind is not HeadKind.OK:
        raise CorruptRecord(f"expected a record at physical offset {view.base + position}, found {head.reason}")
    encoded = record[head.properties_position : head.properties_position + head.properties_length]
    properties = decode_properties(encoded, errors="replace")
    base, count = _span(encoded, head.queue_offset)
    return DispatchRequest(
        topic=head.topic.decode("utf-8", "replace"),
        queue_id=head.queue_id,
        physical_offset=head.physical_offset,
        size=size,
        tags_code=_tags_code(head, properties, config),
        store_timestamp_ms=head.store_timestamp_ms,
        queue_offset=base,
        sys_flag=head.sys_flag,
        prepared_transaction_offset=head.prepared_transaction_offset,
        batch_size=count,
        properties=properties,
    )


def _span(encoded: bytes, queue_offset: int) -> tuple[int, int]:
    """First queue offset and number of messages of a record. Invalid properties are client text, and are ignored."""
    try:
        base, count = inner_span(encoded, queue_offset)
    except CorruptRecord:
        return queue_offset, 1
    return (base, count) if count > 0 else (queue_offset, 1)


def _tags_code(head: RecordHead, properties: dict[str, str], config: StoreConfig) -> int:
    """The hash of the tag; for delayed messages the time at which they are due."""
    due = None
    if head.topic == _SCHEDULE:
        due = due_ms(properties.get(DELAY, ""), head.store_timestamp_ms, config.delay_levels_ms)
    return tags_code(properties.get(TAGS)) if due is None else due
