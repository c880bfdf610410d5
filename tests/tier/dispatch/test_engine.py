"""The engine: group commit, back-fill, pausing, flushing, gaps, rolling, and what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from servers.faulty_driver import Down
from small_store import put_all
from tier.dispatch.dispatch_world import BROKER, CLUSTER, DispatchWorld
from tiermq.clock import HOUR_MS
from tiermq.tier.dispatch.plan import DispatchConfig
from tiermq.tier.driver.posix import PosixDriver
from tiermq.tier.metadata.manifest import manifest_name
from tiermq.tier.names import QueueKey

KEY = QueueKey(CLUSTER, BROKER, "T", 0)


@pytest.fixture
def world(tmp_path: Path) -> DispatchWorld:
    return DispatchWorld(tmp_path)


def committed(world: DispatchWorld, topic: str = "T", queue_id: int = 0) -> int:
    file = world.files.find(topic, queue_id)
    return -1 if file is None else file.commit_offset


def test_few_young_messages_wait_until_the_oldest_is_old_enough(world: DispatchWorld) -> None:
    world.put(5)
    world.go()
    assert committed(world) == 0, "it has a place, and nothing in it"
    world.clock.advance_ms(29_000)
    world.put(5)
    world.go()
    assert committed(world) == 0
    world.go(1_001)
    assert committed(world) == 10
    assert world.tier_offsets() == list(range(10))
    assert world.index.places() == world.places()


def test_many_messages_are_sent_at_once_and_the_rest_waits(world: DispatchWorld) -> None:
    world.config = world.engine.config = DispatchConfig(group_commit_count=100)
    world.open_tier()
    world.put(250)
    world.go()
    assert committed(world) == 200, "fifty are no full batch"
    world.go(30_001)
    assert committed(world) == 250


def test_many_bytes_are_sent_at_once(world: DispatchWorld) -> None:
    world.config = DispatchConfig(group_commit_bytes=4_000)
    world.open_tier()
    world.put(3, size=2_000)
    world.go()
    assert committed(world) >= 2


def test_without_group_commit_nothing_waits(world: DispatchWorld) -> None:
    world.config = DispatchConfig(group_commit=False)
    world.open_tier()
    world.put(1)
    world.go()
    assert committed(world) == 1


def test_gap_06_what_was_there_before_the_tier_is_copied_too(world: DispatchWorld) -> None:
    world.put(500)
    world.clock.advance_ms(24 * HOUR_MS)
    world.go()
    assert world.tier_offsets() == list(range(500))


def test_bug_01_a_message_larger_than_a_batch_goes(world: DispatchWorld) -> None:
    world.config = DispatchConfig(group_commit_bytes=1_000)
    world.open_tier()
    world.put(2)
    world.put(2, size=5_000, first=2)
    world.put(2, first=4)
    assert world.engine.flush()
    assert world.tier_offsets() == list(range(6))


def test_an_arrival_wakes_the_engine_before_the_next_sweep(world: DispatchWorld) -> None:
    world.config = DispatchConfig(group_commit_count=10)
    world.open_tier()
    world.put(1)
    world.go()
    assert world.engine._next_sweep_ms > world.clock.now_ms() + 1_000
    world.put(5, first=1)
    assert world.go(1) == 0, "its turn would change nothing"
    world.put(20, first=6)
    assert world.go(1) > 0
    assert committed(world) >= 20


def test_a_queue_that_is_held_back_gets_its_turn_without_a_sweep(world: DispatchWorld) -> None:
    world.put(1)
    world.go()
    world.engine._next_sweep_ms = 1 << 60
    assert world.go(29_000) == 0
    assert world.go(1_001) > 0
    assert committed(world) == 1


def test_bug_04_an_arrival_asks_nothing_of_a_back_end_that_is_down(world: DispatchWorld) -> None:
    world.driver.plan = Down()
    world.put(100)
    put_all(world.store, 10, "new", 7)
    assert world.driver.injected == []
    assert len(world.files) == 0, "not even a row is written on that thread"


def test_filtered_topics_stay_out_and_what_the_tier_has_of_them_stays(world: DispatchWorld) -> None:
    world.put(5)
    world.put(5, "TBW102")
    assert world.engine.flush()
    assert world.files.find("TBW102", 0) is None
    world.filter.kept_out.add("T")
    world.put(5, first=5)
    world.go(40_000)
    assert world.tier_offsets() == list(range(5))
    world.filter.kept_out.discard("T")
    world.go(40_000)
    assert world.tier_offsets() == list(range(10))


def test_pausing_and_resuming_leaves_no_gap(world: DispatchWorld) -> None:
    world.put(5)
    assert world.engine.flush()
    assert world.engine.pause()
    world.put(50, first=5)
    assert world.go(60_000) == 0
    assert committed(world) == 5
    world.engine.resume()
    world.go()
    assert world.tier_offsets() == list(range(55))
    assert world.files.find("T", 0).gaps() == []  # type: ignore[union-attr]


def test_flushing_uploads_everything_put_before_also_what_was_neither_dispatched_nor_durable(
    world: DispatchWorld,
) -> None:
    for number in range(30):
        put_all(world.store, 1, "T", number % 3, first=number)
    assert world.engine.flush()
    assert [committed(world, "T", queue) for queue in range(3)] == [10, 10, 10]
    assert world.engine.flush(), "again, with nothing to do"
    assert world.engine.flush(0.0)


def test_flushing_against_a_back_end_that_is_down_reports_so(world: DispatchWorld) -> None:
    world.put(5)
    world.driver.plan = Down()
    assert not world.engine.flush(0.0)
    assert not world.engine.flush()
    world.driver.plan = None
    world.clock.advance_ms(60_000)
    assert world.engine.flush()
    assert world.tier_offsets() == list(range(5))


def test_bug_02_messages_lost_locally_become_a_gap_and_history_stays(world: DispatchWorld) -> None:
    world.put(20, size=1000)
    assert world.engine.flush()
    world.put(60, size=1000, first=20)
    world.clock.advance_ms(100 * HOUR_MS)
    assert world.store.clean_now().log_files > 0
    low = world.store.min_offset("T", 0)
    assert low > 20
    world.go()
    file = world.files.find("T", 0)
    assert file is not None
    assert [(gap.from_offset, gap.to_offset) for gap in file.gaps()] == [(20, low)]
    assert world.tier_offsets() == [*range(20), *range(low, 80)]
    assert world.metric("tiermq_dispatch_gaps_total") == 1
    assert world.metric("tiermq_dispatch_gap_messages_total") == low - 20


def test_an_old_commit_log_is_rolled_and_what_ended_is_sealed(world: DispatchWorld) -> None:
    world.config = DispatchConfig(rolling_minimum_bytes=100)
    world.open_tier()
    world.put(5)
    assert world.engine.flush()
    world.put(1, first=5)
    world.go(25 * HOUR_MS)
    file = world.files.find("T", 0)
    assert file is not None
    assert len(file.log.segments) == 2
    assert world.driver.is_sealed(file.log.segments[0].key)
    assert file.log.unsealed() == []
    assert world.tier_offsets() == list(range(6))


def test_segments_that_an_earlier_process_left_unsealed_are_sealed(tmp_path: Path) -> None:
    world = DispatchWorld(tmp_path, log_bytes=500)
    world.put(10)
    world.engine.settings = world.settings
    world.writer.seal_next = lambda: None  # type: ignore[method-assign]
    assert world.engine.flush()
    file = world.files.find("T", 0)
    assert file is not None
    assert len(file.log.unsealed()) >= 2
    world.restart()
    world.go()
    again = world.files.find("T", 0)
    assert again is not None
    assert again.log.unsealed() == []
    assert all(world.driver.is_sealed(segment.key) for segment in again.log.segments[:-1])


def test_the_manifest_is_written_at_once_after_a_roll_and_now_and_then_otherwise(world: DispatchWorld) -> None:
    world.put(5)
    assert world.engine.flush()
    first = world.manifests.read(KEY)
    assert first is not None
    assert (first.min_offset, first.max_offset) == (0, 5), "the first one of a process is written at once"
    world.put(5, first=5)
    assert world.engine.flush()
    assert world.manifests.read(KEY) == first, "growth alone can wait"
    world.go(60_000)
    later = world.manifests.read(KEY)
    assert later is not None
    assert later.max_offset == 10
    assert later.sequence > first.sequence


def test_stopping_writes_the_manifests_that_are_due(world: DispatchWorld) -> None:
    world.put(5)
    assert world.engine.flush()
    world.put(5, first=5)
    assert world.engine.flush()
    assert world.engine.stop()
    manifest = world.manifests.read(KEY)
    assert manifest is not None
    assert manifest.max_offset == 10
    assert world.driver.get_object(manifest_name(KEY)) is not None
    assert not world.engine.step(), "a stopped engine does nothing"


def test_a_restart_goes_on_where_the_last_process_stopped(tmp_path: Path) -> None:
    world = DispatchWorld(tmp_path, PosixDriver(tmp_path / "tier"), log_bytes=2_000, unit_bytes=200)
    for round_number in range(4):
        world.put(15, first=15 * round_number)
        assert world.engine.flush()
        world.restart()
    world.go()
    assert world.tier_offsets() == list(range(60))
    assert len(set(world.index.places())) == 60


def test_a_tier_ahead_of_the_local_queue_is_reported_and_left_alone(world: DispatchWorld) -> None:
    world.put(10)
    assert world.engine.flush()
    world.store.delete_topics(["T"])
    world.put(3)
    world.go(60_000)
    assert committed(world) == 10
    assert "more than the local queue" in str(world.engine.status()["troubles"])


def test_metadata_that_was_lost_is_restored_before_anything_is_written(world: DispatchWorld, tmp_path: Path) -> None:
    world.put(10)
    assert world.engine.flush()
    (tmp_path / "other").mkdir()
    other = DispatchWorld(tmp_path / "other", world.driver)
    other.put(20)
    assert not other.engine.flush()
    assert "tier restore" in str(other.engine.status()["troubles"])
    assert world.tier_offsets() == list(range(10))


def test_the_metrics_are_true(world: DispatchWorld) -> None:
    world.put(5)
    world.go()
    world.clock.advance_ms(2_500)
    labels = {"topic": "T", "queue_id": "0", "storage_type": "tiered"}
    assert world.metric("rocketmq_tiered_store_dispatch_behind", **labels) == 5
    assert world.metric("rocketmq_tiered_store_dispatch_latency", **labels) == 2.5
    assert world.metric("tiermq_dispatch_backlog_age_seconds") == 2.5
    assert world.metric("tiermq_dispatch_backlog_messages") == 5
    assert world.metric("tiermq_dispatch_backlog_bytes") == world.store.max_physical_offset
    assert world.engine.flush()
    assert world.metric("rocketmq_tiered_store_dispatch_behind", **labels) == 0
    assert world.metric("rocketmq_tiered_store_dispatch_latency", **labels) == 0
    assert world.metric("rocketmq_tiered_store_messages_dispatch_total", **labels) == 5
    assert world.metric("tiermq_dispatch_bytes_total") == world.files.find("T", 0).log.commit_offset  # type: ignore[union-attr]
    assert world.metric("tiermq_dispatch_backlog_bytes") == 0
    assert world.metric("tiermq_dispatch_pending_bytes") == 0
    world.store.close()
    assert world.metric("rocketmq_tiered_store_dispatch_behind", **labels) == 0
