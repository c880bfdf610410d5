"""A store directory as a dispatcher of another process sees it: as the store's own dispatcher does, after `settle`."""

from __future__ import annotations

from pathlib import Path

import pytest

from small_store import on_disk, put_all
from tiermq import Message
from tiermq.consumequeue.unit import is_ext_address
from tiermq.errors import StoreNotRecovered
from tiermq.store.local_store import LocalStore
from tiermq.store.readonly.store import ReadOnlyStore
from tiermq.tier.dispatch.local_source import LocalStoreSource, ReadOnlySource


def test_it_reports_what_the_stores_own_source_reports(tmp_path: Path) -> None:
    with on_disk(tmp_path, background=False) as store:
        put_all(store, 120, "A", keys=["k"])
        put_all(store, 30, "B", 3)
        store.advance_queue("B", 3, 40)
        put_all(store, 10, "B", 3, first=100)
        store.flush()
        here = LocalStoreSource(store)
        with ReadOnlyStore.open(tmp_path) as seen:
            there = ReadOnlySource(seen)
            there.settle()
            assert there.queues() == sorted(here.queues()) == [("A", 0), ("B", 3)]
            assert there.log_bounds() == here.log_bounds()
            for topic, queue_id in there.queues():
                for offset in (-1, 0, 5, 29, 30, 35, 40, 49, 50, 119, 120, 500):
                    assert there.state(topic, queue_id, offset) == here.state(topic, queue_id, offset)
                    assert there.first_message(topic, queue_id, offset) == here.first_message(topic, queue_id, offset)
                    one, other = (each.collect(topic, queue_id, offset, 7, 900, 55) for each in (here, there))
                    assert (one.data, one.units, one.next_offset) == (other.data, other.units, other.next_offset)
            assert there.size_at("A", 0, 0) == here.collect("A", 0, 0, 1, 1, 0).data.__len__()
            assert there.size_at("B", 3, 35) is None
            assert there.size_at("C", 0, 0) is None


def test_nothing_is_copied_before_it_was_made_durable(tmp_path: Path) -> None:
    with on_disk(tmp_path, background=False) as store, ReadOnlyStore.open(tmp_path) as seen:
        put_all(store, 9)
        source = ReadOnlySource(seen)
        seen.refresh()
        assert source.state("T", 0, -1) is None
        assert source.collect("T", 0, 0, 10, 1 << 20, 0).count == 0
        assert ReadOnlySource(seen, trusted=True).collect("T", 0, 0, 10, 1 << 20, 0).count == 9
        source.settle()
        assert source.collect("T", 0, 0, 10, 1 << 20, 0).count == 9


def test_addresses_of_the_local_ext_queue_stay_at_home(tmp_path: Path) -> None:
    with on_disk(tmp_path, background=False, enable_consume_queue_ext=True) as store:
        store.put(Message("T", b"x", tags="red", properties={"PROPERTY": "y"}))
        store.dispatch_now()
        with ReadOnlyStore.open(tmp_path) as seen:
            source = ReadOnlySource(seen)
            source.settle()
            units = source.collect("T", 0, 0, 10, 1 << 20, 0).units
            assert not is_ext_address(int.from_bytes(units[12:20], "big", signed=True))


def test_a_store_whose_process_died_is_not_settled(tmp_path: Path) -> None:
    with LocalStore.open(tmp_path) as store:
        store.put(Message("T", b"x"))
    (tmp_path / "abort").write_bytes(b"1")
    with ReadOnlyStore.open(tmp_path) as seen, pytest.raises(StoreNotRecovered):
        ReadOnlySource(seen).settle()
