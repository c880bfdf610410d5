"""The steps of the upkeep, one by one, and that the failure of one leaves the others their chance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tier.index.index_world import DIRECTORY, HOUR_MS, TINY, UpkeepRules, World, index_key, run_until_idle
from tiermq.errors import TierUnavailable
from tiermq.tier.index.compacted_index import IndexState
from tiermq.tier.index.index_coverage import CoverageRecord
from tiermq.tier.index.index_recovery import RECORD_NAME
from tiermq.tier.index.index_request import IndexRequest
from tiermq.tier.index.index_upkeep import live_segments
from tiermq.tier.metadata.metadata_values import NEVER_MS, Segment
from tiermq.tier.names import QueueKey


def record(world: World) -> CoverageRecord:
    return CoverageRecord.decode(world.access.read_bytes(f"{DIRECTORY}/{RECORD_NAME}"), RECORD_NAME)


def test_a_sync_without_a_change_writes_nothing() -> None:
    world = World()
    store = world.open()
    world.commit_and_put(store, "T", 0, "k")
    assert store._upkeep.sync() is True
    calls: list[str] = []
    world.access.on_call = lambda operation, path: calls.append(operation)
    assert store._upkeep.sync() is False
    assert calls == []


def test_files_are_synced_before_the_record_that_speaks_of_them() -> None:
    world = World()
    store = world.open()
    for _ in range(6):
        world.commit_and_put(store, "T", 0, "k")
    calls: list[str] = []
    world.access.on_call = lambda operation, path: calls.append(operation)
    store.sync()
    assert [call for call in calls if call in ("sync", "write_bytes")] == ["sync", "sync", "write_bytes", "write_bytes"]


def test_nothing_is_uploaded_before_it_is_recorded_as_indexed() -> None:
    world = World()
    store = world.open()
    store.run_once()
    for _ in range(6):
        world.commit_and_put(store, "T", 0, "k")
    recorded: list[int] = []
    world.driver.hook = lambda when, name: recorded.append(record(world).queues[0][3])
    assert store._upkeep.upload_next()
    assert set(recorded) == {600}


def test_the_companion_reports_what_was_indexed_when_the_file_was_sealed() -> None:
    world = World()
    store = world.open()
    for _ in range(8):
        world.commit_and_put(store, "T", 0, "k")
    run_until_idle(store)
    remote = store._table.entries()[0].remote
    assert remote is not None
    companion = remote.companion()
    assert companion is not None
    assert companion.queues[0][3] == 500


def test_a_failed_upload_is_counted_and_the_record_is_written_all_the_same() -> None:
    world = World()
    store = world.open()
    store.run_once()
    for _ in range(6):
        world.commit_and_put(store, "T", 0, "k")

    def refuse(when: str, name: str) -> None:
        raise TierUnavailable("down")

    world.driver.hook = refuse
    assert store.run_once() > 0
    assert store.counts.failures == 1
    assert record(world).queues[0][3] == 600
    world.driver.hook = None
    run_until_idle(store)
    assert store.counts.uploaded == 1


def test_a_long_hole_is_filled_in_pieces_that_let_other_work_pass() -> None:
    world = World(settings=replace(TINY, capacity=100, rules=UpkeepRules(fill_count=10)))
    for _ in range(25):
        world.commit("T", 0, "k")
    store = world.open()
    assert [store.run_once() for _ in range(2)] == [0.0, 0.0]
    assert store.hole_count == 1
    run_until_idle(store)
    assert store.hole_count == 0
    assert world.indexed_items(store) == world.expected_items()


def test_a_queue_that_cannot_be_read_back_does_not_keep_others_out() -> None:
    world = World()
    world.commit("bad", 0, "k")
    world.commit("good", 0, "k")
    store = world.open()
    read = world.rebuild

    def rebuild(queue: QueueKey, offset: int) -> Iterator[IndexRequest]:
        if queue.topic == "bad":
            raise TierUnavailable("down")
        return read(queue, offset)

    store._upkeep._rebuild = rebuild
    store.run_once()
    assert (store.hole_count, store.counts.filled, store.counts.failures) == (1, 1, 1)
    store._upkeep._rebuild = read
    store.run_once()
    assert world.indexed_items(store) == world.expected_items()


def test_bug_26_rows_of_segments_that_never_got_a_byte_are_passed_over() -> None:
    world = World()
    world.rows.put_segment(Segment(index_key(), 0, begin_ms=NEVER_MS, end_ms=NEVER_MS))
    assert live_segments(world.rows, index_key().queue) == []
    store = world.open()
    assert store.states() == []
    world.commit_and_put(store, "T", 0, "k")
    store.seal()
    run_until_idle(store)
    assert [(key.base, row.size) for key, row in world.rows.rows.items()] == [(0, 28 + 40 + 28)]
    store.close()
    world.clock.advance_ms(1000 * HOUR_MS)
    assert world.open().expire() == 1


def test_bug_26_an_empty_file_that_was_sealed_is_deleted_and_not_uploaded() -> None:
    world = World()
    store = world.open()
    store.run_once()
    world.commit_and_put(store, "T", 0, "k")
    file = store._table.entries()[0].local
    assert file is not None
    file._write_header(0, 0, 0)
    store.seal()
    assert store._upkeep.upload_next()
    assert (store.states(), world.rows.rows, world.driver.calls["write"]) == ([], {}, 0)


def test_a_file_whose_companion_cannot_be_asked_for_does_not_expire() -> None:
    world = World()
    store = world.open()
    for _ in range(6):
        world.commit_and_put(store, "T", 0, "k")
    run_until_idle(store)
    store.close()
    store = world.open()
    world.clock.advance_ms(1000 * HOUR_MS)

    def refuse(when: str, name: str) -> None:
        raise TierUnavailable("down")

    world.driver.hook = refuse
    with pytest.raises(TierUnavailable):
        store.expire()
    assert IndexState.UPLOAD in [state for _, state in store.states()]


def test_a_file_of_rocketmq_s_expires_by_the_longest_retention_of_all() -> None:
    world = World()
    store = world.open()
    for _ in range(6):
        world.commit_and_put(store, "T", 0, "k")
    run_until_idle(store)
    for name in world.driver.inner.list_objects():
        world.driver.inner.delete_object(name)  # RocketMQ writes no companion.
    store.close()
    world.kept_ms = {1: 500 * HOUR_MS, 2: HOUR_MS}
    store = world.open()
    world.clock.advance_ms(499 * HOUR_MS)
    assert store.expire() == 0
    world.clock.advance_ms(2 * HOUR_MS)
    assert store.expire() == 1
