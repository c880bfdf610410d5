"""Flushing: what is durable when, who waits how long, and that a failed flush is final and raised in every waiter."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from small_store import LOG_BYTES, body, on_simulation, put_all
from tiermq import Message, PutStatus
from tiermq.errors import StoreError
from tiermq.store.local_store import LocalStore


class Disk(SimulatedFileAccess):
    """A simulated disk whose syncs of the commit log can fail, or wait until the test lets them go on."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        super().__init__(clock=clock, on_call=self._called)
        self.error: OSError | None = None
        self.syncs = 0
        self.on_sync: Callable[[], None] = lambda: None

    def _called(self, operation: str, path: str) -> None:
        if operation == "sync" and "commitlog" in path:
            self.syncs += 1
            self.on_sync()
            if self.error is not None:
                raise self.error


def test_a_sync_put_returns_when_its_bytes_are_durable() -> None:
    disk = Disk()
    with on_simulation(disk, flush_disk_type="SYNC_FLUSH") as store:
        result = store.put(Message("T", b"x"))
        assert store.flushed_where == result.end_offset
        assert disk.syncs == 1


def test_puts_that_wait_together_share_a_flush() -> None:
    disk = Disk()
    with on_simulation(disk, flush_disk_type="SYNC_FLUSH") as store:
        store.put(Message("T", b"first"))  # Binds the queue and makes the file.
        flushing, let_go = threading.Event(), threading.Event()

        def hold() -> None:
            flushing.set()
            assert let_go.wait(60)

        disk.on_sync = hold
        before = disk.syncs
        results: list[object] = []
        threads = [
            threading.Thread(target=lambda: results.append(store.put(Message("T", b"x")).status)) for _ in range(10)
        ]
        for thread in threads:
            thread.start()
        assert flushing.wait(60)
        while store._parts.log.appender.puts < 11:  # All are in the log; nine wait for the one that flushes.
            pass
        let_go.set()
        for thread in threads:
            thread.join()
        assert results == [PutStatus.PUT_OK] * 10
        assert disk.syncs - before <= 3


def test_trap_38_a_put_that_waits_longer_than_allowed_gets_a_time_out_and_the_message_stays() -> None:
    """Item 43, trap 38."""
    disk = Disk()
    with on_simulation(disk, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=20) as store:
        store.put(Message("T", b"first"))
        flushing, let_go = threading.Event(), threading.Event()

        def hold() -> None:
            flushing.set()
            let_go.wait(60)

        disk.on_sync = hold
        slow: list[PutStatus] = []
        holder = threading.Thread(target=lambda: slow.append(store.put(Message("T", b"slow")).status))
        holder.start()
        assert flushing.wait(60)
        late = store.put(Message("T", b"late"))
        assert (late.status, late.ok, late.queue_offset) == (PutStatus.FLUSH_DISK_TIMEOUT, False, 2)
        many = store.put_many([Message("T", b"late too")])
        assert many[0].status is PutStatus.FLUSH_DISK_TIMEOUT
        let_go.set()
        holder.join()
        assert slow == [PutStatus.PUT_OK]
        disk.on_sync = lambda: None
        store.flush()
        store.dispatch_now()
        assert store.max_offset("T", 0) == 4


def test_waiting_for_bytes_that_were_not_written_ends_at_the_deadline() -> None:
    with on_simulation(flush_disk_type="SYNC_FLUSH", sync_flush_timeout=20) as store:
        put_all(store, 1)
        group_commit = store._parts.group_commit
        assert group_commit.wait(10**9) is PutStatus.FLUSH_DISK_TIMEOUT
        assert group_commit.wait(store.max_physical_offset) is PutStatus.PUT_OK


def test_trap_37_a_failed_flush_is_final_stops_puts_and_is_reported_to_everyone_who_waits() -> None:
    """Trap 37: the original only logs it."""
    disk = Disk()
    store = on_simulation(disk, flush_disk_type="SYNC_FLUSH")
    put_all(store, 2)
    disk.error = OSError(5, "the disk is gone")
    assert store.put(Message("T", b"x")).status is PutStatus.FLUSH_DISK_TIMEOUT
    assert not store.writeable
    assert store.status()["flags"] == ["NOT_WRITEABLE"]
    disk.error = None
    flushed = store.flushed_where
    assert store.put(Message("T", b"y")).status is PutStatus.SERVICE_NOT_AVAILABLE
    with pytest.raises(StoreError, match="flushed"):
        store.flush()
    assert store.flushed_where == flushed
    store.close()
    assert disk.exists("/store/abort")


def test_an_asynchronous_store_stops_after_a_failed_flush_too() -> None:
    disk = Disk()
    store = on_simulation(disk)
    put_all(store, 2)
    disk.error = OSError(28, "no space")
    store._parts.flush_service.run_once()
    assert store._parts.flush_service.error_count == 0
    assert store.put(Message("T", b"x")).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert store.get("T", 0, 0).count == 2
    store.close()


def test_an_asynchronous_flush_waits_for_enough_pages_and_for_none_once_in_a_while() -> None:
    clock = ManualClock()
    disk = Disk(clock)
    with on_simulation(disk, clock=clock, mapped_file_size_commit_log=256 * 1024) as store:
        service = store._parts.flush_service
        store.put(Message("T", b"x"))
        assert service.run_once() == 0.5
        assert store.flushed_where == store.max_physical_offset  # The first round is thorough.
        store.put(Message("T", b"x"))
        service.run_once()
        assert store.flushed_where < store.max_physical_offset
        put_all(store, 5, size=4096)
        service.run_once()
        assert store.flushed_where == store.max_physical_offset
        store.put(Message("T", b"x"))
        clock.advance_ms(10_000)
        service.run_once()
        assert store.flushed_where == store.max_physical_offset


def test_flush_makes_everything_durable_over_many_files() -> None:
    disk = Disk()
    with on_simulation(disk) as store:
        put_all(store, 400)
        assert store.max_physical_offset > 3 * LOG_BYTES
        store.flush()
        assert store.flushed_where == store.max_physical_offset


def test_the_checkpoint_never_vouches_for_a_message_that_is_not_durable() -> None:
    """One call flushes one file; the newest message may be in the next."""
    clock = ManualClock()
    with on_simulation(Disk(clock), clock=clock) as store:
        flusher, checkpoint = store._parts.flusher, store._parts.checkpoint
        for number in range(200):
            store.put(Message("T", body(number)))
            clock.advance_ms(1_000)
        newest = clock.now_ms() - 1_000
        assert store.max_physical_offset > LOG_BYTES
        flusher.flush(0)
        assert store.flushed_where == LOG_BYTES
        assert checkpoint.physic_msg_timestamp_ms < newest
        flusher.flush(0)
        assert store.flushed_where == store.max_physical_offset
        assert checkpoint.physic_msg_timestamp_ms == newest


# Callbacks


def test_a_callback_comes_once_its_offset_is_durable() -> None:
    for mode in ("SYNC_FLUSH", "ASYNC_FLUSH"):
        with on_simulation(background=True, flush_disk_type=mode) as store:
            result = store.put(Message("T", b"x", properties={"WAIT": "false"}))
            done = threading.Event()
            statuses: list[PutStatus] = []

            def note(status: PutStatus, statuses: list[PutStatus] = statuses, done: threading.Event = done) -> None:
                statuses.append(status)
                done.set()

            store.when_durable(result.end_offset, note)
            assert done.wait(60)
            assert statuses == [PutStatus.PUT_OK]
            assert store.flushed_where >= result.end_offset


def test_a_callback_for_bytes_that_never_come_is_called_at_the_deadline() -> None:
    """Item 43."""
    with on_simulation(background=True, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=20) as store:
        done = threading.Event()
        statuses: list[PutStatus] = []

        def note(status: PutStatus) -> None:
            statuses.append(status)
            done.set()

        store.when_durable(10**9, note)
        assert done.wait(60)
        assert statuses == [PutStatus.FLUSH_DISK_TIMEOUT]
        assert store.put(Message("T", b"x")).ok


def test_callbacks_that_wait_when_the_store_is_closed_are_called() -> None:
    store = on_simulation(flush_disk_type="SYNC_FLUSH", background=True)
    result = store.put(Message("T", b"x", properties={"WAIT": "false"}))
    statuses: list[PutStatus] = []
    store.when_durable(result.end_offset, statuses.append)
    store.close()
    assert statuses == [PutStatus.PUT_OK]


# The transient pool


@pytest.fixture
def pooled() -> LocalStore:
    return on_simulation(Disk(), transient_store_pool_enable=True, transient_store_pool_size=3)


def test_what_the_pool_holds_is_neither_readable_nor_durable_before_it_is_committed(pooled: LocalStore) -> None:
    result = pooled.put(Message("T", b"x"))
    assert pooled.max_physical_offset == 0
    assert pooled.message_at(0) is None
    commit = pooled._parts.commit_service
    assert commit is not None
    assert commit.run_once() == 0.2
    assert (pooled.max_physical_offset, pooled.flushed_where) == (result.end_offset, 0)
    pooled.flush()
    assert pooled.flushed_where == result.end_offset
    pooled.close()


def test_a_flush_commits_what_the_pool_holds(pooled: LocalStore) -> None:
    results = [pooled.put(Message("T", body(number))) for number in range(300)]
    pooled.flush()
    assert pooled.flushed_where == results[-1].end_offset
    pooled.close()


def test_closing_keeps_what_the_pool_holds(pooled: LocalStore) -> None:
    access = pooled._parts.access
    for number in range(10):
        pooled.put(Message("T", body(number)))
    pooled.close()
    with on_simulation(access) as again:
        assert again.recovered is not None
        assert again.recovered.mode == "marker"
        assert again.get("T", 0, 0).count == 10


def test_a_put_wakes_the_committer_so_that_it_can_be_got_soon() -> None:
    settings: dict[str, Any] = {"commit_interval_commit_log": 3_600_000, "commit_commit_log_thorough_interval": 0}
    pool: dict[str, Any] = {"transient_store_pool_enable": True, "transient_store_pool_size": 2}
    with on_simulation(background=True, **pool, **settings) as store:
        arrived = threading.Event()
        store.add_arrival_listener(lambda *arguments: arrived.set())
        store.put(Message("T", b"x"))
        assert arrived.wait(60)
