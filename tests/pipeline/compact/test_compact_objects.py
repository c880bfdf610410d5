"""Compaction where segments lie in parts: one object each afterwards, with the same bytes, whatever dies on the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from obstore.store import MemoryStore

from spark.jobs.job_world import LOG, QUEUE, UNITS, JobWorld
from tier.driver.objects import objects_driver
from tiermq.errors import TierUnavailable
from tiermq.spark.jobs.compact import compact
from tiermq.tier.verify import verify_tier


def in_parts(path: Path, store: MemoryStore) -> JobWorld:
    """A queue of several segments, each written in several parts; and two index files."""
    world = JobWorld(path, objects_driver(store), log_bytes=900, unit_bytes=100)
    for _ in range(8):
        world.world.write(2)
    world.world.put_index()
    world.world.put_index()
    world.world.put_manifests()
    return world


def contents(world: JobWorld) -> dict[str, bytes]:
    infos = [info for info in world.driver.list_segments() if info.key.queue == QUEUE]
    return {info.key.path: bytes(world.driver.read(info.key, 0, info.size)) for info in infos}


def test_parts_become_one_object_with_the_same_bytes(tmp_path: Path) -> None:
    store = MemoryStore()
    world = in_parts(tmp_path, store)
    before = contents(world)
    assert max(info.part_count for info in world.driver.list_segments()) > 1
    report = compact(None, tier=world.tier, clock=world.world.clock)
    assert report.is_clean, report.problems
    assert contents(world) == before
    growing = {world.world.segments(kind)[-1].key for kind in (LOG, UNITS)}
    assert {info.key for info in world.driver.list_segments() if info.part_count} == growing
    assert {info.key for info in world.driver.list_segments() if not info.sealed} == growing
    assert report.done["segments"] + len(growing) == len(before)
    assert verify_tier(world.driver).is_clean
    world.close()


@pytest.mark.parametrize("landed", [False, True])
def test_a_compaction_that_dies_at_any_request_is_gone_on_from(tmp_path: Path, landed: bool) -> None:
    die_at, died = 1, True
    while died:
        path = tmp_path / str(die_at)
        path.mkdir()
        store = MemoryStore()
        world = in_parts(path, store)
        before = contents(world)
        world.use(objects_driver(store, die_at=die_at, landed=landed))
        try:
            compact(None, tier=world.tier, clock=world.world.clock)
            died = False
        except TierUnavailable:
            world.world.clock.advance_ms(120_000)
        world.use(world.driver)
        assert contents(world) == before
        report = compact(None, tier=world.tier, clock=world.world.clock)
        assert report.is_clean, (die_at, report.problems)
        assert contents(world) == before
        found = verify_tier(world.driver)
        assert found.is_clean, (die_at, found.problems)
        assert len(world.index_bases()) == 1
        world.close()
        die_at += 7
    assert die_at > 50
