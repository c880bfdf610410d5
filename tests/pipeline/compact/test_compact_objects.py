"""Compaction where segments lie in parts: one object each afterwards, with the same bytes, whatever dies on the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from obstore.store import MemoryStore

from pipeline.job_world import LOG, QUEUE, UNITS, JobWorld
from tier.driver.objects import objects_driver, paths_in
from tiermq.errors import TierUnavailable
from tiermq.pipeline.compact.job import compact
from tiermq.tier.driver import object_store
from tiermq.tier.names import SegmentKey, segment_at
from tiermq.tier.verify.verify import verify_tier


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


def segment_key(path: str) -> SegmentKey:
    key = segment_at(path)
    assert key is not None
    return key


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


def test_the_parts_of_a_quiet_queue_are_merged_although_its_segments_still_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "PARTS_RUN_MAX", 1 << 40)  # As written by versions that merged nothing.
    store = MemoryStore()
    world = JobWorld(tmp_path, objects_driver(store), log_bytes=1 << 20, unit_bytes=1 << 20)
    for _ in range(300):
        world.world.write(1)
    world.world.put_manifests()
    before = contents(world)
    assert len(paths_in(store)) > 600
    planned = compact(None, tier=world.tier, clock=world.world.clock, dry_run=True)
    assert (planned.planned["open_segments"], planned.planned["parts"]) == (2, 2 * 299)
    report = compact(None, tier=world.tier, clock=world.world.clock)
    assert report.is_clean, report.problems
    assert (report.done["open_segments"], report.done["parts"]) == (2, 2 * 299)
    reader = objects_driver(store)
    world.use(reader)
    assert {key: bytes(reader.read(segment_key(key), 0, len(data))) for key, data in before.items()} == before
    assert sum(reader.requests.counts.values()) <= 10
    assert not compact(None, tier=world.tier, clock=world.world.clock).done.get("parts")
    world.world.write(1)
    assert {key: data[: len(before[key])] for key, data in contents(world).items()} == before
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
