"""What goes wrong in a turn stays in it: outages, fences, damage, full disks; and memory stays bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from servers.faulty_driver import Down, Fault, ScriptedFaults, SeededFaults
from tier.dispatch.dispatch_world import BROKER, CLUSTER, DispatchWorld
from tiermq.errors import DiskFull
from tiermq.tier.dispatch.engine import EngineSettings
from tiermq.tier.dispatch.plan import DispatchConfig
from tiermq.tier.dispatch.ready_queue import BackOff
from tiermq.tier.metadata.manifest_store import ManifestStore
from tiermq.tier.names import QueueKey, SegmentType

KEY = QueueKey(CLUSTER, BROKER, "T", 0)
SETTINGS = EngineSettings(back_off=BackOff(1_000, 60_000), breaker_failures_max=4, breaker_rest_ms=10_000)


@pytest.fixture
def world(tmp_path: Path) -> DispatchWorld:
    return DispatchWorld(tmp_path, config=DispatchConfig(group_commit=False), settings=SETTINGS)


def test_a_queue_rests_longer_after_each_failure_and_then_loses_nothing(world: DispatchWorld) -> None:
    world.put(5)
    world.go()
    world.put(5, first=5)
    world.driver.plan = ScriptedFaults("write", [Fault.BEFORE] * 3)
    rests = []
    for _ in range(3):
        world.go()
        run = world.engine._runs["T", 0]
        rests.append(run.retry_at_ms - world.clock.now_ms())
        assert world.go(rests[-1] - 1) == 0 or run.failures == len(rests), "it is not tried before"
        world.clock.advance_ms(1)
    assert rests == [1_000, 2_000, 4_000]
    world.go()
    assert world.tier_offsets() == list(range(10))
    assert world.engine._runs["T", 0].failures == 0
    assert world.index.places() == world.places()
    assert world.engine.metrics.failures("unavailable") == 3


def test_when_the_back_end_is_down_few_requests_are_sent_and_then_one_probe_at_a_time(world: DispatchWorld) -> None:
    for number in range(50):
        world.put(2, f"T{number}")
    world.driver.plan = Down()
    world.go()
    assert len(world.driver.injected) == SETTINGS.breaker_failures_max
    assert world.metric("tiermq_dispatch_breaker_open") == 1
    for expected in range(5, 9):
        assert world.go(9_999) == 0
        world.go(1)
        assert len(world.driver.injected) == expected, "one probe"
    world.driver.plan = None
    world.go(60_000)
    world.go(60_000)
    assert all(world.tier_offsets(f"T{number}") == [0, 1] for number in range(50))
    assert world.metric("tiermq_dispatch_breaker_open") == 0


def test_a_back_end_that_is_down_at_the_start_is_waited_for(tmp_path: Path) -> None:
    world = DispatchWorld(tmp_path, config=DispatchConfig(group_commit=False))
    world.put(5)
    assert world.engine.flush()
    world.driver.plan = Down()
    world.restart()
    world.put(5, first=5)
    world.go(60_000)
    assert world.engine.status()["troubles"]
    world.driver.plan = None
    world.go(60_000)
    assert world.tier_offsets() == list(range(10))
    assert world.engine.status()["troubles"] == {}


@pytest.mark.parametrize("seed", range(6))
def test_whatever_fails_by_chance_everything_arrives_once(tmp_path: Path, seed: int) -> None:
    world = DispatchWorld(
        tmp_path,
        config=DispatchConfig(group_commit=False, group_commit_count=7),
        settings=EngineSettings(breaker_failures_max=1_000, memory_bytes_max=5_000_000),
        log_bytes=1_500,
        unit_bytes=200,
    )
    world.driver.plan = SeededFaults(seed, {Fault.BEFORE: 0.1, Fault.AFTER: 0.1})
    for round_number in range(6):
        for queue_id in range(3):
            world.put(10, "T", queue_id, first=10 * round_number)
        world.go(5_000)
        if round_number == 3:
            world.restart()
    world.driver.plan = None
    world.go(200_000)
    world.go(200_000)
    for queue_id in range(3):
        assert world.tier_offsets("T", queue_id) == list(range(60))
        places = world.places("T", queue_id)
        assert places == sorted(set(places))
        reported = world.index.places("T", queue_id)
        assert reported == sorted(set(reported)), "in order, and none twice"


def test_bug_03_a_writer_that_was_fenced_stops_and_reports_who_took_over(world: DispatchWorld) -> None:
    world.put(5)
    world.go()
    taker = ManifestStore(world.driver, "the other one", clock=world.clock)
    assert taker.acquire(KEY) == 2
    world.put(5, first=5)
    world.go(60_000)
    world.go(60_000)
    world.put(5, first=10)
    before = world.driver.size(KEY.segment(SegmentType.COMMIT_LOG, 0))
    world.go(60_000)
    assert world.driver.size(KEY.segment(SegmentType.COMMIT_LOG, 0)) == before, "not a byte more"
    assert "the other one" in str(world.engine.status()["fenced"])
    assert not world.engine.flush()


def test_another_writer_s_bytes_stop_one_queue_and_no_other(world: DispatchWorld) -> None:
    world.put(5)
    world.put(5, "other")
    world.driver.write(KEY.segment(SegmentType.COMMIT_LOG, 0), 0, [b"another writer was here, and wrote all of this"])
    world.go()
    assert world.tier_offsets("other") == list(range(5))
    assert "other bytes" in str(world.engine.status()["troubles"])
    assert world.engine._budget.used_bytes == 0
    assert world.engine.metrics.failures("refused") == 1


def test_bytes_that_the_tier_lost_stop_the_queue_until_an_operator_looks(world: DispatchWorld) -> None:
    world.put(5)
    world.go()
    world.driver.delete(KEY.segment(SegmentType.COMMIT_LOG, 0))
    world.restart()
    world.put(5, first=5)
    world.go()
    assert "tier verify" in str(world.engine.status()["troubles"])
    assert world.engine.proof.must_stay(0, 1), "what is lost in the tier must not go locally"


def test_an_index_without_room_holds_up_its_queue_and_is_given_everything_later(world: DispatchWorld) -> None:
    world.put(5)
    world.index.error = DiskFull("no room for the index")
    world.go()
    assert world.engine.metrics.failures("local") == 1
    world.index.error = None
    world.go(2_000)
    assert world.index.places() == world.places()
    assert world.tier_offsets() == list(range(5))


def test_an_unexpected_error_ends_one_turn_and_no_other(world: DispatchWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.put(5)
    world.put(5, "other")
    collect = world.source.collect

    def broken(topic: str, *rest: int) -> object:
        if topic == "T":
            raise ZeroDivisionError("a mistake of ours")
        return collect(topic, *rest)

    monkeypatch.setattr(world.source, "collect", broken)
    world.go()
    assert world.tier_offsets("other") == list(range(5))
    assert world.engine.metrics.failures("unexpected") == 1
    monkeypatch.undo()
    world.go(60_000)
    assert world.tier_offsets() == list(range(5))


def test_memory_stays_bounded_while_hundreds_of_queues_fail(tmp_path: Path) -> None:
    limit = 100_000
    world = DispatchWorld(
        tmp_path,
        config=DispatchConfig(group_commit=False, group_commit_bytes=8_000),
        settings=EngineSettings(memory_bytes_max=limit, breaker_failures_max=1 << 30),
    )
    for number in range(100):
        world.put(4, f"T{number}", size=1_500)
    world.go()
    for number in range(100):
        world.put(4, f"T{number}", size=1_500, first=4)
    world.driver.plan = Down()
    for _ in range(5):
        world.go(60_000)
        pending = sum(file.pending_bytes for file in world.files)
        assert 0 < pending <= limit
        assert world.engine._budget.used_bytes <= limit
    world.driver.plan = None
    world.go(120_000)
    world.go(120_000)
    assert all(world.tier_offsets(f"T{number}") == list(range(8)) for number in range(100))
    assert world.engine._budget.used_bytes == 0


def test_a_turn_takes_more_messages_while_the_engine_holds_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = DispatchWorld(tmp_path, config=DispatchConfig(group_commit=False, group_commit_count=4), settings=SETTINGS)
    world.put(30)
    world.engine.tick()
    world.engine.step()
    assert world.tier_offsets() == list(range(4))
    monkeypatch.setattr(type(world.engine), "batch_factor", 3)
    world.engine.step()
    assert world.tier_offsets() == list(range(16))
    world.go()
    assert world.tier_offsets() == list(range(30))
    assert world.index.places() == world.places()


def test_whether_uploads_hold_back_is_shown(world: DispatchWorld) -> None:
    assert world.metric("tiermq_dispatch_paced") == 0
    assert world.engine.status()["paced"] is False
