"""A store directory, read beside its broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from history.history_world import HistoryWorld
from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.errors import StoreDamaged
from tiermq.store.readonly.store import ReadOnlyStore


@pytest.fixture
def world(tmp_path: Path) -> Iterator[HistoryWorld]:
    made = HistoryWorld(tmp_path)
    made.open()
    yield made
    made.bury()


def test_units_come_in_order_over_files_and_pieces(world: HistoryWorld) -> None:
    world.put(130)  # A file holds 50 units.
    store = ReadOnlyStore.open(str(world.disk))
    assert store.queues() == [("orders", 0)]
    assert store.bounds("orders", 0) == (0, 130)
    pieces = list(store.unit_pieces("orders", 0, 7, 120, 20))
    assert [piece.first_offset for piece in pieces] == [7, 27, 47, 50, 70, 90, 100]
    assert sum(len(piece.data) for piece in pieces) == 113 * UNIT_BYTES
    assert list(store.unit_pieces("orders", 9, 0, 10, 5)) == []
    assert store.bounds("nothing", 0) == (0, 0)
    store.close()


def test_a_map_lives_as_long_as_it_is_read(world: HistoryWorld) -> None:
    world.put(400)
    store = ReadOnlyStore.open(str(world.disk))
    piece = store.log_file(0)
    assert piece is not None
    before = bytes(piece.data[:100])
    world.flush_to_tier()
    assert world.evict_old() > 0
    store.refresh()
    assert store.log_file(0) is None
    store.close()
    assert bytes(piece.data[:100]) == before


def test_a_file_that_goes_between_look_and_read_is_not_there(world: HistoryWorld) -> None:
    world.put(400)
    store = ReadOnlyStore.open(str(world.disk))
    world.flush_to_tier()
    assert world.evict_old() > 0
    assert store.log_file(0) is None
    store.close()


def test_a_file_of_the_log_that_is_newer_than_the_last_look_is_found(world: HistoryWorld) -> None:
    world.put(10)
    store = ReadOnlyStore.open(str(world.disk))
    assert store.bounds("orders", 0) == (0, 10)
    world.put(400)
    end = world.store.local.max_physical_offset
    assert end > 2 * 16 * 1024
    piece = store.log_file(end - 1)
    assert piece is not None
    assert piece.base <= end - 1 < piece.base + len(piece.data)
    store.close()


def test_the_index_reports_how_far_it_reaches(world: HistoryWorld) -> None:
    store = ReadOnlyStore.open(str(world.disk))
    assert store.indexed_range() == (0, 0, 0)
    world.put(100)
    store.refresh()
    begin, end, files = store.indexed_range()
    assert (begin, files) == (0, 2)  # 200 keys; a file holds 199.
    assert store.first_unit_from("orders", 0, end, 0, 100) == 99
    assert store.first_unit_from("orders", 0, end + 1, 0, 100) == 100
    assert store.first_unit_from("orders", 0, 0, 0, 100) == 0
    (place,) = store.find_key("orders", "key-7", 0, 1 << 62)
    assert store.first_unit_from("orders", 0, place, 0, 100) == 6
    store.close()


def test_store_times_are_known_by_offset(world: HistoryWorld) -> None:
    world.put(1)
    world.clock.advance_ms(500)
    world.put(1)
    store = ReadOnlyStore.open(str(world.disk))
    assert store.store_time_of("orders", 0, 1) - store.store_time_of("orders", 0, 0) == 500
    assert store.store_time_of("orders", 0, 2) == -1
    store.require_recovered()
    store.close()


def test_a_directory_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreDamaged):
        ReadOnlyStore.open(str(tmp_path / "nothing"))
