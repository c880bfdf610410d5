"""Asking by key: overlapping files, true hits only, in order, at the lowest cost."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from tier.index.index_world import EVER, NOW_MS, TINY, World, run_until_idle
from tiermq.errors import SegmentMissing, TierMQError, TierUnavailable
from tiermq.tier.index.compacted_index import IndexState
from tiermq.tier.index.index_query import Candidate, IndexHit, MessageKeys, QueryPool
from tiermq.tier.index.index_store import IndexStore

TEN_FILES = replace(TINY, capacity=4)


def offsets(store: IndexStore, key: str, max_count: int, begin_ms: int = 0, end_ms: int = EVER[1]) -> list[int]:
    answer = store.query("T", key, max_count, begin_ms, end_ms)
    assert answer.is_complete
    return [hit.tier_offset for hit in answer.hits]


def ten_files(threads: int = 0) -> tuple[World, IndexStore]:
    """Ten files, all but the newest uploaded; message n of queue 0 has the keys `k` and `kn`, at offset 100*n."""
    world = World(settings=replace(TEN_FILES, query_threads=threads))
    store = world.open()
    for n in range(10):
        world.commit_and_put(store, "T", 0, "k", f"k{n}")
        if n < 9:
            store.seal()
    run_until_idle(store)
    assert [state for _, state in store.states()] == [IndexState.UPLOAD] * 9 + [IndexState.UNSEALED]
    return world, store


def test_at_most_as_many_as_asked_for_come_and_all_when_there_are_fewer() -> None:
    _, store = ten_files()
    assert [len(offsets(store, "k", count)) for count in (0, 1, 3, 5, 10, 15)] == [0, 1, 3, 5, 10, 10]
    assert offsets(store, "k", 3) == [900, 800, 700]


def test_queries_from_many_threads_get_the_same_answers() -> None:
    _, store = ten_files(threads=4)
    found: list[list[int]] = []
    threads = [threading.Thread(target=lambda n=n: found.append(offsets(store, "k", n))) for n in (5, 10, 15) * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(len, found)) == [5] * 4 + [10] * 8


def test_bug_10_a_window_that_does_not_hold_the_creation_of_a_file_finds_what_is_in_it() -> None:
    world, store = ten_files()
    for n, request in enumerate(world.committed["T", 0]):
        assert request.store_ms < store.states()[n][0]  # Stored before its file was made, as always.
        assert offsets(store, f"k{n}", 9, request.store_ms, request.store_ms) == [100 * n]
        assert offsets(store, f"k{n}", 9, request.store_ms + 1, EVER[1]) == []
        assert offsets(store, f"k{n}", 9, 0, request.store_ms - 1) == []


def test_messages_far_older_than_their_file_are_found_by_their_own_time() -> None:
    world = World(delete_enabled=False)
    store = world.open()
    request = world.commit("T", 0, "k")._replace(store_ms=1_500_000_000_000)
    world.committed["T", 0] = [request]
    store.put_request(request)
    store.seal()
    run_until_idle(store)
    assert offsets(store, "k", 9, 1_500_000_000_000, 1_500_000_000_000) == [0]
    store.close()
    assert offsets(world.open(), "k", 9, 1_500_000_000_000, 1_500_000_000_000) == [0]


def test_files_outside_the_window_are_not_asked() -> None:
    world, store = ten_files()
    assert len(offsets(store, "k", 99)) == 10  # Everything that is remembered is remembered now.
    request = world.committed["T", 0][4]
    world.driver.calls.clear()
    assert offsets(store, "k", 99, request.store_ms, request.store_ms) == [400]
    assert world.driver.calls["read"] == 1  # Of 14 items: they are fewer than a slot and its run are worth.


def test_a_small_limit_over_all_times_asks_few_files() -> None:
    world = World(settings=TEN_FILES)
    store = world.open()
    for n in range(40):
        world.commit_and_put(store, "T", 0, "k")
        store.seal()
        assert n >= 0
    run_until_idle(store)
    world.driver.calls.clear()
    assert offsets(store, "k", 2) == [3900, 3800]
    assert world.driver.calls["read"] <= 8 * 3


def test_collisions_are_not_answers() -> None:
    world = World()
    store = world.open()
    world.commit_and_put(store, "T", 0, "Aa")
    world.commit_and_put(store, "T", 0, "BB")  # The same Java hash.
    assert (offsets(store, "Aa", 9), offsets(store, "BB", 9)) == ([0], [100])


def test_collisions_do_not_use_up_the_limit() -> None:
    world = World(settings=replace(TINY, capacity=200))
    store = world.open()
    world.commit_and_put(store, "T", 0, "Aa")
    for _ in range(100):
        world.commit_and_put(store, "T", 0, "BB")
    assert offsets(store, "Aa", 1) == [0]
    store.seal()
    run_until_idle(store)
    assert offsets(store, "Aa", 1) == [0]


def test_messages_that_expired_are_not_answers() -> None:
    world, store = ten_files()
    del world.committed["T", 0][:5]
    assert offsets(store, "k", 99) == [900, 800, 700, 600, 500]


def test_an_item_that_is_in_two_files_is_one_answer() -> None:
    world = World()
    store = world.open()
    request = world.commit_and_put(store, "T", 0, "k")
    store.seal()
    store.forget_queue("T", 0)
    store.put_request(request)
    assert offsets(store, "k", 9) == [0]


def test_answers_are_in_order_of_store_time_then_offset_newest_first() -> None:
    world = World(settings=replace(TINY, capacity=50))
    store = world.open()
    times = [500, 100, 900, 900, 300]
    for queue_id, plus_ms in enumerate(times):
        request = world.commit("T", queue_id, "k", size=10 + queue_id)._replace(store_ms=NOW_MS + plus_ms)
        request = request._replace(tier_offset=queue_id)
        world.committed["T", queue_id] = [request]
        store.put_request(request)
    hits = store.query("T", "k", 9, *EVER).hits
    assert [hit.store_ms - NOW_MS for hit in hits] == [900, 900, 500, 300, 100]
    assert [hit.tier_offset for hit in hits] == [3, 2, 0, 4, 1]
    assert hits[0] == IndexHit(7, 3, 3, 13, NOW_MS + 900)
    # Cut to whole seconds they all look alike; the limit is by the true time nevertheless.
    assert [hit.tier_offset for hit in store.query("T", "k", 2, *EVER).hits] == [3, 2]


def test_a_key_of_very_many_messages_in_one_second_costs_few_reads_of_messages() -> None:
    world = World(settings=replace(TINY, capacity=2000))
    store = world.open()
    for n in range(1000):
        store.put("T", 7, 0, ["k"], n, 1, NOW_MS)
    reads: list[int] = []

    def fetch(topic: str, candidate: Candidate) -> MessageKeys:
        reads.append(candidate.tier_offset)
        return MessageKeys(["k"], NOW_MS)

    store._fetch_keys = fetch
    assert offsets(store, "k", 4) == [999, 998, 997, 996]
    assert len(reads) <= 4 + 32


def test_a_window_that_ends_before_it_begins_is_empty() -> None:
    _, store = ten_files()
    assert offsets(store, "k", 9, 10, 9) == []


def test_a_file_that_cannot_be_read_makes_the_answer_incomplete_and_reports_so() -> None:
    world, store = ten_files()
    world.driver.inner.delete(next(iter(world.rows.rows)))
    answer = store.query("T", "k", 99, *EVER)
    assert [type(failure) for failure in answer.failures] == [SegmentMissing]
    assert [hit.tier_offset for hit in answer.hits] == [900, 800, 700, 600, 500, 400, 300, 200, 100]


def test_a_message_that_cannot_be_read_makes_the_answer_incomplete_and_reports_so() -> None:
    world, store = ten_files()

    def fetch(topic: str, candidate: Candidate) -> MessageKeys | None:
        if candidate.tier_offset == 300:
            raise TierUnavailable("down")
        return world.fetch_keys(topic, candidate)

    store._fetch_keys = fetch
    answer = store.query("T", "k", 99, *EVER)
    assert (len(answer.hits), len(answer.failures), answer.is_complete) == (9, 1, False)


def test_a_file_that_expires_while_it_is_asked_is_no_failure() -> None:
    world, store = ten_files()
    victim = store._table.entries()[0]

    def expire(when: str, name: str) -> None:
        if victim.state is IndexState.UPLOAD:
            store._table.drop(victim)
            assert victim.remote is not None
            world.driver.inner.delete(victim.remote.key)

    world.driver.hook = expire
    assert 0 not in offsets(store, "k", 99)


def test_without_verification_candidates_are_returned_as_they_are() -> None:
    world = World(verify=False)
    store = world.open()
    world.commit_and_put(store, "T", 0, "Aa")
    assert offsets(store, "BB", 9) == [0]


@pytest.mark.parametrize("threads", [0, 3])
def test_the_pool_returns_errors_in_their_place(threads: int) -> None:
    pool = QueryPool(threads)
    failure = TierUnavailable("x")

    def fail() -> int:
        raise failure

    answers: list[int | TierMQError] = pool.run([lambda: 1, fail, lambda: 3])
    assert answers == [1, failure, 3]
    pool.close()
