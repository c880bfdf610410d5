"""What the index is told of the records of a batch: one request each, also for those without keys."""

from __future__ import annotations

from collections.abc import Iterator

from tiermq.index.index_request import index_keys
from tiermq.message.properties import KEYS, UNIQ_KEY, get_property
from tiermq.message.record_head import HeadKind, read_head
from tiermq.tier.flat.record_batch import RecordBatch
from tiermq.tier.index.put_request import IndexRequest

_UNIQ_KEY, _KEYS = UNIQ_KEY.encode(), KEYS.encode()


def index_requests(batch: RecordBatch, topic: str, topic_id: int, queue_id: int) -> Iterator[IndexRequest]:
    """What the index is told of each record of a batch, also of those without keys."""
    for position, size, _ in batch.places():
        request = request_of(batch, position, size, topic, topic_id, queue_id)
        if request is not None:
            yield request


def request_of(
    batch: RecordBatch, position: int, size: int, topic: str, topic_id: int, queue_id: int
) -> IndexRequest | None:
    """The request for the record at `position` of the batch; None for bytes that are no record.

    Only records that were checked are committed, but the walk over them must not stop at one that is not.
    """
    head = read_head(batch.data, position, size)
    if head.kind is not HeadKind.OK:
        return None
    encoded = bytes(batch.data[head.properties_position : head.properties_position + head.properties_length])
    keys = index_keys(_text(get_property(encoded, _UNIQ_KEY)), _text(get_property(encoded, _KEYS)))
    return IndexRequest(topic, topic_id, queue_id, keys, batch.log_offset + position, size, head.store_timestamp_ms)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
