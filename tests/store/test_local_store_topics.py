"""Deleting topics: what goes, what stays, and that a topic which begins again is not mixed up with its first life."""

from __future__ import annotations

import json

import pytest

from simulation.simulated_files import SimulatedFileAccess
from small_store import ROOT, bodies, body, killed, numbered, on_simulation, put_all, remove_tree
from tiermq import GetStatus, Message
from tiermq.errors import StoreDamaged
from tiermq.files.file_access import FileAccess
from tiermq.store.local_store import LocalStore


def test_deleted_topics_are_gone_and_others_stay() -> None:
    """Item 17."""
    access = SimulatedFileAccess()
    with on_simulation(access) as store:
        for topic in ("A", "B", "C"):
            put_all(store, 60, topic)
            put_all(store, 1, topic, 3)
        assert store.delete_topics(["A", "C", "unknown"]) == 2
        assert store.topics() == {"B": [0, 3]}
        assert store.get("A", 0, 0).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
        assert bodies(store, "B") == numbered(60)
        assert access.list_directories(f"{ROOT}/consumequeue") == ["B"]
    with on_simulation(access) as store:
        assert store.topics() == {"B": [0, 3]}


def test_unused_topics_are_those_that_are_neither_retained_nor_the_system_s_nor_light() -> None:
    """Item 17."""
    with on_simulation() as store:
        for topic in ("kept", "unused", "rmq_sys_x", "SCHEDULE_TOPIC_XXXX", "%LMQ%light", "TBW102"):
            put_all(store, 1, topic)
        assert store.clean_unused_topics(["kept"]) == 1
        assert sorted(store.topics()) == ["%LMQ%light", "SCHEDULE_TOPIC_XXXX", "TBW102", "kept", "rmq_sys_x"]


def test_a_deleted_topic_begins_again_at_zero_also_for_a_producer_with_a_handle() -> None:
    with on_simulation() as store:
        handle = store.queue("T")
        put_all(store, 5)
        store.delete_topics(["T"])
        assert handle.put(body(0)).queue_offset == 0
        assert store.put(Message("T", body(1))).queue_offset == 1
        assert store.queue("T").put(body(2)).queue_offset == 2
        store.dispatch_now()
        assert bodies(store) == numbered(3)
        assert store.status()["queue_conflicts"] == 0


def test_what_was_not_dispatched_yet_does_not_bring_a_deleted_topic_back() -> None:
    for mode in ("ASYNC_FLUSH", "SYNC_FLUSH"):
        with on_simulation(flush_disk_type=mode) as store:
            for number in range(5):
                store.put(Message("T", body(number), properties={"WAIT": "false"}))
            store.delete_topics(["T"])
            store.dispatch_now()
            assert store.topics() == {}
            store.put(Message("T", b"second life"))
            store.dispatch_now()
            assert bodies(store) == [b"second life"]


@pytest.mark.parametrize("restarted", [True, False])
def test_a_topic_that_began_again_keeps_its_messages_after_a_kill(restarted: bool) -> None:
    access = SimulatedFileAccess()
    store = on_simulation(access)
    put_all(store, 30)
    store.delete_topics(["T"])
    if restarted:
        store.close()
        store = on_simulation(access)
    for number in range(3):
        store.put(Message("T", f"second life {number}".encode()))
    store.dispatch_now()
    with on_simulation(killed(access)) as after:
        assert bodies(after) == [f"second life {number}".encode() for number in range(3)]
        assert after.put(Message("T", b"next")).queue_offset == 3
    store.close()


def test_a_batch_topic_that_began_again_keeps_its_messages_after_a_kill() -> None:
    access = SimulatedFileAccess()
    store = on_simulation(access, batch_topics=["B"])
    put_all(store, 30, "B")
    store.delete_topics(["B"])
    put_all(store, 2, "B", first=100)
    with on_simulation(killed(access), batch_topics=["B"]) as after:
        assert bodies(after, "B") == numbered(2, 100)
    store.close()


# The type of a topic's queues


def write_topics(access: FileAccess, queue_type: str) -> None:
    config = {"topicName": "T", "readQueueNums": 1, "attributes": {"queue.type": queue_type}}
    text = json.dumps({"dataVersion": {"counter": 1}, "topicConfigTable": {"T": config}})
    access.write_bytes(f"{ROOT}/config/topics.json", text.encode())


def test_topics_json_reports_which_topics_have_batch_queues() -> None:
    access = SimulatedFileAccess()
    write_topics(access, "BatchCQ")
    with on_simulation(access) as store:
        put_all(store, 3)
        assert access.list_directories(f"{ROOT}/batchconsumequeue") == ["T"]
        assert bodies(store) == numbered(3)


@pytest.mark.parametrize("first", ["BatchCQ", "SimpleCQ"])
def test_a_topic_whose_type_changed_is_refused_with_the_reason(first: str) -> None:
    """Item 33."""
    access = SimulatedFileAccess()
    write_topics(access, first)
    with on_simulation(access) as store:
        put_all(store, 3)
    write_topics(access, "SimpleCQ" if first == "BatchCQ" else "BatchCQ")
    with pytest.raises(StoreDamaged, match="queue.type"):
        on_simulation(access)
    write_topics(access, first)
    with on_simulation(access) as store:
        assert bodies(store) == numbered(3)


def test_a_store_lists_what_has_queues_and_nothing_else() -> None:
    access = SimulatedFileAccess()
    store: LocalStore
    with on_simulation(access) as store:
        assert store.topics() == {}
        put_all(store, 1, "A", 2)
        store.queue("bound, not put".replace(", ", "_").replace(" ", "_"))
        assert store.topics() == {"A": [2]}
    remove_tree(access, "consumequeue/A")
    with on_simulation(access) as store:
        assert store.topics() == {"A": [2]}
