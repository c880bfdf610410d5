"""What the driver accepts, refuses and doubts. What a whole run does is in test_offload.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.offload.test_offload_task import TaskWorld
from tiermq.clock import SystemClock
from tiermq.errors import StoreLocked, TierError
from tiermq.pipeline.offload.broker import OffloadBroker
from tiermq.pipeline.offload.plan import Stop, cut
from tiermq.pipeline.worker_cache import driver_of
from tiermq.tier.metadata.manifest_store import ManifestStore
from tiermq.tier.names import QueueKey


def test_a_commit_row_that_does_not_fit_is_refused_and_nothing_of_its_wave_is_committed(tmp_path: Path) -> None:
    world = TaskWorld(tmp_path)
    commit = world.run(world.task())
    log, units = commit.sizes
    for wrong in (
        replace(commit, from_offset=3),
        replace(commit, to_offset=commit.to_offset - 1),
        replace(commit, bytes=commit.bytes + 1),
        replace(commit, sizes=(units, log)),
        replace(commit, sizes=(log, units._replace(size=units.size - 20))),
    ):
        with pytest.raises(TierError, match="expected a commit row that goes on at 0"):
            world.broker.commit([wrong])
    assert world.broker.counts.messages == 0
    world.broker.commit([commit])
    with pytest.raises(TierError, match=f"goes on at {commit.to_offset}"):
        world.broker.commit([commit])
    world.broker.close()


def test_a_queue_of_which_a_task_failed_is_looked_at_again_before_it_is_written(tmp_path: Path) -> None:
    world = TaskWorld(tmp_path)
    commit = world.run(world.task())
    none = replace(commit, to_offset=0, bytes=0, stop=Stop.UNAVAILABLE, error="down", entries=())
    sizes = tuple(size._replace(size=0) for size in commit.sizes)
    world.broker.commit([replace(none, sizes=sizes)])
    name = (commit.queue.topic, commit.queue.queue_id)
    assert world.broker.problems == {name: "down"}
    works = {work.queue: work for work in world.broker.plan(force=True, queues_max=1000)}
    assert commit.queue not in works  # All of it had landed, and was adopted.
    assert world.broker.counts.adopted == commit.messages
    world.broker.close()


def test_a_wave_that_failed_is_doubted_and_adopted(tmp_path: Path) -> None:
    world = TaskWorld(tmp_path)
    commit = world.run(world.task())
    world.broker.doubt(world.works)
    world.broker.plan(force=True, queues_max=1000)
    assert world.broker.counts.adopted == commit.messages
    world.broker.close()


def test_a_closed_broker_has_written_its_manifests_and_let_go(tmp_path: Path) -> None:
    world = TaskWorld(tmp_path)
    with pytest.raises(StoreLocked, match="pipeline offload"):
        TaskWorld(tmp_path)
    commit = world.run(world.task())
    world.broker.commit([commit])
    world.broker.close()
    manifest = ManifestStore(driver_of(world.tier), "a reader").read(QueueKey("c", "b", "orders", 0))
    assert manifest is not None
    assert manifest.max_offset == commit.to_offset
    assert "pipeline offload" in manifest.writer
    assert world.broker.lease.read().owner == ""  # type: ignore[union-attr]


def test_queues_that_a_wave_has_no_place_for_come_first_in_the_next(tmp_path: Path) -> None:
    world = TaskWorld(tmp_path)
    queues = [work.queue for work in world.works]
    assert len(queues) > 2
    first, second = ([work.queue for work in world.broker.plan(force=True, queues_max=2)] for _ in range(2))
    assert (first, second[0]) == (queues[:2], queues[2])
    world.broker.close()


def test_a_queue_is_open_only_while_a_wave_works_on_it_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    world = TaskWorld(tmp_path)
    broker, work = world.broker, world.works[0]
    assert len(broker.files) == len(world.works)
    half = cut(work, (work.to_offset - work.from_offset) // 2)
    first = world.run(world.task(works=(half,)))
    broker.commit([first])
    assert work.queue.name not in {file.queue.name for file in broker.files}
    works = {work.queue: work for work in broker.plan(force=True, queues_max=1000)}
    again = works[work.queue]
    assert (again.from_offset, again.to_offset) == (first.to_offset, work.to_offset)
    log, units = first.sizes
    assert (again.log.size, again.log.crc32, again.log.sums) == (log.size, log.crc32, log.sums)
    assert (again.units.size, again.units.crc32, again.units.sums) == (units.size, units.crc32, units.sums)
    second = world.run(world.task(works=(again,)))
    broker.commit([second])
    assert (second.stop, second.to_offset) == (Stop.TARGET, work.to_offset)
    assert broker.counts.adopted == 0
    broker.close()


def test_a_queue_whose_end_is_in_doubt_stays_open(tmp_path: Path) -> None:
    world = TaskWorld(tmp_path)
    commit = world.run(world.task())
    world.broker.commit([replace(commit, stop=Stop.UNAVAILABLE, error="down")])
    (file,) = [file for file in world.broker.files if file.queue == commit.queue]
    assert not file.recovered
    world.broker.close()


def test_a_job_begins_with_no_queue_open_and_knows_where_each_ends(tmp_path: Path) -> None:
    world = TaskWorld(tmp_path)
    commit = world.run(world.task())
    world.broker.commit([commit])
    world.broker.close()
    later = OffloadBroker(world.broker.place, world.config, driver_of(world.tier), SystemClock())
    later.begin()
    assert len(later.files) == 0
    works = {work.queue for work in later.plan(force=True, queues_max=1000)}
    assert commit.queue not in works  # All of it is copied.
    assert len(works) == len(world.works) - 1
    later.close()
