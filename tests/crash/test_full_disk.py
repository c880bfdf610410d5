"""A real file system without room: producers get a status, nothing acknowledged is lost, and it heals."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from small_store import PATIENT, patient, pause_dispatch, resume_dispatch
from tiermq import Message
from tiermq.errors import DiskFull
from tiermq.status import GetStatus, PutStatus
from tiermq.store.local_store import LocalStore
from tiermq.store.readonly.check import check_store

pytestmark = pytest.mark.crash

DISK_BYTES = 4 << 20
BALLAST_BYTES = 1 << 20
NO_ROOM = {PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.CREATE_MAPPED_FILE_FAILED}
SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": 256 * 1024,
    "mapped_file_size_consume_queue": 20 * 500,
    "max_hash_slot_num": 500,
    "max_index_num": 2000,
    "clean_resource_interval": 3_600_000,  # Cleaning would make room behind the test's back.
    **PATIENT,
}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four mebibytes, with two files on it that can be removed to make room."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"tmpfs cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        for name in ("ballast", "reserve"):
            with (place / name).open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, BALLAST_BYTES)
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def opened(disk: Path, flush: str, **settings: Any) -> LocalStore:
    return patient(LocalStore.open(disk / "store", flush_disk_type=flush, **{**SMALL, **settings}))


def message(number: int) -> Message:
    return Message("orders", b"%d " % number * 100, number % 3, keys=[f"key-{number}"])


def fill(store: LocalStore, first: int = 0) -> tuple[list[int], PutStatus]:
    """Put until the store says no: the numbers of the messages that it took, and its answer."""
    taken: list[int] = []
    for number in range(first, first + 100_000):
        result = store.put(message(number))
        if not result.ok:
            return taken, result.status
        taken.append(number)
    raise AssertionError("a disk of four mebibytes took a hundred thousand messages")


def check(store: LocalStore, taken: list[int], keys: bool = True) -> None:
    """Everything that was taken can be got, in order and once, and found by its key."""
    store.dispatch_now()
    found = []
    for queue_id in range(3):
        offset = 0
        while offset < store.max_offset("orders", queue_id):
            page = store.get("orders", queue_id, offset)
            assert page.status is GetStatus.FOUND
            assert [each.queue_offset for each in page.messages] == list(range(offset, page.next_offset))
            found += [int(each.body.split()[0]) for each in page.messages]
            offset = page.next_offset
    assert sorted(found) == taken
    for number in [*taken[:10], *taken[-100:]] if keys else []:
        assert len(store.query("orders", f"key-{number}").messages) == 1


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_full_disk_refuses_puts_and_loses_nothing_and_room_heals_it(small_disk: Path, flush: str) -> None:
    store = opened(small_disk, flush)
    taken, answer = fill(store)
    assert answer in NO_ROOM
    assert len(taken) > 500
    for _ in range(5):  # It says so again, and goes on living. (A file made in advance may be given up for a few more.)
        more, answer = fill(store, first=taken[-1] + 1)
        assert answer in NO_ROOM
        taken += more
    assert store.put_many([Message("orders", b"x" * 60_000)])[0].status in NO_ROOM
    page = store.get("orders", 0, 0)
    assert page.status is GetStatus.FOUND
    (small_disk / "ballast").unlink()
    more, answer = fill(store, first=taken[-1] + 1)
    assert len(more) > 100, "there is room again"
    assert answer in NO_ROOM
    (small_disk / "reserve").unlink()  # Room for units and entries, which may have found none.
    check(store, taken + more)
    store.close()
    assert check_store(small_disk / "store").problem_count == 0
    with opened(small_disk, flush) as again:
        check(again, taken + more)


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_many_producers_meet_the_end_of_the_disk_together(small_disk: Path, flush: str) -> None:
    store = opened(small_disk, flush)
    with ThreadPoolExecutor(4) as threads:
        outcomes = list(threads.map(lambda at: fill(store, at * 100_000), range(4)))
    assert {answer for _, answer in outcomes} <= NO_ROOM
    (small_disk / "reserve").unlink()
    check(store, sorted(number for taken, _ in outcomes for number in taken))
    store.close()


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
@pytest.mark.parametrize("grown", ["queues", "index"])
def test_dispatch_waits_for_room_and_catches_up(small_disk: Path, flush: str, grown: str) -> None:
    """The log has its blocks already; queue units or index entries find none."""
    sizes: dict[str, dict[str, Any]] = {
        "queues": {"message_index_enable": False},
        "index": {"max_index_num": 100, "max_hash_slot_num": 20_000},
    }
    store = opened(small_disk, flush, **sizes[grown])
    first = store.put(message(0))
    assert first.ok
    store.dispatch_now()
    pause_dispatch(store)
    count = 400
    for number in range(1, count):
        assert store.put(message(number)).ok
    allocator = store._parts.allocator
    with allocator._changed:  # The next log file: if it found no room half way, it would give back what it had.
        allocator._changed.wait_for(lambda: not allocator._wanted and allocator._making is None)
    squeeze(small_disk)
    with pytest.raises(DiskFull):
        store.dispatch_now()
    assert store.get("orders", 0, 0).status is GetStatus.FOUND
    (small_disk / "squeeze").unlink()
    resume_dispatch(store)
    check(store, list(range(count)), keys=grown == "index")
    store.close()
    report = check_store(small_disk / "store", slot_count=20_000 if grown == "index" else None)
    assert report.problem_count == 0, report.problems


def squeeze(disk: Path) -> None:
    """Take every block that is left."""
    with (disk / "squeeze").open("wb") as file:
        size = 0
        step = 1 << 20
        while step >= 4096:
            try:
                os.posix_fallocate(file.fileno(), size, step)
                size += step
            except OSError:
                step //= 2


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_store_closed_on_a_full_disk_opens_again_or_reports_that_there_is_no_room(
    small_disk: Path, flush: str
) -> None:
    store = opened(small_disk, flush)
    taken, _ = fill(store)
    squeeze(small_disk)
    try:
        store.close()
    except DiskFull:
        assert (small_disk / "store" / "abort").exists()
    try:
        again = opened(small_disk, flush)
    except DiskFull:
        (small_disk / "squeeze").unlink()
        (small_disk / "ballast").unlink()
        again = opened(small_disk, flush)
    else:
        (small_disk / "squeeze").unlink()
        (small_disk / "ballast").unlink()
    check(again, taken)
    assert again.put(message(taken[-1] + 1)).ok
    again.close()
