"""One task, run by hand: how far it goes, what it says, and that it can be run again."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.offload.offload_world import SMALL, OffloadWorld, fill
from tiermq.clock import SystemClock
from tiermq.errors import TierUnavailable
from tiermq.history.scan_values import StorePlace
from tiermq.pipeline.index_build import StagedKeys
from tiermq.pipeline.offload.broker import OffloadBroker
from tiermq.pipeline.offload.origin import StoreOrigin
from tiermq.pipeline.offload.plan import OffloadSettings, OffloadTask, QueueCommit, Stop, cut
from tiermq.pipeline.offload.task import run_offload_task
from tiermq.pipeline.worker_cache import driver_of
from tiermq.tier.tier_config import TierConfig

HUGE = OffloadSettings()


class TaskWorld(OffloadWorld):
    """A broker that has planned, and the task of its first queue."""

    def __init__(self, root: Path, **config: Any) -> None:
        super().__init__(root)
        fill(self.store, 300)
        self.config = TierConfig(store_path_root_dir=str(self.store), tier_url=self.tier, **config)
        place = StorePlace(str(self.store), "c", "b")
        self.broker = OffloadBroker(StoreOrigin(place), self.config, driver_of(self.tier), SystemClock())
        self.broker.begin()
        self.works = self.broker.plan(force=True, queues_max=1000)

    def task(self, settings: OffloadSettings = SMALL, **changes: object) -> OffloadTask:
        config = self.config
        made = OffloadTask(
            str(self.store), self.tier, tuple(self.works[:1]), self.broker.claim,
            config.tiered_store_commit_log_max_size, config.tiered_store_consume_queue_max_size, settings=settings,
        )  # fmt: skip
        return replace(made, **changes)  # type: ignore[arg-type]

    def run(self, task: OffloadTask) -> QueueCommit:
        (commit,) = run_offload_task(task).commits
        return commit

    def keys(self, task: OffloadTask) -> tuple[StagedKeys, bytes]:
        (found,) = run_offload_task(task).keys
        stored = driver_of(self.tier).get_object(found.name)
        assert stored is not None
        return found, bytes(stored.data)


def test_a_task_reaches_its_target_and_says_what_the_metadata_and_the_index_must_know(tmp_path: Path) -> None:
    world = TaskWorld(tmp_path)
    commit = world.run(world.task())
    work = world.works[0]
    assert (commit.stop, commit.from_offset, commit.to_offset) == (Stop.TARGET, 0, work.to_offset)
    log, units = commit.sizes
    assert log.size == commit.bytes == driver_of(world.tier).size(log.key)
    assert units.size == 20 * commit.messages == driver_of(world.tier).size(units.key)
    assert commit.entries[0].queue_offset == 0
    keys, data = world.keys(world.task())
    assert (keys.queue, keys.start, keys.stop) == (commit.queue, 0, commit.bytes)
    assert 24 * keys.count == len(data) > 0
    world.broker.commit([commit])
    world.broker.close()


def test_the_same_task_again_writes_nothing_new_and_says_the_same(tmp_path: Path) -> None:
    world = TaskWorld(tmp_path)
    first, (_, keys) = world.run(world.task()), world.keys(world.task())
    before = world.segments()
    assert world.run(world.task()) == first
    assert world.segments() == before
    # Other chunks have the same bytes; only where the time index has its entries may differ.
    other = world.run(world.task(HUGE))
    assert (other.sizes, world.keys(world.task(HUGE))[1]) == (first.sizes, keys)
    world.broker.close()


def test_a_full_segment_ends_a_task_before_anything_is_begun(tmp_path: Path) -> None:
    world = TaskWorld(tmp_path / "log", tiered_store_commit_log_max_size=5_000)
    commit = world.run(world.task())
    assert commit.stop is Stop.LOG_FULL
    assert 0 < commit.bytes <= 5_000
    assert len(world.segments()) == 2
    world.broker.close()
    world = TaskWorld(tmp_path / "units", tiered_store_consume_queue_max_size=20 * 7)
    commit = world.run(world.task())
    assert (commit.stop, commit.messages) == (Stop.UNITS_FULL, 7)
    world.broker.close()


def test_records_that_went_meanwhile_end_a_task_without_a_word_of_them(tmp_path: Path) -> None:
    world = TaskWorld(tmp_path)
    work = world.works[0]
    beyond = replace(work, to_offset=work.to_offset + 10)
    commit = world.run(world.task(works=(beyond,)))
    assert (commit.stop, commit.to_offset) == (Stop.NO_RECORD, work.to_offset)
    world.broker.close()


def test_a_result_has_rows_and_no_keys_however_many_there_are(tmp_path: Path) -> None:
    world = TaskWorld(tmp_path)
    few, many = cut(world.works[0], 4), world.works[0]
    results = [run_offload_task(world.task(works=(work,))) for work in (few, many)]
    assert results[1].keys[0].count > 20 * results[0].keys[0].count
    sizes = [len(pickle.dumps(replace(result, commits=()))) for result in results]
    assert sizes[1] - sizes[0] < 24
    world.broker.close()


def test_keys_that_cannot_be_staged_do_not_hold_up_their_messages(tmp_path: Path) -> None:
    world = TaskWorld(tmp_path)

    def refuse(_name: str, _data: bytes) -> str:
        raise TierUnavailable("down")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver_of(world.tier), "put_object", refuse)
        result = run_offload_task(world.task())
    assert (result.keys, result.commits[0].stop) == ((), Stop.TARGET)
    assert world.broker.index is not None
    assert world.broker.index.unindexed() == []
    world.broker.commit(result.commits, result.keys)
    (work,) = world.broker.index.unindexed()
    assert (work.queue, work.chunk.start, work.chunk.stop) == (result.commits[0].queue, 0, result.commits[0].bytes)
    world.broker.close()


def test_without_an_index_no_keys_are_collected(tmp_path: Path) -> None:
    world = TaskWorld(tmp_path)
    assert run_offload_task(world.task(with_index=False)).keys == ()
    world.broker.close()


def test_entries_of_the_time_index_stand_close_enough_in_large_chunks(tmp_path: Path) -> None:
    world = OffloadWorld(tmp_path)
    from tiermq import Message
    from tiermq.store.local_store import LocalStore

    with LocalStore.open(world.store, background=False) as store:
        for _ in range(9_000):
            store.put(Message("orders", b"x" * 10))
        store.dispatch_now()
    broker = OffloadBroker(
        StoreOrigin(StorePlace(str(world.store), "c", "b")), TierConfig(store_path_root_dir=str(world.store)),
        driver_of(world.tier), SystemClock(),
    )  # fmt: skip
    broker.begin()
    task = OffloadTask(
        str(world.store), world.tier, tuple(broker.plan(force=True, queues_max=1000)), broker.claim, 1 << 30, 20 << 20,
    )  # fmt: skip
    (commit,) = run_offload_task(task).commits
    assert [entry.queue_offset for entry in commit.entries] == [0, 4_096, 8_192]
    broker.close()
