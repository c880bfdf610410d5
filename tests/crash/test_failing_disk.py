"""The disk fails: syncs, writes and removals raise, files are gone. Producers get the error, readers go on."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crash.world import ROOT, TINY
from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from tiermq import Message
from tiermq.errors import DiskFull, ReadOnlyStore, StoreDamaged, StoreError
from tiermq.message.client_batch import BatchElement, encode_client_batch
from tiermq.status import GetStatus, PutStatus
from tiermq.store.local_store import LocalStore

pytestmark = pytest.mark.crash

FAILURES: list[Exception] = [
    OSError(errno.EIO, "Input/output error"),
    DiskFull("expected room, found none"),
    ReadOnlyStore("the kernel remounted the file system read-only"),
]


class Disk:
    """A simulated disk on which chosen calls fail."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.access = SimulatedFileAccess(clock=self.clock)

    def fail(self, operation: str, part: str, error: Exception) -> None:
        """Let every `operation` on a path that contains `part` raise, from now on."""

        def fault(called: str, path: str) -> None:
            if called == operation and part in path:
                raise error

        self.access.on_call = fault

    def heal(self) -> None:
        self.access.on_call = None

    def open(self, **settings: Any) -> LocalStore:
        return LocalStore.open(
            ROOT, access=self.access, clock=self.clock, background=False,
            **{**TINY, "flush_disk_type": "SYNC_FLUSH", **settings},
        )  # fmt: skip


@pytest.fixture
def disk() -> Disk:
    return Disk()


def bodies(store: LocalStore, topic: str = "orders") -> list[bytes]:
    store.dispatch_now()
    found: list[bytes] = []
    while (page := store.get(topic, 0, len(found) + store.min_offset(topic, 0))).status is GetStatus.FOUND:
        found += [message.body for message in page.messages]
    return found


def put(store: LocalStore, body: bytes) -> PutStatus:
    return store.put(Message("orders", body, keys=[f"key-{body.decode()[:8]}"])).status


def put_list(store: LocalStore, body: bytes) -> PutStatus:
    return store.put_many([Message("orders", body)])[0].status


def put_batch(store: LocalStore, body: bytes) -> PutStatus:
    return store.put_batch(Message("orders", encode_client_batch([BatchElement(0, body, b"")])))[0].status


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("put_somehow", [put, put_list, put_batch])
def test_a_producer_is_notified_when_its_message_could_not_be_synced(
    disk: Disk, put_somehow: Callable[[LocalStore, bytes], PutStatus], error: Exception
) -> None:
    store = disk.open()
    assert put_somehow(store, b"safe") is PutStatus.PUT_OK
    disk.fail("sync", "/commitlog/", error)
    assert put_somehow(store, b"unsure") is PutStatus.FLUSH_DISK_TIMEOUT


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_after_a_failed_sync_puts_are_refused_and_reads_go_on(disk: Disk, error: Exception) -> None:
    store = disk.open()
    put(store, b"safe")
    disk.fail("sync", "/commitlog/", error)
    put(store, b"unsure")
    disk.heal()
    assert [put(store, b"late"), put_list(store, b"late"), put_batch(store, b"late")] == [
        PutStatus.SERVICE_NOT_AVAILABLE
    ] * 3, "the kernel may have dropped pages: a sync that works again proves nothing"
    assert not store.writeable
    assert "NOT_WRITEABLE" in store.status()["flags"]  # type: ignore[operator]
    assert bodies(store) == [b"safe"]
    assert len(store.query("orders", "key-safe").messages) == 1


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_store_that_could_not_be_synced_keeps_its_abort_file_and_recovers(disk: Disk, flush: str) -> None:
    store = disk.open(flush_disk_type=flush)
    put(store, b"safe")
    store.flush()
    disk.fail("sync", "/commitlog/", FAILURES[0])
    put(store, b"unsure")
    with pytest.raises(StoreError):
        store.flush()
    store.close()
    disk.heal()
    assert disk.access.exists(f"{ROOT}/abort")
    disk.access = disk.access.crash(lambda path, page: False)
    again = disk.open()
    assert bodies(again) == [b"safe"]
    assert put(again, b"new") is PutStatus.PUT_OK
    assert bodies(again) == [b"safe", b"new"]


def test_a_failing_sync_in_the_background_stops_an_async_store(disk: Disk) -> None:
    store = LocalStore.open(ROOT, access=disk.access, **TINY)
    put(store, b"safe")
    store.flush()
    disk.fail("sync", "/commitlog/", FAILURES[0])
    put(store, b"unsure")
    with pytest.raises(StoreError):
        store.flush()
    assert put(store, b"late") is PutStatus.SERVICE_NOT_AVAILABLE
    store.close()
    assert disk.access.exists(f"{ROOT}/abort")


@pytest.mark.parametrize("part", ["/consumequeue/", "/index/", "/checkpoint"])
def test_a_close_that_fails_lets_go_of_the_directory_and_the_next_start_repairs_it(disk: Disk, part: str) -> None:
    store = disk.open()
    for number in range(50):
        assert put(store, b"%d" % number) is PutStatus.PUT_OK
    store.dispatch_now()  # So that every file is there whose sync can fail.
    disk.fail("sync", part, FAILURES[0])
    with pytest.raises((OSError, StoreError)):
        store.close()
    disk.heal()
    assert disk.access.exists(f"{ROOT}/abort")
    again = disk.open()
    assert bodies(again) == [b"%d" % number for number in range(50)]
    assert all(len(again.query("orders", f"key-{number}").messages) == 1 for number in range(50))
    again.close()
    assert not disk.access.exists(f"{ROOT}/abort")


@pytest.mark.parametrize(
    ("operation", "part"),
    [("open", "/commitlog"), ("open", "/index"), ("open", "/checkpoint"), ("write_bytes", "/abort"), ("remove", "/"),
     ("create", "/"), ("zero", "/"), ("reserve", "/"), ("sync", "/"), ("sync_directory", "/index")],
)  # fmt: skip
def test_an_open_that_fails_lets_go_of_the_directory_and_loses_nothing(disk: Disk, operation: str, part: str) -> None:
    store = disk.open()
    for number in range(50):
        put(store, b"%d" % number)
    store.dispatch_now()
    disk.access = disk.access.crash(lambda path, page: False)
    disk.fail(operation, part, FAILURES[0])
    with pytest.raises((OSError, StoreError)):
        disk.open()
    disk.heal()
    assert bodies(disk.open()) == [b"%d" % number for number in range(50)]


def test_a_file_that_cannot_be_unlinked_is_removed_by_a_later_run(disk: Disk) -> None:
    store = disk.open()
    for number in range(40):
        put(store, b"%d" % number * 300)
    store.dispatch_now()
    disk.clock.advance_ms(1000)
    disk.fail("remove", "/commitlog/", OSError(errno.EIO, "Input/output error"))
    with pytest.raises(OSError, match="Input/output"):
        store.clean_now()
    first = disk.access.list_files(f"{ROOT}/commitlog")[0].name
    assert bodies(store), "what is not due can be read"
    assert put(store, b"new") is PutStatus.PUT_OK
    disk.heal()
    disk.clock.advance_ms(200_000)
    store.clean_now()
    assert disk.access.list_files(f"{ROOT}/commitlog")[0].name > first
    assert bodies(store)[-1] == b"new"
    store.close()
    assert bodies(disk.open())[-1] == b"new"


# The transient pool, on the real file system


def pooled(path: Path) -> LocalStore:
    settings = {**TINY, "transient_store_pool_enable": True, "transient_store_pool_size": 2}
    return LocalStore.open(path, flush_disk_type="SYNC_FLUSH", background=False, **settings)


def test_short_writes_of_the_transient_pool_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda number, data, at: whole(number, bytes(data)[: len(data) // 2 + 1], at))
    store = pooled(tmp_path / "store")
    expected = [b"%d" % number * 200 for number in range(30)]
    assert all(put(store, body) is PutStatus.PUT_OK for body in expected)
    assert bodies(store) == expected
    store.close()
    assert bodies(pooled(tmp_path / "store")) == expected


def test_a_write_torn_by_an_error_is_not_acknowledged_and_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = pooled(tmp_path / "store")
    assert put(store, b"safe") is PutStatus.PUT_OK
    store.dispatch_now()
    whole = os.pwrite

    def torn(descriptor: int, data: Any, at: int) -> int:
        whole(descriptor, bytes(data)[: len(data) // 2], at)
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", torn)
        assert put(store, b"unsure" * 100) is PutStatus.FLUSH_DISK_TIMEOUT
        assert put(store, b"late") is PutStatus.SERVICE_NOT_AVAILABLE
        assert [message.body for message in store.get("orders", 0, 0).messages] == [b"safe"]
        with pytest.raises(OSError, match="Input/output"):
            store.close()
    again = pooled(tmp_path / "store")
    assert bodies(again) == [b"safe"]
    assert put(again, b"new") is PutStatus.PUT_OK
    assert bodies(again) == [b"safe", b"new"]


# Files that vanished while the store was closed


def closed_store(disk: Disk) -> list[bytes]:
    store = disk.open()
    expected = [b"%d" % number * 300 for number in range(60)]
    for body in expected:
        assert put(store, body) is PutStatus.PUT_OK
    store.close()
    return expected


def vanish(disk: Disk, directory: str, number: int) -> None:
    path = f"{ROOT}/{directory}"
    disk.access.remove(f"{path}/{disk.access.list_files(path)[number].name}")


@pytest.mark.parametrize("number", [1, -1], ids=["in the middle", "the last"])
def test_a_vanished_log_file_is_damage_and_not_silently_shorter(disk: Disk, number: int) -> None:
    closed_store(disk)
    vanish(disk, "commitlog", number)
    with pytest.raises(StoreDamaged):
        disk.open()


@pytest.mark.parametrize("number", [0, -1], ids=["the first", "the last"])
@pytest.mark.parametrize("directory", ["consumequeue/orders/0", "index"])
def test_a_vanished_queue_or_index_file_is_made_again_from_the_log(disk: Disk, directory: str, number: int) -> None:
    expected = closed_store(disk)
    vanish(disk, directory, number)
    again = disk.open()
    assert bodies(again) == expected
    assert all(len(again.query("orders", f"key-{body.decode()[:8]}").messages) >= 1 for body in expected)
