"""Every queue of a broker in the tier: found, made, recovered, destroyed, each without disturbing the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from servers.faulty_driver import Down, FaultyDriver
from tier.flat.flat_world import QUEUE, World
from tiermq.errors import CorruptSegment
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.names import QueueKey, SegmentType, index_queue


def test_an_empty_store_has_no_queues(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.files.find("unknown", 0) is None
    assert len(world.files) == 1


def test_queues_are_there_again_after_a_restart_less_those_destroyed(tmp_path: Path) -> None:
    world = World(tmp_path)
    for number in range(4):
        world.files.find_or_create("more", number).init(number)
    world.reopen()
    assert len(world.files) == 5
    assert [world.files.find("more", n).commit_offset for n in range(4)] == [0, 1, 2, 3]  # type: ignore[union-attr]
    assert [file.queue.queue_id for file in world.files.of_topic("more")] == [0, 1, 2, 3]
    for number in range(2):
        assert world.files.destroy("more", number)
    assert [file.queue.queue_id for file in world.files.of_topic("more")] == [2, 3]
    assert world.files.of_topic("unknown") == ()
    world.reopen()
    assert sorted(file.queue.queue_id for file in world.files if file.queue.topic == "more") == [2, 3]


def test_a_queue_is_made_once(tmp_path: Path) -> None:
    files = World(tmp_path).files
    assert files.find_or_create("a", 1) is files.find_or_create("a", 1)
    assert files.find("a", 1) is files.find_or_create("a", 1)


def test_other_brokers_and_the_index_are_not_this_store_s_queues(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.metadata.add_queue(QueueKey(QUEUE.cluster, "broker-b", "orders", 0))
    world.metadata.add_queue(index_queue(QUEUE.cluster, QUEUE.broker))
    world.reopen()
    assert [file.queue for file in world.files] == [QUEUE]


def test_bug_04_opening_and_making_queues_asks_nothing_of_a_back_end_that_is_down(tmp_path: Path) -> None:
    driver = FaultyDriver(MemoryDriver(), Down())
    world = World(tmp_path, driver)
    world.files.find_or_create("new", 0)
    world.file.init(5)
    world.reopen()
    assert driver.injected == []
    assert world.files.recover_all() == [world.file]
    driver.plan = None
    assert world.files.recover_all() == []


def test_the_damage_of_one_queue_does_not_keep_the_others_from_being_used(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.file.init(0)
    broken = QueueKey(QUEUE.cluster, QUEUE.broker, "broken", 0)
    world.files.find_or_create("broken", 0)
    for base in (0, 100):
        world.metadata.add_segment(broken.segment(SegmentType.COMMIT_LOG, base))
    world.reopen()
    assert list(world.files.damaged) == [("broken", 0)]
    assert world.files.find("broken", 0) is None
    with pytest.raises(CorruptSegment):
        world.files.find_or_create("broken", 0)
    assert world.file.commit_offset == 0


def test_recovery_reports_its_progress(tmp_path: Path) -> None:
    world = World(tmp_path)
    for number in range(3):
        world.files.find_or_create("more", number).init(0)
    world.reopen()
    seen: list[tuple[int, int]] = []
    assert world.files.recover_all(lambda done, total: seen.append((done, total))) == []
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_closing_waits_for_every_queue(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.file.init(0)
    assert world.files.close()
    assert world.file.log.last.closed
