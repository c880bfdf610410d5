"""The index as a whole: states, putting, querying, rolling, uploading, expiring, closing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from servers.faulty_driver import Down, FaultyDriver
from simulation.simulated_files import SimulatedFileAccess
from tier.index.index_world import (
    BROKER,
    CLUSTER,
    DIRECTORY,
    EVER,
    HOUR_MS,
    NOW_MS,
    TINY,
    UpkeepRules,
    World,
    index_key,
    items_of,
    run_until_idle,
)
from tiermq.errors import DiskFull, StoreClosed, StoreDamaged, TierUnavailable
from tiermq.files.os_file_access import OsFileAccess
from tiermq.tier.driver.posix import PosixDriver
from tiermq.tier.index.compacted_index import IndexState
from tiermq.tier.index.index_recovery import RECORD_NAME
from tiermq.tier.index.index_request import IndexRequest, PutOutcome
from tiermq.tier.index.index_store import IndexSettings, IndexStore
from tiermq.tier.names import QueueKey

UNSEALED, SEALED, UPLOAD = IndexState.UNSEALED, IndexState.SEALED, IndexState.UPLOAD


@pytest.fixture
def world() -> World:
    return World()


def states(store: IndexStore) -> list[IndexState]:
    return [state for _, state in store.states()]


def offsets(store: IndexStore, key: str, max_count: int = 64, topic: str = "T") -> list[int]:
    answer = store.query(topic, key, max_count, *EVER)
    assert answer.is_complete
    return [hit.tier_offset for hit in answer.hits]


def test_a_message_is_found_by_each_of_its_keys_and_by_no_other(world: World) -> None:
    store = world.open()
    world.commit_and_put(store, "T", 0, "a", "b")
    world.commit_and_put(store, "T", 0, "b")
    assert (offsets(store, "a"), offsets(store, "b"), offsets(store, "c")) == ([0], [100, 0], [])
    assert offsets(store, "a", topic="U") == []


def test_a_blank_topic_is_an_error_and_no_keys_are_a_success(world: World) -> None:
    store = world.open()
    assert store.put("", 1, 0, ["k"], 0, 10, NOW_MS) is PutOutcome.ILLEGAL_REQUEST
    assert store.put("  ", 1, 0, ["k"], 0, 10, NOW_MS) is PutOutcome.ILLEGAL_REQUEST
    assert store.put("T", 1, 0, [], 0, 10, NOW_MS) is PutOutcome.SUCCESS
    assert store.states() == []  # No file for nothing.


@pytest.mark.parametrize(("queue_id", "offset", "size"), [(-1, 0, 10), (0, -1, 10), (0, 0, 0), (0, 0, 2**31)])
def test_values_that_no_item_can_hold_are_refused(world: World, queue_id: int, offset: int, size: int) -> None:
    store = world.open()
    assert store.put("T", 1, queue_id, ["k"], offset, size, NOW_MS) is PutOutcome.ILLEGAL_REQUEST


def test_a_message_with_more_keys_than_a_file_has_room_is_refused_and_the_next_one_is_taken(world: World) -> None:
    store = world.open()
    assert store.put("T", 1, 0, [f"k{n}" for n in range(6)], 0, 10, NOW_MS) is PutOutcome.ILLEGAL_REQUEST
    assert store.put("T", 1, 0, [f"k{n}" for n in range(5)], 10, 10, NOW_MS) is PutOutcome.SUCCESS


def test_a_failing_disk_is_an_error_and_the_put_can_be_repeated(world: World) -> None:
    store = world.open()
    request = world.commit("T", 0, "k")
    world.access.capacity_bytes = 0
    with pytest.raises(DiskFull):
        store.put_request(request)
    world.access.capacity_bytes = None
    assert store.put_request(request) is PutOutcome.SUCCESS
    assert offsets(store, "k") == [0]


def test_fifty_puts_into_files_of_nineteen_make_three_files() -> None:
    world = World(settings=replace(TINY, capacity=20))
    store = world.open()
    for n in range(50):
        world.commit_and_put(store, "T", 0, f"k{n}")
    assert states(store) == [SEALED, SEALED, UNSEALED]
    assert [len(offsets(store, f"k{n}")) for n in range(50)] == [1] * 50


def test_two_uploads_move_the_states_and_then_nothing_is_left() -> None:
    world = World(settings=replace(TINY, capacity=20))
    store = world.open()
    for n in range(50):
        world.commit_and_put(store, "T", 0, f"k{n}")
    assert store.run_once() == 0.0
    assert states(store) == [UPLOAD, SEALED, UNSEALED]
    assert store.run_once() == 0.0
    assert states(store) == [UPLOAD, UPLOAD, UNSEALED]
    assert store.run_once() > 0
    assert states(store) == [UPLOAD, UPLOAD, UNSEALED]
    assert [len(offsets(store, f"k{n}")) for n in range(50)] == [1] * 50
    assert [row.key.base for row in world.rows.rows.values()] == [0, 28 + 8 * 5 + 28 * 19]
    local = {info.name for info in world.access.list_files(DIRECTORY)}
    assert local == {str(store.states()[-1][0]), "coverage.tiermq.json"}
    assert world.access.list_files(DIRECTORY + "/compacting") == []


def test_the_thread_does_the_same_by_itself() -> None:
    world = World(settings=replace(TINY, capacity=20))
    store = world.open()
    for n in range(50):
        world.commit_and_put(store, "T", 0, f"k{n}")
    store._thread.start()
    assert store.close(60.0)
    assert len(world.rows.rows) == 2
    assert states(world.open()) == [UPLOAD, UPLOAD, UNSEALED]


def test_puts_from_many_threads_are_all_there_once(world: World) -> None:
    world.settings = IndexSettings(slots=5, capacity=2000, query_threads=0)
    store = world.open()

    def put_queue(queue_id: int) -> None:
        for n in range(500):
            assert store.put("T", 7, queue_id, [f"k{n}"], n * 10, 10, NOW_MS) is PutOutcome.SUCCESS

    threads = [threading.Thread(target=put_queue, args=(queue_id,)) for queue_id in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert states(store) == [SEALED, SEALED, UNSEALED]
    places = [(item.queue_id, item.tier_offset) for item in items_of(store)]
    assert sorted(places) == [(queue_id, n * 10) for queue_id in range(10) for n in range(500)]


def test_a_repeated_put_changes_nothing(world: World) -> None:
    store = world.open()
    first = world.commit_and_put(store, "T", 0, "k")
    world.commit_and_put(store, "T", 0, "k")
    assert store.put_request(first) is PutOutcome.ALREADY_INDEXED
    assert offsets(store, "k") == [100, 0]


def test_a_topic_made_again_begins_at_offset_0_and_its_old_items_are_distinguished(world: World) -> None:
    store = world.open()
    world.commit_and_put(store, "T", 0, "k", topic_id=1)
    world.commit_and_put(store, "T", 0, "k", topic_id=1)
    world.committed.clear()
    world.commit_and_put(store, "T", 0, "k", topic_id=2)
    assert [hit.tier_offset for hit in store.query("T", "k", 9, *EVER, topic_id=2).hits] == [0]


def test_a_forgotten_queue_may_begin_at_offset_0_again(world: World) -> None:
    store = world.open()
    first = world.commit_and_put(store, "T", 0, "k")
    store.forget_queue("T", 0)
    assert store.put_request(first) is PutOutcome.SUCCESS


def test_expiry_at_the_end_timestamp_keeps_a_file_and_one_later_removes_it(world: World) -> None:
    store = world.open()
    for _ in range(6):
        world.commit_and_put(store, "T", 0, "k")
    run_until_idle(store)
    end_ms = world.rows.rows[index_key()].end_ms
    world.clock.set_ms(end_ms + 72 * HOUR_MS)
    assert (store.expire(), states(store)) == (0, [UPLOAD, UNSEALED])
    world.clock.advance_ms(1)
    assert (store.expire(), states(store)) == (1, [UNSEALED])
    assert world.rows.rows == {}
    assert world.driver.inner.size(index_key()) == 0
    assert world.driver.inner.list_objects() == []


def test_gap_11_a_file_stays_as_long_as_the_topic_with_the_longest_retention_needs_it(world: World) -> None:
    store = world.open()
    world.kept_ms = {1: HOUR_MS, 2: 100 * HOUR_MS}
    for n in range(6):
        world.commit_and_put(store, "short" if n else "long", 0, "k", topic_id=1 if n else 2)
    run_until_idle(store)
    world.clock.advance_ms(99 * HOUR_MS)
    assert store.expire() == 0
    world.clock.advance_ms(2 * HOUR_MS)
    assert store.expire() == 1


def test_gap_11_a_file_of_short_lived_topics_goes_before_the_global_time(world: World) -> None:
    store = world.open()
    world.kept_ms = {1: HOUR_MS}
    for _ in range(6):
        world.commit_and_put(store, "T", 0, "k", topic_id=1)
    run_until_idle(store)
    world.clock.advance_ms(2 * HOUR_MS)
    assert store.expire() == 1


def test_gap_11_nothing_expires_while_deletion_is_switched_off(world: World) -> None:
    store = world.open()
    for _ in range(6):
        world.commit_and_put(store, "T", 0, "k")
    run_until_idle(store)
    world.clock.advance_ms(1000 * HOUR_MS)
    world.delete_enabled = False
    assert store.expire() == 0
    world.delete_enabled = True
    assert store.expire() == 1


def test_bug_25_when_all_files_expired_no_query_asks_them(world: World) -> None:
    store = world.open()
    for _ in range(5):
        world.commit_and_put(store, "T", 0, "k")
    store.seal()
    run_until_idle(store)
    world.clock.advance_ms(1000 * HOUR_MS)
    assert store.expire() == 1
    world.driver.calls.clear()
    assert offsets(store, "k") == []
    assert world.driver.calls["read"] == 0


def test_after_everything_expired_no_base_is_used_again(world: World) -> None:
    store = world.open()
    for _ in range(2):
        world.commit_and_put(store, "T", 0, "k")
        store.seal()
        run_until_idle(store)
        size = next(iter(world.rows.rows.values())).size
        world.clock.advance_ms(1000 * HOUR_MS)
        assert store.expire() == 1
        store.close()
        store = world.open()
    world.commit_and_put(store, "T", 0, "k")
    store.seal()
    run_until_idle(store)
    assert [key.base for key in world.rows.rows] == [2 * size]


def test_a_half_finished_expiry_is_finished_by_the_next(world: World) -> None:
    store = world.open()
    for _ in range(6):
        world.commit_and_put(store, "T", 0, "k")
    run_until_idle(store)
    world.clock.advance_ms(1000 * HOUR_MS)

    def refuse(when: str, name: str) -> None:
        if name == "delete":
            raise TierUnavailable("down")

    world.driver.hook = refuse
    with pytest.raises(TierUnavailable):
        store.expire()
    assert states(store) == [UNSEALED]
    world.driver.hook = None
    store.close()
    store = world.open()
    assert states(store) == [UNSEALED]
    store.expire()
    assert (world.rows.rows, world.driver.inner.size(index_key())) == ({}, 0)


def test_gap_15_a_quiet_file_is_sealed_when_it_outlives_its_messages_and_a_busy_one_after_a_day(world: World) -> None:
    world.settings = replace(TINY, capacity=50, rules=UpkeepRules(roll_items_min=10))
    store = world.open()
    world.commit_and_put(store, "T", 0, "k")
    world.clock.advance_ms(25 * HOUR_MS)
    store.run_once()
    assert states(store) == [UNSEALED]
    world.clock.advance_ms(48 * HOUR_MS)
    run_until_idle(store)
    assert UNSEALED not in states(store)
    for _ in range(10):
        world.commit_and_put(store, "T", 0, "k")
    world.clock.advance_ms(25 * HOUR_MS)
    world.delete_enabled = False
    run_until_idle(store)
    assert UNSEALED not in states(store)


def test_bug_20_close_gives_up_on_a_back_end_that_is_down_and_the_next_life_goes_on(world: World) -> None:
    healthy = world.driver
    world.driver = FaultyDriver(healthy, Down())  # type: ignore[assignment]
    store = world.open()
    for _ in range(11):
        world.commit_and_put(store, "T", 0, "k")
    assert store.close() is False
    world.driver = healthy
    store = world.open()
    assert states(store) == [SEALED, SEALED, UNSEALED]
    run_until_idle(store)
    assert states(store) == [UPLOAD, UPLOAD, UNSEALED]
    assert len(offsets(store, "k")) == 11


def test_bug_20_close_does_not_wait_for_an_upload_that_hangs(world: World) -> None:
    hanging, release = threading.Event(), threading.Event()

    def hang(when: str, name: str) -> None:
        if (when, name) == ("before", "write"):
            hanging.set()
            release.wait()

    store = world.open(with_thread=True)
    world.driver.hook = hang
    for _ in range(6):
        world.commit_and_put(store, "T", 0, "k")
    store._thread.wake()
    hanging.wait()
    assert store.close(0.0) is False
    release.set()
    thread = store._thread._thread
    assert thread is not None
    thread.join()
    world.driver.hook = None
    assert world.rows.rows == {}  # What came too late was left for the next life.
    store = world.open()
    run_until_idle(store)
    assert world.indexed_items(store) == world.expected_items()
    assert states(store) == [UPLOAD, UNSEALED]


def test_close_can_upload_the_open_file_too_as_rocketmq_does(world: World) -> None:
    store = world.open()
    world.commit_and_put(store, "T", 0, "k")
    assert store.close(upload_open=True)
    store = world.open()
    assert states(store) == [UPLOAD]
    assert offsets(store, "k") == [0]


def test_a_closed_index_refuses(world: World) -> None:
    store = world.open()
    store.close()
    assert store.close()
    assert store.put_request(IndexRequest("T", 1, 0, ["k"], 0, 1, NOW_MS)) is PutOutcome.SHUTDOWN
    with pytest.raises(StoreClosed):
        store.query("T", "k", 1, *EVER)


def test_restarting_adds_no_segment_and_no_file(world: World) -> None:
    store = world.open()
    world.commit_and_put(store, "T", 0, "k")
    before = store.states()
    for _ in range(3):
        store.close()
        store = world.open()
        run_until_idle(store)
    assert store.states() == before
    assert world.rows.rows == {}


def test_start_asks_nothing_of_a_back_end_that_is_down(world: World) -> None:
    store = world.open()
    for _ in range(6):
        world.commit_and_put(store, "T", 0, "k")
    run_until_idle(store)
    store.close()
    healthy = world.driver
    world.driver = FaultyDriver(healthy, Down())  # type: ignore[assignment]
    store = world.open()
    world.commit_and_put(store, "T", 0, "k")
    answer = store.query("T", "k", 64, *EVER)
    assert not answer.is_complete
    assert [hit.tier_offset for hit in answer.hits] == [600, 500]  # What is local is found all the same.
    assert store.run_once() > 0


def test_a_shape_whose_positions_do_not_fit_is_refused(world: World) -> None:
    world.settings = IndexSettings(slots=5_000_000, capacity=80_000_000)
    with pytest.raises(StoreDamaged, match="tieredStoreIndexFileMaxIndexNum"):
        world.open(start=False)


def test_puts_queries_and_uploads_at_the_same_time_on_real_files(tmp_path: Path) -> None:
    settings = IndexSettings(slots=7, capacity=101, query_threads=3, upload_chunk_bytes=1000)
    world = World(settings=settings)
    store = IndexStore(
        OsFileAccess(), str(tmp_path / "store"), PosixDriver(tmp_path / "tier"), world.rows, CLUSTER, BROKER,
        settings=settings, is_delete_enabled=lambda: False,
    )  # fmt: skip
    store.start()
    misses: list[str] = []

    def put_and_ask(queue_id: int) -> None:
        for n in range(400):
            assert store.put("T", 7, queue_id, [f"{queue_id}-{n}"], n * 10, 10, NOW_MS + n) is PutOutcome.SUCCESS
            for old in (n, n // 2):
                answer = store.query("T", f"{queue_id}-{old}", 1, *EVER, topic_id=7)
                if [hit.tier_offset for hit in answer.hits] != [old * 10]:
                    misses.append(f"{queue_id}-{old}: {answer}")
            if n % 100 == 0:
                store._thread.wake()

    threads = [threading.Thread(target=put_and_ask, args=(queue_id,)) for queue_id in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert misses == []
    assert store.close(60.0, upload_open=True)
    assert sum(row.size - 28 - 56 for row in world.rows.rows.values()) == 28 * 1600
    assert [info.name for info in OsFileAccess().list_files(str(tmp_path / "store/tiered_index_file"))] == [RECORD_NAME]


def test_an_index_of_rocketmqs_is_not_taken_for_complete_and_a_reindex_finds_what_it_dropped(world: World) -> None:
    store = world.open()
    kept = [world.commit_and_put(store, "T", 0, "kept").tier_offset for _ in range(4)]
    dropped = world.commit("T", 0, "dropped").tier_offset
    store.seal()
    run_until_idle(store)
    store.close()
    for name in world.driver.inner.list_objects():
        world.driver.inner.delete_object(name)  # RocketMQ writes no companion,
    world.access = SimulatedFileAccess()  # and nothing local that we would know.
    store = world.open()
    run_until_idle(store)
    assert (store.hole_count, store.is_complete, store.is_complete_for("T")) == (0, False, False)
    assert store.is_complete_for("another topic")
    assert offsets(store, "dropped") == []
    assert store.reindex() == 1
    assert store.hole_count > 0
    run_until_idle(store)
    assert (store.is_complete, store.is_complete_for("T"), store.reindex()) == (True, True, 0)
    assert offsets(store, "dropped") == [dropped]
    assert offsets(store, "kept") == kept[::-1], "each once, though two files have it"
    store.close()
    with pytest.raises(StoreClosed):
        store.reindex()


def test_an_upkeep_that_outlives_the_close_claims_no_keys_whose_file_it_does_not_list(world: World) -> None:
    asked, go = threading.Event(), threading.Event()

    def hang(when: str, name: str) -> None:
        if (when, name) == ("before", "size"):  # The first question of a new index: what does the tier hold?
            asked.set()
            go.wait()

    world.driver.hook = hang
    store = world.open(with_thread=True)
    asked.wait()
    for n in range(4):
        world.commit_and_put(store, "T", 0, f"k{n}")
    assert store.close(timeout_s=0)
    go.set()
    thread = store._thread._thread
    assert thread is not None
    thread.join()
    world.driver.hook = None
    again = world.open()
    run_until_idle(again)
    assert world.indexed_items(again) == world.expected_items()
    assert [offsets(again, f"k{n}") for n in range(4)] == [[0], [100], [200], [300]]
    assert again.is_complete


def test_a_hole_that_is_being_filled_when_the_index_closes_is_still_there_at_the_next_start(world: World) -> None:
    world.open().close()
    for n in range(6):
        world.commit("T", 0, f"k{n}")
    read_back = world.rebuild

    def closing(queue: QueueKey, from_offset: int) -> Iterator[IndexRequest]:
        for request in read_back(queue, from_offset):
            yield request
            store._table.refuse_puts()  # What `close` begins with.

    world.rebuild = closing  # type: ignore[method-assign]
    store = world.open()
    store.run_once()
    assert store.hole_count == 1
    store.close()
    world.rebuild = read_back  # type: ignore[method-assign]
    again = world.open()
    run_until_idle(again)
    assert world.indexed_items(again) == world.expected_items()
    assert again.is_complete
