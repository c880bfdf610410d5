"""The key index at the end of an offload: in the tier, whole, and used by whoever has nothing but the tier."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.offload.offload_world import QUEUES, STORE, TIER, OffloadWorld, fill, put, run_twice
from tiermq import Message
from tiermq.errors import TierUnavailable
from tiermq.pipeline.broker_index import FILES_PER_LEVEL
from tiermq.pipeline.index_build import run_build_task
from tiermq.pipeline.index_files import read_index_file
from tiermq.pipeline.job_report import JobReport
from tiermq.pipeline.offload.plan import OffloadSettings
from tiermq.pipeline.task_runner import LocalRunner
from tiermq.spark.source.builder import explain_scan
from tiermq.store.local_store import LocalStore
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.index.compacted_index import read_companion
from tiermq.tier.index.index_coverage import Coverage
from tiermq.tier.index.index_recovery import INDEX_DIRECTORY, RECORD_NAME
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.names import KEYS_STEM, SegmentType, index_queue
from tiermq.tier.tiered_store import TieredStore
from tiermq.tier.verify.verify import verify_tier

INDEX = index_queue("c", "b")


def made(report: JobReport) -> int:
    """How many index files a run added."""
    return int(report.done["index_files"] - report.done["index_files_merged"])


def index_files(world: OffloadWorld) -> int:
    return sum(info.key.type is SegmentType.INDEX for info in open_driver(world.tier).list_segments())


def test_a_key_is_found_by_the_index_of_the_tier_alone_straight_after_an_offload(world: OffloadWorld) -> None:
    world.offload()
    stored = sum(map(len, world.segments().values()))
    found = explain_scan(tier=world.tier, keys="key-77").counters
    assert found.index_files_asked > 0
    assert 0 < found.bytes_planned < stored / 100


def test_a_run_that_finds_nothing_to_do_makes_no_index_file(world: OffloadWorld) -> None:
    first = world.offload()
    assert made(first) == index_files(world) > 0
    assert world.offload().done["index_files"] == 0
    assert index_files(world) == made(first)


def test_every_run_brings_the_keys_that_it_copied(world: OffloadWorld) -> None:
    before = made(world.offload())
    fill(world.store, 50, seed=2, first=1_000)
    assert made(world.offload()) == index_files(world) - before > 0
    for key in ("key-77", "key-1001"):
        assert explain_scan(tier=world.tier, keys=key).counters.bytes_planned < 2_000
    assert verify_tier(open_driver(world.tier)).problems == []


@pytest.mark.parametrize(("parallelism", "files"), [(1, 1), (3, 3), (50, 8)])
def test_many_keys_of_a_wave_become_a_file_for_each_processor(
    world: OffloadWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallelism: int, files: int
) -> None:
    class Processors(LocalRunner):
        built = 0

        def run(self, function: Any, tasks: Sequence[Any], **options: Any) -> list[Any]:
            self.built += len(tasks) if function is run_build_task else 0
            return super().run(function, tasks, **options)

    runner = Processors()
    monkeypatch.setattr(runner, "parallelism", parallelism)
    monkeypatch.setattr("tiermq.pipeline.broker_index.SHARED_ITEMS_MIN", 64)
    config = {"tiered_store_index_file_max_hash_slot_num": 50, "tiered_store_index_file_max_index_num": 4_000}
    report = world.offload(runner=runner, settings=OffloadSettings(), all_slots=False, config=config)
    assert (report.problems, report.done["keys"] // 64, runner.built) == ([], 8, files)
    found_by_the_tier_alone(world, tmp_path)


def test_a_store_without_a_key_needs_no_index_file(tmp_path: Path) -> None:
    with LocalStore.open(tmp_path / "s", background=False, **STORE) as store:
        store.put(Message("orders", b"without a key"))
    world = OffloadWorld(tmp_path)
    report = world.offload()
    assert (report.problems, report.done["messages"], index_files(world)) == ([], 1, 0)
    steps: list[str] = []
    assert world.offload(step=steps.append).problems == []
    assert "keys" not in steps, "it is known that nothing has to be indexed"
    assert verify_tier(open_driver(world.tier)).problems == []
    fill(world.store, 50)
    assert world.offload(step=steps.append).problems == []
    assert "keys" not in steps
    assert_sound(world)


# Many small waves

FEW = {**TIER, "tiered_store_index_file_max_hash_slot_num": 5_000}
"""So many slots that a file of some hundred keys gets fewer."""
TINY = OffloadSettings(wave_messages=6, task_bytes=10_000)
STORED = 400


def found_by_the_tier_alone(world: OffloadWorld, tmp_path: Path) -> None:
    """Open the bucket on another machine: each key is found once, and nothing has to be read back for it."""
    names: dict[str, Any] = {"broker_name": "b", "broker_cluster_name": "c"}
    with TieredStore.open(tmp_path / "other", tier=world.tier, restore=True, background=False, **names) as store:
        index = store.tier.index
        assert index is not None
        index.run_once()
        assert (index.is_complete, index.counts.filled) == (True, 0)
        for topic, queue_id in QUEUES:
            offset = 0
            while page := store.get(topic, queue_id, offset, 32).messages:
                for message in page:
                    for key in message.keys[:1]:
                        found = store.query(topic, key)
                        assert found.complete
                        assert [each.queue_offset for each in found.messages if each.queue_id == queue_id] == [
                            message.queue_offset
                        ]
                offset = page[-1].queue_offset + 1


def assert_sound(world: OffloadWorld) -> None:
    """Nothing is wrong, nothing is left over, everything is covered."""
    driver = open_driver(world.tier)
    report = verify_tier(driver)
    assert report.problems == []
    assert [name for name in driver.list_objects() if KEYS_STEM in name] == []
    coverage = newest_coverage(world)
    assert coverage.is_complete()
    with MetadataStore(world.store / "config" / "tieredStoreMetadata.db") as metadata:
        for queue in metadata.queues():
            end = max(row.end for row in metadata.segments(queue.key, SegmentType.COMMIT_LOG))
            assert coverage.queues[queue.key.name].end == end
        rows = {row.key for row in metadata.segments(INDEX)}
        assert rows == {info.key for info in driver.list_segments() if info.key.type is SegmentType.INDEX}


def newest_coverage(world: OffloadWorld) -> Coverage:
    driver = open_driver(world.tier)
    infos = [info for info in driver.list_segments() if info.key.type is SegmentType.INDEX]
    newest = max(infos, key=lambda info: info.key.base)
    found = read_companion(driver, newest.key)
    assert found is not None
    return found.record.coverage()


def test_many_small_waves_leave_few_files_with_every_key_once(world: OffloadWorld, tmp_path: Path) -> None:
    counts = []
    report = world.offload(
        settings=TINY, config=FEW, all_slots=False, step=lambda name: counts.append(index_files(world))
    )
    assert report.problems == []
    assert report.done["waves"] > 60
    assert max(counts) <= 3 * FILES_PER_LEVEL + 2, "files of at most 511 keys: three size classes, a merge under way"
    assert made(report) == index_files(world) <= 3 * FILES_PER_LEVEL
    assert_sound(world)
    found_by_the_tier_alone(world, tmp_path)
    stored = sum(info.size for info in open_driver(world.tier).list_segments() if info.key.type is SegmentType.INDEX)
    assert stored < 8 * 5_000, "small files have few slots"


def test_a_job_that_ends_leaves_only_files_that_rocketmq_can_read(world: OffloadWorld) -> None:
    world.offload(settings=TINY, config=FEW)
    driver = open_driver(world.tier)
    files = [read_index_file(driver, info) for info in driver.list_segments() if info.key.type is SegmentType.INDEX]
    assert [(file.slots, file.has_few_slots) for file in files if file is not None] == [(5_000, False)]
    assert_sound(world)


@pytest.mark.parametrize("step", ["build", "index", "cover", "rows", "merge", "row", "remove", "keys"])
def test_a_driver_that_is_killed_among_small_waves_loses_and_doubles_no_key(tmp_path: Path, step: str) -> None:
    world = OffloadWorld(tmp_path)
    fill(world.store, 130)
    options: dict[str, Any] = {"settings": TINY, "config": FEW, "all_slots": False}
    if step == "keys":
        assert world.kill_at("committed", times=5, **options)  # Leaves something that is committed and not indexed.
    assert world.kill_at(step, **options)
    world.kill_at(step, times=2, **options)
    assert world.offload(**options).problems == []
    assert_sound(world)
    found_by_the_tier_alone(world, tmp_path)


def test_index_files_that_cannot_be_made_or_registered_are_made_by_the_next_wave(
    world: OffloadWorld, tmp_path: Path
) -> None:
    failed: list[int] = []

    class Failing(LocalRunner):
        def run(self, function: Any, tasks: Sequence[Any], **options: Any) -> list[Any]:
            if function is run_build_task and len(failed) < 3:
                failed.append(len(tasks))
                if len(failed) == 2:
                    super().run(function, tasks, **options)  # Written, and nobody knows of it.
                raise TierUnavailable("down")
            return super().run(function, tasks, **options)

    report = world.offload(runner=Failing(), config=FEW)
    assert (failed, report.problems, report.done["messages"]) == ([1, 1, 1], [], STORED)
    assert_sound(world)
    found_by_the_tier_alone(world, tmp_path)


def test_attempts_whose_result_was_not_used_leave_nothing(world: OffloadWorld, tmp_path: Path) -> None:
    world.offload(run=run_twice, settings=TINY, config=FEW)
    assert_sound(world)
    found_by_the_tier_alone(world, tmp_path)


def test_what_passes_through_the_driver_does_not_grow_with_messages(tmp_path: Path) -> None:
    class Measured(LocalRunner):
        def __init__(self) -> None:
            self.bytes = self.tasks = 0

        def run(self, function: Any, tasks: Sequence[Any], **options: Any) -> list[Any]:
            results = super().run(function, tasks, **options)
            self.tasks += len(tasks)
            self.bytes += len(pickle.dumps((list(tasks), results)))
            return results

    passed, keys = [], []
    for count in (100, 2_000):
        world = OffloadWorld(tmp_path / str(count))
        fill(world.store, count)
        runner = Measured()
        big = {name: 1 << 20 for name in TIER if "slot" not in name}
        report = world.offload(runner=runner, settings=OffloadSettings(), config={**TIER, **big})
        assert report.problems == []
        keys.append(report.done["keys"])
        passed.append((runner.tasks, runner.bytes))
    assert keys[1] > 15 * keys[0]
    assert passed[0][0] == passed[1][0]
    assert passed[1][1] < 1.2 * passed[0][1]


def test_a_broker_that_tiers_again_reads_nothing_back_that_a_job_indexed(tmp_path: Path) -> None:
    world = OffloadWorld(tmp_path)
    with world.tiered() as store:
        put(store.local, 100, random.Random(1))
        assert store.flush_to_tier()
    assert (world.store / INDEX_DIRECTORY / RECORD_NAME).is_file()
    fill(world.store, 200, seed=2, first=1_000)
    assert world.offload().problems == []
    assert newest_coverage(world).is_complete()
    with world.tiered() as store:
        index = store.tier.index
        assert index is not None
        index.run_once()
        assert (index.is_complete, index.counts.filled) == (True, 0)
        for topic, key in (("orders", "key-1"), ("orders", "key-1001"), ("payments", "key-1001")):
            assert len(store.query(topic, key).messages) <= 1
        put(store.local, 50, random.Random(3), 5_000)
        assert store.flush_to_tier()
    fill(world.store, 30, seed=4, first=9_000)
    assert world.offload().problems == []
    assert newest_coverage(world).is_complete()
    assert verify_tier(open_driver(world.tier)).problems == []
