"""The key index of a store, asked from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulation.manual_clock import ManualClock
from tiermq import Message
from tiermq.errors import StoreDamaged
from tiermq.store.local_store import LocalStore
from tiermq.store.readonly.index import ReadOnlyIndex

SMALL: dict[str, Any] = {"max_hash_slot_num": 10, "max_index_num": 40}


def test_every_key_is_found_newest_first_over_all_files_while_the_store_runs(tmp_path: Path) -> None:
    clock = ManualClock()
    index = ReadOnlyIndex(tmp_path / "index")
    with LocalStore.open(tmp_path, clock=clock, background=False, **SMALL) as store:
        places: dict[str, list[tuple[int, int]]] = {}
        for number in range(150):
            key = f"k{number % 20}"
            result = store.put(Message("T", b"x", keys=[key]))
            places.setdefault(key, []).insert(0, (result.physical_offset, clock.now_ms()))
            clock.advance_ms(3_000)
            if number % 50 == 49:
                store.dispatch_now()
                index.refresh()
                for key, expected in places.items():
                    assert index.find("T", key) == [place for place, _ in expected]
        assert len(index.names) > 2
        middle_ms = places["k3"][2][1]
        assert index.find("T", "k3", middle_ms, middle_ms) == [places["k3"][2][0]]
        assert index.find("U", "k3") == []
    index.close()
    index.close()


def test_a_file_that_is_no_index_is_named_and_one_that_is_being_made_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "20250101000000000").touch()
    index = ReadOnlyIndex(tmp_path)
    index.refresh()
    assert index.find("T", "k") == []
    (tmp_path / "20250101000000001").write_bytes(b"short")
    index.refresh()
    with pytest.raises(StoreDamaged, match="expected an index file"):
        index.find("T", "k")
