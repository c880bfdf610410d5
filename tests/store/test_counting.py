"""Counting: statistics take over what the hot paths counted, once, and lose nothing when a topic begins again."""

from __future__ import annotations

from small_store import on_simulation, put_all
from tiermq import LocalStore, Message


def counted(store: LocalStore) -> dict[str, object]:
    store._parts.housekeeping.run_once()
    return store.statistics()


def test_puts_and_gets_are_taken_over_once() -> None:
    with on_simulation() as store:
        results = put_all(store, 10)
        store.put_many([Message("U", b"x", queue_id) for queue_id in range(3)])
        store.get("T", 0, 0, 4)
        store.get("T", 0, 99)
        for _ in range(2):
            statistics = counted(store)
        assert statistics["put_messages"] == 13
        assert statistics["put_bytes"] == store.max_physical_offset
        assert (statistics["get_found"], statistics["get_missed"], statistics["get_transferred"]) == (1, 1, 4)
        topics = store._parts.statistics.topics()
        assert (topics["T"].put_messages, topics["T"].put_bytes) == (10, results[-1].end_offset)
        assert topics["U"].put_messages == 3


def test_a_topic_that_was_deleted_goes_on_being_counted() -> None:
    with on_simulation() as store:
        put_all(store, 10)
        counted(store)
        store.delete_topics(["T"])
        put_all(store, 4)
        assert counted(store)["put_messages"] == 14


def test_refused_puts_are_not_counted_as_stored() -> None:
    with on_simulation() as store:
        store.put(Message("not/legal", b"x"))
        store.put(Message("T", b"x", encoded_properties=b"p" * 40_000))
        assert counted(store)["put_messages"] == 0
