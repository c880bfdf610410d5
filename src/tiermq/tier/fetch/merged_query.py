"""Messages by key over both stores: candidates of the tier are checked against their records, then merged in order.

The tier's index is queried with the caller's time range. Each candidate is read, and counts only when its record is
the right message: of the current topic id, with this key, stored within the range. One failed read fails the query: an
incomplete result must not look complete.

Merged results have each message once (topic, queue id, queue offset identify a message in both stores), ordered by
store time, then queue, then offset; of too many, the newest are kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, wait
from typing import Protocol

from tiermq.errors import CorruptRecord, IllegalRange, SegmentMissing, TierMQError
from tiermq.message.record import CrcPropertyCheck, decode_record
from tiermq.message.stored_message import StoredMessage
from tiermq.tier.flat.flat_file_store import FlatFileStore
from tiermq.tier.index.index_item import low_32_bits
from tiermq.tier.index.index_query import Candidate, IndexHit, MessageKeys, QueryAnswer

MEMO_BYTES = 4 * 1024 * 1024

_Location = tuple[str, int, int]


class KeyIndex(Protocol):
    """The queries of `IndexStore`, or of the `IndexFollower` of an index that a job writes."""

    def query(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int, *, topic_id: int | None = None
    ) -> QueryAnswer: ...
    def is_complete_for(self, topic: str) -> bool: ...


class ColdRecords:
    """Reads single records of the tier by their offset. `fetch_keys` is the index's verification callback.

    Records read to check a candidate are cached for a moment, so that a hit is not read twice. Threads: any.
    """

    def __init__(self, files: FlatFileStore, memo_bytes: int = MEMO_BYTES) -> None:
        self._files = files
        self._memo_bytes = memo_bytes
        self._lock = threading.Lock()
        self._memo: OrderedDict[_Location, StoredMessage] = OrderedDict()
        self._kept_bytes = 0

    def fetch_keys(self, topic: str, candidate: Candidate) -> MessageKeys | None:
        """Keys and time of a candidate's message; None when it is gone or of an earlier topic of that name."""
        file = self._files.find(topic, candidate.queue_id)
        if file is None or low_32_bits(file.topic.id) != candidate.topic_id:
            return None
        message = self.read(topic, candidate.queue_id, candidate.tier_offset, candidate.size)
        return None if message is None else MessageKeys(keys_of(message), message.store_timestamp_ms)

    def read(self, topic: str, queue_id: int, tier_offset: int, size: int) -> StoredMessage | None:
        """The message whose record is at that offset; None when it is gone. Raises TierError, CorruptRecord."""
        location = (topic, queue_id, tier_offset)
        with self._lock:
            known = self._memo.get(location)
        if known is not None and known.size == size:
            return known
        file = self._files.find(topic, queue_id)
        if file is None or not file.log.min_offset <= tier_offset <= file.log.commit_offset - size:
            return None
        try:
            record = file.log.read(tier_offset, size)
        except (SegmentMissing, IllegalRange):
            if tier_offset < file.log.min_offset:
                return None  # Retention took it meanwhile.
            raise
        message = self._decoded(record, topic, queue_id, tier_offset)
        self._remember(location, message)
        return message

    @staticmethod
    def _decoded(record: bytes | memoryview, topic: str, queue_id: int, tier_offset: int) -> StoredMessage:
        where = f"{topic}/{queue_id}: record at tier offset {tier_offset}"
        try:
            message = decode_record(record, expect_physical_offset=tier_offset, crc_property=CrcPropertyCheck.IGNORE)
        except CorruptRecord as error:
            raise CorruptRecord(f"{where}: {error}; run `tiermq tier verify`") from error
        if (message.topic, message.queue_id) != (topic, queue_id) or message.size != len(record):
            raise CorruptRecord(
                f"{where}: expected {len(record)} bytes of this queue, found {message.size} bytes of {message.topic}/"
                f"{message.queue_id}; run `tiermq tier verify`"
            )
        return message

    def _remember(self, location: _Location, message: StoredMessage) -> None:
        with self._lock:
            replaced = self._memo.pop(location, None)
            self._kept_bytes -= 0 if replaced is None else replaced.size
            self._memo[location] = message
            self._kept_bytes += message.size
            while self._kept_bytes > self._memo_bytes:
                self._kept_bytes -= self._memo.popitem(last=False)[1].size


def query_cold(
    index: KeyIndex,
    records: ColdRecords,
    pool: Executor,
    topic: str,
    key: str,
    begin_ms: int,
    end_ms: int,
    max_messages: int,
) -> list[StoredMessage]:
    """The newest messages of the tier that have the key and were stored in [begin_ms, end_ms], oldest of them first.

    Raises what the first failing read raised; never returns a partial result.
    """
    if max_messages <= 0 or begin_ms > end_ms:
        return []
    answer = index.query(topic, key, max_messages, begin_ms, end_ms)
    if answer.failures:
        raise answer.failures[0]

    def read(hit: IndexHit) -> StoredMessage | None:
        return records.read(topic, hit.queue_id, hit.tier_offset, hit.size)

    found = [message for message in _side_by_side(pool, read, answer.hits) if message is not None]
    true = [message for message in found if is_answer(message, topic, key, begin_ms, end_ms)]
    return merge([], true, max_messages)


def _side_by_side(
    pool: Executor, read: Callable[[IndexHit], StoredMessage | None], hits: Sequence[IndexHit]
) -> list[StoredMessage | None]:
    """All reads at once, in order. When one fails, none is left running behind the caller's back."""
    if len(hits) < 2:
        return [read(hit) for hit in hits]
    futures = [pool.submit(read, hit) for hit in hits]
    try:
        return [future.result() for future in futures]
    except TierMQError:
        for future in futures:
            future.cancel()
        wait(futures)
        raise


def keys_of(message: StoredMessage) -> list[str]:
    """Everything a message can be found by."""
    unique_key = message.unique_key
    return message.keys + ([unique_key] if unique_key else [])


def is_answer(message: StoredMessage, topic: str, key: str, begin_ms: int, end_ms: int) -> bool:
    """Whether a message matches the query: hashes collide, and index times are cut to seconds."""
    if message.topic != topic or not begin_ms <= message.store_timestamp_ms <= end_ms:
        return False
    return key in message.keys or key == message.unique_key != ""


def merge(local: Iterable[StoredMessage], cold: Iterable[StoredMessage], max_messages: int) -> list[StoredMessage]:
    """Both results as one: each message once, ordered, the newest `max_messages` of them. The local copy wins."""
    if max_messages <= 0:
        return []
    found: dict[_Location, StoredMessage] = {}
    for message in (*local, *cold):
        found.setdefault((message.topic, message.queue_id, message.queue_offset), message)
    ordered = sorted(found.values(), key=lambda m: (m.store_timestamp_ms, m.queue_id, m.queue_offset))
    return ordered[-max_messages:]
