"""IndexFragment: what the index is to be told of a run of one queue's records, without the records.

Keys are hashed where the records are (a task on another machine); whoever has the index puts the hashes. The fragment
speaks for all records in tier offsets [start, end): those without keys are in it by that range alone, which is how the
index knows that it has seen everything.

Invariant: keys stand in the order of their records; all keys of a record stand together, or there are none of it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tiermq.kernel import collect_tier_keys, key_hashes
from tiermq.kernel.fragments import COLLECTED_KEY_BYTES
from tiermq.tier.flat.record_batch import RecordBatch
from tiermq.tier.index.index_item import distinct
from tiermq.tier.index.record_requests import request_of

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

    def place(self, number: int) -> int:
        """The tier offset of the record that a key belongs to."""
        return int(_PLACE.unpack_from(self.keys, number * COLLECTED_KEY_BYTES)[0])

    def first_key_from(self, tier_offset: int) -> int:
        """The number of the first key whose record lies at or behind a tier offset."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.place(middle) < tier_offset else (low, middle)
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
        request = request_of(batch, *batch.place(number), topic, topic_id, queue_id)
        if request is None or not request.is_legal():
            return b""
        keys = distinct(request.keys or ())
        hashes = memoryview(key_hashes(request.topic, list(keys))).cast("i") if keys else ()
        return b"".join(_KEY.pack(value, request.tier_offset, request.size, request.store_ms) for value in hashes)

    @property
    def key_bytes(self) -> int:
        return sum(map(len, self._parts))

    def build(self) -> IndexFragment:
        return IndexFragment(*self._name, self._start, self._end, b"".join(self._parts))
