"""Single units and the count of puts, as those who copy a store look at them."""

from __future__ import annotations

from pathlib import Path

from tiermq import Message
from tiermq.store.local_store import LocalStore


def test_a_unit_is_found_at_its_place_and_nowhere_else(tmp_path: Path) -> None:
    with LocalStore.open(tmp_path) as store:
        for number in range(5):
            store.put(Message("T", b"x" * number, 1))
        store.dispatch_now()
        units = [store.unit_at("T", 1, offset) for offset in range(5)]
        assert units == [(physical, size) for _, physical, size in store.units_between("T", 1, 0, 5)]
        assert [store.unit_at("T", 1, offset) for offset in (-1, 5)] == [None, None]
        assert store.unit_at("T", 0, 0) is None
        assert store.unit_at("Other", 1, 0) is None


def test_a_place_without_a_message_has_no_unit(tmp_path: Path) -> None:
    with LocalStore.open(tmp_path, background=False) as store:
        store.put(Message("T", b"a", 0))
        store.dispatch_now()
        store.advance_queue("T", 0, 4)
        store.put(Message("T", b"b", 0))
        store.dispatch_now()
        found = [store.unit_at("T", 0, offset) for offset in range(5)]
        assert [unit is None for unit in found] == [False, True, True, True, False]


def test_puts_are_counted_from_the_opening_on(tmp_path: Path) -> None:
    with LocalStore.open(tmp_path) as store:
        assert store.put_count == 0
        store.put(Message("T", b"a"))
        store.put_many([Message("T", b"b"), Message("T", b"c")])
        assert store.put_count == 3
    with LocalStore.open(tmp_path) as store:
        assert store.put_count == 0
