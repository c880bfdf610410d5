"""Dispatch: every record, once and in order, to queues, index, joined dispatchers and listeners."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from small_store import (
    LOG_BYTES,
    ROOT,
    bodies,
    body,
    contents,
    killed,
    log_place,
    numbered,
    on_simulation,
    overwrite,
    pause_dispatch,
    put_all,
    read_all,
    resume_dispatch,
)
from tiermq import GetStatus, Message
from tiermq.commitlog.commit_log import LIGHT_QUEUES_MAX
from tiermq.commitlog.dispatch_request import DispatchRequest
from tiermq.errors import CorruptRecord, DiskFull
from tiermq.message.client_batch import BatchElement, encode_client_batch
from tiermq.message.java_hash import java_hash
from tiermq.status import PutStatus
from tiermq.store.dispatch import DispatchSpan
from tiermq.store.local_store import LocalStore
from tiermq.store.wiring import REPUT_REST_S

LIGHT: dict[str, Any] = {"enable_lmq": True, "enable_multi_dispatch": True}


class Seen:
    """A dispatcher that notes what it is given, and fails as often as it is set to."""

    def __init__(self, failures: int = 0) -> None:
        self.requests: list[DispatchRequest] = []
        self.failures = failures

    def dispatch(self, span: DispatchSpan) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("not now")
        self.requests.extend(span)


@pytest.fixture
def store() -> Iterator[LocalStore]:
    with on_simulation() as opened:
        yield opened


def test_nothing_can_be_got_before_it_is_dispatched(store: LocalStore) -> None:
    """Item 11."""
    for number in range(10):
        store.put(Message("T", body(number)))
    assert (store.max_offset("T", 0), store.max_offset("T", 0, committed=False)) == (0, 10)
    assert store.get("T", 0, 0).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    assert store.dispatch_now() == 10
    assert (store.max_offset("T", 0), store.max_offset("T", 0, committed=False)) == (10, 10)
    assert store.dispatch_now() == 0
    assert store.dispatched_where == store.max_physical_offset


def test_joined_dispatchers_see_every_record_once_and_in_order(store: LocalStore) -> None:
    first, second = Seen(), Seen()
    store._parts.dispatch.dispatchers.append(first)
    store._parts.dispatch.dispatchers.append(second)
    results = []
    for number in range(300):
        results.append(store.put(Message(f"T{number % 3}", body(number), number % 2, tags="a", keys="k")))
        if number % 70 == 0:
            store.dispatch_now()
    store.dispatch_now()
    for seen in (first, second):
        assert [request.physical_offset for request in seen.requests] == [result.physical_offset for result in results]
        assert [request.queue_offset for request in seen.requests] == [result.queue_offset for result in results]
        assert {request.tags_code for request in seen.requests} == {java_hash("a")}
        assert {request.keys for request in seen.requests} == {("k",)}


def test_a_dispatcher_that_fails_is_given_the_same_records_again(store: LocalStore) -> None:
    put_all(store, 5)
    seen = Seen(failures=1)
    store._parts.dispatch.dispatchers.append(seen)
    for number in range(5, 10):
        store.put(Message("T", body(number), keys=f"k{number}"))
    with pytest.raises(OSError, match="not now"):
        store.dispatch_now()
    store.dispatch_now()
    assert [request.queue_offset for request in seen.requests] == [5, 6, 7, 8, 9]
    assert bodies(store) == numbered(10)
    assert len(store.query("T", "k7").messages) == 1
    index = store._parts.index
    assert index is not None
    assert len(index.query("T", "k7", 64, 0, 1 << 62).offsets) == 1


def test_dispatchers_see_records_that_have_no_place_in_a_queue(store: LocalStore) -> None:
    seen = Seen()
    store._parts.dispatch.dispatchers.append(seen)
    for flag in (0, 4, 8, 12):
        store.put(Message("T", b"x", sys_flag=flag, keys=f"k{flag}", prepared_transaction_offset=flag))
    store.dispatch_now()
    assert [request.sys_flag for request in seen.requests] == [0, 4, 8, 12]
    assert [request.prepared_transaction_offset for request in seen.requests] == [0, 4, 8, 12]
    assert store.max_offset("T", 0) == 2
    assert [len(store.query("T", f"k{flag}").messages) for flag in (0, 4, 8, 12)] == [1, 1, 1, 0]


def test_arrival_listeners_are_notified_of_each_queue_and_its_end(store: LocalStore) -> None:
    reported: dict[tuple[str, int], int] = {}

    def listen(topic: str, queue_id: int, next_offset: int, request: DispatchRequest | None) -> None:
        assert request is None or (request.topic, request.queue_id) == (topic, queue_id)
        reported[topic, queue_id] = max(reported.get((topic, queue_id), 0), next_offset)

    store.add_arrival_listener(listen)
    for number in range(100):
        store.put(Message(f"T{number % 2}", body(number), number % 5))
    store.dispatch_now()
    assert reported == {(f"T{topic}", queue_id): 10 for topic in range(2) for queue_id in range(5)}
    reported.clear()
    store.put(Message("T0", b"x", 0))
    store.dispatch_now()
    assert reported == {("T0", 0): 11}


def test_listeners_are_not_notified_of_records_that_enter_no_queue(store: LocalStore) -> None:
    put_all(store, 1)
    reported: list[object] = []
    store.add_arrival_listener(lambda *arguments: reported.append(arguments))
    store.put(Message("T", b"x", sys_flag=4))
    store.put(Message("Fresh", b"x", sys_flag=12))
    store.dispatch_now()
    assert reported == []


def test_paused_dispatch_leaves_everything_until_it_is_resumed() -> None:
    with on_simulation(background=True) as store:
        pause_dispatch(store)
        results = [store.put(Message("T", body(number))) for number in range(10)]
        store._parts.reput.run_once()
        assert (store.dispatched_where, store.max_offset("T", 0)) == (0, 0)
        assert store.status()["dispatch_behind_bytes"] == results[-1].end_offset
        store.dispatch_now()
        assert store.max_offset("T", 0) == 10
        resume_dispatch(store)


def test_what_replicas_have_may_end_within_a_record_and_dispatch_rests_until_it_is_whole() -> None:
    with on_simulation() as store:
        first, second = (store.put(Message("T", body(number))) for number in range(2))
        replicated = first.end_offset + 7
        store.require_replicas(lambda: replicated)
        for _ in range(2):
            assert store._parts.reput.run_once() == REPUT_REST_S
            assert (store.dispatched_where, store.max_offset("T", 0)) == (first.end_offset, 1)
            replicated = second.end_offset - 1
        replicated = second.end_offset
        store._parts.reput.run_once()
        assert (store.dispatched_where, store.max_offset("T", 0)) == (second.end_offset, 2)
        assert store.writeable


def test_under_sync_flush_nothing_is_dispatched_before_it_is_durable() -> None:
    """Item 19."""
    with on_simulation(flush_disk_type="SYNC_FLUSH") as store:
        for number in range(10):
            store.put(Message("T", body(number), properties={"WAIT": "false"}))
        assert store.flushed_where == 0
        assert store.dispatch_now() == 0
        assert store.get("T", 0, 0).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
        store.flush()
        assert store.dispatch_now() == 10
        assert bodies_without_wait(store) == numbered(10)


def bodies_without_wait(store: LocalStore) -> list[bytes]:
    return [message.body for message in read_all(store)]


def test_under_async_flush_everything_is_dispatched_though_nothing_is_durable(store: LocalStore) -> None:
    """Item 19."""
    put_all(store, 10)
    assert (store.flushed_where, store.max_offset("T", 0)) == (0, 10)


def test_what_may_be_read_uncommitted_is_dispatched_before_it_is_durable() -> None:
    with on_simulation(flush_disk_type="SYNC_FLUSH", read_un_committed=True) as store:
        store.put(Message("T", b"x", properties={"WAIT": "false"}))
        assert (store.dispatch_now(), store.flushed_where) == (1, 0)


def test_with_the_transient_pool_everything_put_can_be_got_after_dispatch_now() -> None:
    with on_simulation(transient_store_pool_enable=True, transient_store_pool_size=2) as store:
        for number in range(300):
            assert store.put(Message("T", body(number))).ok
        store.dispatch_now()
        assert bodies(store) == numbered(300)


# Light queues


def light(names: str, number: int = 0, topic: str = "T") -> Message:
    return Message(topic, body(number), properties={"INNER_MULTI_DISPATCH": names})


def test_a_multi_dispatched_message_is_in_every_light_queue_that_it_names() -> None:
    """Item 25."""
    with on_simulation(**LIGHT) as store:
        for number in range(6):
            store.put(light("%LMQ%a,%LMQ%b" if number % 2 else "%LMQ%a", number))
        store.dispatch_now()
        assert store.topics() == {"%LMQ%a": [0], "%LMQ%b": [0], "T": [0]}
        assert bodies(store) == bodies(store, "%LMQ%a") == numbered(6)
        assert bodies(store, "%LMQ%b") == numbered(6)[1::2]
        offsets = [message.properties["INNER_MULTI_QUEUE_OFFSET"] for message in read_all(store)]
        assert offsets == ["0", "1,0", "2", "3,1", "4", "5,2"]


@pytest.mark.parametrize(
    ("names", "offsets"),
    [
        ("other,%LMQ%a", ",0"),
        ("%LMQ%a,,%LMQ%b", "0,,0"),
        (",%LMQ%a", ",0"),
        ("%LMQ%a,%LMQ%a", "0,0"),
        ("%LMQ%bad/name,%LMQ%a", ",0"),
    ],
)
def test_names_that_are_no_light_queues_keep_their_place_in_the_list(names: str, offsets: str) -> None:
    with on_simulation(**LIGHT) as store:
        store.put(light(names))
        store.put(light("%LMQ%a", 1))
        store.dispatch_now()
        assert read_all(store)[0].properties["INNER_MULTI_QUEUE_OFFSET"] == offsets
        assert bodies(store, "%LMQ%a") == numbered(2)
        assert store.status()["queue_gaps"] == 0
        assert store.status()["queue_conflicts"] == 0


def test_light_queues_go_on_after_a_restart_and_after_a_kill() -> None:
    access = SimulatedFileAccess()
    with on_simulation(access, **LIGHT) as store:
        store.put(light("%LMQ%a", 0))
    with on_simulation(access, **LIGHT) as store:
        store.put(light("%LMQ%a", 1))
        after = killed(access)
    with on_simulation(after, **LIGHT) as store:
        store.put(light("%LMQ%a", 2))
        store.dispatch_now()
        assert bodies(store, "%LMQ%a") == numbered(3)


LITE_NAME = "%LMQ%$T$ann"


def test_a_light_queue_that_is_dropped_begins_again_at_zero() -> None:
    clock = ManualClock()
    with on_simulation(clock=clock, **LIGHT) as store:
        for number in range(3):
            store.put(light(LITE_NAME, number))
        store.dispatch_now()
        assert not store.drop_light_queue(LITE_NAME, clock.now_ms())
        assert store.drop_light_queue(LITE_NAME, clock.now_ms() + 1)
        assert LITE_NAME not in store.topics()
        assert not store.drop_light_queue(LITE_NAME, clock.now_ms() + 1)
        store.put(light(LITE_NAME, 3))
        store.dispatch_now()
        assert bodies(store, LITE_NAME) == numbered(1, first=3)
        assert bodies(store) == numbered(4)
        assert store.status()["queue_conflicts"] == store.status()["queue_gaps"] == 0


def test_a_light_queue_to_which_something_was_put_meanwhile_is_not_dropped() -> None:
    clock = ManualClock()
    with on_simulation(clock=clock, **LIGHT) as store:
        store.put(light(LITE_NAME, 0))
        store.dispatch_now()
        store.put(light(LITE_NAME, 1))
        assert not store.drop_light_queue(LITE_NAME, clock.now_ms() + 1)
        store.dispatch_now()
        assert bodies(store, LITE_NAME) == numbered(2)


def test_a_light_queue_all_of_whose_messages_are_deleted_has_no_newest_message() -> None:
    clock = ManualClock()
    with on_simulation(clock=clock, **LIGHT) as store:
        store.put(light(LITE_NAME, 0))
        put_all(store, 3 * LOG_BYTES // 100, size=80)
        assert store.newest_time(LITE_NAME, 0) > 0
        clock.advance_ms(100 * 3_600_000)
        store.clean_now()
        assert store.min_physical_offset > 0
        assert store.newest_time(LITE_NAME, 0) == -1
        assert store.drop_light_queue(LITE_NAME, 0)


@pytest.mark.parametrize("seen", [0, 2])
def test_a_copy_of_the_log_sees_that_a_light_queue_was_dropped(seen: int) -> None:
    """A slave that has dispatched some of the queue, or a store whose deletion was not on disk before a crash."""
    access, clock = SimulatedFileAccess(), ManualClock()
    with on_simulation(access, clock=clock, **LIGHT) as store, on_simulation(**LIGHT) as copy:
        ends = []
        for number in range(3):
            store.put(light(LITE_NAME, number))
            ends.append(store.max_physical_offset)
        store.dispatch_now()
        store.drop_light_queue(LITE_NAME, clock.now_ms() + 1)
        for number in range(3, 5):
            store.put(light(LITE_NAME, number))
        log = contents(access, "commitlog")[f"{ROOT}/commitlog/{0:020}"]
        end = store.max_physical_offset
        at = ends[seen]
        copy.append_data(0, memoryview(log)[:at])
        copy.dispatch_now()
        assert bodies(copy, LITE_NAME) == numbered(seen + 1)
        copy.append_data(at, memoryview(log)[at:end])
        copy.dispatch_now()
        assert bodies(copy, LITE_NAME) == numbered(2, first=3)
        assert copy.status()["queue_conflicts"] == 0


def test_retry_and_system_topics_are_not_multi_dispatched() -> None:
    with on_simulation(**LIGHT) as store:
        for topic in ("%RETRY%g", "rmq_sys_x", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"):
            store.put(light("%LMQ%a", topic=topic))
            forged = {"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "1000"}
            store.put(Message(topic, b"forged", properties=forged))
        store.dispatch_now()
        assert "%LMQ%a" not in store.topics()


def test_one_message_names_so_many_light_queues_at_most() -> None:
    with on_simulation(**LIGHT) as store:
        many = [f"%LMQ%{number}" for number in range(LIGHT_QUEUES_MAX + 1)]
        assert store.put(light(",".join(many))).status is PutStatus.MESSAGE_ILLEGAL
        assert store.put(light(",".join(many[:-1]))).status is PutStatus.PUT_OK
        store.dispatch_now()
        assert len(store.topics()) == 1 + LIGHT_QUEUES_MAX


def test_without_the_setting_a_light_queue_is_only_a_property(store: LocalStore) -> None:
    store.put(light("%LMQ%a"))
    store.dispatch_now()
    assert store.topics() == {"T": [0]}
    assert "INNER_MULTI_QUEUE_OFFSET" not in read_all(store)[0].properties


# Delayed messages


@pytest.mark.parametrize(
    ("level", "delay_ms"), [("1", 1_000), ("3", 10_000), ("18", 7_200_000), ("99", 7_200_000), ("0", None), ("x", None)]
)
def test_the_unit_of_a_delayed_message_holds_its_due_time(level: str, delay_ms: int | None) -> None:
    clock = ManualClock()
    with on_simulation(clock=clock) as store:
        for _ in range(2):  # The second one would be the fast path's, if the topic were an ordinary one.
            store.put(Message("SCHEDULE_TOPIC_XXXX", b"x", 2, tags="t", properties={"DELAY": level}))
        store.dispatch_now()
        queue = store._parts.queues.find("SCHEDULE_TOPIC_XXXX", 2)
        codes = [unit[2] for unit in queue.iterate_from(0)]  # type: ignore[union-attr]
        assert codes == [java_hash("t") if delay_ms is None else clock.now_ms() + delay_ms] * 2


def test_the_delay_property_means_nothing_on_other_topics(store: LocalStore) -> None:
    store.put(Message("T", b"x", tags="t", properties={"DELAY": "3"}))
    store.dispatch_now()
    queue = store._parts.queues.find("T", 0)
    assert queue is not None
    assert queue.unit_at(0).tags_code == java_hash("t")  # type: ignore[union-attr]


# Again, and against damage


def test_a_record_that_is_dispatched_again_gets_no_second_unit(store: LocalStore) -> None:
    """Item 24."""
    put_all(store, 10, keys="k")
    store._parts.dispatch.offset = 0
    assert store.dispatch_now() == 10
    assert store.max_offset("T", 0) == 10
    assert len(store.query("T", "k", max_messages=64).messages) == 10
    index = store._parts.index
    assert index is not None
    assert len(index.query("T", "k", 64, 0, 1 << 62).offsets) == 10


def test_damage_under_a_running_store_stops_dispatch_and_puts_and_is_reported() -> None:
    access = SimulatedFileAccess()
    store = on_simulation(access)
    put_all(store, 3)
    bad = store.put(Message("T", b"x"))
    overwrite(access, *log_place(bad.physical_offset), bytes(8))
    with pytest.raises(CorruptRecord, match=f"physical offset {bad.physical_offset}"):
        store.dispatch_now()
    assert store.dispatched_where == bad.physical_offset
    with pytest.raises(CorruptRecord):
        store._parts.reput.run_once()
    assert not store.writeable
    store.close()
    assert access.exists("/store/abort")


def test_a_full_disk_delays_dispatch_and_loses_neither_unit_nor_key() -> None:
    full = False

    def fault(operation: str, path: str) -> None:
        if full and operation in ("create", "reserve") and ("consumequeue" in path or "index" in path):
            raise DiskFull(path)

    access = SimulatedFileAccess(on_call=fault)
    with on_simulation(access, max_index_num=30) as store:
        put_all(store, 20, keys="k")
        full = True
        for number in range(20, 120):
            store.put(Message("T", body(number), keys="k"))
        for _ in range(2):
            with pytest.raises(DiskFull):
                store.dispatch_now()
        full = False
        store.dispatch_now()
        assert bodies(store) == numbered(120)
        assert len(store.query("T", "k", max_messages=64).messages) == 64
        index = store._parts.index
        assert index is not None
        assert len(index.query("T", "k", 1000, 0, 1 << 62).offsets) == 120


def test_a_full_disk_at_the_very_first_record_loses_no_key() -> None:
    full = True

    def fault(operation: str, path: str) -> None:
        if full and operation == "create" and "index" in path:
            raise DiskFull(path)

    with on_simulation(SimulatedFileAccess(on_call=fault)) as store:
        for number in range(5):
            store.put(Message("T", body(number), keys=f"k{number}"))
        with pytest.raises(DiskFull):
            store.dispatch_now()
        full = False
        store.dispatch_now()
        assert [len(store.query("T", f"k{number}").messages) for number in range(5)] == [1] * 5


def test_trap_19_a_queue_offset_that_jumps_is_reported_and_leaves_its_gap() -> None:
    """Trap 19: the message is at its own place, not at the end of the queue."""
    with on_simulation() as store:
        put_all(store, 3)
        store.queue("T").next_offset = 10
        store.put(Message("T", body(10)))
        store.dispatch_now()
        assert store.status()["queue_gaps"] == 1
        assert store.max_offset("T", 0) == 11
        assert [message.queue_offset for message in read_all(store)] == [0, 1, 2, 10]


def test_trap_20_a_queue_offset_that_starts_again_is_reported_and_replaces_nothing() -> None:
    with on_simulation() as store:
        put_all(store, 3)
        store.queue("T").next_offset = 0
        store.put(Message("T", b"impostor"))
        store.dispatch_now()
        assert store.status()["queue_conflicts"] == 1
        assert bodies(store) == numbered(3)


def test_a_classic_batch_is_dispatched_message_by_message(store: LocalStore) -> None:
    seen = Seen()
    store._parts.dispatch.dispatchers.append(seen)
    store.put_batch(Message("T", encode_client_batch([BatchElement(0, body(number), b"") for number in range(4)])))
    store.dispatch_now()
    assert [(request.queue_offset, request.batch_size) for request in seen.requests] == [(n, 1) for n in range(4)]


def test_an_inner_batch_is_dispatched_as_one_request_with_its_count() -> None:
    with on_simulation(batch_topics=["B"]) as store:
        seen, reported = Seen(), []
        store._parts.dispatch.dispatchers.append(seen)
        store.add_arrival_listener(lambda topic, queue_id, next_offset, request: reported.append(next_offset))
        elements = encode_client_batch([BatchElement(0, body(number), b"") for number in range(4)])
        for _ in range(2):
            store.put(Message("B", elements, sys_flag=0xC0, properties={"INNER_NUM": "4"}))
        store.dispatch_now()
        assert [(request.queue_offset, request.batch_size) for request in seen.requests] == [(0, 4), (4, 4)]
        assert reported == [4, 8]
