"""The parts of a tier and how they are connected: what one does, the others must hear of."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios.broker_world import HOUR_MS, BrokerWorld
from servers.faulty_driver import Fault, ScriptedFaults
from tiermq.tier.dispatch.ready_queue import PaceSettings
from tiermq.tier.flat.flat_file_store import queue_tails
from tiermq.tier.metadata.manifest import decode_manifest, manifest_name
from tiermq.tier.names import QueueKey

T = "orders"
NAME = manifest_name(QueueKey("DefaultCluster", "broker-a", T, 0))


def work(world: BrokerWorld) -> None:
    while world.store.tier.engine.step():
        continue


@pytest.mark.parametrize("unanswered", ["get_object", "list_segments"])
def test_opening_asks_the_tier_who_has_it_and_how_far_it_reaches_and_nothing_more(
    world: BrokerWorld, unanswered: str
) -> None:
    world.open()
    world.put(5)
    assert world.store.flush_to_tier()
    world.close()
    world.driver.plan = ScriptedFaults(unanswered, [Fault.BEFORE] * 10)
    world.driver.injected.clear()
    world.open()
    assert [operation for operation, _ in world.driver.injected] == [unanswered]


def test_settings_reach_the_parts(tmp_path: Path) -> None:
    world = BrokerWorld(
        tmp_path,
        tiered_store_group_commit=False,
        tiered_store_group_commit_timeout=1,
        tiered_store_group_commit_count=2,
        tiered_store_group_commit_size=3,
        commit_log_rolling_interval=4,
        commit_log_rolling_minimum_size=5,
        tier_dispatch_interval=6,
        tier_upload_threads=7,
        tier_pending_bytes_max=8,
        tier_pace_put_rate=13,
        tier_pace_cpu_percent=14,
        tier_pace_batch_factor=15,
        tier_pace_sample_interval=16,
        read_ahead_cache_enable=False,
        tier_cache_bytes=9,
        read_ahead_cache_expire_duration=10,
        read_ahead_message_count_threshold=11,
        read_ahead_message_size_threshold=12,
    )
    tier = world.open().tier
    dispatch, settings, fetch = tier.engine.config, tier.engine.settings, tier.fetcher.config
    assert (dispatch.group_commit, dispatch.group_commit_timeout_ms, dispatch.group_commit_count) == (False, 1, 2)
    assert (dispatch.group_commit_bytes, dispatch.rolling_interval_hours, dispatch.rolling_minimum_bytes) == (3, 4, 5)
    assert (settings.sweep_interval_ms, settings.worker_count, settings.memory_bytes_max) == (6, 7, 8)
    assert settings.pace == PaceSettings(put_rate=13, cpu_percent=14, batch_factor=15, sample_ms=16)
    assert (fetch.cache_enable, fetch.cache_bytes, fetch.cache_expire_ms) == (False, 9, 10)
    assert (fetch.message_count_threshold, fetch.message_size_threshold) == (11, 12)
    world.put(20)
    assert world.store.flush_to_tier()
    assert [m.queue_offset for m in world.read()] == list(range(20))
    world.bury()


def test_the_manifest_hears_of_what_expired(world: BrokerWorld) -> None:
    world.open()
    world.put(100)
    assert world.store.flush_to_tier()
    work(world)
    world.clock.advance_ms(100 * HOUR_MS)
    assert world.store.expire_now().segments
    world.clock.advance_ms(1)
    world.store.tier.engine.tick()
    work(world)
    manifest = decode_manifest(world.driver.get_object(NAME).data, NAME)
    assert (manifest.min_offset, manifest.max_offset) == (100, 100)
    assert [row for row in manifest.segments if row.size] == []


def test_the_manifest_hears_of_what_a_life_that_ended_too_early_has_expired(world: BrokerWorld) -> None:
    world.open()
    world.put(100)
    assert world.store.flush_to_tier()
    work(world)
    world.clock.advance_ms(100 * HOUR_MS)
    assert world.store.expire_now().segments
    world.kill()
    world.open()
    world.store.tier.engine.tick()
    work(world)
    manifest = decode_manifest(world.driver.get_object(NAME).data, NAME)
    assert (manifest.min_offset, manifest.max_offset) == (100, 100)
    assert [row for row in manifest.segments if row.size] == []


def test_the_manifest_hears_of_a_retention_that_a_life_that_ended_too_early_was_reported(world: BrokerWorld) -> None:
    world.open()
    world.put(3)
    assert world.store.flush_to_tier()
    world.store.set_retention(T, hours=7, max_bytes=1 << 20)
    world.kill()
    world.open()
    world.store.tier.engine.tick()
    work(world)
    manifest = decode_manifest(world.driver.get_object(NAME).data, NAME)
    assert (manifest.reserve_time_hours, manifest.max_bytes) == (7, 1 << 20)


def test_the_manifest_hears_of_a_topics_retention(world: BrokerWorld) -> None:
    world.open()
    world.put(3)
    assert world.store.flush_to_tier()
    world.store.set_retention(T, hours=7, max_bytes=1 << 20)
    work(world)
    manifest = decode_manifest(world.driver.get_object(NAME).data, NAME)
    assert (manifest.reserve_time_hours, manifest.max_bytes) == (7, 1 << 20)


def test_without_an_index_there_are_no_keys_and_everything_else_works(tmp_path: Path) -> None:
    world = BrokerWorld(tmp_path, message_index_enable=False)
    world.open()
    world.put(30)
    assert world.store.tier.index is None
    assert world.store.flush_to_tier()
    world.erase_disk()
    world.open(restore=True)
    assert [m.queue_offset for m in world.read()] == list(range(30))
    world.bury()


def test_every_queue_has_a_tail_for_the_index(world: BrokerWorld) -> None:
    world.open()
    world.put(3)
    world.put(4, T, 1)
    assert world.store.flush_to_tier()
    tails = queue_tails(world.store.tier.files)
    assert [(tail.topic, tail.queue_id) for tail in tails] == [(T, 0), (T, 1)]
    assert all(tail.committed_end > 0 for tail in tails)
