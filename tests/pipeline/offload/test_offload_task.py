"""One task, run by hand: how far it goes, what it says, and that it can be run again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spark.jobs.offload_world import SMALL, OffloadWorld, fill
from tiermq.clock import SystemClock
from tiermq.history.scan_values import StorePlace
from tiermq.spark.jobs import offload_task
from tiermq.spark.jobs.offload_broker import OffloadBroker
from tiermq.spark.jobs.offload_task import driver_of, run_offload_task
from tiermq.spark.jobs.offload_values import OffloadSettings, OffloadTask, QueueCommit, Stop
from tiermq.tier.tier_config import TierConfig

HUGE = OffloadSettings()


class TaskWorld(OffloadWorld):
    """A broker that has planned, and the task of its first queue."""

    def __init__(self, root: Path, **config: int) -> None:
        super().__init__(root)
        fill(self.store, 300)
        self.config = TierConfig(store_path_root_dir=str(self.store), **config)
        place = StorePlace(str(self.store), "c", "b")
        self.broker = OffloadBroker(place, self.config, driver_of(self.tier), SystemClock())
        self.broker.begin()
        self.works = self.broker.plan(force=True)

    def task(self, settings: OffloadSettings = SMALL, **changes: object) -> OffloadTask:
        config = self.config
        made = OffloadTask(
            str(self.store), self.tier, tuple(self.works[:1]), self.broker.claim,
            config.tiered_store_commit_log_max_size, config.tiered_store_consume_queue_max_size, self.broker.spool,
            settings=settings,
        )  # fmt: skip
        return replace(made, **changes)  # type: ignore[arg-type]

    def run(self, task: OffloadTask) -> QueueCommit:
        (commit,) = run_offload_task(task).commits
        return commit


def test_a_task_reaches_its_target_and_says_what_the_metadata_and_the_index_must_know(tmp_path: Path) -> None:
    world = TaskWorld(tmp_path)
    commit = world.run(world.task())
    work = world.works[0]
    assert (commit.stop, commit.from_offset, commit.to_offset) == (Stop.TARGET, 0, work.to_offset)
    log, units = commit.sizes
    assert log.size == commit.bytes == driver_of(world.tier).size(log.key)
    assert units.size == 20 * commit.messages == driver_of(world.tier).size(units.key)
    assert commit.entries[0].queue_offset == 0
    assert commit.fragment is not None
    assert (commit.fragment.start, commit.fragment.end) == (0, commit.bytes)
    assert commit.fragment.count > 0
    world.broker.commit([commit])
    world.broker.close()


def test_the_same_task_again_writes_nothing_new_and_says_the_same(tmp_path: Path) -> None:
    world = TaskWorld(tmp_path)
    first = world.run(world.task())
    before = world.segments()
    assert world.run(world.task()) == first
    assert world.segments() == before
    # Other chunks have the same bytes; only where the time index has its entries may differ.
    other = world.run(world.task(HUGE))
    assert (other.sizes, other.fragment) == (first.sizes, first.fragment)
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


def test_many_keys_go_through_a_file_and_few_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = TaskWorld(tmp_path)
    small = world.run(world.task())
    monkeypatch.setattr(offload_task, "TRAVEL_BYTES_MAX", 10)
    large = world.run(world.task())
    assert small.fragment is not None
    assert large.fragment is not None
    assert large.fragment.keys == b""
    assert Path(large.fragment_path).read_bytes() == small.fragment.keys
    world.broker.commit([large])
    assert world.broker.counts.keys == small.fragment.count
    assert not Path(large.fragment_path).exists()
    world.broker.close()


def test_without_an_index_no_keys_are_collected(tmp_path: Path) -> None:
    world = TaskWorld(tmp_path)
    assert world.run(world.task(with_index=False)).fragment is None
    world.broker.close()


def test_entries_of_the_time_index_stand_close_enough_in_large_chunks(tmp_path: Path) -> None:
    world = OffloadWorld(tmp_path)
    from tiermq import LocalStore, Message

    with LocalStore.open(world.store, background=False) as store:
        for _ in range(9_000):
            store.put(Message("orders", b"x" * 10))
        store.dispatch_now()
    broker = OffloadBroker(
        StorePlace(str(world.store), "c", "b"), TierConfig(store_path_root_dir=str(world.store)), driver_of(world.tier),
        SystemClock(),
    )  # fmt: skip
    broker.begin()
    task = OffloadTask(
        str(world.store), world.tier, tuple(broker.plan(force=True)), broker.claim, 1 << 30, 20 << 20, "",
    )  # fmt: skip
    (commit,) = run_offload_task(task).commits
    assert [entry.queue_offset for entry in commit.entries] == [0, 4_096, 8_192]
    broker.close()
