"""An index that missed something gets it from the committed records, and only those."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tier.dispatch.dispatch_world import BROKER, CLUSTER, DispatchWorld
from tier.flat.flat_world import Died, MortalDriver, remove_first
from tiermq import Message
from tiermq.tier.dispatch.dispatch_step import execute, feed_index
from tiermq.tier.dispatch.plan import DispatchConfig, Gap, Init, Upload
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.flat.flat_file_store import committed_requests, queue_tails, rebuild_from
from tiermq.tier.index.index_coverage import QueueTail
from tiermq.tier.index.index_store import IndexSettings, IndexStore
from tiermq.tier.names import QueueKey

KEY = QueueKey(CLUSTER, BROKER, "T", 0)


def put_keyed(world: DispatchWorld, count: int) -> None:
    for number in range(count):
        assert world.store.put(Message("T", b"body", keys=[f"k{number}"])).ok
    world.source.settle()


def test_what_is_read_back_is_what_was_reported(tmp_path: Path) -> None:
    world = DispatchWorld(tmp_path, log_bytes=1_000, unit_bytes=160, config=DispatchConfig(group_commit=False))
    put_keyed(world, 30)
    world.go()
    file = world.files.find("T", 0)
    assert file is not None
    assert list(committed_requests(file, 0)) == world.index.requests
    for number in (1, 13, 29):
        place = world.index.requests[number].tier_offset
        assert list(committed_requests(file, place)) == world.index.requests[number:]
        assert list(committed_requests(file, place + 1)) == world.index.requests[number + 1 :]
    assert list(committed_requests(file, file.log.commit_offset)) == []


def test_gaps_and_expired_records_are_passed_over(tmp_path: Path) -> None:
    world = DispatchWorld(tmp_path)
    put_keyed(world, 20)
    file = world.files.find_or_create("T", 0)
    execute(Init(0), file, world.source, world.index)
    execute(Upload(0, 5, 1 << 20, False), file, world.source, world.index)
    file.roll_log()
    execute(Gap(5, 15, "gone"), file, world.source, world.index)
    execute(Upload(15, 5, 1 << 20, False), file, world.source, world.index)
    assert list(committed_requests(file, 0)) == world.index.requests
    remove_first(file.log, file.log.segments[0])
    assert list(committed_requests(file, 0)) == world.index.requests[5:]


def test_an_unknown_queue_has_nothing_and_every_queue_has_a_tail(tmp_path: Path) -> None:
    world = DispatchWorld(tmp_path, config=DispatchConfig(group_commit=False))
    put_keyed(world, 3)
    world.go()
    file = world.files.find("T", 0)
    assert file is not None
    rebuild = rebuild_from(world.files)
    assert list(rebuild(QueueKey(CLUSTER, BROKER, "unknown", 0), 0)) == []
    assert list(rebuild(KEY, 0)) == world.index.requests
    world.files.find_or_create("empty", 0)
    assert queue_tails(world.files) == [QueueTail("T", file.topic.id, 0, file.log.commit_offset)]


def index_of(world: DispatchWorld) -> IndexStore:
    index = IndexStore(
        world.access, "/store", world.driver, world.metadata, CLUSTER, BROKER,
        clock=world.clock, settings=IndexSettings(slots=16, capacity=64), rebuild=rebuild_from(world.files),
    )  # fmt: skip
    index.start(queue_tails(world.files), with_thread=False)
    return index


@pytest.mark.parametrize("cut", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("step", range(8))
def test_no_key_is_lost_or_doubled_by_a_crash_at_any_step(tmp_path: Path, step: int, cut: float) -> None:
    mortal = MortalDriver(MemoryDriver(), step, cut=cut)
    world = DispatchWorld(tmp_path, mortal, log_bytes=1_200)
    put_keyed(world, 20)
    index = index_of(world)
    file = world.files.find_or_create("T", 0)
    execute(Init(0), file, world.source, index)
    with contextlib.suppress(Died):
        while file.append_offset < 20:
            execute(Upload(file.append_offset, 3, 1 << 20, False), file, world.source, index)
    world.restart(mortal.inner)
    index = index_of(world)
    again = world.files.find_or_create("T", 0)
    again.recover()
    feed_index(again, index)
    if again.append_offset < 20:
        execute(Upload(again.append_offset, 100, 1 << 20, False), again, world.source, index)
    for _ in range(5):
        index.run_once()
    for number in range(20):
        hits = index.query("T", f"k{number}", 10, 0, 1 << 62).hits
        assert [hit.tier_offset for hit in hits] == [world.places()[number]]
    index.close()
