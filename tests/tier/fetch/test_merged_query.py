"""Messages by key over hot and cold: verified by their records, each once, in order, and never a silent part."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.simulated_files import SimulatedFileAccess
from tier.fetch.fetch_world import QUEUE_ID, TOPIC, FetchWorld, Mail, unit_of
from tiermq.errors import CorruptRecord, TierUnavailable
from tiermq.message.record import decode_record
from tiermq.message.stored_message import StoredMessage
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.fetch.merged_query import ColdRecords, keys_of, merge, query_cold
from tiermq.tier.index.index_query import Candidate, IndexHit, MessageKeys, QueryAnswer
from tiermq.tier.index.index_store import IndexSettings, IndexStore
from tiermq.tier.names import SegmentType

EVER = (0, 2**62)


def message(offset: int, store_ms: int = 1_000, queue_id: int = 0, body: bytes = b"") -> StoredMessage:
    return decode_record(Mail(store_ms=store_ms, body=body).record(offset, 0, TOPIC, queue_id))


def names(found: list[StoredMessage]) -> list[tuple[int, int, int]]:
    return [(one.store_timestamp_ms, one.queue_id, one.queue_offset) for one in found]


# Merging


def test_merged_results_are_ordered_by_time_queue_and_offset() -> None:
    local = [message(9, 300), message(5, 200, queue_id=1)]
    cold = [message(7, 200), message(1, 100), message(6, 200)]
    assert names(merge(local, cold, 10)) == [(100, 0, 1), (200, 0, 6), (200, 0, 7), (200, 1, 5), (300, 0, 9)]


def test_a_message_that_is_in_both_stores_appears_once_and_the_local_copy_wins() -> None:
    hot, cold = message(5, body=b"local"), message(5, body=b"cold!")
    assert [one.body for one in merge([hot], [cold], 10)] == [b"local"]


def test_the_newest_are_kept() -> None:
    assert names(merge([message(3, 3)], [message(1, 1), message(2, 2)], 2)) == [(2, 0, 2), (3, 0, 3)]
    assert merge([message(3)], [], 0) == []


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20)), max_size=20),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20)), max_size=20),
    st.integers(0, 30),
)
def test_a_merge_is_a_set_in_order_cut_at_its_old_end(
    local: list[tuple[int, int]], cold: list[tuple[int, int]], most: int
) -> None:
    def made(places: list[tuple[int, int]]) -> list[StoredMessage]:
        return [message(offset, 100 + offset // 2, queue_id) for queue_id, offset in places]

    everything = sorted({(100 + offset // 2, queue_id, offset) for queue_id, offset in local + cold})
    assert names(merge(made(local), made(cold), most)) == everything[max(0, len(everything) - most) :]


# Cold queries


class FixedIndex:
    """An index that answers what the test wants."""

    def __init__(self, answer: QueryAnswer) -> None:
        self.answer = answer
        self.asked: list[tuple[Any, ...]] = []

    def query(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int, *, topic_id: int | None = None
    ) -> QueryAnswer:
        self.asked.append((topic, key, max_count, begin_ms, end_ms))
        return self.answer

    def is_complete_for(self, topic: str) -> bool:
        return True


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def hit(world: FetchWorld, offset: int, store_ms: int = 1_000) -> IndexHit:
    file = world.queue()
    place, size, _ = unit_of(file, offset)
    return IndexHit(file.topic.id, QUEUE_ID, place, size, store_ms)


@pytest.fixture
def filled(world: FetchWorld) -> FetchWorld:
    world.write([Mail(keys=f"k{n % 2} all", store_ms=1_000 + n) for n in range(40)])
    return world


def test_hits_are_read_side_by_side_and_come_oldest_first(filled: FetchWorld, pool: ThreadPoolExecutor) -> None:
    index = FixedIndex(QueryAnswer([hit(filled, offset) for offset in (9, 3, 7)]))
    found = query_cold(index, ColdRecords(filled.files), pool, TOPIC, "k1", *EVER, 10)
    assert [one.queue_offset for one in found] == [3, 7, 9]
    assert index.asked == [(TOPIC, "k1", 10, *EVER)]


def test_bug_16_only_messages_with_the_key_and_within_the_time_are_answers(
    filled: FetchWorld, pool: ThreadPoolExecutor
) -> None:
    index = FixedIndex(QueryAnswer([hit(filled, offset) for offset in range(10)]))
    found = query_cold(index, ColdRecords(filled.files), pool, TOPIC, "k1", 1_003, 1_007, 10)
    assert [one.queue_offset for one in found] == [3, 5, 7]


def test_one_failing_read_fails_the_query(filled: FetchWorld, pool: ThreadPoolExecutor) -> None:
    index = FixedIndex(QueryAnswer([hit(filled, offset) for offset in (1, 3, 5)]))
    filled.driver.down = True
    with pytest.raises(TierUnavailable):
        query_cold(index, ColdRecords(filled.files), pool, TOPIC, "k1", *EVER, 10)


def test_a_failure_inside_the_index_fails_the_query(filled: FetchWorld, pool: ThreadPoolExecutor) -> None:
    answer = QueryAnswer([hit(filled, 1)], [TierUnavailable("gone")])
    with pytest.raises(TierUnavailable, match="gone"):
        query_cold(FixedIndex(answer), ColdRecords(filled.files), pool, TOPIC, "k1", *EVER, 10)


def test_a_damaged_record_is_an_error_that_names_its_place(filled: FetchWorld, pool: ThreadPoolExecutor) -> None:
    one = hit(filled, 3)
    filled.damage(SegmentType.COMMIT_LOG, one.tier_offset + 89, b"\xff")
    with pytest.raises(CorruptRecord, match=f"orders/3: record at tier offset {one.tier_offset}.*tier verify"):
        query_cold(FixedIndex(QueryAnswer([one])), ColdRecords(filled.files), pool, TOPIC, "k1", *EVER, 10)


def test_a_query_for_nothing_sends_no_request(filled: FetchWorld, pool: ThreadPoolExecutor) -> None:
    index = FixedIndex(QueryAnswer())
    assert query_cold(index, ColdRecords(filled.files), pool, TOPIC, "k", 5, 4, 10) == []
    assert query_cold(index, ColdRecords(filled.files), pool, TOPIC, "k", *EVER, 0) == []
    assert index.asked == []


# The records behind candidates


def candidate(world: FetchWorld, offset: int, **changes: Any) -> Candidate:
    one = hit(world, offset)
    made = Candidate(one.topic_id, one.queue_id, one.tier_offset, one.size, 0, 2**62)
    return made._replace(**changes)


def test_a_candidate_has_the_keys_and_the_time_of_its_message(filled: FetchWorld) -> None:
    records = ColdRecords(filled.files)
    assert records.fetch_keys(TOPIC, candidate(filled, 3)) == MessageKeys(["k1", "all", "u3"], 1_003)


def test_a_candidate_of_another_queue_or_another_life_of_the_topic_is_gone(filled: FetchWorld) -> None:
    records = ColdRecords(filled.files)
    assert records.fetch_keys("unknown", candidate(filled, 3)) is None
    assert records.fetch_keys(TOPIC, candidate(filled, 3, queue_id=77)) is None
    assert records.fetch_keys(TOPIC, candidate(filled, 3, topic_id=555)) is None


def test_a_candidate_beyond_the_log_is_gone_and_costs_nothing(filled: FetchWorld) -> None:
    beyond = candidate(filled, 3, tier_offset=1 << 40)
    filled.driver.reads.clear()
    assert ColdRecords(filled.files).fetch_keys(TOPIC, beyond) is None
    assert filled.driver.reads == []


def test_a_candidate_that_points_into_another_record_is_damage(filled: FetchWorld) -> None:
    with pytest.raises(CorruptRecord):
        ColdRecords(filled.files).fetch_keys(TOPIC, candidate(filled, 3, tier_offset=hit(filled, 3).tier_offset + 1))


def test_what_was_checked_is_not_read_again_but_memory_is_bounded(filled: FetchWorld) -> None:
    size = hit(filled, 3).size
    records = ColdRecords(filled.files, memo_bytes=2 * size + 10)
    filled.driver.reads.clear()
    for offset in (3, 4, 3, 4):
        records.fetch_keys(TOPIC, candidate(filled, offset))
    reads = len([key for key, _, _ in filled.driver.reads if key.type is SegmentType.COMMIT_LOG])
    assert reads == 2
    for offset in range(30):
        records.fetch_keys(TOPIC, candidate(filled, offset))
    assert len(records._memo) <= 2
    assert records._kept_bytes == sum(one.size for one in records._memo.values()) <= 2 * size + 10


def test_everything_a_message_can_be_found_by(filled: FetchWorld) -> None:
    assert keys_of(message(5)) == ["u5"]


def test_with_the_real_index_a_key_finds_its_messages_and_each_record_is_read_once(
    filled: FetchWorld, pool: ThreadPoolExecutor
) -> None:
    records = ColdRecords(filled.files)
    file = filled.queue()
    index = IndexStore(
        SimulatedFileAccess(), "/store", MemoryDriver(), filled.metadata, "DefaultCluster", "broker-a",
        settings=IndexSettings(slots=50, capacity=500, query_threads=0), fetch_keys=records.fetch_keys,
    )  # fmt: skip
    index.start(with_thread=False)
    for offset in range(40):
        one = hit(filled, offset)
        keys = [f"k{offset % 2}", "all", f"u{offset}"]
        index.put(TOPIC, file.topic.id, QUEUE_ID, keys, one.tier_offset, one.size, 1_000 + offset)
    filled.driver.reads.clear()
    found = query_cold(index, records, pool, TOPIC, "k1", 1_000, 1_020, 100)
    assert [one.queue_offset for one in found] == list(range(1, 21, 2))
    newest = query_cold(index, records, pool, TOPIC, "all", *EVER, 32)
    assert [one.queue_offset for one in newest] == list(range(8, 40))
    assert [one.queue_offset for one in query_cold(index, records, pool, TOPIC, "u17", *EVER, 9)] == [17]
    assert query_cold(index, records, pool, TOPIC, "unknown", *EVER, 9) == []
    places = [position for key, position, _ in filled.driver.reads if key.type is SegmentType.COMMIT_LOG]
    assert len(places) == len(set(places))
    index.close()
