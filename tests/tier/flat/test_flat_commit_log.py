"""The commit log: rolling, and the queue offset of its oldest record."""

from __future__ import annotations

from pathlib import Path

from servers.faulty_driver import Down, FaultyDriver
from tier.flat.flat_world import QUEUE, World, remove_first
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.names import SegmentType


def test_rolling_begins_a_segment_at_the_end_of_the_one_before(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.file.init(0)
    for _ in range(3):
        world.write(1)
        assert world.file.roll_log()
    bases = [segment.base for segment in world.file.log.segments]
    assert len(bases) == 4
    assert bases == [0, *[segment.commit_offset for segment in world.file.log.segments[:-1]]]
    assert world.messages() == [0, 1, 2]


def test_the_oldest_queue_offset_follows_expiry(tmp_path: Path) -> None:
    world = World(tmp_path)
    log = world.file.log
    world.file.init(6)
    assert log.first_queue_offset() == -1
    world.write(14)
    world.file.roll_log()
    world.write(5)
    assert log.first_queue_offset() == 6
    remove_first(log, log.segments[0])
    assert log.first_queue_offset() == 20
    assert log.first_queue_offset() == 20
    assert world.file.min_offset == 20
    assert world.reopen().log.first_queue_offset() == 20


def test_bug_23_asking_for_the_minimum_offset_sends_no_request(tmp_path: Path) -> None:
    driver = FaultyDriver(MemoryDriver())
    world = World(tmp_path, driver)
    world.file.init(6)
    world.write(3)
    driver.plan = Down()
    assert world.reopen().min_offset == 6
    assert driver.injected == []


def test_the_oldest_queue_offset_of_a_tier_of_rocketmq_is_read_from_the_record(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.file.init(6)
    world.write(3)
    key = QUEUE.segment(SegmentType.COMMIT_LOG, 0)
    row = world.metadata.segment(key)
    assert row is not None
    world.metadata._database.write("UPDATE segment SET begin_offset = -1 WHERE base = 0")
    assert world.reopen().min_offset == 6
