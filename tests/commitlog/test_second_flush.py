"""A flush beside another: when it is trusted, how far it vouches, and that it hears of a failed write itself."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from simulation.simulated_files import SimulatedFileAccess
from small_store import LOG_BYTES, ROOT, body, on_disk, on_simulation, put_all
from tiermq import LocalStore, Message, PutStatus
from tiermq.commitlog.second_flush import SecondFlush
from tiermq.errors import TooManyOpenFiles


class Disk(SimulatedFileAccess):
    """Syncs of the commit log, and second opens of its files, are the test's to watch, to hold and to break."""

    def __init__(self) -> None:
        super().__init__(on_call=self._called)
        self.on_sync: Callable[[], None] = lambda: None
        self.on_open: Callable[[], None] = lambda: None
        self.opened = 0
        self.syncs = 0

    def _called(self, operation: str, path: str) -> None:
        if "commitlog" not in path:
            return
        if operation == "sync":
            self.syncs += 1
            self.on_sync()
        elif operation == "open":
            self.opened += 1
            self.on_open()


@pytest.fixture
def disk():
    return Disk()


@pytest.fixture
def store(disk):
    with on_simulation(disk) as store:
        yield store


def second_of(store: LocalStore) -> SecondFlush:
    return store._parts.flusher._second


def trusted(store: LocalStore) -> SecondFlush:
    """The store's second flush, after everything that it needs."""
    put_all(store, 1)
    second = second_of(store)
    second.prepare()
    put_all(store, 1)  # Flushed by itself, or now.
    store.flush()
    assert second.is_ready
    return second


def test_a_second_flush_is_trusted_only_after_a_first_one_that_began_when_it_was_open(store):
    put_all(store, 1)
    second = second_of(store)
    store.flush()
    assert not second.is_ready  # Nobody prepared it.
    second.prepare()
    store.flush()
    assert not second.is_ready  # Nothing was flushed since.
    assert second.flush() is True
    put_all(store, 1)
    store.flush()
    assert second.is_ready


def test_a_second_flush_vouches_for_what_was_put_before_it_began(store, disk):
    second = trusted(store)
    end = put_all(store, 1)[0].end_offset
    disk.on_sync = lambda: put_all(store, 1) and None
    assert second.flush() is False
    disk.on_sync = lambda: None
    assert store.flushed_where == end < store.max_physical_offset


def test_a_second_flush_that_ends_late_takes_nothing_back(store, disk):
    second = trusted(store)
    put_all(store, 1)

    def overtake() -> None:
        disk.on_sync = lambda: None
        put_all(store, 1)
        store.flush()

    disk.on_sync = overtake
    assert second.flush() is True
    assert store.flushed_where == store.max_physical_offset


def test_the_end_of_a_file_is_left_to_the_first_flush(store, disk):
    second = trusted(store)
    file = store._parts.log.files.last()
    while store._parts.log.files.last() is file:
        put_all(store, 1, size=1000)
    before = disk.syncs
    assert second.flush() is True
    assert disk.syncs == before
    store.flush()
    assert store.flushed_where == store.max_physical_offset


def test_each_file_of_the_log_is_opened_for_its_own_second_flush_and_let_go(store, disk):
    second = trusted(store)
    second.prepare()
    assert disk.opened == 1
    first = second._region
    put_all(store, 3 * LOG_BYTES // 1000, size=1000)
    store.flush()
    second.prepare()
    assert disk.opened == 2
    assert first.buffer is None
    assert not second.is_ready  # The new file has not been flushed by the first yet.
    second.close()
    assert second.flush() is True


def test_a_file_that_cannot_be_opened_twice_is_flushed_by_the_first_alone(store, disk):
    def refuse() -> None:
        raise TooManyOpenFiles("commitlog: expected a free descriptor, found none")

    disk.on_open = refuse
    put_all(store, 1)
    second = second_of(store)
    second.prepare()
    second.prepare()
    store.flush()
    assert disk.opened == 1  # It is not tried for every flush.
    assert not second.is_ready
    assert store.flushed_where == store.max_physical_offset


def test_a_log_with_a_transient_pool_has_no_second_flush():
    with on_simulation(transient_store_pool_enable=True, transient_store_pool_size=2) as store:
        put_all(store, 1)
        second = second_of(store)
        second.prepare()
        store.flush()
        assert not second.is_ready


def test_a_second_flush_that_fails_fails_everybody_and_stops_puts():
    disk = Disk()
    store = on_simulation(disk, flush_disk_type="SYNC_FLUSH")
    trusted(store)
    flushing, let_go = threading.Event(), threading.Event()
    turns = iter([lambda: (flushing.set(), let_go.wait()), _break])
    disk.on_sync = lambda: next(turns)() and None
    results: list[PutStatus] = []
    first = threading.Thread(target=lambda: results.append(store.put(Message("T", b"first")).status))
    first.start()
    flushing.wait()
    where = store.flushed_where
    assert store.put(Message("T", b"second")).status is PutStatus.FLUSH_DISK_TIMEOUT
    assert not store.writeable
    assert store.flushed_where == where
    assert store.put(Message("T", b"third")).status is PutStatus.SERVICE_NOT_AVAILABLE
    let_go.set()
    first.join()
    store.close()
    assert disk.exists(f"{ROOT}/abort")


def _break() -> None:
    raise OSError(5, "the disk is gone")


def test_puts_are_durable_while_an_earlier_flush_still_runs():
    disk = Disk()
    with on_simulation(disk, flush_disk_type="SYNC_FLUSH") as store:
        trusted(store)
        flushing, let_go = threading.Event(), threading.Event()
        turns = iter([lambda: (flushing.set(), let_go.wait())])
        disk.on_sync = lambda: next(turns, lambda: None)() and None
        first = threading.Thread(target=lambda: store.put(Message("T", b"first")))
        first.start()
        flushing.wait()
        result = store.put(Message("T", b"second"))
        assert (result.status, store.flushed_where) == (PutStatus.PUT_OK, result.end_offset)
        let_go.set()
        first.join()
        assert store.flushed_where == result.end_offset


def test_the_second_open_file_of_a_real_disk_is_one_of_its_own(tmp_path):
    with on_disk(tmp_path / "store", background=False) as store:
        second = trusted(store)
        file = store._parts.log.files.last()
        descriptor = second._region._descriptor
        other = os.open(file.path, os.O_RDONLY)
        try:
            assert os.path.sameopenfile(descriptor, other)
        finally:
            os.close(other)
        os.lseek(descriptor, 7, os.SEEK_SET)  # Open files that are one share their place; a copy of a number does.
        assert os.lseek(file._region._descriptor, 0, os.SEEK_CUR) != 7
        put_all(store, 1)
        assert second.flush() is False
        assert store.flushed_where == store.max_physical_offset
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_sync_puts_of_many_threads_over_many_files_are_all_durable_and_got():
    disk = Disk()
    disk.on_sync = lambda: threading.Event().wait(0.0002) and None  # A disk takes its time: producers come together.
    with on_simulation(disk, flush_disk_type="SYNC_FLUSH") as store:
        wrong: list[object] = []

        def produce(queue_id: int) -> None:
            for number in range(60):
                result = store.put(Message("T", body(number, 300), queue_id))
                if not result.ok or store.flushed_where < result.end_offset:
                    wrong.append(result)

        threads = [threading.Thread(target=produce, args=(queue_id,)) for queue_id in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert disk.opened > 1  # Flushes overlapped, in more than one file.
    after = disk.crash(lambda _path, _page: False)
    with on_simulation(after) as store:
        assert [store.max_offset("T", queue_id) for queue_id in range(8)] == [60] * 8
