"""query: messages by key and time, from the index to verified records.

The index knows hashes and seconds; a hit counts only when the record itself has the key and lies within the time range.
(The original hands collisions to the client.) The newest `max_messages` hits are returned, oldest first.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiermq.errors import CorruptRecord
from tiermq.index.index_service import IndexService
from tiermq.kernel import Segments
from tiermq.message.record import decode_record
from tiermq.message.stored_message import StoredMessage

CANDIDATES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class QueryPage:
    """What a query found, and how far the index reaches."""

    messages: list[StoredMessage]
    last_update_timestamp_ms: int
    last_update_physical_offset: int
    complete: bool = True
    """False while an index is being rebuilt: older messages may be missing here that are stored."""


def query_by_key(
    index: IndexService, log: Segments, topic: str, key: str, max_messages: int, begin_ms: int, end_ms: int
) -> QueryPage:
    """See the module. Asks the index for more candidates as long as verification leaves too few."""
    wanted = max_messages
    while True:
        found = index.query(topic, key, wanted, begin_ms, end_ms)
        hits: dict[int, StoredMessage] = {}
        for offset in found.offsets:
            message = record_at(log, offset)
            if message is not None and _matches(message, topic, key, begin_ms, end_ms):
                hits[offset] = message
        if len(hits) >= max_messages or len(found.offsets) < wanted or wanted >= CANDIDATES_MAX:
            break
        wanted *= 4
    newest = sorted(hits)[-max_messages:]
    return QueryPage([hits[at] for at in newest], found.last_update_timestamp_ms, found.last_update_physical_offset)


def record_at(log: Segments, physical_offset: int, size: int | None = None) -> StoredMessage | None:
    """The message at a physical offset; None when nothing readable lies there. Raises CorruptRecord on damage."""
    if size is None:
        prefix = log.read(physical_offset, 4)
        size = int.from_bytes(prefix, "big", signed=True) if prefix is not None else 0
    record = log.read(physical_offset, size) if size > 0 else None
    if record is None:
        return None
    try:
        return decode_record(record, expect_physical_offset=physical_offset)
    except CorruptRecord as error:
        raise CorruptRecord(f"physical offset {physical_offset}: {error}") from error


def _matches(message: StoredMessage, topic: str, key: str, begin_ms: int, end_ms: int) -> bool:
    return (
        message.topic == topic
        and begin_ms <= message.store_timestamp_ms <= end_ms
        and (key in message.keys or key == message.unique_key)
    )
