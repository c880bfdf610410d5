"""CommitLog: binding, rolling and refusing, also when the room is taken, the disk is full or the log is shut."""

from __future__ import annotations

import operator
import threading

import pytest

from simulation.simulated_files import SimulatedFileAccess
from small_store import LOG_BYTES, body, log_place, on_simulation, overwrite, put_all, read_all
from tiermq import Message, PutStatus
from tiermq.commitlog.commit_log import CommitLog
from tiermq.errors import CorruptRecord, DiskFull, StoreError
from tiermq.files.mapped_file import MappedFile
from tiermq.store.running_flags import Flag


def test_a_handle_is_made_once_and_begins_where_the_queue_ends() -> None:
    access = SimulatedFileAccess()
    with on_simulation(access) as store:
        put_all(store, 5)
    with on_simulation(access) as store:
        log = store._parts.log
        handle = log.queue("T", 0)
        assert handle is not None
        assert (handle.topic, handle.queue_id, handle.next_offset) == ("T", 0, 5)
        assert log.queue("T", 0) is handle
        assert log.queue("no/topic", 0) is None
        assert log.queue("Fresh", 1).next_offset == 0  # type: ignore[union-attr]


def test_handles_of_many_threads_are_one() -> None:
    with on_simulation() as store:
        found: list[object] = []
        started = threading.Barrier(8)

        def bind() -> None:
            started.wait()
            found.append(store.queue("T", 1))

        threads = [threading.Thread(target=bind) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({id(handle) for handle in found}) == 1


def test_a_put_that_waits_too_long_for_room_gets_page_cache_busy() -> None:
    with on_simulation(os_page_cache_busy_time_out_mills=20) as store:
        log: CommitLog = store._parts.log
        with log._room:
            assert store.put(Message("T", b"x")).status is PutStatus.OS_PAGE_CACHE_BUSY
        assert store.put(Message("T", b"x")).queue_offset == 0


def test_a_put_that_others_overtake_while_it_makes_room_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """They append without the lock that it holds; it looked twice where they end, and raised an error."""
    with on_simulation() as store:
        put_all(store, 1, size=900)
        log: CommitLog = store._parts.log
        position = operator.attrgetter("tail.position")
        others = 0

        def overtaken(file: MappedFile) -> int:
            nonlocal others
            found: int = position(file)
            while position(file) + 1_200 < LOG_BYTES:
                assert store.put(Message("T", bytes(900))).ok
                others += 1
            return found

        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(MappedFile, "wrote_position", property(overtaken))
            assert log._make_room(1_500) is PutStatus.PUT_OK
        assert others > 5
        assert store.put(Message("T", bytes(1_300))).physical_offset == LOG_BYTES


def test_a_file_that_cannot_be_made_is_reported_and_tried_again_by_the_next_put() -> None:
    failing = True

    def fault(operation: str, path: str) -> None:
        if failing and operation == "create" and "commitlog" in path:
            raise StoreError(f"{path}: no file today")

    with on_simulation(SimulatedFileAccess(on_call=fault)) as store:
        assert store.put(Message("T", b"x")).status is PutStatus.CREATE_MAPPED_FILE_FAILED
        assert store.put_many([Message("T", b"x")])[0].status is PutStatus.CREATE_MAPPED_FILE_FAILED
        failing = False
        assert store.put(Message("T", b"x")).queue_offset == 0


def test_a_roll_that_fails_leaves_the_active_file_as_it_was() -> None:
    failing = False

    def fault(operation: str, path: str) -> None:
        if failing and operation in ("create", "reserve") and "commitlog" in path:
            raise DiskFull(path)

    with on_simulation(SimulatedFileAccess(on_call=fault)) as store:
        put_all(store, 1, size=900)
        failing = True
        put_all(store, 31, first=1, size=900)  # Two files: the second one was made in advance.
        big = Message("T", bytes(3_000))
        end = store.max_physical_offset
        assert LOG_BYTES < end < 2 * LOG_BYTES < end + 3_000
        assert store.put(big).status is PutStatus.CREATE_MAPPED_FILE_FAILED
        assert store.max_physical_offset == end
        small = store.put(Message("T", b"still fits"))  # The blocks of the active file are reserved already.
        assert small.physical_offset == end
        failing = False
        assert store.put(big).physical_offset == 2 * LOG_BYTES
        store.dispatch_now()
        assert [message.queue_offset for message in read_all(store)] == list(range(34))


def test_a_closed_log_stays_shut_whatever_the_flags_say() -> None:
    store = on_simulation()
    put_all(store, 1)
    log = store._parts.log
    log.close_for_append()
    store._parts.flags.set(Flag.DISK_FULL)
    store._parts.flags.clear(Flag.DISK_FULL)
    assert log.appender.closed
    assert store.put(Message("T", b"x")).status is PutStatus.SERVICE_NOT_AVAILABLE
    store.close()


def test_verify_counts_records_and_names_the_place_of_damage() -> None:
    access = SimulatedFileAccess()
    store = on_simulation(access)
    results = put_all(store, 300)
    assert store.verify_log() == 300
    overwrite(access, *log_place(results[200].physical_offset + 90), b"\xff")
    with pytest.raises(CorruptRecord, match=str(results[200].physical_offset % LOG_BYTES)):
        store.verify_log()
    store.close()


def test_latencies_are_sampled_and_every_sample_is_a_put_like_any_other() -> None:
    with on_simulation(mapped_file_size_commit_log=1024 * 1024) as store:
        results = [store.put(Message("T", body(number))) for number in range(5_000)]
        assert [result.queue_offset for result in results] == list(range(5_000))
        distribution = store.statistics()["put_latency_distribution"]
        assert 1 <= sum(distribution.values()) <= 10  # type: ignore[attr-defined]


def test_a_first_file_can_be_warmed_before_the_first_put() -> None:
    access = SimulatedFileAccess()
    with on_simulation(access, warm_maped_file_enable=True) as store:
        assert access.exists(f"/store/commitlog/{0:020d}")
        put_all(store, 300)
        assert store.get("T", 0, 0).count == 32
    with on_simulation(access, warm_maped_file_enable=True) as store:
        assert store.max_offset("T", 0) == 300
        put_all(store, 300)


def test_special_messages_of_many_threads_carry_the_offset_that_they_got() -> None:
    with on_simulation(enable_lmq=True, enable_multi_dispatch=True) as store:
        started = threading.Barrier(4)

        def produce() -> None:
            started.wait()
            for number in range(100):
                store.put(Message("T", body(number), properties={"INNER_MULTI_DISPATCH": "%LMQ%a"}))
                store.put(Message("T", body(number)))

        threads = [threading.Thread(target=produce) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        store.dispatch_now()
        assert (store.max_offset("T", 0), store.max_offset("%LMQ%a", 0)) == (800, 400)
        assert store.status()["queue_gaps"] == store.status()["queue_conflicts"] == 0
        offsets = []
        at = 0
        while at < 400:
            page = store.get("%LMQ%a", 0, at)
            offsets += [int(message.properties["INNER_MULTI_QUEUE_OFFSET"]) for message in page.messages]
            at = page.next_offset
        assert offsets == list(range(400))
