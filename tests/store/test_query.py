"""Querying: hits are verified against their records, and candidates are asked for until there are enough."""

from __future__ import annotations

import pytest

from simulation.simulated_files import SimulatedFileAccess
from small_store import body, log_place, on_simulation, overwrite, put_all
from tiermq import Message
from tiermq.errors import CorruptRecord
from tiermq.store.local_store import LocalStore
from tiermq.store.reader import query_by_key, record_at

FOREVER = 1 << 62


def asked(store: LocalStore, key: str, count: int) -> list[bytes]:
    index = store._parts.index
    assert index is not None
    page = query_by_key(index, store._parts.log.files.segments, "T", key, count, 0, FOREVER)
    return [message.body for message in page.messages]


def test_collisions_do_not_use_up_what_was_asked_for() -> None:
    """Two hits lie behind a hundred and fifty newer messages whose key has the same hash."""
    with on_simulation() as store:
        for number in range(2):
            store.put(Message("T", body(number), keys="Aa"))
        for number in range(2, 152):
            store.put(Message("T", body(number), keys="BB"))
        store.dispatch_now()
        assert asked(store, "Aa", 2) == [body(0), body(1)]
        assert asked(store, "Aa", 1) == [body(1)]
        assert asked(store, "BB", 3) == [body(149), body(150), body(151)]


def test_a_message_that_has_a_key_twice_is_one_hit() -> None:
    with on_simulation() as store:
        store.put(Message("T", b"x", keys=["k", "k"], properties={"UNIQ_KEY": "k"}))
        store.dispatch_now()
        assert asked(store, "k", 10) == [b"x"]


def test_a_record_is_read_by_its_own_size_or_by_a_given_one() -> None:
    with on_simulation() as store:
        results = put_all(store, 2)
        log = store._parts.log.files.segments
        assert record_at(log, results[1].physical_offset) == record_at(log, results[1].physical_offset, results[1].size)
        assert record_at(log, results[1].end_offset) is None
        assert record_at(log, -1) is None


def test_a_place_that_is_no_record_is_an_error_and_not_a_message() -> None:
    with on_simulation() as store:
        put_all(store, 3)
        log = store._parts.log.files.segments
        with pytest.raises(CorruptRecord, match="physical offset 10"):
            record_at(log, 10, 91)


def test_a_damaged_hit_is_an_error_and_not_a_miss() -> None:
    access = SimulatedFileAccess()
    store = on_simulation(access)
    result = put_all(store, 1, keys="k")[0]
    overwrite(access, *log_place(result.physical_offset + 90), b"\xff")
    with pytest.raises(CorruptRecord):
        asked(store, "k", 1)
    store.close()


def test_an_empty_index_finds_nothing() -> None:
    with on_simulation() as store:
        page = store.query("T", "k")
        assert (page.messages, page.last_update_timestamp_ms, page.last_update_physical_offset) == ([], 0, 0)
