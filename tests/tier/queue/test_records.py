"""One record through its unit: whole, by its head alone, and of its own queue."""

from __future__ import annotations

import pytest

from tier.metadata.metadata_samples import QUEUE, log_key
from tier.metadata.tier_samples import CODA, record, time_of
from tiermq.errors import CorruptRecord, CorruptSegment
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.metadata.metadata_values import Segment
from tiermq.tier.queue.records import PEEK_BYTES, peek_store_ms, record_of
from tiermq.tier.queue.units import Unit


def tier_with(*pieces: bytes) -> tuple[MemoryDriver, Segment]:
    driver = MemoryDriver()
    driver.write(log_key(1000), 0, list(pieces))
    return driver, Segment(log_key(1000), sum(map(len, pieces)))


@pytest.mark.parametrize("v6", [False, True])
def test_bug_11_the_store_time_is_found_behind_hosts_of_any_length(v6: bool) -> None:
    raw = record(6, 1000, b"x" * 100_000, v6=v6)
    assert peek_store_ms(*tier_with(raw), Unit(6, 1000, len(raw))) == time_of(6)
    assert 112 + len(CODA) == PEEK_BYTES


def test_an_end_mark_before_the_record_is_skipped() -> None:
    raw = record(6, 1016)
    assert peek_store_ms(*tier_with(CODA, raw), Unit(6, 1000, len(raw))) == time_of(6)


@pytest.mark.parametrize(
    ("queue_offset", "log_offset", "size_change"), [(7, 1000, 0), (6, 1001, 0), (6, 1000, 1), (6, 1090, 0)]
)
def test_another_record_than_the_promised_one_is_refused(queue_offset: int, log_offset: int, size_change: int) -> None:
    raw = record(6, 1000)
    with pytest.raises(CorruptSegment, match=f"record of queue offset {queue_offset}"):
        peek_store_ms(*tier_with(raw), Unit(queue_offset, log_offset, len(raw) + size_change))


@pytest.mark.parametrize("other", [("another topic", QUEUE.queue_id), (QUEUE.topic, QUEUE.queue_id + 1)])
def test_a_record_of_another_topic_or_queue_is_damage(other: tuple[str, int]) -> None:
    raw = record(6, 1000)
    unit = Unit(6, 1000, len(raw))
    assert record_of(unit, raw, 1000, (QUEUE.topic, QUEUE.queue_id))[1].body == b"hello"
    with pytest.raises(CorruptRecord, match=f"a record of queue {QUEUE.queue_id} of topic '{QUEUE.topic}'"):
        record_of(unit, raw, 1000, other)
