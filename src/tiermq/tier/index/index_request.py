"""Requests to the index, and their outcomes."""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tiermq.kernel import collect_tier_keys, key_hashes
from tiermq.kernel.tier_records import COLLECTED_KEY_BYTES
from tiermq.message.properties import KEYS, UNIQ_KEY, get_property, index_keys
from tiermq.message.record_head import HeadKind, read_head
from tiermq.tier.index.index_item import distinct
from tiermq.tier.queue.records import RecordBatch

_I32_MAX = (1 << 31) - 1
_I64_MAX = (1 << 63) - 1


class PutOutcome(enum.Enum):
    """What became of a put. A failure of the disk is an exception, after which the same put can be tried again."""

    SUCCESS = "SUCCESS"
    ALREADY_INDEXED = "ALREADY_INDEXED"  # The record is indexed already.
    ILLEGAL_REQUEST = "ILLEGAL_REQUEST"  # No index file can ever take it; the next record can be put.
    SHUTDOWN = "SHUTDOWN"  # The index is closed. The record is found and indexed at the next start.

    @property
    def is_done(self) -> bool:
        """Whether the record needs no further attempt in this life of the index."""
        return self is PutOutcome.SUCCESS or self is PutOutcome.ALREADY_INDEXED


class IndexRequest(NamedTuple):
    """One record of a queue's tier commit log, as far as the index needs to know it. `keys` may be empty."""

    topic: str
    topic_id: int
    queue_id: int
    keys: Sequence[str]
    tier_offset: int
    size: int
    store_ms: int

    def is_legal(self) -> bool:
        """Whether every value fits into an item."""
        return (
            bool(self.topic and self.topic.strip())
            and 0 <= self.queue_id <= _I32_MAX
            and 0 <= self.tier_offset <= _I64_MAX
            and 0 < self.size <= _I32_MAX
            and 0 <= self.store_ms <= _I64_MAX
        )


# The index requests of a batch: one for each record, also for those without keys.

_UNIQ_KEY, _KEYS = UNIQ_KEY.encode(), KEYS.encode()


def index_requests(batch: RecordBatch, topic: str, topic_id: int, queue_id: int) -> Iterator[IndexRequest]:
    """The index request of each record of a batch, also of those without keys."""
    for position, size, _ in batch.locations():
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


# IndexFragment: the index entries of consecutive records of one queue, without the records.
#
# Keys are hashed where the records are (a task on another machine); the owner of the index puts the hashes. The
# fragment covers all records in tier offsets [start, end): those without keys are in it by that range alone, which is
# how the index knows that it has seen everything.
#
# Invariant: keys stand in the order of their records; all keys of a record stand together, or there are none of it.

_KEY = struct.Struct(
    ">"
    "i"  # key_hash
    "q"  # tier_offset
    "i"  # size
    "q"  # store_ms
)
assert _KEY.size == COLLECTED_KEY_BYTES
_PLACE = struct.Struct(">4xq")


@dataclass(frozen=True, slots=True)
class IndexFragment:
    """See the module. Small enough to travel: 24 bytes for each key."""

    topic: str
    topic_id: int
    queue_id: int
    start: int
    end: int
    keys: bytes = b""

    @property
    def count(self) -> int:
        """How many keys."""
        return len(self.keys) // COLLECTED_KEY_BYTES

    def offset_of(self, number: int) -> int:
        """The tier offset of the record that a key belongs to."""
        return int(_PLACE.unpack_from(self.keys, number * COLLECTED_KEY_BYTES)[0])

    def first_key_from(self, tier_offset: int) -> int:
        """The number of the first key whose record is at or behind a tier offset."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.offset_of(middle) < tier_offset else (low, middle)
        return low


class FragmentBuilder:
    """Collects the keys of batches, which come in the order of their queue, without a hole between them."""

    def __init__(self, topic: str, topic_id: int, queue_id: int, start: int) -> None:
        self._name = (topic, topic_id, queue_id)
        self._start = self._end = start
        self._parts: list[bytes] = []

    def add(self, batch: RecordBatch) -> None:
        done = 0
        while done < batch.count:
            count, keys = collect_tier_keys(batch.units, batch.data, done, batch.log_offset, self._name[0])
            self._parts.append(keys)
            done += count
            if done < batch.count:
                self._parts.append(self._keys_of(batch, done))
                done += 1
        self._end = batch.log_offset + len(batch.data)

    def _keys_of(self, batch: RecordBatch, number: int) -> bytes:
        """The keys of one record that the kernel left to us; none of one that no index file can take."""
        topic, topic_id, queue_id = self._name
        request = request_of(batch, *batch.location(number), topic, topic_id, queue_id)
        if request is None or not request.is_legal():
            return b""
        keys = distinct(request.keys or ())
        hashes = memoryview(key_hashes(request.topic, list(keys))).cast("i") if keys else ()
        return b"".join(_KEY.pack(value, request.tier_offset, request.size, request.store_ms) for value in hashes)

    def build(self) -> IndexFragment:
        return IndexFragment(*self._name, self._start, self._end, b"".join(self._parts))
