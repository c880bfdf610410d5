"""A tier of the real RocketMQ whose clients had IPv6 addresses: its times are wrong, its messages are not.

RocketMQ reads the time of storing at a fixed place in the record, where a record of an IPv6 client has the end of the
client's address. So segments and index items of such a tier are "from" the first millisecond of 1970 or another time
that never was, RocketMQ's search by time is lost in it, and its retention takes everything for expired: of its index
files only the one that was uploaded when the broker stopped is still there, the others went as soon as they had come.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from golden.tier_reading import (
    CLUSTER,
    IPV6_NAMES,
    WrittenTier,
    check_messages,
    import_into,
    open_tier,
    read_queue,
)
from simulation.manual_clock import ManualClock
from tiermq import Message
from tiermq.tier.index.index_item import ITEM_BYTES, decode_header, decode_run, index_hash
from tiermq.tier.names import SegmentType
from tiermq.tier.restore.rocketmq_json import decode_rocketmq_json
from tiermq.tier.tiered_store import TieredStore


@pytest.fixture(params=IPV6_NAMES)
def written(request: pytest.FixtureRequest) -> WrittenTier:
    return WrittenTier.golden(request.param)


def clock_of(written: WrittenTier) -> ManualClock:
    return ManualClock(max(fact["store_timestamp"] for fact in written.stored.values()) + 1000)


def imported(written: WrittenTier, directory: Path) -> TieredStore:
    return open_tier(directory, import_into(directory, written), written, clock=clock_of(written))


def restored(written: WrittenTier, directory: Path) -> TieredStore:
    shutil.copytree(written.tier, directory / "tier")
    return open_tier(directory, directory / "tier", written, restore=True, clock=clock_of(written))


def times_of(written: WrittenTier, topic: str, queue_id: int) -> dict[int, int]:
    """Queue offset → when it was stored."""
    return {
        offset: fact["store_timestamp"]
        for (*queue, offset), fact in written.stored.items()
        if queue == [topic, queue_id]
    }


def check_true_times(store: TieredStore, written: WrittenTier) -> None:
    for topic, queue_id in written.queues():
        times = times_of(written, topic, queue_id)
        assert store.earliest_time(topic, queue_id) == min(times.values())
        for time_ms in times.values():
            first = min(offset for offset, stored_ms in times.items() if stored_ms >= time_ms)
            assert store.offset_at(topic, queue_id, time_ms) == first


def check_retention_keeps(store: TieredStore, written: WrittenTier) -> None:
    for topic, queue_id in written.queues():
        assert store.put(Message(topic, b"makes us the tier's writer", queue_id=queue_id)).queue_offset > 0
    assert store.flush_to_tier()
    store.tier.retention.run()
    for topic, queue_id in written.queues():
        kept = {message.queue_offset for message in read_queue(store, topic, queue_id)}
        assert times_of(written, topic, queue_id).keys() <= kept


def test_there_is_a_golden_tier_with_ipv6_clients() -> None:
    assert IPV6_NAMES


def test_bug_11_rocketmqs_own_times_are_not_those_of_the_messages(written: WrittenTier) -> None:
    earliest_ms = min(fact["store_timestamp"] for fact in written.stored.values())
    rows = [row for row in decode_rocketmq_json(written.metadata, CLUSTER).segments if row.size]
    assert all(row.end_ms < earliest_ms for row in rows if row.key.type is not SegmentType.INDEX)


def test_every_message_is_read(written: WrittenTier, tmp_path: Path) -> None:
    with imported(written, tmp_path) as store:
        check_messages(store, written)


def test_keys_find_what_rocketmqs_retention_has_left_of_the_index(written: WrittenTier, tmp_path: Path) -> None:
    left = items_left(written)
    assert 0 < len(left) < len(keys_of_messages(written))
    with imported(written, tmp_path) as store:
        for topic, key in {(topic, key) for topic, key, *_ in keys_of_messages(written)}:
            found = {(hit.queue_id, hit.physical_offset) for hit in store.query(topic, key, max_messages=64).messages}
            assert found == {
                (queue_id, place)
                for name, other, queue_id, place in keys_of_messages(written)
                if (name, other) == (topic, key) and (index_hash(topic, key), queue_id, place) in left
            }


def keys_of_messages(written: WrittenTier) -> set[tuple[str, str, int, int]]:
    """Topic, key, queue id and place in the tier, of each key of each message."""
    return {
        (topic, key, queue_id, fact["physical_offset"])
        for (topic, queue_id, _), fact in written.stored.items()
        for key in (fact["properties"]["UNIQ_KEY"], *fact["properties"].get("KEYS", "").split())
    }


def items_left(written: WrittenTier) -> set[tuple[int, int, int]]:
    """Hash, queue id and place of each item of the index."""
    return {
        (item.key_hash, item.queue_id, item.tier_offset)
        for data in written.index_segments()
        for item in decode_run(data[len(data) - ITEM_BYTES * decode_header(data).item_count :])
    }


def test_a_restore_takes_the_times_from_the_records(written: WrittenTier, tmp_path: Path) -> None:
    with restored(written, tmp_path) as store:
        check_messages(store, written)
        check_true_times(store, written)


def test_retention_keeps_what_was_restored(written: WrittenTier, tmp_path: Path) -> None:
    with restored(written, tmp_path) as store:
        check_retention_keeps(store, written)


def test_an_import_corrects_times_that_cannot_be(written: WrittenTier, tmp_path: Path) -> None:
    with imported(written, tmp_path) as store:
        check_true_times(store, written)


def test_retention_keeps_what_was_imported(written: WrittenTier, tmp_path: Path) -> None:
    with imported(written, tmp_path) as store:
        check_retention_keeps(store, written)
