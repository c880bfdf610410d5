"""The local store as the dispatcher sees it: durable messages only, blanks passed over, tags that mean something."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from small_store import on_disk, overwrite, put_all
from tier.dispatch.dispatch_world import UNIT, DispatchWorld
from tiermq import Message
from tiermq.consumequeue.unit import PRE_BLANK, is_ext_address
from tiermq.message import decode_records
from tiermq.message.java_hash import tags_code
from tiermq.store.local_store import LocalStore
from tiermq.tier.dispatch.local_source import LocalStoreSource


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    with on_disk(tmp_path / "store") as opened:
        yield opened


def test_an_unknown_queue_has_no_state(store: LocalStore) -> None:
    source = LocalStoreSource(store)
    assert source.state("T", 0, -1) is None
    assert source.queues() == []
    assert source.collect("T", 0, 0, 10, 1000, 0).count == 0
    assert source.first_message("T", 0, 0) is None


def test_the_state_reports_what_waits_and_since_when(tmp_path: Path) -> None:
    world = DispatchWorld(tmp_path)
    world.put(5)
    world.clock.advance_ms(1000)
    world.put(5)
    state = world.source.state("T", 0, 5)
    assert state is not None
    assert (state.min_offset, state.max_offset, state.next_offset) == (0, 10, 5)
    assert state.next_ms == world.clock.now_ms()
    assert state.backlog_bytes == world.source.collect("T", 0, 5, 10, 1 << 20, 0).data.__len__()
    assert world.source.state("T", 0, 10).next_offset is None  # type: ignore[union-attr]


@pytest.mark.parametrize("flushed", range(8))
def test_nothing_that_a_power_cut_could_take_back_is_copied(tmp_path: Path, flushed: int) -> None:
    world = DispatchWorld(tmp_path)
    put_all(world.store, flushed)
    world.store.flush()
    put_all(world.store, 7 - flushed, first=flushed)
    state = world.source.state("T", 0, -1)
    assert (0 if state is None else state.max_offset) == flushed
    assert world.source.collect("T", 0, 0, 100, 1 << 20, 0).count == flushed
    world.source.settle()
    assert world.source.collect("T", 0, 0, 100, 1 << 20, 0).count == 7


def test_a_record_is_collected_even_when_it_is_larger_than_the_batch(tmp_path: Path) -> None:
    world = DispatchWorld(tmp_path)
    world.put(3, size=4000)
    assert world.source.collect("T", 0, 1, 100, 10, 0).count == 1


def test_places_without_a_message_are_passed_over(tmp_path: Path) -> None:
    world = DispatchWorld(tmp_path)
    world.put(120)
    for offset in range(10, 70):
        base = offset // 50 * 1000
        overwrite(world.access, f"consumequeue/T/0/{base:020d}", offset * 20 - base, PRE_BLANK)
    state = world.source.state("T", 0, 10)
    assert state is not None
    assert (state.next_offset, state.max_offset) == (70, 120)
    assert world.source.collect("T", 0, 0, 500, 1 << 20, 0).next_offset == 10
    assert world.source.first_message("T", 0, 12) == world.source.first_message("T", 0, 70)


def test_ext_addresses_become_the_tags_that_they_stand_for(tmp_path: Path) -> None:
    with on_disk(tmp_path / "store", enable_consume_queue_ext=True) as store:
        for number in range(3):
            store.put(Message("T", b"x", tags=f"tag{number}"))
        source = LocalStoreSource(store)
        source.settle()
        unit = store._parts.queues.find("T", 0).unit_at(0)  # type: ignore[union-attr]
        assert unit is not None
        assert is_ext_address(unit.tags_code)
        found = source.collect("T", 0, 0, 10, 1 << 20, 500)
        assert [row[2] for row in UNIT.iter_unpack(found.units)] == [tags_code(f"tag{n}") for n in range(3)]
        assert [message.physical_offset for message in decode_records(found.data)] == [
            row[0] for row in UNIT.iter_unpack(found.units)
        ]


def test_queues_of_batch_topics_are_not_offered(tmp_path: Path) -> None:
    with on_disk(tmp_path / "store", batch_topics=["bulk"]) as store:
        put_all(store, 1, "T")
        put_all(store, 1, "bulk")
        assert LocalStoreSource(store).queues() == [("T", 0)]


def test_bug_04_arrivals_are_reported_without_a_look_at_the_records(store: LocalStore) -> None:
    seen: list[tuple[str, int, int]] = []
    LocalStoreSource(store).on_arrival(lambda *arrival: seen.append(arrival))
    put_all(store, 3)
    assert seen[-1] == ("T", 0, 3)
