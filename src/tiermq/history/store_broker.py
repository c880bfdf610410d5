"""Whose is a store that has no recorded names, beside a tier of one broker? Its messages decide, not the tier's name.

    both have a range of a queue    the newest message of it is compared: equal, or the store is another broker's
    the store begins at cold_max    its queue continues that of the tier
    a gap, or an older range        no sign that it is that queue, unless a message of another queue is equal

A store of another broker under the tier's name would hide its messages: what the tier has is read from the tier.
"""

from __future__ import annotations

from collections.abc import Iterable

from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.errors import BadHistory, CorruptRecord, CorruptSegment, SegmentMissing
from tiermq.history.cold_queues import ColdQueue
from tiermq.message.record import decode_record
from tiermq.message.stored_message import StoredMessage
from tiermq.store.readonly.store import ReadOnlyStore
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.queue.records import bytes_to_read, record_of
from tiermq.tier.queue.units import iter_units

UNITS_READ = 64
"""Units of a common range that are read: its newest ones, since some may be blank."""
RECORDS_TRIED = 4
QUEUES_COMPARED = 64
"""Of a store with more queues, these are compared: what is looked for is another broker's store, which has no equal."""


def require_store_of_broker(tier: TierDriver, store: ReadOnlyStore, queues: Iterable[ColdQueue]) -> None:
    """Check that the store is that of the broker with these queues in the tier. Raises BadHistory, and what the tier
    raises.
    """
    apart: ColdQueue | None = None
    compared = equal = 0
    for cold in queues:
        topic, queue_id = cold.key.topic, cold.key.queue_id
        low, high = store.bounds(topic, queue_id)
        if cold.is_empty or cold.is_deleted or low == high:
            continue
        is_same = None
        if max(low, cold.min_offset) < min(high, cold.max_offset):
            if compared < QUEUES_COMPARED:
                compared += 1
                is_same = _is_same(tier, store, cold, max(0, low, cold.min_offset), min(high, cold.max_offset))
            if is_same is False:
                raise _unknown(tier, store, cold, f"other messages in queue {queue_id} of topic {topic!r}")
        elif low == cold.max_offset:
            continue
        if is_same:
            equal += 1
        elif apart is None:
            apart = cold
    if apart is not None and not equal:
        raise _unknown(tier, store, apart, f"no common message in queue {apart.key.queue_id} of {apart.key.topic!r}")


def _unknown(tier: TierDriver, store: ReadOnlyStore, cold: ColdQueue, found: str) -> BadHistory:
    return BadHistory(
        f"{store.root}: expected the store of broker {cold.key.broker!r}, the only one in {tier.url}, since the store "
        f"has no recorded name; found {found}. Name the broker of the store: --store DIR=NAME, or option brokerName; "
        "or read the store and the tier in two queries"
    )


def _is_same(tier: TierDriver, store: ReadOnlyStore, cold: ColdQueue, low: int, high: int) -> bool | None:
    """Whether the newest message of [low, high) that both sides can read is the same one; None without such a one."""
    segment = next((each for each in reversed(cold.units) if each.key.base < high * UNIT_BYTES), None)
    if segment is None:
        return None
    high = min(high, segment.end // UNIT_BYTES)
    low = max(low, high - UNITS_READ, segment.key.base // UNIT_BYTES)
    if low >= high:
        return None
    name = (cold.key.topic, cold.key.queue_id)
    try:
        data = tier.read(segment.key, low * UNIT_BYTES - segment.key.base, (high - low) * UNIT_BYTES)
        real = [unit for unit in iter_units(data, low) if not unit.is_blank]
        for unit in reversed(real[-RECORDS_TRIED:]):
            log = next((each for each in cold.logs if each.key.base <= unit.log_offset < each.end), None)
            here = _local_message(store, *name, unit.queue_offset)
            if log is None or here is None:
                continue
            length = min(bytes_to_read(unit), log.end - unit.log_offset)
            try:
                record = tier.read(log.key, unit.log_offset - log.key.base, length)
                _, there = record_of(unit, record, unit.log_offset, name)
            except CorruptRecord:
                continue
            return _identity(here) == _identity(there)
    except (SegmentMissing, CorruptSegment):
        return None  # Readers report it, or plan again.
    return None


def _local_message(store: ReadOnlyStore, topic: str, queue_id: int, offset: int) -> StoredMessage | None:
    queue = store.queue(topic, queue_id)
    unit = None if queue is None or queue.is_batch else queue.unit_at(offset)
    data = None if unit is None else store.read(unit.physical_offset, unit.size)
    if unit is None or data is None:
        return None
    try:
        return decode_record(data, expect_physical_offset=unit.physical_offset)
    except CorruptRecord:
        return None


def _identity(message: StoredMessage) -> tuple[int, ...]:
    """Values that identify a message and are the same in its copy, as `TieredStore` compares them."""
    return message.queue_offset, message.size, message.body_crc, message.store_timestamp_ms, message.born_timestamp_ms
