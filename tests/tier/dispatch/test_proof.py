"""Local files go only when everything tiered in them is proven to be in the tier."""

from __future__ import annotations

from pathlib import Path

import pytest

from small_store import LOG_BYTES, put_all
from tier.dispatch.dispatch_world import DispatchWorld
from tiermq import Message
from tiermq.tier.dispatch.plan import HOUR_MS
from tiermq.tier.driver.faulty import Down


@pytest.fixture
def world(tmp_path: Path) -> DispatchWorld:
    world = DispatchWorld(tmp_path)
    world.store.add_eviction_veto(world.engine.proof.must_stay)
    return world


def test_an_empty_store_holds_nothing_back(world: DispatchWorld) -> None:
    assert not world.engine.proof.must_stay(0, 0)
    assert world.engine.proof.lag().bytes == 0


def test_a_file_stays_until_its_last_tiered_record_is_committed(world: DispatchWorld) -> None:
    world.put(10, "T", 0, size=1000)
    world.put(1, "late", 0, size=1000)
    world.put(20, "T", 0, size=1000, first=10)
    world.filter.add_to_blacklist("late")
    assert world.engine.flush()
    world.filter.remove_from_blacklist("late")
    place = world.store.physical_offset_of("late", 0, 0)
    lag = world.engine.proof.lag()
    assert (lag.proven_to, lag.topic, lag.queue_id) == (place, "late", 0)
    assert lag.bytes == world.store.max_physical_offset - place
    assert not world.engine.proof.must_stay(0, place)
    assert world.engine.proof.must_stay(0, place + 1)
    world.clock.advance_ms(100 * HOUR_MS)
    cleaned = world.store.clean_now()
    assert (cleaned.log_files, cleaned.vetoed) == (0, True)
    assert world.engine.flush()
    assert world.engine.proof.lag().bytes == 0
    assert world.store.clean_now().log_files > 0
    assert world.tier_offsets() == list(range(30))


def test_filtered_topics_hold_nothing_back(world: DispatchWorld) -> None:
    world.put(20, "TBW102", size=1000)
    assert not world.engine.proof.must_stay(0, LOG_BYTES)


def test_records_that_have_no_unit_yet_are_not_proven(world: DispatchWorld) -> None:
    world.put(5)
    assert world.engine.flush()
    proven = world.engine.proof.lag().proven_to
    world.store.pause_dispatch()
    world.store.put(Message("T", b"later"))
    assert world.engine.proof.lag().proven_to == proven
    assert world.engine.proof.must_stay(0, world.store.max_physical_offset)


def test_after_a_start_nothing_is_proven_before_the_tier_was_asked(world: DispatchWorld) -> None:
    world.put(20, size=1000)
    assert world.engine.flush()
    world.driver.plan = Down()
    world.restart()
    world.go()
    assert world.engine.proof.must_stay(0, LOG_BYTES)
    world.driver.plan = None
    world.go(60_000)
    assert not world.engine.proof.must_stay(0, LOG_BYTES)


def test_a_gap_does_not_hold_files_back_for_ever(world: DispatchWorld) -> None:
    put_all(world.store, 60, size=1000)
    world.store.flush()
    world.store._parts.cleaner.vetoes.clear()
    world.go()
    world.clock.advance_ms(100 * HOUR_MS)
    assert world.store.clean_now().log_files > 0
    world.store.add_eviction_veto(world.engine.proof.must_stay)
    assert world.engine.flush()
    assert world.engine.proof.lag().bytes == 0
