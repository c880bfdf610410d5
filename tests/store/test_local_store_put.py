"""Putting: offsets, ids, batches, rolls, many threads; what was put is there once, whole and in order."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from small_store import LOG_BYTES, bodies, body, numbered, on_disk, on_simulation, put_all, read_all
from tiermq import Message, PutResults, PutStatus
from tiermq.errors import IllegalMessage
from tiermq.message.client_batch import BatchElement, encode_client_batch, unwrap_inner_batch
from tiermq.message.properties import encode_properties
from tiermq.message.record import decode_records
from tiermq.store.local_store import LocalStore

BLANK_MAGIC = bytes.fromhex("CBD43194")
MODES: dict[str, dict[str, Any]] = {
    "async": {},
    "sync": {"flush_disk_type": "SYNC_FLUSH"},
    "pool": {"transient_store_pool_enable": True, "transient_store_pool_size": 2},
    "woken flush": {"wake_flush_when_put_message": True, "flush_commit_log_timed": False},
}


def test_a_put_returns_where_the_message_is_stored(manual_clock: ManualClock) -> None:
    with on_simulation(clock=manual_clock, store_host="192.168.1.10:10911") as store:
        first = store.put(Message("TopicTest", b"hello", 3))
        manual_clock.advance_ms(5)
        second = store.put(Message("TopicTest", b"hello", 3))
    assert (first.status, first.ok, first.count) == (PutStatus.PUT_OK, True, 1)
    assert (first.physical_offset, first.size, first.end_offset, first.queue_offset) == (0, 105, 105, 0)
    assert (second.physical_offset, second.queue_offset) == (105, 1)
    assert second.store_timestamp_ms == first.store_timestamp_ms + 5 == manual_clock.now_ms()
    assert second.message_id == "C0A8010A00002A9F0000000000000069"


def test_hosts_of_both_families_are_written_and_read_back() -> None:
    """Item 2."""
    hosts = ["1.2.3.4:5", "[::1]:6", ""]
    for store_host in ("10.0.0.1:10911", "[fe80::1]:10911"):
        with on_simulation(store_host=store_host) as store:
            results = [store.put(Message("T", b"x", born_host=host or b"")) for host in hosts]
            store.dispatch_now()
            found = read_all(store)
            assert [message.born_host for message in found] == [*hosts[:2], store_host]
            assert {message.store_host for message in found} == {store_host}
            assert [message.message_id for message in found] == [result.message_id for result in results]
            assert [len(result.message_id or "") for result in results] == [32 if "." in store_host else 56] * 3
            assert store.verify_log() == 3


def test_queues_count_their_own_offsets() -> None:
    with on_simulation() as store:
        results = [store.put(Message(topic, b"x", queue_id)) for topic in "AB" for queue_id in (0, 7) for _ in range(3)]
        assert [result.queue_offset for result in results] == [0, 1, 2] * 4
        store.dispatch_now()
        assert store.topics() == {"A": [0, 7], "B": [0, 7]}


def test_a_born_time_that_was_not_given_is_the_store_time(manual_clock: ManualClock) -> None:
    with on_simulation(clock=manual_clock) as store:
        given = store.put(Message("T", b"x", born_timestamp_ms=7))
        missing = store.put(Message("T", b"x"))
        times = [store.message_at(result.physical_offset).born_timestamp_ms for result in (given, missing)]  # type: ignore[union-attr]
        assert times == [7, manual_clock.now_ms()]


def test_every_field_of_a_message_comes_back() -> None:
    with on_simulation() as store:
        sent = Message(
            "T", b"body", 3, keys=["a", "b"], tags="tag", properties={"x": "y"}, flag=-7, sys_flag=0x08 | 0x300,
            born_timestamp_ms=1, born_host="1.2.3.4:5", reconsume_times=9, prepared_transaction_offset=77,
        )  # fmt: skip
        stored = store.message_at(store.put(sent).physical_offset)
    assert stored is not None
    assert (stored.topic, stored.body, stored.queue_id, stored.flag, stored.sys_flag) == ("T", b"body", 3, -7, 0x308)
    assert (stored.properties, stored.tags, stored.keys) == (sent.properties, "tag", ["a", "b"])
    assert (stored.born_timestamp_ms, stored.born_host, stored.reconsume_times) == (1, "1.2.3.4:5", 9)
    assert stored.prepared_transaction_offset == 77


def test_a_handle_puts_as_its_store_does() -> None:
    with on_simulation() as store:
        handle = store.queue("T", 2)
        results = [
            handle.put(b"a"),
            handle.put(b"b", encode_properties({"TAGS": "t"})),
            store.put(Message("T", b"c", 2)),
        ]
        assert [result.queue_offset for result in results] == [0, 1, 2]
        store.dispatch_now()
        assert [(message.body, message.tags) for message in read_all(store, "T", 2)] == [
            (b"a", None), (b"b", "t"), (b"c", None),
        ]  # fmt: skip
        assert handle.put(b"x", b"p" * 32768).status is PutStatus.PROPERTIES_SIZE_EXCEEDED
        with pytest.raises(IllegalMessage):
            handle.put("text")  # type: ignore[arg-type]


# Rolling


def test_a_record_never_spans_files_and_a_blank_record_fills_the_rest() -> None:
    with on_simulation() as store:
        results = put_all(store, 40, size=1000)
        size = results[0].size
        per_file = (LOG_BYTES - 8) // size
        assert [result.physical_offset for result in results[: per_file + 1]] == [
            *(number * size for number in range(per_file)), LOG_BYTES,
        ]  # fmt: skip
        blank_at = per_file * size
        blank = store._parts.log.files.files[0].read(blank_at, 8)
        assert blank == (LOG_BYTES - blank_at).to_bytes(4, "big") + BLANK_MAGIC
        assert bodies(store) == numbered(40, size=1000)


@pytest.mark.parametrize("left", [8, 9, 100])
def test_a_record_that_leaves_exactly_the_room_of_a_blank_one_still_fits(left: int) -> None:
    with on_simulation(mapped_file_size_commit_log=1024) as store:
        first = store.put(Message("T", bytes(1024 - left - 92)))
        assert (first.physical_offset, first.end_offset) == (0, 1024 - left)
        second = store.put(Message("T", b"x" * 100))
        assert second.physical_offset == 1024


def test_a_record_that_would_leave_less_than_a_blank_one_goes_to_the_next_file() -> None:
    with on_simulation(mapped_file_size_commit_log=1024) as store:
        store.put(Message("T", bytes(100)))
        second = store.put(Message("T", bytes(1024 - 192 - 7 - 92)))
        assert second.physical_offset == 1024


# put_many


def test_put_many_stores_in_order_and_each_message_has_its_result() -> None:
    with on_simulation() as store:
        results = store.put_many([Message("T", body(number), number % 2) for number in range(200)])
        assert (len(results), results.all_ok, results.others_by_index) == (200, True, {})
        assert [result.queue_offset for result in results] == [number // 2 for number in range(200)]
        assert results.end_offset == results[-1].end_offset == store.max_physical_offset
        store.dispatch_now()
        assert bodies(store, "T", 1) == numbered(200)[1::2]


def test_put_many_takes_any_iterable_and_nothing_that_is_no_message() -> None:
    with on_simulation() as store:
        assert len(store.put_many(Message("T", body(number)) for number in range(3))) == 3
        assert len(store.put_many([])) == 0
        with pytest.raises(TypeError, match="takes Messages"):
            store.put_many([Message("T", b"x"), b"x"])  # type: ignore[list-item]


def test_put_many_refuses_illegal_messages_one_by_one_also_over_a_roll() -> None:
    with on_simulation() as store:
        batch = [
            Message("not/legal" if number % 10 == 3 else "T", body(number, 900),
                    encoded_properties=b"p" * 32768 if number % 10 == 7 else b"")
            for number in range(60)
        ]  # fmt: skip
        results = store.put_many(batch)
        statuses = {3: PutStatus.MESSAGE_ILLEGAL, 7: PutStatus.PROPERTIES_SIZE_EXCEEDED}
        assert [result.status for result in results] == [
            statuses.get(number % 10, PutStatus.PUT_OK) for number in range(60)
        ]
        assert set(results.others_by_index) == {number for number in range(60) if number % 10 in statuses}
        assert not results.all_ok
        assert results.end_offset == store.max_physical_offset > 2 * LOG_BYTES
        good = [number for number in range(60) if number % 10 not in statuses]
        assert [results[number].queue_offset for number in good] == list(range(len(good)))
        store.dispatch_now()
        assert bodies(store) == [body(number, 900) for number in good]


def test_results_can_be_indexed_from_the_end_and_not_beyond() -> None:
    with on_simulation() as store:
        results = store.put_many([Message("T", b"x")] * 3)
        assert results[-1].queue_offset == 2
        with pytest.raises(IndexError):
            results[3]
        with pytest.raises(IndexError):
            results[-4]


def test_a_flush_that_timed_out_marks_stored_results_only() -> None:
    with on_simulation() as store:
        results = store.put_many([Message("T", b"x"), Message("a/b", b"x")])
        marked = results.with_status(PutStatus.FLUSH_DISK_TIMEOUT)
        assert [r.status for r in marked] == [PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.MESSAGE_ILLEGAL]
        assert marked[0].physical_offset == results[0].physical_offset
        assert not marked.all_ok


# Classic batches


def batch_of(count: int, size: int = 40, **fields: object) -> Message:
    elements = [
        BatchElement(number, body(number, size), encode_properties({"TAGS": f"t{number}"})) for number in range(count)
    ]
    return Message("T", encode_client_batch(elements), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(("host", "digits", "overhead"), [("1.2.3.4:5", 32, 91), ("[::1]:5", 56, 115)])
def test_a_batch_is_stored_as_records_side_by_side(host: str, digits: int, overhead: int) -> None:
    """Items 21 and 23."""
    with on_simulation(store_host=host) as store:
        put_all(store, 2)
        start = store.max_physical_offset
        results = store.put_batch(batch_of(5, properties={"a": "b"}, born_host=host))
        assert results.all_ok
        assert [result.queue_offset for result in results] == [2, 3, 4, 5, 6]
        sizes = [overhead + 1 + 40 + 8 + 4] * 5  # The batch's own properties follow those of each message.
        assert [result.size for result in results] == sizes
        assert [result.physical_offset for result in results] == [start + number * sizes[0] for number in range(5)]
        assert len({result.message_id for result in results}) == 5
        assert {len(result.message_id or "") for result in results} == {digits}
        assert len({result.store_timestamp_ms for result in results}) == 1
        store.dispatch_now()
        found = read_all(store)[2:]
        assert [(m.flag, m.body, m.properties) for m in found] == [
            (number, body(number), {"TAGS": f"t{number}", "a": "b"}) for number in range(5)
        ]


def test_trap_14_a_batch_with_record_crc_gets_well_formed_properties() -> None:
    elements = [BatchElement(0, b"x", b"KEYS\x01k"), BatchElement(0, b"y", b"")]  # The first lacks its separator.
    with on_simulation(enabled_append_prop_crc=True, force_verify_prop_crc=True) as store:
        assert store.put_batch(Message("T", encode_client_batch(elements))).all_ok
        assert store.verify_log() == 2
        store.dispatch_now()
        assert [message.properties.get("KEYS") for message in read_all(store)] == ["k", None]


def test_a_batch_that_does_not_fit_is_whole_in_the_next_file_behind_a_blank_record() -> None:
    """Item 20."""
    with on_simulation() as store:
        put_all(store, 13, size=1000)
        start = store.max_physical_offset
        assert 3 * 1100 > LOG_BYTES - start > 1200
        results = store.put_batch(batch_of(3, 1000))
        assert [result.physical_offset // LOG_BYTES for result in results] == [1, 1, 1]
        assert results[0].physical_offset == LOG_BYTES
        first = store._parts.log.files.files[0]
        assert first.read(start, 8) == (LOG_BYTES - start).to_bytes(4, "big") + BLANK_MAGIC
        assert first.read(start + 8, LOG_BYTES - start - 8) == bytes(LOG_BYTES - start - 8)
        store.dispatch_now()
        assert [message.queue_offset for message in read_all(store)] == list(range(16))


# Inner batches


def inner_batch(count: int, first: int = 0, size: int = 10) -> Message:
    elements = [BatchElement(0, body(first + number, size), b"") for number in range(count)]
    return Message(
        "B", encode_client_batch(elements), sys_flag=0xC0, properties={"INNER_NUM": str(count), "UNIQ_KEY": "u"}
    )


def test_an_inner_batch_is_one_record_with_many_queue_offsets() -> None:
    """Item 32."""
    with on_simulation(batch_topics=["B"]) as store:
        results = [store.put(inner_batch(5, first)) for first in (0, 5, 10)]
        assert [(result.queue_offset, result.count) for result in results] == [(0, 5), (5, 5), (10, 5)]
        store.dispatch_now()
        assert store.max_offset("B", 0) == 15
        found = read_all(store, "B")
        assert [(m.properties["INNER_BASE"], m.properties["INNER_NUM"]) for m in found] == [
            ("0", "5"),
            ("5", "5"),
            ("10", "5"),
        ]
        inner = [message for record in found for message in unwrap_inner_batch(record)]
        assert [message.queue_offset for message in inner] == list(range(15))
        assert [message.body for message in inner] == numbered(15, size=10)


def test_trap_41_the_uncommitted_end_of_a_batch_queue_counts_what_was_put() -> None:
    with on_simulation(batch_topics=["B"]) as store:
        store.put(inner_batch(5))
        assert (store.max_offset("B", 0, committed=False), store.max_offset("B", 0)) == (5, 0)
        store.dispatch_now()
        assert store.max_offset("B", 0) == 5


# Transactions


def test_prepared_and_rolled_back_records_have_no_place_in_their_queue() -> None:
    with on_simulation() as store:
        results = [store.put(Message("T", body(number), sys_flag=flag)) for number, flag in enumerate((0, 4, 8, 12, 0))]
        many = store.put_many([Message("T", body(number), sys_flag=flag) for number, flag in enumerate((4, 8, 12))])
        assert [result.queue_offset for result in (*results, *many)] == [0, 0, 1, 0, 2, 0, 3, 0]
        store.dispatch_now()
        assert [message.body for message in read_all(store)] == [body(0), body(2), body(4), body(1)]
        assert store.max_offset("T", 0) == 4
        assert store.message_at(results[1].physical_offset).queue_offset == 0  # type: ignore[union-attr]


# Many threads


@pytest.mark.parametrize("mode", MODES)
def test_many_threads_put_to_the_same_queues_and_nothing_is_lost_or_doubled(tmp_path: Path, mode: str) -> None:
    threads, each, queues = 8, (100 if mode == "sync" else 500), 3
    with on_disk(tmp_path / "store", mapped_file_size_commit_log=64 * 1024, **MODES[mode]) as store:
        failures: list[object] = []

        def produce(thread: int) -> None:
            for number in range(each):
                message = Message("T", f"{thread}-{number}".encode(), number % queues)
                result = store.queue("T", number % queues).put(message.body) if number % 2 else store.put(message)
                if not result.ok:
                    failures.append(result)

        run_together(produce, threads)
        assert failures == []
        store.flush()
        store.dispatch_now()
        check_everything_once(store, threads, each, queues)
    with on_disk(tmp_path / "store", mapped_file_size_commit_log=64 * 1024, **MODES[mode]) as again:
        check_everything_once(again, threads, each, queues)


def run_together(work: object, count: int) -> None:
    started = threading.Barrier(count)

    def begin(number: int) -> None:
        started.wait()
        work(number)  # type: ignore[operator]

    workers = [threading.Thread(target=begin, args=(number,)) for number in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def check_everything_once(store: LocalStore, threads: int, each: int, queues: int) -> None:
    found: list[bytes] = []
    for queue_id in range(queues):
        messages = read_all(store, "T", queue_id)
        assert [message.queue_offset for message in messages] == list(range(len(messages)))
        by_thread: dict[bytes, list[int]] = {}
        for message in messages:
            thread, _, number = message.body.partition(b"-")
            by_thread.setdefault(thread, []).append(int(number))
        assert all(numbers == sorted(numbers) for numbers in by_thread.values())  # A producer's own order.
        found += [message.body for message in messages]
    assert sorted(found) == sorted(f"{t}-{n}".encode() for t in range(threads) for n in range(each))


def test_batches_of_many_threads_stay_together(tmp_path: Path) -> None:
    with on_disk(tmp_path / "store") as store:
        outcomes: list[PutResults] = []

        def produce(thread: int) -> None:
            for number in range(40):
                if thread % 2:
                    store.put(Message("T", b"single"))
                    store.put_many([Message("T", b"many")] * 3)
                else:
                    elements = [BatchElement(thread, f"{thread}-{number}-{at}".encode(), b"") for at in range(4)]
                    outcomes.append(store.put_batch(Message("T", encode_client_batch(elements))))

        run_together(produce, 6)
        store.dispatch_now()
        for results in outcomes:
            offsets = [result.queue_offset for result in results]
            assert offsets == list(range(offsets[0], offsets[0] + 4))
            starts = [result.physical_offset for result in results]
            assert starts[1:] == [result.end_offset for result in results][:-1]
        assert store.max_offset("T", 0) == 3 * 40 * 4 * 2
        assert store.verify_log() == 3 * 40 * 4 * 2


# Durability


def test_a_sync_put_is_durable_when_it_returns() -> None:
    """Item 10."""
    access = SimulatedFileAccess()
    store = on_simulation(access, flush_disk_type="SYNC_FLUSH")
    results = [store.put(Message("T", body(number))) for number in range(200)]
    assert store.flushed_where == results[-1].end_offset
    with on_simulation(access.crash(lambda path, page: False), flush_disk_type="SYNC_FLUSH") as after:
        assert bodies(after) == numbered(200)
    store.close()


def test_a_sync_put_that_does_not_wait_is_answered_at_once_and_flushed_later() -> None:
    with on_simulation(flush_disk_type="SYNC_FLUSH") as store:
        result = store.put(Message("T", b"x", properties={"WAIT": "false"}))
        assert (result.ok, store.flushed_where) == (True, 0)
        store.flush()
        assert store.flushed_where == result.end_offset


def test_many_sync_puts_are_durable_when_put_many_returns() -> None:
    with on_simulation(flush_disk_type="SYNC_FLUSH") as store:
        assert store.put_many([Message("T", body(number, 900)) for number in range(60)]).all_ok
        assert store.flushed_where == store.max_physical_offset
        assert store.put_batch(batch_of(3)).all_ok
        assert store.flushed_where == store.max_physical_offset
        assert store.queue("T").put(b"by handle").ok
        assert store.flushed_where == store.max_physical_offset


def test_the_bytes_of_the_log_are_the_records_end_to_end() -> None:
    """Item 16."""
    with on_simulation() as store:
        put_all(store, 100, size=500)
        found = []
        for file in store._parts.log.files.files:
            data = file.read(0, file.read_position)
            assert data is not None
            end = data.find(BLANK_MAGIC)
            found += [m.body for m in decode_records(data[: end - 4] if end > 0 else data)]
        assert found == numbered(100, size=500)
